"""`inf batch`: a file of requests in, a file of answers out, begun again where it stopped."""
