"""Many engines on Ray: `inf batch --workers`, and `inf.InferenceWorker` for one's own pipelines."""
