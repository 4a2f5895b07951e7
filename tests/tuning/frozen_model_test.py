"""tuning/frozen_model.py: models that nothing trains."""

import torch

from tuning import frozen_model
from tuning.shapes import llama, new_model


def test_the_last_rows_of_texts_are_read_without_gaps(tmp_path):
    """With gaps PyTorch copies the output matrix once for each text."""
    config = llama(hidden=32, layers=1, heads=4, key_value_heads=2, inner=48, vocabulary=96)
    new_model(config, 3).save_pretrained(tmp_path)
    loaded = frozen_model.load_weights(tmp_path)
    plain = type(loaded).from_pretrained(tmp_path, dtype=torch.float32).eval()
    seen = {}
    for name, model in (("loaded", loaded), ("plain", plain)):
        model.lm_head.register_forward_hook(
            lambda _, inputs, out, name=name: seen.update({name: inputs[0]})
        )
    ids = torch.randint(1, 96, (3, 5), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        a, b = (model(input_ids=ids, logits_to_keep=1).logits for model in (loaded, plain))
    assert torch.allclose(a, b, atol=1e-6)
    assert seen["loaded"].is_contiguous()
    assert not seen["plain"].is_contiguous(), "this test sees nothing"
