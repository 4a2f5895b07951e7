"""tuning/draft_context: rounds of drafts on an answer."""

from tuning.draft_context import MOST, rounds


def test_a_round_ends_behind_a_wrong_or_unlikely_draft_or_with_the_answer():
    assert rounds([True] * (MOST + 1), [0.9] * (MOST + 1)) == 1
    assert rounds([True] * (MOST + 2), [0.9] * (MOST + 2)) == 2
    assert rounds([True, False, True, True], [0.9] * 4) == 2
    assert rounds([True, True, True, True], [0.9, 0.4, 0.4, 0.9]) == 3
    assert rounds([False] * 3, [0.9] * 3) == 3
