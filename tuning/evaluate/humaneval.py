"""HumanEval (Chen et al. 2021) through the server: quality beside speed, for each way to decode.

    scripts/evaluate --humaneval [N] [--temperature 0.8]

The coder pair and the problems are fetched by scripts/models. A model continues each problem's prompt
as a text; what it writes, up to the first line that is not the function's any more, is run with the
problem's tests in a sandbox (tuning/evaluate/sandbox.py).
"""

import gzip
import json
import math
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.peers.serving import Client
from tuning.evaluate import sandbox

MODELS = Path(os.environ.get("TANDEM_HOME", Path.home() / ".cache" / "tandem")) / "models"
LARGE, SMALL = MODELS / "qwen2.5-coder-1.5b.gguf", MODELS / "qwen2.5-coder-0.5b.gguf"
PROBLEMS = MODELS / "HumanEval.jsonl.gz"
# Where the function ends: the first line of something else (Chen et al. 2021, section 2.3).
STOPS = ("\nclass ", "\ndef ", "\n#", "\nif ", "\nprint(", "\n```", "\n@", "\nassert ")

CONFIG = """
models {{ name: "large" path: "{large}" }}
models {{ name: "small" path: "{small}" }}
deployments {{ name: "pair" large: "large" small: "small" }}
deployments {{ name: "small" large: "small" }}
"""


@dataclass(frozen=True)
class Problem:
    name: str
    prompt: str
    tests: str
    entry_point: str

    def program(self, completion: str) -> str:
        return f"{self.prompt}{completion}\n\n{self.tests}\n\ncheck({self.entry_point})\n"


def read_problems(path: Path = PROBLEMS) -> list[Problem]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        entries = [json.loads(line) for line in file if line.strip()]
    return [Problem(e["task_id"], e["prompt"], e["test"], e["entry_point"]) for e in entries]


@dataclass(frozen=True)
class Way:
    """A way to decode: a method of the protocol with its parameters, on a deployment of CONFIG."""

    name: str
    method: str
    deployment: str = "pair"
    parameters: dict = field(default_factory=dict, hash=False)
    promises_exact: bool = False  # also when tokens are sampled

    def message(self, messages):
        return getattr(messages, self.method)(**self.parameters)


def bild(fallback: float, rollback: float) -> Way:
    parameters = {"fallback_threshold": fallback, "rollback_threshold": rollback}
    return Way(f"BiLD ({fallback:g}, {rollback:g})", "Bild", parameters=parameters)


AR = Way("autoregressive", "Autoregressive", promises_exact=True)
WAYS = (
    AR,
    Way("small model alone", "Autoregressive", "small"),
    Way("speculative, γ 4", "Speculative", parameters={"draft_tokens": 4}, promises_exact=True),
    Way(
        "speculative, adaptive, γ 8",
        "Speculative",
        parameters={"draft_tokens": 8, "adaptive": True},
        promises_exact=True,
    ),
    Way(
        "speculative, γ 4, 32k of 152k drafted",
        "Speculative",
        parameters={"draft_tokens": 4, "draft_vocabulary": 32768},
        promises_exact=True,
    ),
    Way(
        "speculative, γ 8 while sure, 32k of 152k drafted",
        "Speculative",
        parameters={
            "draft_tokens": 8,
            "min_draft_probability": 0.5,
            "draft_vocabulary": 32768,
        },
        promises_exact=True,
    ),
    Way("n-grams, γ 4", "Ngram", parameters={"draft_tokens": 4}, promises_exact=True),
    Way("auto", "Auto", promises_exact=True),
    bild(0.6, 0.69),
    bild(0.6, 2),
    bild(0.6, 5),
)


@dataclass
class Solved:
    """What a way wrote for one problem."""

    tokens: list[int]
    seconds: float
    passed: bool


@dataclass
class Result:
    way: Way
    solved: list[Solved] = field(default_factory=list)

    @property
    def share(self) -> float:
        """pass@1."""
        return statistics.mean(s.passed for s in self.solved)

    @property
    def error(self) -> float:
        """Standard error of a share of so many independent problems."""
        return math.sqrt(self.share * (1 - self.share) / len(self.solved))

    @property
    def speed(self) -> float:
        return sum(len(s.tokens) for s in self.solved) / sum(s.seconds for s in self.solved)

    def equal(self, ar: "Result") -> int:
        return sum(a.tokens == b.tokens for a, b in zip(self.solved, ar.solved, strict=True))


