"""Similarity of two texts, given as lists of token ids or words."""

import re

import numpy as np


def edit_similarity(a: list[int], b: list[int]) -> float:
    """1 less the Levenshtein distance per token of the longer one; two empty texts are equal."""
    if a == b:
        return 1.0
    other, steps = np.array(b), np.arange(len(b) + 1)
    row = steps.copy()  # distances of the part of `a` so far to every beginning of `b`
    for i, token in enumerate(a, start=1):
        best = np.empty_like(row)
        best[0] = i
        best[1:] = np.minimum(row[1:] + 1, row[:-1] + (other != token))
        # An insertion of b[j] costs one more than what is left of it.
        row = np.minimum.accumulate(best - steps) + steps
    return 1 - int(row[-1]) / max(len(a), len(b))


def rouge_l(a: list[int], b: list[int]) -> float:
    """ROUGE-L of tokens: harmonic mean of the longest common subsequence's shares of `a` and `b`."""
    if not a or not b:
        return float(a == b)
    other = np.array(b)
    row = np.zeros(len(b) + 1, dtype=np.int64)
    for token in a:
        best = row.copy()
        best[1:] = np.maximum(row[1:], row[:-1] + (other == token))
        row = np.maximum.accumulate(best)
    return 2 * int(row[-1]) / (len(a) + len(b))


def words(text: str) -> list[str]:
    """Words as ROUGE counts them: runs of letters a to z and digits, in lower case, not stemmed."""
    return re.findall(r"[a-z0-9]+", text.lower())


def rouge_l_of_texts(a: str, b: str) -> float:
    """ROUGE-L of words (Lin 2004), the F-measure with precision and recall weighing the same."""
    known: dict[str, int] = {}
    first, second = ([known.setdefault(w, len(known)) for w in words(text)] for text in (a, b))
    return rouge_l(first, second)
