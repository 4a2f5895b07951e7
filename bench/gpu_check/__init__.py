"""Judges a GPU node with one folder that scripts/gpu_check --bundle makes (docs/gpu_check.md)."""
