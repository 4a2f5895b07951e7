"""Compares a decoding step of random models of real shapes with Transformers, in one run.

Tandem's times are from bench_step. Those of Transformers, eager and compiled, are the slope between a short and a
long run of `generate` at the same context. Also times the reading of prompts, and says what became of the steps that
graphs can run. Prints lines of JSON for steps.figures_of.
"""

import argparse
import csv
import json
import os
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


def prompt_operations(shape: str, tokens: int) -> float:
    """Additions and multiplications of reading a prompt: products of all layers, and causal attention."""
    s = SHAPES[shape]
    hidden, inner = s["hidden_size"], s["intermediate_size"]
    q, kv = (s[f"num_{which}_heads"] * s["head_dim"] for which in ("attention", "key_value"))
    weights = s["num_hidden_layers"] * (hidden * (2 * q + 2 * kv) + 3 * hidden * inner)
    return 2 * tokens * weights + 2 * s["num_hidden_layers"] * q * tokens * (tokens + 1)


def ragged_contexts(most: int) -> list[int]:
    """Of a batch's 32 sequences: spread evenly, the first of an eighth of the longest."""
    return [most // 8 + (most - most // 8) * i // 31 for i in range(32)]


def numbers_of(
    program: str,
    shape: str,
    device: str,
    seconds: float,
    most: int,
    words: list[str],
    environment: dict[str, str],
    blocks: str = "",
    graphs: str = "",
) -> list[tuple[str, int, float]]:
    """Of a run of bench_step with contexts up to `most`: table, context or sequences or tokens, milliseconds.

    blocks: the type that weights are in, as q4_k; "": 16 bits, on a CPU 32. graphs: also says what became of the steps
    that graphs can run, in figures with this prefix."""
    dtype = blocks or ("fp32" if device.startswith("cpu") else "bf16")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config_of(shape, most + 64)))
        numbers = Path(folder) / "numbers.csv"
        command = [
            program,
            f"--shape={shape}={folder}",
            f"--device={device}",
            f"--seconds={seconds}",
            f"--dtype={dtype}",
            f"--most-context={most}",
            f"--csv={numbers}",
            *words,
        ]
        subprocess.run(command, check=True, stdout=sys.stderr, env={**os.environ, **environment})
        rows = list(csv.DictReader(numbers.open()))
    for row in rows:
        if graphs and row["table"] == "graphs":
            say(f"{graphs}.{row['model'].split(':')[-1]}", int(float(row["x"])))
    return [(row["table"], int(float(row["x"])), float(row["milliseconds"])) for row in rows]


def ours(
    program: str,
    shape: str,
    device: str,
    seconds: float,
    contexts: list[int],
    ragged: bool,
    blocks: str = "",
    prompts: tuple[int, ...] = (),
) -> dict[int, float]:
    """Milliseconds of a step by context, or of a ragged batch by its longest; also says those of many
    sequences, of several rows of one sequence, and of prompts."""
    tables = ["ragged"] if ragged else ["context", "sequences", "rows"]
    tables = [f"--table={name}" for name in tables]
    if prompts:
        tables += ["--table=prefill", f"--most-prompt={max(prompts)}"]
    name = f"{shape}.{blocks}" if blocks else shape
    graphs = f"{name}.ragged.graphs" if ragged else f"{name}.graphs"
    found = {}
    most = max(contexts)
    for table, at, ms in numbers_of(
        program, shape, device, seconds, most, tables, {}, blocks, graphs
    ):
        if table == "context" and at in contexts:
            found[at] = ms
            say(f"{name}.step.context_{at}", ms, "ms")
        elif table == "ragged":
            found[at] = ms
            say(f"{name}.step.ragged_32", ms, "ms")
        elif table == "sequences":
            say(f"{name}.step.sequences_{at}", ms, "ms")
        elif table == "rows":
            say(f"{name}.step.rows_{at}", ms, "ms")
        elif table == "prefill":
            say(f"{name}.prefill.{at}", ms, "ms")
            rate = prompt_operations(shape, at) / (ms / 1000) / 1e12
            say(f"{name}.prefill.{at}.rate", rate, "TFLOP/s")
    return found


# How a step's kernels get to the device: options of bench_step, environment.
WAYS = {
    "replayed": ([], {}),
    "launched": (["--no-graphs"], {}),
    "one_by_one": (["--no-graphs"], {"TANDEM_CUDA_OVERLAP": "0"}),
    "replayed_one_by_one": ([], {"TANDEM_CUDA_OVERLAP": "0"}),
}


