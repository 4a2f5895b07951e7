"""Measurements. The C++ programs beside this file measure our own parts; `bench.peers` other servers, too."""
