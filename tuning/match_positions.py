"""PPD's match rates of sampled tokens, and by position in the answer (arXiv 2307.05908, tables 5 to 8).

    python -m tuning.match_positions models/code-large --heads models/code-large-heads

The model answers held-out prompts greedily, by top-k (3) and by top-p sampling (0.95), as in the paper. A token
matches if it is among the k best of an early layer, read with the output matrix or with the heads of --heads.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from measure.report import table
from tuning import bita_prompts, corpus, early_features, early_heads, frozen_model, own_answers
from tuning.calibration import Sample
from tuning.early_heads import CANDIDATES, EarlyHeads
from tuning.frozen_model import FrozenModel

SPAN = 16  # positions that are counted together
WAYS = {
    "greedy": dict(temperature=0),
    "top-k 3": dict(temperature=1, top_k=3, top_p=1.0),
    "top-p 0.95": dict(temperature=1, top_p=0.95),
}


@torch.no_grad()
def ranks(
    frozen: FrozenModel, samples: list[Sample], layers: list[int], heads: EarlyHeads | None
) -> dict[int, list[np.ndarray]]:
    """By layer and sample: the rank of each output token among the layer's candidates, from 1."""
    found: dict[int, list[np.ndarray]] = {layer: [] for layer in layers}
    for sample in samples:
        rows = early_features.rows_that_write(sample)
        ids = torch.tensor([sample.prompt + sample.output])
        states = frozen.model.model(input_ids=ids, use_cache=False, output_hidden_states=True)
        chosen = torch.tensor(sample.output).unsqueeze(-1)
        for layer in layers:
            early = states.hidden_states[layer][0, rows]
            hidden = early if heads is None else heads.of(layer)(early)
            logits = early_features.read(frozen.model, hidden)
            found[layer].append(1 + (logits > logits.gather(-1, chosen)).sum(-1).numpy())
    return found


def rates(by_sample: list[np.ndarray], first: int = 0, end: int | None = None) -> str:
    """Percent of the tokens at positions [first, end) whose rank is at most each of CANDIDATES."""
    picked = np.concatenate([r[first:end] for r in by_sample])
    return " / ".join(
        f"{100 * np.mean(picked <= k):.1f}" if len(picked) else "-" for k in CANDIDATES
    )


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("model", type=Path, help="a Hugging Face directory or a GGUF file")
    parser.add_argument("--heads", type=Path, help="a folder of heads (tuning.early_heads)")
    parser.add_argument("--layers", type=int, nargs="+", help="default: from half of them on")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--stdlib", type=Path, default=corpus.standard_library())
    given = parser.parse_args()
    frozen = frozen_model.load(given.model)
    readers = {"shared": None}
    if given.heads:
        readers["trained"] = early_heads.read_heads(given.heads)
    layers = early_heads.layers_of(given.layers, frozen.shape["layers"])
    _, held_out = corpus.split(corpus.read_documents(given.stdlib))
    texts = [document.text for document in held_out]
    prompts = bita_prompts.code(frozen, texts, given.prompts, 1)
    spans = range(0, given.new_tokens, SPAN)
    columns = [f"{at + 1}-{at + SPAN}" for at in spans]
    lines = []
    for way, draws in WAYS.items():
        samples = own_answers.write(
            frozen, prompts, given.new_tokens, frozen.ends, seed=1, title=way, **draws
        )
        for reader, heads in readers.items():
            for layer, found in ranks(frozen, samples, layers, heads).items():
                by_span = (rates(found, at, at + SPAN) for at in spans)
                lines.append([way, f"layer {layer}, {reader}", rates(found), *by_span])
    print(f"Match rates in percent, k {' / '.join(map(str, CANDIDATES))}, by position:\n")
    print(table(["", "", "all", *columns], lines))


if __name__ == "__main__":
    main()
