"""The headline: a decode step of random models of real shapes beside Transformers, in one run.

bench_step gives ours; of Transformers, eager and compiled, the time of a step at the same context is
the slope between a short and a long run of `generate`. Lines of JSON, as steps.figures_of reads them.
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Of Llama 2 and 3.2; tiny: for a test of this file.
SHAPES = {
    "1b": dict(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        vocab_size=128256,
        tie_word_embeddings=True,
    ),
    "7b": dict(
        hidden_size=4096,
        intermediate_size=11008,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=32,
        head_dim=128,
        vocab_size=32000,
        tie_word_embeddings=False,
    ),
    "13b": dict(
        hidden_size=5120,
        intermediate_size=13824,
        num_hidden_layers=40,
        num_attention_heads=40,
        num_key_value_heads=40,
        head_dim=128,
        vocab_size=32000,
        tie_word_embeddings=False,
    ),
    "tiny": dict(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=300,
        tie_word_embeddings=False,
    ),
}


def config_of(name: str, positions: int) -> dict:
    return dict(
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        hidden_act="silu",
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        max_position_embeddings=positions,
        torch_dtype="bfloat16",
        bos_token_id=1,
        eos_token_id=2,
        **SHAPES[name],
    )


def say(name, value, unit=""):
    print(json.dumps({"name": name, "value": value, "unit": unit}), flush=True)


def ragged_contexts(most: int) -> list[int]:
    """Of a batch's 32 sequences: spread evenly, the first of an eighth of the longest."""
    return [most // 8 + (most - most // 8) * i // 31 for i in range(32)]


def ours(
    program: str, shape: str, device: str, seconds: float, contexts: list[int], ragged: bool
) -> dict[int, float]:
    """Milliseconds of a step by context, or of a ragged batch by its longest; also says those of many
    sequences."""
    with tempfile.TemporaryDirectory() as folder:
        config = config_of(shape, max(contexts) + 64)
        (Path(folder) / "config.json").write_text(json.dumps(config))
        numbers = Path(folder) / "numbers.csv"
        cpu = device.startswith("cpu")
        command = [
            program,
            f"--shape={shape}={folder}",
            f"--device={device}",
            f"--seconds={seconds}",
        ]
        tables = ["--table=ragged"] if ragged else ["--table=context", "--table=sequences"]
        command += [f"--dtype={'fp32' if cpu else 'bf16'}", *tables]
        command += [f"--most-context={max(contexts)}", f"--csv={numbers}"]
        subprocess.run(command, check=True, stdout=sys.stderr)
        found = {}
        for row in csv.DictReader(numbers.open()):
            at, ms = int(float(row["x"])), float(row["milliseconds"])
            if row["table"] == "context" and at in contexts:
                found[at] = ms
                say(f"{shape}.step.context_{at}", ms, "ms")
            elif row["table"] == "ragged":
                found[at] = ms
                say(f"{shape}.step.ragged_32", ms, "ms")
            elif row["table"] == "sequences":
                say(f"{shape}.step.sequences_{at}", ms, "ms")
        return found


def theirs(shape: str, device: str, contexts: list[int], tokens: int, compiled: bool) -> float:
    """Milliseconds of a step of Transformers, of a batch that is padded on the left."""
    import torch
    import transformers

    torch.manual_seed(0)
    torch_device = torch.device("cpu" if device.startswith("cpu") else device.split("/")[0])
    context = max(contexts)
    config = transformers.LlamaConfig(**config_of(shape, context + 4 * tokens))
    with torch.device(torch_device):
        torch.set_default_dtype(torch.float32 if torch_device.type == "cpu" else torch.bfloat16)
        model = transformers.LlamaForCausalLM(config).eval()
    prompt = torch.randint(3, config.vocab_size, (len(contexts), context), device=torch_device)
    mask = torch.ones_like(prompt)
    for row, own in zip(mask, contexts, strict=True):
        row[: context - own] = 0
    options = dict(do_sample=False, pad_token_id=0, eos_token_id=None, attention_mask=mask)
    if compiled:
        options["cache_implementation"] = "static"

    def took(n: int) -> float:
        if torch_device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.inference_mode():
            model.generate(prompt, min_new_tokens=n, max_new_tokens=n, **options)
        if torch_device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    for _ in range(2):
        took(tokens)
    short = sorted(took(tokens) for _ in range(3))[1]
    long = sorted(took(3 * tokens) for _ in range(3))[1]
    return 1000 * (long - short) / (2 * tokens)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True, help="bench_step")
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--context", type=int, action="append", default=[])
    parser.add_argument("--tokens", type=int, default=32, help="of Transformers' shorter run")
    parser.add_argument("--ragged", action="store_true", help="32 sequences of unequal contexts")
    parser.add_argument("--peer", choices=("eager", "compiled"), action="append", default=[])
    args = parser.parse_args()
    contexts = args.context or [256, 2048]
    mine = ours(args.program, args.shape, args.device, args.seconds, contexts, args.ragged)
    batch = ragged_contexts(max(contexts)) if args.ragged else contexts[:1]
    name = f"{args.shape}.ragged_32" if args.ragged else args.shape
    wrong = 0
    for peer in args.peer:
        try:
            ms = theirs(args.shape, args.device, batch, args.tokens, peer == "compiled")
        except Exception as error:  # whatever it is, the others go on
            print(f"{peer}: {type(error).__name__}: {error}", flush=True)
            wrong += 1
            continue
        say(f"{name}.transformers.{peer}", ms, "ms")
        say(f"{name}.ratio.{peer}", ms / mine[max(batch)], "theirs / ours")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
