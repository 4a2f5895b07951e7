"""Runs configurations on tasks through a server, and evaluates the answers."""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer

from measure.serving import Client, at_once
from tuning import corpus
from tuning.calibration import cut_prompts
from tuning.evaluate.grid import AR, Configuration
from tuning.evaluate.quality import edit_similarity, rouge_l
from tuning.windows import TokenStream

LARGE = "code"  # a deployment of the large model, which scores
UNMEASURED = 4  # tokens of a warm-up answer


@dataclass(frozen=True)
class Task:
    """A completion: `reference` is the held-out file's own continuation of `prompt`."""

    prompt: tuple[int, ...]
    reference: tuple[int, ...]


def cut_tasks(
    stream: TokenStream, count: int, prompt_tokens: int, new_tokens: int, seed: int
) -> list[Task]:
    """`count` tasks out of the stream, with prompts of `prompt_tokens` ids."""
    length = prompt_tokens - 1 + new_tokens
    return [
        Task(tuple(ids[:prompt_tokens]), tuple(ids[prompt_tokens:]))
        for ids in cut_prompts(stream, count, length, length, seed)
    ]


def held_out_tasks(
    model: Path, stdlib: Path, prompts: int, new_tokens: int, seed: int = 2
) -> tuple[TokenStream, list[Task]]:
    """Held-out files in a model's tokens, and tasks of them with prompts of 64 tokens."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    _, held_out = corpus.split(corpus.read_documents(stdlib))
    stream = TokenStream(tokenizer, [document.text for document in held_out])
    return stream, cut_tasks(stream, prompts, 64, new_tokens, seed)


@dataclass
class Answer:
    """The answer to one task."""

    tokens: list[int]
    seconds: float  # from the call to the whole answer
    corrected: int  # tokens in place of a proposal that was not kept
    large_passes: int
    small_passes: int
    accept_lengths: tuple[int, ...] = ()  # [i]: rounds that kept i drafts

    @classmethod
    def of(cls, choice, seconds: float) -> "Answer":
        stats = choice.finished.stats
        return cls(
            [token.id for token in choice.tokens],
            seconds,
            sum(token.corrected for token in choice.tokens),
            stats.large_passes,
            stats.small_passes,
            tuple(stats.accept_lengths),
        )


@dataclass
class Row:
    """Answers of a configuration, a list per turn, and their evaluation."""

    configuration: Configuration
    turns: list[list[Answer]] = field(default_factory=list)
    speedups: list[float] = field(default_factory=list)  # over AR, by turn
    equal: float = 0.0  # share of the answers that are AR's
    similarity: float = 0.0  # mean edit similarity with AR's answers
    rouge: float = 0.0  # mean ROUGE-L against the held-out files
    nll: float = 0.0  # nats per token under the large model

    def answers(self) -> list[Answer]:
        return [answer for turn in self.turns for answer in turn]

    def tokens(self) -> int:
        return sum(len(answer.tokens) for answer in self.answers())

    @property
    def speedup(self) -> float:
        return statistics.median(self.speedups)

    @property
    def kept(self) -> float:
        """Drafts that a round keeps, in the mean; 0 where there was no round."""
        rounds = [answer.accept_lengths for answer in self.answers()]
        kept = sum(i * n for lengths in rounds for i, n in enumerate(lengths))
        return kept / max(1, sum(map(sum, rounds)))

    @property
    def fallbacks(self) -> float:
        """Calls of the large model, but for the first token's, per token of the answers."""
        return sum(answer.large_passes - 1 for answer in self.answers()) / self.tokens()

    @property
    def rollbacks(self) -> float:
        """Times that the large model replaced a proposal, per token of the answers."""
        return sum(answer.corrected for answer in self.answers()) / self.tokens()


def decode(client: Client, configuration: Configuration, task: Task, new_tokens: int) -> Answer:
    request = client.request(
        configuration.deployment,
        list(task.prompt),
        new_tokens,
        configuration.message(client.messages),
    )
    if configuration.promises_exact:  # the server must agree, or it refuses
        request.require_contract = client.messages.CONTRACT_EXACT
    start = time.perf_counter()
    choice = client.complete(request)
    return Answer.of(choice, time.perf_counter() - start)


