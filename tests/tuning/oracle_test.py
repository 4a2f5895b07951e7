"""tuning/oracle.py: a large model replaces tokens of a small one."""

import pytest
import torch

from tuning import oracle
from tuning.evaluate.measure import Task
from tuning.oracle import Written
from tuning.shapes import llama, new_model

END = 0


@pytest.fixture(scope="module")
def models():
    config = llama(hidden=16, layers=2, heads=2, key_value_heads=1, inner=24, vocabulary=64)
    made = [new_model(config, seed).eval().requires_grad_(False) for seed in (1, 2)]
    for model in made:
        for matrix in model.parameters():
            matrix.mul_(4)
    return made


PROMPTS = [[3, 4, 5], [6, 7, 8], [9, 10, 11]]


def greedy(model, prompt, count):
    ids = list(prompt)
    with torch.no_grad():
        while len(ids) < len(prompt) + count:
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] == END:
                return ids[len(prompt) : -1]
    return ids[len(prompt) :]


def test_the_ends_are_the_models_own_texts(models):
    large, small = models
    none = oracle.write(large, small, PROMPTS, 6, 0, END)
    every = oracle.write(large, small, PROMPTS, 6, 2, END)
    assert none.tokens == [greedy(small, p, 6) for p in PROMPTS] and none.replaced == 0
    assert every.tokens == [greedy(large, p, 6) for p in PROMPTS] and every.replaced > 0
    assert none.tokens != every.tokens


def test_unlikely_tokens_are_replaced(models):
    large, small = models
    (prompt,) = PROMPTS[:1]
    with torch.no_grad():
        proposed = int(small(input_ids=torch.tensor([prompt])).logits[0, -1].argmax())
        chances = large(input_ids=torch.tensor([prompt])).logits[0, -1].softmax(-1)
    likely = float(chances[proposed])
    assert int(chances.argmax()) != proposed
    kept = oracle.write(large, small, [prompt], 1, 0.9 * likely, END)
    changed = oracle.write(large, small, [prompt], 1, 1.1 * likely, END)
    assert kept.tokens == [[proposed]] and kept.share == 0
    assert changed.tokens == [[int(chances.argmax())]] and changed.share == 1


def test_ended_answers_are_not_counted():
    class Model:
        """Writes a token after each token."""

        def __init__(self, following):
            self.following = following

        def __call__(self, input_ids, past_key_values, use_cache):
            logits = torch.zeros(len(input_ids), 1, 16)
            for row, ids in enumerate(input_ids.tolist()):
                logits[row, 0, self.following[ids[-1]]] = 9.0
            return type("Out", (), {"logits": logits, "past_key_values": None})

    small = Model({1: 2, 2: END, 5: 6, 6: 7, 7: 8, END: 3, 3: 3})
    large = Model({1: 2, 2: END, 5: 6, 6: 7, 7: 9, END: 4, 3: 3, 4: 4})
    found = oracle.write(large, small, [[1], [5]], 3, 0.5, END)
    assert found.tokens == [[2], [6, 7, 9]]
    assert (found.written, found.replaced) == (5, 1)  # what follows the end differs, too


def test_line():
    tasks = [Task((1,), (5, 6)), Task((1,), (5, 7))]
    mixed = Written([[5, 6], [5, 6]], replaced=1, written=4)
    own = Written([[5, 6], [5, 7]], replaced=2, written=4)
    assert oracle.line(0.1, mixed, own, tasks) == ["0.1", "25.0", "75.0", "75.0"]
    assert len(oracle.HEAD) == 4
