"""Training and evaluation of models. Serving does not need this package."""