def take_turns(
    client: Client,
    configurations: Sequence[Configuration],
    turns: Sequence[Sequence[Task]],
    new_tokens: int,
    seed: int,
    progress=lambda: None,
    reference: Configuration = AR,
) -> tuple[Row, list[Row]]:
    """The reference's row (AR's) and the configurations', each on the tasks of every turn, one request at a time.

    Task by task all configurations are run, in a new order each time, with AR among them once for
    every ten: what else the machine does hits all alike. Before that, each deployment answers once
    unmeasured, so that all find the prompt in the server's prefix cache, or none does.
    """
    order = random.Random(seed)
    references = max(1, len(configurations) // 10)
    rows = {configuration: Row(configuration) for configuration in configurations}
    ar = Row(reference)
    for tasks in turns:
        for row in [ar, *rows.values()]:
            row.turns.append([])
        for task in tasks:
            for first in {c.deployment: c for c in [reference, *configurations]}.values():
                decode(client, first, task, UNMEASURED)
            runs = [*configurations, *[reference] * references]
            order.shuffle(runs)
            mine = []
            for configuration in runs:
                answer = decode(client, configuration, task, new_tokens)
                if configuration is reference:
                    mine.append(answer)
                else:
                    rows[configuration].turns[-1].append(answer)
                progress()
            if any(answer.tokens != mine[0].tokens for answer in mine):
                raise RuntimeError("autoregressive decoding gave one prompt two answers")
            mine[0].seconds = statistics.mean(answer.seconds for answer in mine)
            ar.turns[-1].append(mine[0])
    return ar, list(rows.values())


def seconds_per_token(answers: list[Answer]) -> float:
    return sum(a.seconds for a in answers) / sum(len(a.tokens) for a in answers)


def rouge_of_tokens(tokens: list[int], task: Task) -> float:
    return rouge_l(tokens, list(task.reference))


def rate(
    client: Client | None,
    ar: Row,
    rows: Sequence[Row],
    turns: Sequence[Sequence[Task]],
    rouge: Callable[[list[int], Task], float] = rouge_of_tokens,
    scorer: str | None = LARGE,
) -> None:
    """Fills in what the rows' answers are worth, AR's own row included; their likelihood under the
    large model of the deployment `scorer`, if there is one that scores."""
    tasks = [task for turn in turns for task in turn]
    for row in [ar, *rows]:
        row.speedups = [
            seconds_per_token(theirs) / seconds_per_token(ours)
            for theirs, ours in zip(ar.turns, row.turns, strict=True)
        ]
        answers = row.answers()
        pairs = list(zip(ar.answers(), answers, strict=True))
        row.equal = statistics.mean(a.tokens == b.tokens for a, b in pairs)
        row.similarity = statistics.mean(edit_similarity(a.tokens, b.tokens) for a, b in pairs)
        row.rouge = statistics.mean(
            rouge(answer.tokens, task) for answer, task in zip(answers, tasks, strict=True)
        )
    if scorer is None:
        return
    # Many answers are the same: each is scored once.
    asked = {
        (task.prompt, tuple(answer.tokens)): 0.0
        for row in [ar, *rows]
        for answer, task in zip(row.answers(), tasks, strict=True)
    }

    def score(text: tuple) -> float:
        prompt, tokens = text
        if not tokens:
            return 0.0
        return client.negative_log_likelihood(scorer, list(prompt), list(tokens))

    asked.update(zip(asked, at_once(score, list(asked), streams=8), strict=True))
    for row in [ar, *rows]:
        nats = sum(
            asked[task.prompt, tuple(answer.tokens)]
            for answer, task in zip(row.answers(), tasks, strict=True)
        )
        row.nll = nats / row.tokens()


def half(row: Row, second: bool) -> Row:
    """The first or the second half of each turn's answers, not rated."""
    cuts = [len(turn) // 2 for turn in row.turns]
    parts = [turn[at:] if second else turn[:at] for turn, at in zip(row.turns, cuts, strict=True)]
    return Row(row.configuration, parts)


def rated_halves(
    ar: Row,
    rows: Sequence[Row],
    turns: Sequence[Sequence[Task]],
    rouge: Callable[[list[int], Task], float] = rouge_of_tokens,
) -> list[tuple[Row, list[Row]]]:
    """AR's row and the others on the first half of each turn's tasks, and on the second: settings
    are chosen on one and reported on the other. Without the likelihood under the large model."""
    found = []
    for second in (False, True):
        cuts = [len(turn) // 2 for turn in turns]
        tasks = [turn[at:] if second else turn[:at] for turn, at in zip(turns, cuts, strict=True)]
        mine, others = half(ar, second), [half(row, second) for row in rows]
        rate(None, mine, others, tasks, rouge, scorer=None)
        found.append((mine, others))
    return found


def count_equal(
    client: Client,
    configurations: Sequence[Configuration],
    tasks: Sequence[Task],
    new_tokens: int,
    streams: int,
    progress=lambda: None,
    reference: Configuration = AR,
) -> dict[Configuration, int]:
    """For each configuration, how many tasks' tokens are AR's own, all of them."""

    def run(configuration: Configuration) -> list[list[int]]:
        def one(task: Task) -> list[int]:
            tokens = decode(client, configuration, task, new_tokens).tokens
            progress()
            return tokens

        return list(at_once(one, tasks, streams))

    wanted = run(reference)
    return {
        configuration: sum(a == b for a, b in zip(run(configuration), wanted, strict=True))
        for configuration in configurations
    }