def write_config(folder: str) -> Path:
    path = Path(folder) / "humaneval.textproto"
    path.write_text(CONFIG.format(large=LARGE, small=SMALL))
    return path


def request_of(client: Client, way: Way, problem: Problem, new_tokens: int, temperature: float):
    m = client.messages
    names = {
        f.message_type.name: f.name
        for f in m.GenerateRequest.DESCRIPTOR.oneofs_by_name["method"].fields
    }
    # A seed for each problem, the same for every way: exact ones give the same tokens.
    seed = int(problem.name.rsplit("/", 1)[-1])
    request = m.GenerateRequest(
        model=way.deployment,
        text=problem.prompt,
        temperature=temperature,
        top_p=1,
        top_k=0,
        repetition_penalty=1,
        seed=seed,
        max_new_tokens=new_tokens,
        stop_sequences=STOPS,
        return_tokens=True,
    )
    getattr(request, names[way.method]).CopyFrom(way.message(m))
    if way.promises_exact:  # the server must agree, or it refuses
        request.require_contract = m.CONTRACT_EXACT
    return request


def solve(
    client: Client,
    way: Way,
    problem: Problem,
    new_tokens: int,
    temperature: float,
    judge: Callable[[str], sandbox.Outcome] = sandbox.run,
) -> Solved:
    request = request_of(client, way, problem, new_tokens, temperature)
    start = time.perf_counter()
    choice = client.complete(request)
    seconds = time.perf_counter() - start
    passed = judge(problem.program(choice.text)).passed
    return Solved([token.id for token in choice.tokens], seconds, passed)


def measure(
    client: Client,
    ways: Sequence[Way],
    problems: Sequence[Problem],
    new_tokens: int,
    temperature: float,
    progress: Callable[[], None] = lambda: None,
    judge: Callable[[str], sandbox.Outcome] = sandbox.run,
) -> list[Result]:
    """Problem by problem all ways, in a new order each time, one request at a time: what else the
    machine does hits all alike. Each deployment reads the prompt once before."""
    order = random.Random(0)
    results = {way: Result(way) for way in ways}
    for problem in problems:
        for deployment in {way.deployment: way for way in ways}.values():
            client.complete(request_of(client, deployment, problem, 2, 0))
        runs = list(ways)
        order.shuffle(runs)
        for way in runs:
            answer = solve(client, way, problem, new_tokens, temperature, judge)
            results[way].solved.append(answer)
            progress()
    return list(results.values())


def table(results: Sequence[Result], temperature: float) -> str:
    ar = next(r for r in results if r.way is AR)
    count = len(ar.solved)
    lines = [
        f"| way | pass@1 of {count} | tokens/s | × AR | AR's text |",
        "|---|---:|---:|---:|---:|",
    ]
    for r in results:
        lines.append(
            f"| {r.way.name} | {100 * r.share:.1f} ± {100 * r.error:.1f} % | {r.speed:.1f} "
            f"| {r.speed / ar.speed:.2f} | {r.equal(ar)} of {count} |"
        )
    kind = "greedy" if temperature == 0 else f"temperature {temperature:g}, a seed for each problem"
    return f"{kind}\n\n" + "\n".join(lines)


def unequal(results: Sequence[Result]) -> list[str]:
    """Ways that promise AR's tokens and gave others."""
    ar = next(r for r in results if r.way is AR)
    return [r.way.name for r in results if r.way.promises_exact and r.equal(ar) < len(ar.solved)]


def missing() -> list[str]:
    names = {LARGE: "qwen2.5-coder-1.5b", SMALL: "qwen2.5-coder-0.5b", PROBLEMS: "humaneval"}
    return [name for path, name in names.items() if not path.exists()]


def main(serve, count: int, new_tokens: int, temperatures: Sequence[float], bar) -> int:
    """`serve`: from a deployment file to a context with a Client."""
    if missing():
        print(f"not here: {', '.join(missing())}; scripts/models fetch {' '.join(missing())}")
        return 1
    problems = read_problems()[:count]
    if not sandbox.own_namespaces():
        print("note: no namespaces here, so programs are run with the machine's network")
    failed = []
    with tempfile.TemporaryDirectory() as folder, serve(write_config(folder)) as client:
        for temperature in temperatures:
            with bar(len(problems) * len(WAYS), f"HumanEval at {temperature:g}") as shown:
                results = measure(client, WAYS, problems, new_tokens, temperature, shown.update)
            print(f"\n{table(results, temperature)}\n", flush=True)
            failed += unequal(results)
    for name in failed:
        print(f"not equal to AR, and must be: {name}")
    return 1 if failed else 0
