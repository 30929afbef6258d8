"""`inf batch`: answers a file of requests into another file, and can resume after a stop."""