def ways(program: str, shape: str, device: str, seconds: float, context: int) -> None:
    """Says the milliseconds of a step at one context, its kernels replayed or launched, each beginning
    before the last has ended or not."""
    for name, (words, environment) in WAYS.items():
        tables = ["--table=context", *words]
        for _, at, ms in numbers_of(program, shape, device, seconds, context, tables, environment):
            if at == context:
                say(f"{shape}.launches.{name}", ms, "ms")


# What computes the attention of prompts.
PROMPT_WAYS = {
    "library": {},
    "own": {"TANDEM_CUDA_PROMPT_ATTENTION": "0"},
    "cudnn": {"TANDEM_CUDA_PROMPT_ATTENTION": "cudnn"},
}


def prompt_ways(
    program: str, shape: str, device: str, seconds: float, prompts: tuple[int, ...]
) -> None:
    """Says the milliseconds of prompts, their attention computed in each way."""
    tables = ["--table=prefill", f"--most-prompt={max(prompts)}"]
    for name, environment in PROMPT_WAYS.items():
        found = numbers_of(program, shape, device, seconds, max(prompts), tables, environment)
        for table, at, ms in found:
            if table == "prefill" and at in prompts:
                say(f"{shape}.prompts.{name}.{at}", ms, "ms")


def theirs(
    shape: str,
    device: str,
    contexts: list[int],
    tokens: int,
    compiled: bool,
    prompts: tuple[int, ...] = (),
) -> float:
    """Milliseconds of a step of Transformers, of a batch that is padded on the left. Also says those of one pass over
    prompts."""
    import torch
    import transformers

    torch.manual_seed(0)
    torch_device = torch.device("cpu" if device.startswith("cpu") else device.split("/")[0])
    context = max(contexts)
    most = max(context + 4 * tokens, *prompts, 0)
    config = transformers.LlamaConfig(**config_of(shape, most))
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

    def timed(work) -> float:
        if torch_device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.inference_mode():
            work()
        if torch_device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    def took(n: int) -> float:
        return timed(lambda: model.generate(prompt, min_new_tokens=n, max_new_tokens=n, **options))

    for n in prompts:
        text = torch.randint(3, config.vocab_size, (1, n), device=torch_device)
        seconds = sorted(timed(lambda text=text: model(text, logits_to_keep=1)) for _ in range(4))
        say(f"{shape}.prefill.{n}.transformers", 1000 * seconds[1], "ms")

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
    parser.add_argument(
        "--prefill", type=int, action="append", default=[], choices=(512, 4096), help="of a prompt"
    )
    parser.add_argument("--ragged", action="store_true", help="32 sequences of unequal contexts")
    parser.add_argument("--ways", action="store_true", help="just the ways of launching")
    parser.add_argument("--prompt-ways", action="store_true", help="just those of prompts")
    parser.add_argument("--blocks", default="", help="what ours has its weights in, as q4_k")
    parser.add_argument("--peer", choices=("eager", "compiled"), action="append", default=[])
    args = parser.parse_args()
    contexts = args.context or [256, 2048]
    if args.ways:
        ways(args.program, args.shape, args.device, args.seconds, contexts[0])
    if args.prompt_ways:
        prompts = tuple(args.prefill) or (512,)
        prompt_ways(args.program, args.shape, args.device, args.seconds, prompts)
    if args.ways or args.prompt_ways:
        return 0
    mine = ours(
        args.program,
        args.shape,
        args.device,
        args.seconds,
        contexts,
        args.ragged,
        args.blocks,
        tuple(args.prefill),
    )
    batch = ragged_contexts(max(contexts)) if args.ragged else contexts[:1]
    name = f"{args.shape}.ragged_32" if args.ragged else args.shape
    wrong = 0
    for peer in args.peer:
        try:
            prompts = tuple(args.prefill) if peer == "eager" else ()
            compiled = peer == "compiled"
            ms = theirs(args.shape, args.device, batch, args.tokens, compiled, prompts)
        except Exception as error:  # any error: continue with the others
            print(f"{peer}: {type(error).__name__}: {error}", flush=True)
            wrong += 1
            continue
        say(f"{name}.transformers.{peer}", ms, "ms")
        say(f"{name}.ratio.{peer}", ms / mine[max(batch)], "theirs / ours")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
