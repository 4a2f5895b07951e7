"""Compares a small model with a large one of the same tokenizer, on held-out files.

    python -m tuning.evaluate_pair models/code-large models/code-small

Prints bits per byte, agreement of the best tokens, acceptance of speculative sampling (by the ratio rule and by
match), and the cost of a pass. Computes in float32.
"""

import argparse
import json
import math
import time
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from tuning import corpus
from tuning.heldout import HeldOut
from tuning.shapes import multiplications_per_token

TEMPERATURES = (0.5, 1.0)


def kept(log_p: torch.Tensor, log_q: torch.Tensor, generator: torch.Generator) -> dict[str, float]:
    """The chances that a token drawn from q is kept as one of p's, summed over rows.

    ratio: sum(min(p, q)), that of the papers' rule (Leviathan and others 2023, corollary 3.6).
    match: that both draw the same token in one exponential race, argmin(E / p) and argmin(E / q)
    (engine/sampling/race.h); the share of one race a row.
    """
    race = torch.empty_like(log_p).exponential_(generator=generator).log()
    same = (race - log_p).argmin(-1) == (race - log_q).argmin(-1)
    return {
        "ratio": torch.minimum(log_p, log_q).exp().sum().item(),
        "match": same.sum().item(),
    }


@torch.no_grad()
def compare(large: LlamaForCausalLM, small: LlamaForCausalLM, held_out: HeldOut) -> dict:
    """Both models over the same held-out rows.

    agreement: the share of positions where both have the same likeliest token, which is how often
    greedy speculative decoding keeps one drafted token on this text. acceptance: the mean over
    positions of kept(), by temperature.
    """
    nats = {"large": 0.0, "small": 0.0}
    agreement = 0.0
    acceptance = {t: {"ratio": 0.0, "match": 0.0} for t in TEMPERATURES}
    generator = torch.Generator().manual_seed(0)
    for inputs, targets, counts in tqdm(list(held_out.batches(8)), unit="batch"):
        chosen = targets[counts].unsqueeze(-1)
        log_p, log_q = (
            model(input_ids=inputs, use_cache=False).logits[counts].float().log_softmax(-1)
            for model in (large, small)
        )
        nats["large"] -= log_p.gather(-1, chosen).sum().item()
        nats["small"] -= log_q.gather(-1, chosen).sum().item()
        agreement += (log_p.argmax(-1) == log_q.argmax(-1)).sum().item()
        for temperature, sums in acceptance.items():
            warped = ((x / temperature).log_softmax(-1) for x in (log_p, log_q))
            for rule, chance in kept(*warped, generator).items():
                sums[rule] += chance
    return {
        "bits_per_byte": {
            name: value / math.log(2) / held_out.bytes for name, value in nats.items()
        },
        "agreement": agreement / held_out.tokens,
        "acceptance": {
            t: {rule: total / held_out.tokens for rule, total in sums.items()}
            for t, sums in acceptance.items()
        },
        "held_out_bytes": held_out.bytes,
        "held_out_tokens": held_out.tokens,
    }


@torch.no_grad()
def milliseconds_per_pass(
    model: LlamaForCausalLM, rows: int, context: int, passes: int = 20
) -> float:
    """The median time of a pass over `rows` tokens behind `context` cached ones, by Transformers.

    One row of a small model mostly measures what Transformers spends per layer; many rows show
    the cost of the arithmetic.
    """
    times = []
    cache = model(input_ids=torch.zeros(1, context, dtype=torch.long)).past_key_values
    for _ in range(passes):
        started = time.perf_counter()
        model(input_ids=torch.zeros(1, rows, dtype=torch.long), past_key_values=cache)
        times.append(1000 * (time.perf_counter() - started))
        cache.crop(-rows)
    return sorted(times)[passes // 2]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("large", type=Path)
    parser.add_argument("small", type=Path)
    parser.add_argument("--stdlib", type=Path, default=corpus.standard_library())
    parser.add_argument("--threads", type=int, help="CPU threads (default: all)")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    tokenizer = AutoTokenizer.from_pretrained(arguments.large).backend_tokenizer
    models = {
        name: AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        for name, folder in (("large", arguments.large), ("small", arguments.small))
    }
    large, small = models["large"], models["small"]
    _, held_out = corpus.split(corpus.read_documents(arguments.stdlib))
    texts = [document.text for document in held_out]
    length = large.config.max_position_embeddings
    result = compare(large, small, HeldOut(tokenizer, texts, length))
    context = 256
    result["cost"] = {
        name: {
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "multiplications_per_token": multiplications_per_token(model.config, context),
            "milliseconds_per_pass": {
                rows: round(milliseconds_per_pass(model, rows, context), 2) for rows in (1, 64)
            },
        }
        for name, model in models.items()
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
