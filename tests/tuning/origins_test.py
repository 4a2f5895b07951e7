"""tuning/origins.py: marks of the tokens' origins."""

from types import SimpleNamespace

from evaluate_test import messages  # noqa: F401

from tuning import origins


def test_neighbours_of_one_origin_share_a_mark(messages):  # noqa: F811
    letters = SimpleNamespace(decode=lambda ids: "".join(map(chr, ids)))
    large, small = messages.SOURCE_LARGE, messages.SOURCE_SMALL
    tokens = [
        messages.Token(id=ord(letter), proposed=proposed, corrected=corrected)
        for letter, proposed, corrected in (
            ("a", large, False),
            ("b", small, False),
            ("c", small, False),
            ("d", large, True),
            ("e", large, False),
            ("f", large, False),
        )
    ]
    assert origins.marked(tokens, messages, letters) == "[a]bc{d}[ef]"
    assert origins.counts(tokens, messages) == "small 2, large 3, corrected 1"
