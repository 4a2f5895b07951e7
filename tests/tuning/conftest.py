"""Lets the tests import `tuning` from any working directory, and holds what they share."""

import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tuning import corpus, vocabulary  # noqa: E402

torch.set_num_threads(1)  # the models here are too small for more


@pytest.fixture(scope="session")
def texts():
    """About 0.5 MB of real source: every top-level module that is not too long."""
    library = corpus.standard_library()
    files = sorted(library.glob("*.py"))[:60]
    return [file.read_text("utf-8") for file in files if file.stat().st_size < 60_000]


@pytest.fixture(scope="session")
def tokenizer(texts):
    """A small tokenizer with the shipped one's rules."""
    return vocabulary.train_tokenizer(texts, size=512)
