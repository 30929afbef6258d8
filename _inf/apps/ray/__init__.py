"""Many engines on Ray: `inf batch --workers`, and `inf.InferenceWorker` for your own pipelines."""
