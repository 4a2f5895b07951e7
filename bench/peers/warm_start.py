"""Measures the prefix store: time to first token of a system prompt after a restart.

    python -m bench.peers.warm_start --model PATH [--pairs 7] [--server PATH]

Turns alternate between a server with --prefix-store and one without. Each turn starts a server and sends one
request: 2,000 tokens of a system prompt, which an earlier server has shared, and 16 others. Figures are
time_to_first_token_seconds and cached_tokens of that server, and seconds until it listens. The answers of both
servers must be equal.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench.peers import cli
from measure import serving
from measure.paths import ROOT
from measure.report import spread, table

PAGE = ROOT / "docs" / "reports" / "serving.md"
SYSTEM, OWN, NEW = 2000, 16, 24


def prompt(own: int) -> list[int]:
    """A text of the repository's sources as tokens, whatever the vocabulary: ids below 10,000."""
    text = "".join(path.read_text() for path in sorted((ROOT / "engine/decode").glob("*.cpp")))
    common = [ord(c) % 128 + 128 * (i % 7) for i, c in enumerate(text[:SYSTEM])]
    return common + [200 + (own * 37 + i * 11) % 5000 for i in range(OWN)]


def turn(binary: Path, model: Path, store: Path | None, own: list[int]):
    """Of a new server: seconds until it listens, and of its requests the time to first token in ms,
    the cached tokens and the tokens."""
    flags = [f"--prefix-store={store}"] if store else []
    begin = time.perf_counter()
    with serving.server(binary, models={"m": model}, dtype="auto", more=flags) as client:
        start = time.perf_counter() - begin
        answers = []
        for number in own:
            answer = client.complete(client.request("m", prompt(number), NEW, ignore_eos=True))
            stats = answer.finished.stats
            answers.append(
                (
                    stats.time_to_first_token_seconds * 1e3,
                    answer.finished.usage.cached_tokens,
                    [token.id for token in answer.tokens],
                )
            )
    return start, answers


def main(arguments=None) -> int:
    parser = cli.parser(__doc__, PAGE)
    parser.add_argument("--model", type=Path, required=True, help="with room for 2,040 tokens")
    parser.add_argument("--server", type=Path, default=serving.BINARY)
    parser.add_argument("--pairs", type=int, default=7)
    args = parser.parse_args(arguments)
    run = cli.Run("python -m bench.peers.warm_start", arguments, args.write)
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        turn(args.server, args.model, store, [0, 1])  # shares the system prompt, and saves it
        size = sum(file.stat().st_size for file in store.iterdir())
        times = {True: [], False: []}
        starts = {True: [], False: []}
        cached = {True: [], False: []}
        equal = True
        for pair in range(args.pairs):
            tokens = {}
            for warm in (True, False) if pair % 2 else (False, True):
                begin, ((first, found, tokens[warm]),) = turn(
                    args.server, args.model, store if warm else None, [2 + pair]
                )
                times[warm].append(first)
                starts[warm].append(begin)
                cached[warm].append(found)
            equal &= tokens[True] == tokens[False]
    rows = [
        [
            name,
            spread(times[warm]),
            f"{min(cached[warm])} to {max(cached[warm])}",
            spread([s * 1e3 for s in starts[warm]]),
        ]
        for name, warm in (("without a prefix store", False), ("with one", True))
    ]
    ratio = statistics.median(
        warm / cold for warm, cold in zip(times[True], times[False], strict=True)
    )
    text = f"""{
        table(
            ["server", "time to first token, ms", "cached tokens", "start, ms"],
            rows,
        )
    }

{args.model.name}: a prompt of {SYSTEM} + {OWN} tokens, the first after a start, median of {
        args.pairs
    } alternated
pairs. The store has {size / 1e6:.1f} MB. With over without: **{ratio:.3f}**. Answers: {
        "equal" if equal else "different"
    }.

{run.conditions()}
"""
    cli.publish(text, args.write, PAGE, "warm start")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
