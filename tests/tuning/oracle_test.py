"""tuning/oracle.py: a large model replaces tokens of a small one."""

import torch

from tuning import oracle
from tuning.evaluate.measure import Task
from tuning.oracle import Written

END = 0


class Model:
    """Writes a token after each token, with probability 0.9."""

    def __init__(self, following):
        self.following = following

    def __call__(self, input_ids, past_key_values, use_cache):
        chances = torch.full((len(input_ids), 1, 16), 0.1 / 15)
        for row, ids in enumerate(input_ids.tolist()):
            chances[row, 0, self.following[ids[-1]]] = 0.9
        return type("Out", (), {"logits": chances.log(), "past_key_values": None})


SMALL = Model({1: 2, 2: END, 5: 6, 6: 7, 7: 8, END: 3, 3: 3})
LARGE = Model({1: 2, 2: END, 5: 6, 6: 7, 7: 9, END: 4, 3: 3, 4: 4})


def test_unlikely_tokens_are_replaced():
    found = oracle.write(LARGE, SMALL, [[1], [5]], 3, 0.5, END)
    assert found.tokens == [[2], [6, 7, 9]]
    assert (found.written, found.replaced) == (5, 1)  # what follows the end differs, too
    likely = 0.1 / 15
    kept = oracle.write(LARGE, SMALL, [[1], [5]], 3, 0.9 * likely, END)
    assert kept.tokens == [[2], [6, 7, 8]] and kept.share == 0
    changed = oracle.write(LARGE, SMALL, [[1], [5]], 3, 1.1 * likely, END)
    assert changed.tokens == found.tokens and changed.share == 1 / 5


def test_line():
    tasks = [Task((1,), (5, 6)), Task((1,), (5, 7))]
    mixed = Written([[5, 6], [5, 6]], replaced=1, written=4)
    own = Written([[5, 6], [5, 7]], replaced=2, written=4)
    assert oracle.line(0.1, mixed, own, tasks) == ["0.1", "25.0", "75.0", "75.0"]
