"""Benchmarks that compare the server with other programs on the same machine, weights and run."""
