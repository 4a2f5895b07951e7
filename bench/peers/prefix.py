"""Measures the prefix cache: time to first token of two requests with a common prefix.

    python -m bench.peers.prefix [--write]

Each pair of prompts has 400 common tokens and 16 others and runs sequentially on a server of code-large,
next to a pair without a common prefix. Figures are time_to_first_token_seconds and cached_tokens of the
server: those of the second request over those of the first.
"""

import statistics
import sys

from bench.peers import cli
from bench.peers.models import directories, prompts
from measure import serving
from measure.paths import ROOT
from measure.report import spread, table

PAGE = ROOT / "docs" / "reports" / "serving.md"
COMMON, OWN, NEW = 400, 16, 32


def ask(client, model: str, prompt: list[int]):
    answer = client.complete(client.request(model, prompt, NEW, ignore_eos=True))
    stats, usage = answer.finished.stats, answer.finished.usage
    tokens = [t.id for t in answer.tokens]
    return stats.time_to_first_token_seconds, usage.cached_tokens, tokens


def main(arguments=None) -> int:
    parser = cli.parser(__doc__, PAGE)
    parser.add_argument("--model", default="code-large")
    parser.add_argument("--pairs", type=int, default=15)
    args = parser.parse_args(arguments)
    run = cli.Run("python -m bench.peers.prefix", arguments, args.write)
    folders = directories([args.model])
    texts = prompts(COMMON + OWN)
    first, second, strangers, hits, equal = [], [], [], [], 0
    with serving.server(models=folders) as client:
        ask(client, args.model, next(texts))
        for _ in range(args.pairs):
            a, b, stranger = next(texts), next(texts), next(texts)
            alone, cached, _ = ask(client, args.model, a)
            assert cached == 0, cached
            # A prompt without the common prefix: the time of `second` without the cache.
            other, cached, _ = ask(client, args.model, stranger)
            assert cached < COMMON // 2, cached
            prompt = a[:COMMON] + b[-OWN:]
            found, cached, tokens = ask(client, args.model, prompt)
            first.append(alone * 1e3)
            strangers.append(other * 1e3)
            second.append(found * 1e3)
            hits.append(cached)
            with_cache = tokens
            without = fresh(folders, args.model, prompt) if len(hits) <= 3 else None
            equal += without is None or without == with_cache
    ratio = statistics.median(s / f for s, f in zip(second, first, strict=True))
    text = f"""{
        table(
            ["request", "time to first token, ms", "cached tokens"],
            [
                ["first of a pair", spread(first), "0"],
                ["no common prefix, same length", spread(strangers), "0"],
                [
                    f"second of a pair, {COMMON} tokens in common",
                    spread(second),
                    f"{min(hits)} to {max(hits)}",
                ],
            ],
        )
    }

Second over first: **{
        ratio:.2f}** (goal: at most 0.35). Tokens of three pairs against a server with an empty
cache: {"equal" if equal == args.pairs else "different"}.

{run.conditions()}
"""
    cli.publish(text, args.write, PAGE, "prefix cache")
    return 0 if ratio <= 0.35 and equal == args.pairs else 1


def fresh(folders, model: str, prompt: list[int]) -> list[int]:
    with serving.server(models=folders) as client:
        return ask(client, model, prompt)[2]


if __name__ == "__main__":
    sys.exit(main())
