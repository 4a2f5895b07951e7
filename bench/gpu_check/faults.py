"""What goes wrong with a device's memory, and a device that there is not: each must be told clearly, and
harm nobody else. Lines of JSON, as steps.figures_of reads them."""

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
    """A server that must not start, and say so with these words."""
    with tempfile.TemporaryDirectory() as folder:
        one = Server(args, Path(folder), **server)
        try:
            status = one.process.wait(120)
        except subprocess.TimeoutExpired:
            one.end()
            return [f"{name}: the server runs"]
        said = one.last_words()
        good = status != 0 and re.search(words, said) is not None
        say(f"server.{name}", "refused" if good else "wrong")
        return [] if good else [f"{name}: status {status}, {said}"]


@contextlib.contextmanager
def memory_taken(device: str):
    """Nothing is left of the device's memory meanwhile. Yields the GiB that were."""
    name = device.split("/")[0] if device.startswith("cuda") else "cpu"
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
        taker.wait(60)


def bench(args, address: str, requests: int) -> subprocess.CompletedProcess:
    words = [f"--concurrency={args.concurrency}", f"--requests={requests}"]
    return tandem(args, address, "bench", *words, f"--max-new-tokens={args.tokens}", seconds=100)


def answers(args, address: str) -> bool:
    done = tandem(args, address, "generate", "def f(", f"--max-new-tokens={args.tokens}")
    print(done.stdout + done.stderr, flush=True)
    return done.returncode == 0


def out_of_memory(args) -> list[str]:
    """A server whose device another process fills under way: its requests end one way or the other, and
    those after it are answered."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(args, Path(folder))
        wrong = []
        try:
            address = server.wait_until_ready(90)
            with memory_taken(args.device) as gib:
                say("server.memory_taken", round(gib, 2), "GiB")
                done = bench(args, address, 2 * args.concurrency)
                print(done.stdout + done.stderr, flush=True)
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
            if server.end() != 0:
                wrong.append("out_of_memory: the server ended badly: " + server.last_words())
        return wrong


def full_pools(args) -> list[str]:
    """More requests than KV pools hold at once: all are answered."""
    small = f'devices {{ name: "{args.device}" memory_bytes: {args.pool_bytes} }}'
    small += f' devices {{ name: "{args.device}/1" memory_bytes: {args.pool_bytes} }}'
    with tempfile.TemporaryDirectory() as folder:
        server = Server(args, Path(folder), more=small)
        try:
            done = bench(args, server.wait_until_ready(90), 4 * args.concurrency)
            print(done.stdout + done.stderr, flush=True)
            say("server.full_pools", "answered" if done.returncode == 0 else "wrong")
            return [] if done.returncode == 0 else ["full_pools: not all are answered"]
        except (RuntimeError, subprocess.SubprocessError) as error:
            return [f"full_pools: {error}"]
        finally:
            server.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--pool-bytes", type=int, default=24_000_000)
    args = parser.parse_args()
    wrong = []
    wrong += refused(args, "unknown_device", "allowed: ", device="cuda:99")
    small = f'devices {{ name: "{args.device}" memory_bytes: 1000000 }}'
    small += f' devices {{ name: "{args.device}/1" }}'
    wrong += refused(args, "too_little_memory", "memory", more=small)
    wrong += full_pools(args)
    wrong += out_of_memory(args)
    print("\n".join(wrong) if wrong else "all as it should be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
