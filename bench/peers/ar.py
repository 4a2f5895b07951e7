"""Compares autoregressive decoding with Transformers: one machine, one run, the same weights.

    scripts/bench_ar [--write] [--mixed]

For each model and number of streams, the server (over gRPC, one stream per prompt) and Transformers
(`generate` on all prompts as one batch) take turns. A figure is new tokens divided by the time from
the call to the last token, prefill included. Medians are compared; of Transformers' variants the
fastest counts. Both decode a fixed number of tokens greedily in float32 on all cores. Every turn has
new prompts of equal length, so Transformers needs no padding.

With --mixed, prompts and answers have different lengths. Transformers then pads its batch on the left
and runs until its longest answer is complete. Only requested tokens count.
"""

import contextlib
import random
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

from bench.peers import cli, throughput_page
from bench.peers.models import directories, prompts
from bench.peers.peer import VARIANTS, Peer
from measure import machine
from measure.paths import ROOT

PAGE = ROOT / "docs" / "reports" / "throughput.md"
PAUSE = 0.5  # seconds between turns, as OpenMP threads spin for a while after work


# With --mixed: lengths of prompts and answers, drawn uniformly from these ranges.
MIXED_PROMPT, MIXED_NEW = (16, 256), (32, 128)


@dataclass
class Work:
    """One turn: prompts, and the number of new tokens of each."""

    prompts: list[list[int]]
    new_tokens: list[int]

    def total(self) -> int:
        return sum(self.new_tokens)


def works(streams: int, args) -> Iterator[Work]:
    """Yields turns of `streams` prompts; all prompts differ."""
    if not args.mixed:
        source = prompts(args.prompt_tokens, streams)
        while True:
            batch = [next(source) for _ in range(streams)]
            yield Work(batch, [args.new_tokens] * streams)
    source = prompts(MIXED_PROMPT[1], streams)
    lengths = random.Random(streams)
    while True:
        batch = [next(source)[: lengths.randint(*MIXED_PROMPT)] for _ in range(streams)]
        yield Work(batch, [lengths.randint(*MIXED_NEW) for _ in range(streams)])


def match(ours: list[list[int]], theirs: list[list[int]]) -> tuple[int, int]:
    """Equal tokens up to each stream's first difference, and all tokens."""
    same = 0
    for a, b in zip(ours, theirs, strict=True):
        pairs = zip(a, b, strict=True)
        same += next((i for i, (x, y) in enumerate(pairs) if x != y), len(b))
    return same, sum(len(b) for b in theirs)


def measure(client, peer: Peer, model: str, streams: int, args) -> throughput_page.Case:
    """One row of the table. `client` is None without a server."""
    case = throughput_page.Case(model, streams)
    source = works(streams, args)
    short = next(source).prompts
    if client:
        client.generate(model, short, 8)
    for variant in VARIANTS:
        peer.generate(short, 8, variant)
    contenders = [*VARIANTS, *([client] if client else [])]
    for turn in range(args.repeats):
        work = next(source)
        ours = theirs = None
        first = turn % len(contenders)
        for one in contenders[first:] + contenders[:first]:  # the order alternates
            time.sleep(PAUSE)
            if one is client:
                ours, seconds = client.generate(model, work.prompts, work.new_tokens)
                case.ours.append(work.total() / seconds)
            else:
                theirs, seconds = peer.generate(work.prompts, work.new_tokens, one)
                case.theirs.setdefault(str(one), []).append(work.total() / seconds)
        if ours:
            same, all_tokens = match(ours, theirs)
            case.same_tokens += same
            case.all_tokens += all_tokens
    if streams > 1:
        best = next(v for v in VARIANTS if str(v) == case.best())
        start = time.perf_counter()
        for prompt, wanted in zip(work.prompts, work.new_tokens, strict=True):
            peer.generate([prompt], wanted, best)
        case.sequential = work.total() / (time.perf_counter() - start)
    figure = f"ours {statistics.median(case.ours):.1f}, " if case.ours else ""
    best = statistics.median(case.theirs[case.best()])
    print(f"{model}, {streams} streams: {figure}Transformers {best:.1f} tokens/s", file=sys.stderr)
    return case


def parse(arguments):
    parser = cli.parser(__doc__, PAGE)
    parser.add_argument("--models", nargs="+", default=["code-large", "llama-110m"])
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 8])
    parser.add_argument(
        "--mixed", action="store_true", help="prompts and answers of different lengths"
    )
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--threads", type=int, default=machine.cores(), help="threads of Transformers"
    )
    parser.add_argument("--server", type=Path, default=ROOT / "build/release/bin/tandem-server")
    parser.add_argument("--peer-only", action="store_true", help="without a server")
    parser.add_argument(
        "--check", action="store_true", help="exit status 1 if Tandem is slower in any case"
    )
    return parser.parse_args(arguments)


def main(arguments=None) -> int:
    args = parse(arguments)
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folders = directories(args.models)
    run = cli.Run("scripts/bench_ar", arguments, args.write)
    prompt, new = str(args.prompt_tokens), str(args.new_tokens)
    if args.mixed:
        prompt, new = "{} to {}".format(*MIXED_PROMPT), "{} to {}".format(*MIXED_NEW)
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
    more = [
        ("memory bandwidth", f"{machine.bandwidth() / 1e9:.1f} GB/s"),
        ("Transformers", f"{versions}, {args.threads} threads"),
        ("prompt, new tokens", f"{prompt}, {new} (greedy, end of text ignored)"),
    ]
    cases = []
    with contextlib.ExitStack() as stack:
        client = None
        if not args.peer_only:
            from measure import serving

            client = stack.enter_context(serving.server(args.server, folders))
        for model, folder in folders.items():
            peer = Peer(folder)
            for streams in args.streams:
                cases.append(measure(client, peer, model, streams, args))
        time.sleep(PAUSE)
        conditions = run.conditions(more=more)  # the load includes the idle server
    lengths = f"Prompts have {prompt} tokens and answers {new}, drawn uniformly for each turn.\n\n"
    text = (lengths if args.mixed else "") + throughput_page.markdown(conditions, cases)
    cli.publish(text, args.write, PAGE, "many lengths" if args.mixed else "one length")
    slower = [c for c in cases if c.ours and c.ratio() < 1]
    return 1 if args.check and slower else 0


if __name__ == "__main__":
    sys.exit(main())
