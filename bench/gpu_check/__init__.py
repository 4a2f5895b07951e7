"""Checks a GPU node with one folder, which scripts/gpu_check --bundle makes (docs/gpu_check.md)."""
