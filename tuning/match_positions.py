"""PPD's match rates of sampled tokens, and by position in the answer (arXiv 2307.05908, tables 5 to 8).

    python -m tuning.match_positions models/code-large --heads models/code-large-heads
    python -m tuning.match_positions ~/.cache/tandem/models/smollm2-135m.gguf --chat --layers 15 22

The model answers held-out prompts: greedily, by top-k sampling (k 3) and by top-p sampling (p 0.95), as in the
paper. A token matches if it is among the k best of the early layer, read with the model's output matrix or with
the head of that layer in --heads.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from measure.report import table
from tuning import bita_prompts, corpus, early_features, early_heads, frozen_model, own_answers
from tuning.calibration import Sample
from tuning.early_heads import CANDIDATES, EarlyHeads
from tuning.frozen_model import FrozenModel

SPAN = 16  # positions that are counted together
LONGEST_QUESTION = 64
WAYS = {
    "greedy": dict(temperature=0),
    "top-k 3": dict(temperature=1, top_k=3, top_p=1.0),
    "top-p 0.95": dict(temperature=1, top_p=0.95),
}


@torch.no_grad()
def ranks(
    frozen: FrozenModel, samples: Sequence[Sample], layers: list[int], heads: EarlyHeads | None
) -> dict[int, list[np.ndarray]]:
    """By layer and sample: the rank of each output token among the layer's candidates, from 1."""
    found: dict[int, list[np.ndarray]] = {layer: [] for layer in layers}
    for sample in samples:
        rows = early_features.rows_that_write(sample)
        ids = torch.tensor([sample.prompt + sample.output])
        hidden = frozen.model.model(input_ids=ids, use_cache=False, output_hidden_states=True)
        chosen = torch.tensor(sample.output).unsqueeze(-1)
        for layer in layers:
            early = hidden.hidden_states[layer][0, rows]
            logits = early_features.read(
                frozen.model, early if heads is None else heads.of(layer)(early)
            )
            better = logits > logits.gather(-1, chosen)
            found[layer].append(1 + better.sum(-1).numpy())
    return found


def rates(by_sample: Sequence[np.ndarray], first: int = 0, end: int | None = None) -> list[float]:
    """Shares of tokens at positions [first, end) whose rank is at most each of CANDIDATES; nan without tokens."""
    picked = np.concatenate([r[first:end] for r in by_sample])
    if not len(picked):
        return [float("nan")] * len(CANDIDATES)
    return [float(np.mean(picked <= k)) for k in CANDIDATES]


def percents(shares: list[float]) -> str:
    return " / ".join("-" if np.isnan(share) else f"{100 * share:.1f}" for share in shares)


def sampled_table(by_way: dict[str, dict[str, dict[int, list[np.ndarray]]]]) -> str:
    """`by_way`: ranks by way, reader and layer."""
    first = next(iter(by_way.values()))
    lines = [
        [f"layer {layer}, {reader}", *(percents(rates(w[reader][layer])) for w in by_way.values())]
        for reader, by_layer in first.items()
        for layer in by_layer
    ]
    return table(["", *by_way], lines)


def position_table(readers: dict[str, dict[int, list[np.ndarray]]], longest: int) -> str:
    spans = range(0, longest, SPAN)
    lines = [
        [
            f"layer {layer}, {reader}",
            *(percents(rates(found, at, at + SPAN)) for at in spans),
            percents(rates(found)),
        ]
        for reader, by_layer in readers.items()
        for layer, found in by_layer.items()
    ]
    return table(["", *(f"{at + 1}-{at + SPAN}" for at in spans), "all"], lines)


def prompts_of(frozen: FrozenModel, arguments: argparse.Namespace) -> list[list[int]]:
    if arguments.chat:
        count = arguments.prompts
        return own_answers.questions(frozen, count, LONGEST_QUESTION, arguments.seed)
    _, held_out = corpus.split(corpus.read_documents(arguments.stdlib))
    texts = [document.text for document in held_out]
    return bita_prompts.code(frozen, texts, arguments.prompts, arguments.seed)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="a Hugging Face directory or a GGUF file")
    parser.add_argument("--heads", type=Path, help="a folder of heads (tuning.early_heads)")
    parser.add_argument("--layers", type=int, nargs="+", help="default: those of --heads, or half")
    parser.add_argument("--chat", action="store_true", help="the model's own questions as prompts")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stdlib", type=Path, default=corpus.standard_library())
    arguments = parser.parse_args()
    frozen = frozen_model.load(arguments.model)
    heads = early_heads.read_heads(arguments.heads) if arguments.heads else None
    count = frozen.shape["layers"]
    asked = arguments.layers or (sorted(map(int, heads)) if heads else [(count + 1) // 2])
    layers = early_heads.layers_of(asked, count)
    prompts = prompts_of(frozen, arguments)
    by_way: dict[str, dict[str, dict[int, list[np.ndarray]]]] = {}
    for name, draws in WAYS.items():
        samples = own_answers.write(
            frozen,
            prompts,
            arguments.new_tokens,
            frozen.ends,
            seed=arguments.seed,
            title=name,
            **draws,
        )
        by_way[name] = {"shared": ranks(frozen, samples, layers, None)}
        if heads:
            by_way[name]["trained"] = ranks(frozen, samples, layers, heads)
        tokens = sum(len(sample.output) for sample in samples)
        print(f"{name}: {len(samples)} answers, {tokens} tokens", flush=True)
    ks = " / ".join(map(str, CANDIDATES))
    print(f"\nMatch rates in percent, k {ks}:\n\n{sampled_table(by_way)}")
    print(f"\nGreedy, by position:\n\n{position_table(by_way['greedy'], arguments.new_tokens)}")


if __name__ == "__main__":
    main()
