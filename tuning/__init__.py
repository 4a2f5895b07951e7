"""Offline training and evaluation for Tandem's models. Nothing here is needed to serve them."""
