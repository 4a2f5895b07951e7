"""Counts what drafts by token recycling (arXiv 2408.08696) would save, before they are built.

    python -m tuning.recycling_count record FILE [--server PATH] [--problems 16] [--new-tokens 128]
    python -m tuning.recycling_count replay FILE [--stops]

Token recycling keeps, for each token, the candidates that the large model had behind its last
occurrence. Drafts follow these candidates from the last token of the text, as a chain or as a tree.

`record` writes greedy answers to HumanEval problems with the candidates of every position, one line
per problem, and continues an incomplete file. `replay` runs the rounds of each drafting on these
answers and prints tokens per pass and the predicted speed-up. Greedy decoding accepts exactly the
drafts that equal the answer, so the counts are exact, except that the candidates of rejected rows are
unknown. Settings and the shapes of trees are chosen on one half of the answers and scored on the other.
"""

import argparse
import itertools
import json
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from measure import report
from measure.serving import BINARY, Client, server
from tuning.evaluate.humaneval import LARGE, SMALL, STOPS, Problem, read_problems

CANDIDATES = 8  # of a token; the paper's number
ROW_COSTS = (0.02, 0.25)  # of a pass, for each row after the first
SMALL_PASS = 0.3  # of a pass of the large model (docs/reports/gguf.md)
MOST = 8  # drafts of a round


@dataclass
class Answer:
    name: str
    prompt: list[int]
    tokens: list[int]
    prompt_candidates: list[list[int]]  # behind each token of the prompt but the last
    candidates: list[list[int]]  # of each token of the answer
    small: list[int] = field(default_factory=list)  # the small model's best for each token
    texts: list[str] = field(default_factory=list)

    @property
    def text(self) -> list[int]:
        return self.prompt + self.tokens

    def behind(self, i: int) -> list[int]:
        """Candidates for the token behind text[i]."""
        if i + 1 < len(self.prompt):
            return self.prompt_candidates[i]
        return self.candidates[i + 1 - len(self.prompt)]

    def cut(self, stops: Sequence[str]) -> "Answer":
        """The answer up to the token that completes a stop string."""
        said = ""
        for n, text in enumerate(self.texts):
            said += text
            if any(stop in said for stop in stops):
                return Answer(
                    self.name,
                    self.prompt,
                    self.tokens[: n + 1],
                    self.prompt_candidates,
                    self.candidates[: n + 1],
                    self.small[: n + 1],
                    self.texts[: n + 1],
                )
        return self


def ids(token) -> list[int]:
    return [candidate.id for candidate in token.top_logprobs]


def recorded(client: Client, problem: Problem, new_tokens: int) -> Answer:
    m = client.messages
    asked = m.ScoreRequest(
        model="large", text=problem.prompt, score_prompt=True, top_logprobs=CANDIDATES
    )
    read = client.stub.Score(asked).prompt_tokens
    prompt = [token.id for token in read]
    choice = client.complete(
        client.request(
            "large",
            prompt,
            new_tokens,
            top_logprobs=CANDIDATES,
            repetition_penalty=1,
            return_token_texts=True,
        )
    )
    tokens = [token.id for token in choice.tokens]
    continued = m.TokenIds(ids=tokens)
    asked = m.ScoreRequest(
        model="small",
        token_ids=m.TokenIds(ids=prompt),
        continuation_token_ids=continued,
        top_logprobs=1,
    )
    small = client.stub.Score(asked).continuation_tokens
    return Answer(
        problem.name,
        prompt,
        tokens,
        [ids(token) for token in read[1:]],
        [ids(token) for token in choice.tokens],
        [ids(token)[0] for token in small],
        [token.text for token in choice.tokens],
    )


