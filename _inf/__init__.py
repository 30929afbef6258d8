"""What `inf.InferenceEngine` is built from, one room a noun. Import from `inf`, not from here."""
