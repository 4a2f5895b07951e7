"""Makes tests/data/golden_masks: adapters of masks and prompts for golden models, and what Transformers
says of mask rows as the training feeds them (tuning/mask_rows.py).

    python3 tests/engine/backend/torch/make_mask_goldens.py

golden.safetensors: `text` [n] ids; `at` [groups] the rows that masks hang on; `logprobs` [groups, M,
vocabulary].
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

ROOT = Path(__file__).resolve().parents[4]
sys.path.insert(0, str(ROOT))

from tuning import frozen_model, mask_rows  # noqa: E402

MODELS = {
    "llama3": (21, 0),
    "mistral": (5, 0),
    "qwen2": (16, 3),
}  # their prompt rows: odd, few, a page of them; and the rank of additions
MASKS = 3
LENGTH = 40  # longer than a window and a few pages


def main() -> None:
    for name, (prompts, rank) in MODELS.items():
        model = frozen_model.load_weights(ROOT / "tests/data/golden_models" / name, torch.float64)
        own = mask_rows.MaskParameters(model, MASKS, prompts, seed=1, rank=rank).double()
        random = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for parameter in own.parameters():
                parameter.mul_(25)  # so that what prompts change is seen
            for addition in own.additions:
                addition.down.div_(25)
                addition.up.copy_(0.2 * torch.randn(addition.up.shape, generator=random))
        folder = ROOT / "tests/data/golden_masks" / name
        mask_rows.write(folder, model, own)
        own = mask_rows.shipped(model, folder).double()  # as the files have it
        text = torch.randint(0, 100, (1, LENGTH), generator=torch.Generator().manual_seed(2))
        at = torch.tensor([[0, 17, LENGTH - 1]])
        with torch.no_grad():
            past = mask_rows.context(model, text)
            hidden = mask_rows.hidden_rows(model, own, past, at)
            logprobs = torch.log_softmax(model.lm_head(hidden), -1)[0]
        golden = {"text": text[0].float(), "at": at[0].float(), "logprobs": logprobs.float()}
        save_file(
            {key: tensor.contiguous() for key, tensor in golden.items()},
            folder / "golden.safetensors",
        )
        for file in folder.iterdir():
            file.chmod(0o644)
        print(name, tuple(logprobs.shape))


if __name__ == "__main__":
    main()
