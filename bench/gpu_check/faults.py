"""Exhausted device memory and missing devices: each must give a clear error and affect no other request. Prints lines
of JSON for steps.figures_of."""

import argparse
import contextlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from .serving import Server, say, tandem

# Takes all that is free on a GPU, of a CPU's memory a little, until its stdin ends.
TAKE = """
import sys, torch
device, taken = torch.device(sys.argv[1]), []
size = 1 << 30 if device.type == "cuda" else 1 << 20
while size >= 1 << 20 and len(taken) < (1 << 20 if device.type == "cuda" else 16):
    try:
        taken.append(torch.empty(size, dtype=torch.uint8, device=device))
    except torch.cuda.OutOfMemoryError:
        size //= 2
print("taken", sum(t.numel() for t in taken), flush=True)
sys.stdin.read()
"""


def refused(args, name: str, words: str, **server) -> list[str]:
    """A server that must fail to start, with these words."""
    with tempfile.TemporaryDirectory() as folder:
        one = Server(args, Path(folder), **server)
        try:
            status = one.process.wait(args.patience)
        except subprocess.TimeoutExpired:
            one.end(0)
            return [f"{name}: the server runs: {one.last_words()}"]
        said = one.last_words()
        good = status != 0 and re.search(words, said) is not None
        say(f"server.{name}", "refused" if good else "wrong")
        return [] if good else [f"{name}: status {status}, {said}"]


@contextlib.contextmanager
def memory_taken(args):
    """Nothing is left of the device's memory meanwhile. Yields the GiB that were."""
    name = args.device.split("/")[0] if args.device.startswith("cuda") else "cpu"
    taker = subprocess.Popen(
        [sys.executable, "-c", TAKE, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        line = taker.stdout.readline().split()
        if line[:1] != ["taken"]:
            raise RuntimeError("the memory cannot be taken")
        yield int(line[1]) / 2**30
    finally:
        with contextlib.suppress(BrokenPipeError):
            taker.stdin.close()
        try:
            taker.wait(args.patience)
        except subprocess.TimeoutExpired:
            taker.kill()
            taker.wait()


def bench(args, address: str, concurrency: int, *words: str) -> subprocess.CompletedProcess:
    words = (f"--concurrency={concurrency}", *words)
    done = tandem(args, address, "bench", *words, seconds=args.patience)
    print(done.stdout + done.stderr, flush=True)
    return done


def answers(args, address: str) -> bool:
    words = ("def f(", f"--max-new-tokens={args.tokens}")
    done = tandem(args, address, "generate", *words, seconds=args.patience)
    print(done.stdout + done.stderr, flush=True)
    return done.returncode == 0


def out_of_memory(args) -> list[str]:
    """A server whose device another process fills under way: its requests end one way or the other, and
    those after it are answered."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(args, Path(folder))
        wrong = []
        try:
            address = server.wait_until_ready(args.patience)
            with memory_taken(args) as gib:
                say("server.memory_taken", round(gib, 2), "GiB")
                words = (f"--requests={2 * args.concurrency}", f"--max-new-tokens={args.tokens}")
                done = bench(args, address, args.concurrency, *words)
                say("server.while_taken", "answered" if done.returncode == 0 else "some refused")
                if server.process.poll() is not None:
                    wrong.append("out_of_memory: the server is gone: " + server.last_words())
            good = not wrong and answers(args, address)
            say("server.after_taken", "answered" if good else "wrong")
            if not good:
                wrong.append("out_of_memory: no answer when there is memory again")
        except (RuntimeError, subprocess.SubprocessError) as error:
            wrong.append(f"out_of_memory: {error}")
        finally:
            if server.end(args.patience) != 0:
                wrong.append("out_of_memory: the server ended badly: " + server.last_words())
        return wrong


def full_pools(args) -> list[str]:
    """Requests that come in, and then grow to twice the KV pages that there are: some give theirs back
    under way, and all are answered."""
    concurrency, prompt, grows, page_rows, context = max(8, args.concurrency), 16, 240, 16, 1024
    pages = max(context, concurrency * (prompt + grows) // 2) // page_rows
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        server = Server(args, Path(folder), pages=pages)
        try:
            address = server.wait_until_ready(args.patience)
            words = [f"--requests={concurrency}", "--method=autoregressive"]
            words += [f"--prompt-tokens={prompt}", f"--max-new-tokens={grows}"]
            done = bench(args, address, concurrency, *words)
            answered = done.returncode == 0 and "requests ended with" not in done.stderr
            preempted = server.metric("tandem_preemptions_total")
            say("server.full_pools", "answered" if answered else "wrong")
            say("server.full_pools.preemptions", preempted)
            if not answered:
                wrong.append("full_pools: not all are answered")
            if preempted == 0:
                wrong.append("full_pools: the pools were never full")
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            wrong.append(f"full_pools: {error}")
        finally:
            if server.end(args.patience) != 0:
                wrong.append("full_pools: the server ended badly: " + server.last_words())
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--patience", type=float, default=15, help="seconds of each wait")
    args = parser.parse_args()
    wrong = []

    def note(found: list[str]) -> None:
        for line in found:
            print(line, flush=True)  # at once: the step's time may end
        wrong.extend(found)

    note(refused(args, "unknown_device", "allowed: ", device="cuda:99"))
    small = f'devices {{ name: "{args.device}" memory_bytes: 10000 }}'
    small += f' devices {{ name: "{args.device}/1" }}'
    note(refused(args, "too_little_memory", "memory", more=small))
    note(full_pools(args))
    note(out_of_memory(args))
    print("\n".join(wrong) if wrong else "all as it should be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