def record(client: Client, problems: Iterable[Problem], new_tokens: int, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    there = load(file)
    with file.open("w") as out:  # without an incomplete line
        for answer in there:
            print(json.dumps(vars(answer)), file=out, flush=True)
        done = {answer.name for answer in there}
        for problem in problems:
            if problem.name not in done:
                print(json.dumps(vars(recorded(client, problem, new_tokens))), file=out, flush=True)
                print(problem.name, file=sys.stderr, flush=True)


def load(file: Path) -> list[Answer]:
    if not file.exists():
        return []
    lines = file.read_text().splitlines()
    answers = []
    for number, line in enumerate(lines):
        try:
            answers.append(Answer(**json.loads(line)))
        except json.JSONDecodeError:
            if number + 1 < len(lines):
                raise
    return answers


# A draft is a set of paths of tokens behind the text. A chain is one path.
Paths = list[tuple[int, ...]]
UNKNOWN = -1  # a wrong draft of the small model


def rows_of(paths: Paths) -> int:
    return len({path[:n] for path in paths for n in range(1, len(path) + 1)})


def accepted(paths: Paths, truth: Sequence[int]) -> int:
    def equal(path: tuple[int, ...]) -> int:
        return next(
            (i for i, (a, b) in enumerate(zip(path, truth, strict=False)) if a != b),
            min(len(path), len(truth)),
        )

    return max(map(equal, paths), default=0)


class Lookups:
    """What follows each beginning of a text, by look-ups as engine/decode/draft_lookup.h does them: behind the
    longest suffix of at most 64 tokens, the most recent one of equal ones. Suffixes of 4 tokens and more are
    also looked up in earlier texts."""

    HASHED, LONGEST, PLACES = 4, 64, 16

    def __init__(self, text: Sequence[int], start: int, earlier: Sequence[Sequence[int]] = ()):
        """For the beginnings of `start` tokens and more."""
        own: dict[tuple[int, ...], list[int]] = defaultdict(list)
        history: dict[tuple[int, ...], list[tuple[int, int]]] = defaultdict(list)
        for which, other in enumerate(earlier):
            for at in range(self.HASHED, len(other)):
                history[tuple(other[at - self.HASHED : at])].append((which, at))
        self.found: dict[int, tuple[int, tuple[int, ...]]] = {}
        for end in range(1, len(text)):
            begun = text[:end]
            if end >= start:
                gram = tuple(begun[-self.HASHED :])
                places = [(begun, at) for at in reversed(own.get(gram, [])[-self.PLACES :])]
                some = reversed(history.get(gram, [])[-self.PLACES :])
                places += [(earlier[which], at) for which, at in some]
                self.found[end] = self.longest(begun, places, own)
            for n in range(1, min(self.HASHED, end) + 1):
                own[tuple(begun[-n:])].append(end)

    def longest(self, text, places, own) -> tuple[int, tuple[int, ...]]:
        def matched(other: Sequence[int], at: int) -> int:
            n = 0
            while n < min(at, len(text), self.LONGEST) and other[at - 1 - n] == text[-1 - n]:
                n += 1
            return n

        lengths = [matched(*place) for place in places]
        if lengths:
            best = max(lengths)
            return best, self.copy(text, *places[lengths.index(best)])
        for n in range(self.HASHED - 1, 0, -1):
            if ends := own.get(tuple(text[-n:])):
                return n, self.copy(text, text, ends[-1])
        return 0, ()

    def copy(self, text, source, at: int) -> tuple[int, ...]:
        """A copy that reaches the end of the text continues with its own tokens."""
        drafts: list[int] = []
        while len(drafts) < MOST and (at < len(source) or source is text):
            drafts.append(source[at] if at < len(source) else drafts[at - len(source)])
            at += 1
        return tuple(drafts)

    def draft(self, end: int, most: int, least: int = 1) -> tuple[int, ...]:
        """Up to `most` tokens behind a match of at least `least` tokens."""
        matched, drafts = self.found[end]
        return drafts[:most] if matched >= least else ()


def all_lookups(answers: Sequence[Answer], keep: bool) -> list[Lookups]:
    """By answer. `keep`: with the answers before it."""
    texts = [answer.text for answer in answers]
    return [
        Lookups(answer.text, len(answer.prompt), texts[:i] if keep else ())
        for i, answer in enumerate(answers)
    ]


Matrix = dict[int, list[int]]


def follow(matrix: Matrix, token: int, ranks: Iterable[int]) -> tuple[int, ...]:
    """The tokens at these ranks, one behind the other, as far as they are known."""
    path: list[int] = []
    for rank in ranks:
        known = matrix.get(token, ())
        if rank >= len(known):
            break
        token = known[rank]
        path.append(token)
    return tuple(path)


def best_shape(first: Sequence[float], later: Sequence[float], nodes: int) -> list[tuple[int, ...]]:
    """The nodes of a tree that are accepted most often. `first` and `later`: how often the candidate
    of each rank is right, behind the text and behind an accepted draft."""
    chance: dict[tuple[int, ...], float] = {(rank,): p for rank, p in enumerate(first)}
    shape: list[tuple[int, ...]] = []
    while len(shape) < nodes and chance:
        node = max(chance, key=chance.__getitem__)
        reached = chance.pop(node)
        shape.append(node)
        chance |= {(*node, rank): reached * p for rank, p in enumerate(later)}
    return shape


@dataclass
class Round:
    """What a drafting may use: the text, the matrix, look-ups, and the small model's next drafts."""

    text: Sequence[int]
    matrix: Matrix
    lookups: Lookups
    small: Sequence[int]


Drafting = Callable[[Round], Paths]


@dataclass
class Counted:
    tokens: int = 0
    passes: int = 0
    rows: int = 0  # of passes, beyond the first of each
    small_passes: int = 0

    def __add__(self, other: "Counted") -> "Counted":
        mine, others = vars(self).values(), vars(other).values()
        return Counted(*(a + b for a, b in zip(mine, others, strict=True)))

    @property
    def per_pass(self) -> float:
        return self.tokens / self.passes

    def speed(self, row_cost: float) -> float:
        """Times as fast as autoregressive decoding."""
        return self.tokens / (self.passes + row_cost * self.rows + SMALL_PASS * self.small_passes)


def run(
    answers: Sequence[Answer],
    lookups: Sequence[Lookups],
    draft: Drafting,
    keep: bool,
    small: int = 0,
    prompts: bool = False,
) -> list[Counted]:
    """Rounds of each answer. `keep`: the matrix knows earlier answers; `small`: drafts of the small model in a
    round; `prompts`: the matrix knows the candidates behind tokens of the prompt."""
    all_counted, matrix = [], {}
    for answer, found in zip(answers, lookups, strict=True):
        text, start, matrix = answer.text, len(answer.prompt), matrix if keep else {}
        if prompts:
            matrix |= {text[i]: answer.behind(i) for i in range(start - 1)}
        matrix[text[start - 1]] = answer.behind(start - 1)
        counted = Counted()
        at = start + 1  # the first token is of the prompt's pass
        while at < len(text):
            truth = text[at:]
            guesses = answer.small[at - start :][: min(small, len(truth) - 1)]
            right = accepted([tuple(guesses)], truth)
            guesses = [*guesses[:right], *[UNKNOWN] * (len(guesses) - right)]
            paths = draft(Round(text[:at], matrix, found, guesses))
            paths = [path[: len(truth) - 1] for path in paths]
            new = accepted(paths, truth) + 1
            for i in range(at - 1, at - 1 + new):
                matrix[text[i]] = answer.behind(i)
            counted.tokens += new
            counted.passes += 1
            counted.rows += rows_of(paths)
            counted.small_passes += len(guesses)
            at += new
        all_counted.append(counted)
    return all_counted


def total(counted: Iterable[Counted]) -> Counted:
    return sum(counted, Counted())


def rank_rates(answers: Sequence[Answer], keep: bool) -> tuple[list[float], list[float]]:
    """For best_shape(): how often the candidate of each rank is right."""
    right, seen = ([0] * CANDIDATES, [0] * CANDIDATES), [0, 0]
    matrix: Matrix = {}
    for answer in answers:
        text, matrix = answer.text, matrix if keep else {}
        before = False
        for i in range(len(answer.prompt) - 1, len(text) - 1):
            known = matrix.get(text[i], [])
            rank = known.index(text[i + 1]) if text[i + 1] in known else None
            for depth in {0, int(before)}:
                seen[depth] += 1
                if rank is not None:
                    right[depth][rank] += 1
            before = rank is not None
            matrix[text[i]] = answer.behind(i)
    return tuple([n / max(1, seen[depth]) for n in right[depth]] for depth in (0, 1))


def ngrams(most: int, least: int = 1) -> Drafting:
    return lambda r: [r.lookups.draft(len(r.text), most, least)]


def chain(most: int) -> Drafting:
    return lambda r: [follow(r.matrix, r.text[-1], [0] * most)]


def tree(shape: Sequence[tuple[int, ...]]) -> Drafting:
    return lambda r: [follow(r.matrix, r.text[-1], ranks) for ranks in shape]


def first_of(first: Drafting, second: Drafting) -> Drafting:
    def draft(r: Round) -> Paths:
        paths = first(r)
        return paths if any(paths) else second(r)

    return draft


def filled(first: Drafting, shape: Sequence[tuple[int, ...]], rows: int) -> Drafting:
    """`first`, and nodes of the tree for the remaining rows."""

    def draft(r: Round) -> Paths:
        paths = first(r)
        for ranks in shape:
            more = [*paths, follow(r.matrix, r.text[-1], ranks)]
            if rows_of(more) <= rows:
                paths = more
        return paths

    return draft


def of_small(r: Round) -> Paths:
    return [tuple(r.small)]


def small_and_tail(most: int) -> Drafting:
    """The small model's drafts, and a chain of candidates behind the last one."""

    def draft(r: Round) -> Paths:
        last = [*r.text, *r.small][-1]
        return [(*r.small, *follow(r.matrix, last, [0] * most))]

    return draft


def small_and_siblings(r: Round) -> Paths:
    """The small model's drafts, and next to each the best other candidate."""
    paths = [tuple(r.small)]
    for n, drafted in enumerate(r.small):
        before = [*r.text, *r.small[:n]][-1]
        other = next((t for t in r.matrix.get(before, ()) if t != drafted), None)
        if other is not None:
            paths.append((*r.small[:n], other))
    return paths


LEAST = (1, 2, 3, 4, 6, 8)  # tokens of a match


Counts = dict[str, dict[str, list[Counted]]]  # by way, settings and answer
Shape = list[tuple[int, ...]]
EACH = range(1, MOST + 1)


def matches(n: int, least: int) -> str:
    return f"{n} drafts" + (f", matches of {least} tokens and more" if least > 1 else "")


def with_look_ups(shape: Shape) -> dict[str, dict[str, Drafting]]:
    """Ways with look-ups and a matrix, by name and settings."""
    both = list(itertools.product(EACH, LEAST))
    filled_up = [(k, m, n) for n in EACH for k in range(1, n + 1) for m in LEAST]
    smaller = [(n, m, k) for n, m in both for k in sorted({1, min(2, n), n})]
    return {
        "n-grams": {matches(*b): ngrams(*b) for b in both},
        "recycling, chain": {f"{n} drafts": chain(n) for n in EACH},
        "recycling, tree": {f"{n} drafts": tree(shape[:n]) for n in EACH},
        "n-grams, else chain": {
            f"{matches(n, m)}, else {k}": first_of(ngrams(n, m), chain(k)) for n, m, k in smaller
        },
        "n-grams, else tree": {
            f"{matches(n, m)}, else {k}": first_of(ngrams(n, m), tree(shape[:k]))
            for n, m, k in smaller
        },
        "n-grams, rest of the rows a tree": {
            f"{matches(k, m)}, {n} in all": filled(ngrams(k, m), shape, n) for k, m, n in filled_up
        },
    }


EARLIER = ", earlier answers"
BASIS = f"n-grams{EARLIER}"


def all_counts(answers: Sequence[Answer], half: int) -> Counts:
    """All ways, with the shapes of trees of one half of the answers."""
    lookups = {keep: all_lookups(answers, keep) for keep in (False, True)}
    shapes = {keep: best_shape(*rank_rates(answers[half::2], keep), MOST) for keep in (False, True)}
    counts: Counts = {}

    def way(name: str, settings: dict[str, Drafting], keep: bool, **more) -> None:
        counts[name] = {
            shown: run(answers, lookups[keep], draft, keep, **more)
            for shown, draft in settings.items()
        }

    for keep in (False, True):
        for name, settings in with_look_ups(shapes[keep]).items():
            way(name + (EARLIER if keep else ""), settings, keep)
    more = with_look_ups(shapes[True])
    for name in ("recycling, tree", "n-grams, rest of the rows a tree"):
        way(f"{name}{EARLIER}, candidates of prompts", more[name], True, prompts=True)
    for n in (2, 4, 8):
        name = f"small model, {n} drafts"
        tails = {f"{k} more": small_and_tail(k) for k in (1, 2, 4)}
        way(name, {"-": of_small}, True, small=n)
        way(f"{name}, chain behind them", tails, True, small=n)
        way(f"{name}, a sibling each", {"-": small_and_siblings}, True, small=n)
    return counts


def basis_of(name: str) -> str:
    """What a way is compared with."""
    return ", ".join(name.split(", ")[:2]) if name.startswith("small") else BASIS


def scored(counts: Sequence[Counts], name: str, row_cost: float) -> tuple[list[Counted], list[str]]:
    """Each answer with the shapes and the best settings of the other half, and these settings."""
    settings = [
        max(of[name], key=lambda s, of=of, half=half: total(of[name][s][half::2]).speed(row_cost))
        for half, of in enumerate(counts)
    ]
    answers = len(next(iter(counts[0][name].values())))
    held_out = [counts[1 - i % 2][name][settings[1 - i % 2]][i] for i in range(answers)]
    return held_out, settings


def gain(counted: Sequence[Counted], basis: Sequence[Counted], row_cost: float) -> str:
    """Of the speed, with its standard error over answers."""
    pairs = list(zip(counted, basis, strict=True))

    def ratio(some) -> float:
        a, b = (total(side) for side in zip(*some, strict=True))
        return a.speed(row_cost) / b.speed(row_cost) - 1

    draw = random.Random(0)
    error = statistics.pstdev(ratio(draw.choices(pairs, k=len(pairs))) for _ in range(400))
    return f"{ratio(pairs):+.1%} ± {error:.1%}"


def pages(answers: Sequence[Answer]) -> str:
    """The tables."""
    counts = [all_counts(answers, half) for half in (0, 1)]
    per_pass = []
    for name, of in counts[0].items():
        if name.startswith("small"):
            continue
        totals = [(drafts_of(settings), total(counted)) for settings, counted in of.items()]
        best = [max(c.per_pass for n, c in totals if n == each) for each in EACH]
        per_pass.append([name, *(f"{value:.2f}" for value in best)])
    rows = []
    for name in counts[0]:
        cells = [name]
        for cost in ROW_COSTS:
            counted, settings = scored(counts, name, cost)
            basis, _ = scored(counts, basis_of(name), cost)
            sum_of = total(counted)
            cells += [f"{sum_of.per_pass:.2f}", f"{sum_of.speed(cost):.3f}"]
            cells += [gain(counted, basis, cost), " / ".join(dict.fromkeys(settings))]
        rows.append(cells)
    columns = [
        title
        for cost in ROW_COSTS
        for title in (f"a row {cost:.0%}: tokens per pass", "× AR", "gain", "settings")
    ]
    tokens = sum(len(a.tokens) for a in answers)
    return (
        f"{len(answers)} answers, {tokens} tokens.\n\n"
        f"Tokens per pass by drafts of a round, all answers, with the best shortest match:\n\n"
        f"{report.table(['drafts', *map(str, EACH)], per_pass)}\n\n"
        f"Each half with the settings of the other one. Gain: over {BASIS}, or over the small model:"
        f"\n\n{report.table(['drafting', *columns], rows)}\n\n{report.table(*missed(answers))}\n"
    )


def drafts_of(settings: str) -> int:
    """Rows of a round beyond the first, at most."""
    words = settings.split(", ")[-1].split() if "in all" in settings else settings.split()
    return int(words[0])


def missed(answers: Sequence[Answer]) -> tuple[list[str], list[list[str]]]:
    """The answers' tokens by what would have drafted them."""
    counts: dict[str, int] = defaultdict(int)
    matrix: Matrix = {}
    earlier: list[list[int]] = []
    for answer in answers:
        text, start = answer.text, len(answer.prompt)
        lookups = Lookups(text, start, earlier)
        for i in range(start, len(text)):
            found = (
                ("n-grams", lookups.draft(i, 1) == (text[i],)),
                ("the small model", answer.small[i - start] == text[i]),
                ("recycling, first candidate", text[i] in matrix.get(text[i - 1], [])[:1]),
                ("recycling, any candidate", text[i] in matrix.get(text[i - 1], [])),
            )
            for name, right in found:
                counts[name] += right
            by_lookup, by_small, _, by_any = (right for _, right in found)
            counts["recycling, any candidate; not n-grams"] += by_any and not by_lookup
            counts["recycling, any candidate; neither of n-grams and the small model"] += (
                by_any and not by_lookup and not by_small
            )
            matrix[text[i - 1]] = answer.behind(i - 1)
        earlier.append(text)
    tokens = sum(len(a.tokens) for a in answers)
    return ["the next token is drafted by", f"of {tokens}"], [
        [n, str(c)] for n, c in counts.items()
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=["record", "replay"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--server", type=Path, default=BINARY)
    parser.add_argument("--problems", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument(
        "--stops", action="store_true", help="of replay: answers end with the function"
    )
    args = parser.parse_args(arguments)
    if args.step == "record":
        with server(args.server, models={"large": LARGE, "small": SMALL}, dtype="auto") as client:
            record(client, read_problems()[: args.problems], args.new_tokens, args.file)
        return 0
    answers = load(args.file)
    if not answers:
        print(f"no answers in {args.file}: write them with record", file=sys.stderr)
        return 1
    print(pages([a.cut(STOPS) for a in answers] if args.stops else answers))
    return 0


if __name__ == "__main__":
    sys.exit(main())
