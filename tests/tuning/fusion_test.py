"""What is fed to the small model of LLM-to-SLM: which rows, and how they are laid beside its own."""

import numpy as np
import torch

from tuning import fusion
from tuning.shapes import llama, new_model

SHAPE = llama(hidden=16, layers=3, heads=2, key_value_heads=1, inner=24, vocabulary=40)


@torch.no_grad()
def test_rows_are_those_between_two_layers():
    model = new_model(SHAPE, seed=1).eval()
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    states = model(input_ids=ids, output_hidden_states=True).hidden_states
    for layer in (1, 2):
        assert torch.equal(fusion.hidden_rows(model, ids, layer), states[layer])


def test_prompts_alone_are_fused():
    embedded, projected = torch.ones(2, 5, 3), torch.full((2, 4, 3), 10.0)
    prompt = torch.tensor([4, 2])
    added = fusion.fused_rows(embedded, projected, prompt, "add")[:, :, 0]
    assert added.tolist() == [[11, 11, 11, 11, 1], [11, 11, 1, 1, 1]]
    replaced = fusion.fused_rows(embedded, projected, prompt, "replace")[:, :, 0]
    assert replaced.tolist() == [[10, 10, 10, 10, 1], [10, 10, 1, 1, 1]]


# The same cases as tests/engine/host/alignment_test.cpp: the server lays rows as they were in training.
def test_a_row_goes_to_the_tokens_that_end_in_its_token():
    def rows(large, small):
        return fusion.aligned_rows(np.array(large), np.array(small)).tolist()

    assert rows([3, 2, 1], [1, 2, 1, 1, 1]) == [0, 0, 1, 1, 2]
    assert rows([1, 2, 1, 1, 1], [3, 2, 1]) == [1, 3, 4]
    assert rows([0, 1, 1, 1], [1, 1, 1]) == [1, 2, 3]  # special tokens have no bytes
    assert rows([1, 1, 1], [0, 1, 1, 1]) == [0, 0, 1, 2]
    assert rows([1, 1, 1, 1], [1, 1]) == [1, 3]  # other lengths are scaled
