"""How well a small model stands in for a large one with the same tokenizer, on held-out files.

    python -m tuning.evaluate_pair models/code-large models/code-small

Prints each model's bits per byte, how often their likeliest tokens agree, the acceptance of
speculative sampling at temperature 1, and what a pass of each costs. Weights are computed with in
float32, whatever their file holds.
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


@torch.no_grad()
def compare(large: LlamaForCausalLM, small: LlamaForCausalLM, held_out: HeldOut) -> dict:
    """Both models over the same held-out rows.

    agreement: the share of positions where both have the same likeliest token, which is how often
    greedy speculative decoding keeps one drafted token on this text. acceptance: the mean over
    positions of sum(min(p, q)), the chance that speculative sampling at temperature 1 keeps one
    drafted token (Leviathan and others 2023, corollary 3.6).
    """
    nats = {"large": 0.0, "small": 0.0}
    agreement = acceptance = 0.0
    for inputs, targets, counts in tqdm(list(held_out.batches(8)), unit="batch"):
        chosen = targets[counts].unsqueeze(-1)
        log_p, log_q = (
            model(input_ids=inputs, use_cache=False).logits[counts].float().log_softmax(-1)
            for model in (large, small)
        )
        nats["large"] -= log_p.gather(-1, chosen).sum().item()
        nats["small"] -= log_q.gather(-1, chosen).sum().item()
        agreement += (log_p.argmax(-1) == log_q.argmax(-1)).sum().item()
        acceptance += torch.minimum(log_p, log_q).exp().sum().item()
    return {
        "bits_per_byte": {
            name: value / math.log(2) / held_out.bytes for name, value in nats.items()
        },
        "agreement": agreement / held_out.tokens,
        "acceptance": acceptance / held_out.tokens,
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
