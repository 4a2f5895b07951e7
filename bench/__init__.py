"""Benchmarks. The C++ programs measure parts of Tandem; `bench.peers` compares with other engines."""
