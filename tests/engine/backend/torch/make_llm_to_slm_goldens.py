"""Makes tests/data/llm_to_slm: projectors between golden models, and what PyTorch computes with them.

    python tests/engine/backend/torch/make_llm_to_slm_goldens.py [--out tests/data/llm_to_slm]

Each folder is an adapter of `mistral` for rows of `llama3` (tests/data/golden_models), with
golden.safetensors beside it: `prompt_lengths` [prompts], `prompts` [prompts, longest], `greedy` [prompts,
new tokens] in fp64, and `logits` [prompts, new tokens, vocabulary] in fp32 of the rows that say
them. With `replace` the prompts are llama3's alone: mistral does not know all of their ids.
"""

import argparse
import pathlib

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from tuning import llm_to_slm, projector_file

MODELS = pathlib.Path(__file__).resolve().parents[3] / "data/golden_models"
LENGTHS = [1, 2, 5, 17, 33, 48]
NEW_TOKENS = 24
MIN_MARGIN = 2e-3  # between the two largest logits, at every generated token
PAIRS = {
    "add": dict(layer=2, fusion="add", tokens="shared", seed=11),
    "replace": dict(layer=3, fusion="replace", tokens="source", seed=12),
}


def load(name, dtype):
    model = AutoModelForCausalLM.from_pretrained(
        MODELS / name, dtype=dtype, attn_implementation="eager"
    )
    return model.requires_grad_(False).eval()


def written(large, small, projector, prompt, pair):
    """Greedy tokens, and the logits [NEW_TOKENS, vocabulary] that said them."""
    text, said = [], []
    rows = projector(llm_to_slm.hidden_rows(large, prompt[None], pair["layer"]))
    known = prompt if pair["fusion"] == "add" else torch.zeros_like(prompt)
    for _ in range(NEW_TOKENS):
        ids = torch.cat([known, torch.tensor(text, dtype=torch.long)])[None]
        length = torch.tensor([len(prompt)])
        said.append(llm_to_slm.fused_logits(small, rows, ids, length, pair["fusion"])[0, -1])
        text.append(int(said[-1].argmax()))
    return text, torch.stack(said)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, default=MODELS.parent / "llm_to_slm")
    out = parser.parse_args().out
    models = {
        dtype: (load("llama3", dtype), load("mistral", dtype))
        for dtype in (torch.float32, torch.float64)
    }
    for name, pair in PAIRS.items():
        large, small = models[torch.float32]
        torch.manual_seed(pair["seed"])
        sizes = large.config.hidden_size, small.config.hidden_size
        projector = llm_to_slm.new_projector(*sizes, pair["seed"])
        scale = small.get_input_embeddings().weight.std()
        torch.nn.init.normal_(projector[2].weight, std=float(scale) * 0.5)
        torch.nn.init.normal_(projector[2].bias, std=float(scale) * 0.1)
        projector.requires_grad_(False)
        projector_file.save(
            out / name, projector, large, small, pair["layer"], pair["fusion"], pair["tokens"]
        )
        vocabulary = (small if pair["tokens"] == "shared" else large).config.vocab_size
        random = torch.Generator().manual_seed(pair["seed"])
        prompts, greedy, logits = [], [], []
        for length in LENGTHS:
            while True:
                prompt = torch.randint(3, vocabulary, (length,), generator=random)
                tokens, exact = written(*models[torch.float64], projector.double(), prompt, pair)
                best = exact.topk(2).values
                if (best[:, 0] - best[:, 1]).min() >= MIN_MARGIN:
                    break
            _, single = written(large, small, projector.float(), prompt, pair)
            prompts.append(torch.nn.functional.pad(prompt, (0, max(LENGTHS) - length)))
            greedy.append(tokens)
            logits.append(single)
        save_file(
            {
                "prompt_lengths": torch.tensor(LENGTHS, dtype=torch.int32),
                "prompts": torch.stack(prompts).int(),
                "greedy": torch.tensor(greedy, dtype=torch.int32),
                "logits": torch.stack(logits),
            },
            out / name / "golden.safetensors",
        )
        (out / name / "golden.safetensors").chmod(0o644)


if __name__ == "__main__":
    main()
