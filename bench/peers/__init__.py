"""Compares the server with other engines on the same machine, in the same run, with the same weights."""
