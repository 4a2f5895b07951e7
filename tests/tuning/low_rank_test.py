import torch

from tuning import low_rank
from tuning.shapes import llama, new_model

SHAPE = llama(hidden=16, layers=2, heads=2, key_value_heads=1, inner=24, vocabulary=40)


def test_it_begins_as_the_model_and_is_merged_into_it():
    model, same = new_model(SHAPE, seed=1), new_model(SHAPE, seed=1)
    ids = torch.tensor([[1, 2, 3]])
    names = list(model.state_dict())
    model.requires_grad_(False)
    trained = low_rank.add(model, rank=2, seed=1)
    assert len(trained) == 2 * 7 * 2 and all(p.requires_grad for p in trained)
    assert torch.equal(model(input_ids=ids).logits, same(input_ids=ids).logits)
    for up in trained[1::2]:
        torch.nn.init.normal_(up, std=0.1)
    with torch.no_grad():
        before = model(input_ids=ids).logits
        low_rank.merge(model)
        torch.testing.assert_close(model(input_ids=ids).logits, before)
    assert list(model.state_dict()) == names
    assert not torch.equal(before, same(input_ids=ids).logits)
    assert torch.equal(model.lm_head.weight, same.lm_head.weight)
