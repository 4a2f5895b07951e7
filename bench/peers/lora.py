"""Compares tokens per second with LoRA adapters with llama.cpp's server.

    python -m bench.peers.lora [MODEL ...] [--llama-server PATH] [--adapters 0 1 8 32] [--streams 1 8]

Adapters are random, of all linear layers, and written as GGUF files, which both servers read. A server has
the given number of adapters. Stream i uses adapter i, modulo that number; without adapters it uses the base
model. All streams begin at once. Both servers decode greedily, one token per pass, with the same number of
threads. Each turn starts a new process and measures all numbers of streams; the servers take turns.
"""

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from bench.peers import cli
from measure import machine
from measure.llama_server import LlamaServer, free_port
from measure.paths import HOME, ROOT
from measure.report import table

PAGE = ROOT / "docs" / "lora.md"
LAYERS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
PROMPT = "import os\n\n\nclass Reader{}:\n    def read(self, path):\n"
SIDES = ("tandem", "llama.cpp")


def write_adapter(base: gguf.GGUFReader, path: Path, rank: int, seed: int) -> None:
    """A random adapter of `base` in fp16, as llama.cpp's converter writes it."""
    rng = np.random.default_rng(seed)
    architecture = base.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, 2.0 * rank)
    for tensor in base.tensors:
        part = tensor.name.removesuffix(".weight").rsplit(".", 1)[-1]
        if not tensor.name.startswith("blk.") or part not in LAYERS:
            continue
        width, out = (int(n) for n in tensor.shape)
        a = rng.standard_normal((rank, width)) / width**0.5
        b = rng.standard_normal((out, rank)) * 0.01
        writer.add_tensor(f"{tensor.name}.lora_a", a.astype(np.float16))
        writer.add_tensor(f"{tensor.name}.lora_b", b.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def post(url: str, body: dict) -> dict:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=1800) as answer:
        return json.load(answer)


@dataclass
class Running:
    """A server with `adapters` adapters."""

    url: str
    adapters: int

    def tokens(self, stream: int, new_tokens: int) -> int:
        """Runs one stream to its end. Returns the number of its new tokens."""
        raise NotImplementedError


class Tandem(Running):
    def tokens(self, stream: int, new_tokens: int) -> int:
        model = f"base:a{stream % self.adapters}" if self.adapters else "base"
        body = {
            "model": model,
            "prompt": PROMPT.format(stream),
            "max_tokens": new_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "tandem": {"method": "autoregressive"},
        }
        return post(f"{self.url}/v1/completions", body)["usage"]["completion_tokens"]


class Llama(Running):
    def tokens(self, stream: int, new_tokens: int) -> int:
        body = {
            "prompt": PROMPT.format(stream),
            "n_predict": new_tokens,
            "temperature": 0,
            "top_k": 1,
            "ignore_eos": True,
            "cache_prompt": False,
        }
        if self.adapters:
            body["lora"] = [{"id": stream % self.adapters, "scale": 1.0}]
        return post(f"{self.url}/completion", body)["tokens_predicted"]


@contextlib.contextmanager
def tandem(args, model: Path, adapters: list[Path]) -> Iterator[Running]:
    with tempfile.TemporaryDirectory(prefix="tandem-lora-") as temporary:
        ports, log = Path(temporary) / "ports", Path(temporary) / "log"
        command = [args.binaries / "tandem-server", f"--model=base={model}"]
        command += [f"--adapter=a{i}={path}" for i, path in enumerate(adapters)]
        command += ["--listen=127.0.0.1:0", "--http=off", "--openai=127.0.0.1:0"]
        with log.open("w") as out:
            process = subprocess.Popen([*command, f"--port-file={ports}"], stderr=out)
        try:
            while not ports.exists():
                if process.poll() is not None:
                    raise RuntimeError(f"tandem-server ended:\n{log.read_text()}")
                time.sleep(0.05)
            lines = dict(line.split("=", 1) for line in ports.read_text().splitlines())
            yield Tandem(f"http://{lines['openai']}", len(adapters))
        finally:
            process.terminate()
            process.wait(60)


