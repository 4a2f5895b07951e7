"""Small functions that a model describes itself, as prompts like HumanEval's: head and docstring."""

import re
from collections.abc import Iterable

import numpy as np

SHORTEST, LONGEST = 100, 700  # characters
PHRASE = 8  # words in a row that an exercise must not share with an evaluation

EXAMPLES = (
    '''def mean_of_positives(values: list) -> float:
    """ Return the mean of all numbers above zero in values, or 0.0 if there are none.
    >>> mean_of_positives([1, -2, 3])
    2.0
    >>> mean_of_positives([])
    0.0
    """
''',
    '''def merge_close(intervals, gap):
    """
    You are given a sorted list of intervals (start, end) and a number gap.
    Join all neighbours whose distance is at most gap, and return the new list.

    Example:
    merge_close([(1, 2), (3, 4)], 1) ==> [(1, 4)]
    merge_close([(1, 2), (9, 12)], 1) ==> [(1, 2), (9, 12)]
    """
''',
    '''def caesar_digits(text: str, shift: int) -> str:
    """
    Shift each digit of text by shift, modulo ten. Other characters stay as they are.
    For text = "a9b1" and shift = 2, the output should be "a1b3".
    """
''',
    '''def longest_run(word: str) -> int:
    """ Length of the longest run of one character in word.

    longest_run("aabbbc") = 3
    longest_run("") = 0
    """
''',
    '''def grid_paths(rows, columns, blocked):
    """Count the ways from the upper left to the lower right cell of a grid, moving right or down only.
    Cells in the set blocked cannot be used. Return 0 if there is no way.

    For example:
    grid_paths(2, 2, set()) should return 2.
    """
''',
)
TOPICS = [
    "strings", "lists of integers", "prime numbers", "dictionaries", "sorting", "matrices",
    "parentheses", "dates", "digits of numbers", "sets", "words of a sentence", "binary numbers",
    "sequences and recursion", "geometry", "files and paths", "counting", "filtering",
    "encoding and decoding", "vowels and letters", "arrays and subarrays", "money", "grades",
    "divisors", "palindromes", "nested lists", "text parsing", "statistics", "games", "intervals",
    "queues and stacks", "graphs", "trees", "rounding", "substrings", "validation", "conversion",
    "polynomials", "pairs and sums", "minimum and maximum", "anagrams",
]  # fmt: skip
HEAD = re.compile(r' (\w+)\(.*?\)[^\n]*:\n    """.*?"""', re.DOTALL)
TYPES = re.compile(r"\b(?:Any|Dict|List|Optional|Set|Tuple|Union)\b")


def request(number: int, seed: int) -> str:
    """A prompt to continue with a function: three examples and a topic."""
    random = np.random.default_rng((seed, number))
    examples = random.permutation(len(EXAMPLES))[:3]
    shown = "".join(f"{EXAMPLES[i]}    ...\n\n\n" for i in examples)
    return f"{shown}# About {TOPICS[random.integers(len(TOPICS))]}.\ndef"


def words(text: str) -> list[str]:
    return re.findall(r"[a-z]+|\d+", text.lower())


def phrases(text: str) -> set[tuple[str, ...]]:
    all_words = words(text)
    return {tuple(all_words[i : i + PHRASE]) for i in range(len(all_words) - PHRASE + 1)}


def collect(written: Iterable[str], evaluation: Iterable[str] = ()) -> list[str]:
    """Heads of the functions in continuations of request(), in order. Leaves out incomplete ones, those of a known
    name, and those that share a name or a phrase with the prompts of an evaluation."""
    names = {text[4 : text.index("(")] for text in EXAMPLES}
    taken: set[tuple[str, ...]] = set()
    for prompt in evaluation:
        names.update(re.findall(r"^def (\w+)", prompt, re.MULTILINE))
        taken |= phrases(prompt)
    heads = []
    for text in written:
        found = HEAD.match(text)
        head = found and "def" + found[0]
        if not head or not SHORTEST < len(head) < LONGEST:
            continue
        if found[1] in names or phrases(head) & taken:
            continue
        names.add(found[1])
        heads.append(head)
    return heads


def with_imports(head: str) -> str:
    """The head behind an import of the types that it names."""
    types = sorted(set(TYPES.findall(head)))
    return f"from typing import {', '.join(types)}\n\n\n{head}" if types else head
