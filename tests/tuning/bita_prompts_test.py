"""tuning/bita_prompts.py: where prompts come from."""

import pytest

from tuning import bita_prompts, frozen_model

FILE = '''
import os

def first(a, b):
    """Adds."""
    return a + b

def without(a):
    return a

def third(text):
    """Says what it is.

    >>> third("a")
    """
    return text
'''


class Letters:
    """A tokenizer of characters."""

    class Encoded:
        def __init__(self, text):
            self.ids = [ord(c) for c in text]

    def encode(self, text):
        return self.Encoded(text)


def test_functions_end_with_their_docstring():
    frozen = frozen_model.FrozenModel(None, Letters(), (0,))
    files = [FILE, "no python (", "x = 1"]
    found = bita_prompts.functions(frozen, files, 2, seed=1)
    texts = {"".join(map(chr, ids)) for ids in found}
    assert texts == {
        'def first(a, b):\n    """Adds."""',
        'def third(text):\n    """Says what it is.\n\n    >>> third("a")\n    """',
    }
    assert bita_prompts.functions(frozen, files, 2, seed=1) == found
    with pytest.raises(ValueError, match="at most 2"):
        bita_prompts.functions(frozen, files, 3, seed=1)