@contextlib.contextmanager
def llama(args, model: Path, adapters: list[Path]) -> Iterator[Running]:
    port, slots = free_port(), max(args.streams)
    command = [args.llama_server, "--model", model, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--threads", str(machine.cores()), "--parallel", str(slots)]
    command += ["--ctx-size", str(slots * (args.new_tokens + 256))]
    for path in adapters:
        command += ["--lora", path]
    if adapters:
        command.append("--lora-init-without-apply")
    with tempfile.NamedTemporaryFile("w+", suffix=".log") as log:
        process = subprocess.Popen([*map(str, command)], stdout=log, stderr=log)
        server = LlamaServer(port)
        try:
            while not server.ready():
                if process.poll() is not None:
                    said = Path(log.name).read_text()[-2000:]
                    raise RuntimeError(f"llama-server ended with {process.returncode}:\n{said}")
                time.sleep(0.05)
            yield Llama(server.url, len(adapters))
        finally:
            process.terminate()
            process.wait(60)


def rate(server: Running, streams: int, new_tokens: int) -> float:
    """Tokens per second of all streams together."""
    with ThreadPoolExecutor(streams) as pool:
        start = time.perf_counter()
        made = sum(pool.map(lambda i: server.tokens(i, new_tokens), range(streams)))
        return made / (time.perf_counter() - start)


def measure(args, model: Path, adapters: list[Path]) -> dict[tuple, list[float]]:
    """Rates by (side, number of adapters, number of streams)."""
    rates: dict[tuple, list[float]] = {}
    for turn in range(args.turns):
        for count in args.adapters:
            sides = SIDES if turn % 2 == 0 else SIDES[::-1]
            for side in sides:
                start = tandem if side == "tandem" else llama
                with start(args, model, adapters[:count]) as server:
                    rate(server, max(args.streams), 4)  # warm-up: buffers grow, pages are touched
                    for streams in args.streams:
                        got = rate(server, streams, args.new_tokens)
                        rates.setdefault((side, count, streams), []).append(got)
                        print(
                            f"{model.stem}: {side}, {count} adapters, {streams} streams: {got:.1f}",
                            file=sys.stderr,
                            flush=True,
                        )
    return rates


def markdown(args, model: Path, rates: dict[tuple, list[float]]) -> str:
    rows = []
    for streams in args.streams:
        for count in args.adapters:
            middle = {side: statistics.median(rates[side, count, streams]) for side in SIDES}
            base = {
                side: statistics.median(rates[side, args.adapters[0], streams]) for side in SIDES
            }
            cells = [
                f"{middle[s]:.1f} ({min(rates[s, count, streams]):.1f}-{max(rates[s, count, streams]):.1f})"
                for s in SIDES
            ]
            shares = [f"{middle[s] / base[s]:.2f}" for s in SIDES]
            ratio = f"**{middle['tandem'] / middle['llama.cpp']:.2f}**"
            rows.append([str(streams), str(count), *cells, ratio, *shares])
    head = ["streams", "adapters", *(f"{s}, tokens/s" for s in SIDES), "ratio"]
    head += [f"{s}, of its first row" for s in SIDES]
    return (
        f"{model.stem}, adapters of rank {args.rank}, {args.new_tokens} new tokens per stream. Medians of "
        f"{args.turns} turns, smallest and largest in parentheses.\n\n{table(head, rows)}\n"
    )


def main(arguments=None) -> int:
    parser = cli.gguf_parser(__doc__, PAGE)
    parser.add_argument("--llama-server", type=Path, default=HOME / "bin" / "llama-server")
    parser.add_argument("--binaries", type=Path, default=ROOT / "build/release/bin")
    parser.add_argument("--adapters", type=int, nargs="+", default=[0, 1, 8, 32])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args(arguments)
    programs = [args.binaries / "tandem-server", args.llama_server]
    models = cli.gguf_files(args.models, programs, "scripts/setup --peers")
    run = cli.Run("python -m bench.peers.lora", arguments, args.write)
    texts = []
    for model in models:
        with tempfile.TemporaryDirectory(prefix="tandem-lora-") as temporary:
            base = gguf.GGUFReader(model)
            paths = [Path(temporary) / f"{i}.gguf" for i in range(max(args.adapters))]
            for i, path in enumerate(paths):
                write_adapter(base, path, args.rank, seed=i)
            texts.append(markdown(args, model, measure(args, model, paths)))
    text = "\n".join([*texts, run.conditions()])
    if args.write:
        cli.publish(text, args.write, PAGE, "adapters and llama.cpp")
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
