"""HumanEval (Chen et al. 2021) through the server: quality and speed of each decoding method.

    scripts/evaluate --humaneval [N] [--temperature 0.8] [--ways auto,BiLD] [--write]
    scripts/evaluate --humaneval --temperature 0 --ways auto --streams 1,4,8 [--answers 3] [--bursts] [--prompt-tokens 1000] [--write]
    scripts/evaluate --humaneval 24 --temperature 0 --llama-server [NAME=]PATH   # also llama.cpp's server, same files

--llama-server is repeatable, and PATH may be the server of another build or of ik_llama.cpp. Each of its ways
runs with the faster repacking of the weights, by a trial.

The coder pair and the problems are fetched by scripts/models. A model continues each problem's prompt
as a text; what it writes, up to the first line that is not the function's any more, is run with the
problem's tests in a sandbox (tuning/evaluate/sandbox.py). With --chat the problem is a chat message, and
the code of the answer is run.
"""

import gzip
import json
import math
import os
import random
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from measure import machine
from measure.llama_programs import Program, Settings
from measure.llama_server import LlamaServer, llama_server
from measure.paths import ROOT
from measure.serving import Client
from tuning.evaluate import sandbox, under_load

PAGE = ROOT / "docs" / "reports" / "fidelity.md"

MODELS = Path(os.environ.get("TANDEM_HOME", Path.home() / ".cache" / "tandem")) / "models"
LARGE, SMALL = MODELS / "qwen2.5-coder-1.5b.gguf", MODELS / "qwen2.5-coder-0.5b.gguf"
PROBLEMS = MODELS / "HumanEval.jsonl.gz"
# Where the function ends: the first line of something else (Chen et al. 2021, section 2.3).
STOPS = ("\nclass ", "\ndef ", "\n#", "\nif ", "\nprint(", "\n```", "\n@", "\nassert ")
# A chat message by the template of Qwen2.5-Coder-Instruct, with the request of EvalPlus (Liu et al. 2023).
CHAT = """<|im_start|>system
You are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>
<|im_start|>user
Please provide a self-contained Python script that solves the following problem in a markdown code block:
```python
{}
```<|im_end|>
<|im_start|>assistant
"""

CONFIG = """
models {{ name: "large" path: "{large}" prefix_cache: {cached} }}
models {{
  name: "small" path: "{small}" dtype: {dtype} prefix_cache: {cached}
  extras {{ name: "masks" path: "{masks}" }}
}}
# All ways answer the same problems, so none may look drafts up in the answers of the others.
deployments {{
  name: "pair" large: "large" small: "small" history_tokens: 0
  speculative {{ adapter: "masks" }} bild {{ adapter: "masks" }}
}}
deployments {{ name: "small" large: "small" }}
deployments {{ name: "early" large: "large" bild {{ early_exit_layer: {early} }} }}
"""
# Mask tokens: a pass of the small model drafts more than one token.
MASKS = ROOT / "models" / "qwen2.5-coder-0.5b-drafts"
RESAMPLED = 2000  # samples of the bootstrap
EARLY = 21  # of 28 layers: as small model of early exit, with the large one's own output matrix


@dataclass(frozen=True)
class Problem:
    name: str
    prompt: str
    tests: str
    entry_point: str
    solution: str = ""
    chat: bool = False  # a chat message, and the answer has the function in a block of code
    stopped: bool = True  # the answer ends after the function

    @property
    def text(self) -> str:
        """The prompt of the model."""
        return CHAT.format(self.prompt.strip()) if self.chat else self.prompt

    @property
    def stops(self) -> Sequence[str]:
        return STOPS if self.stopped and not self.chat else ()

    def program(self, completion: str) -> str:
        code = self.prompt + completion
        if self.chat:
            # The block may lack imports and functions that the prompt begins with.
            begin = self.prompt[: self.prompt.find(f"def {self.entry_point}")]
            code = begin + block_of(completion)
        return f"{code}\n\n{self.tests}\n\ncheck({self.entry_point})\n"


def block_of(answer: str) -> str:
    """The first block of code in an answer, or the whole answer if it has none. A block ends at the latest
    with the answer."""
    block = re.search(r"```[a-z]*\n(.*?)(```|\Z)", answer, re.DOTALL)
    return block[1] if block else answer


def read_problems(path: Path = PROBLEMS) -> list[Problem]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        entries = [json.loads(line) for line in file if line.strip()]
    keys = ("task_id", "prompt", "test", "entry_point", "canonical_solution")
    return [Problem(*(entry[key] for key in keys)) for entry in entries]


CHARACTERS = 3.35  # of a token of these texts, in the mean, by Qwen2.5-Coder's tokenizer


def lengthened(problem: Problem, examples: Sequence[Problem], tokens: int, number: int) -> Problem:
    """With a prompt of about that many tokens: solved examples, and then the problem. Solved ones, as
    a model that reads unsolved ones writes no body either. `number`: of the request; the first
    example depends on it, also where a problem is repeated."""
    start = (number + 1 + number // len(examples)) % len(examples)
    others = [e for e in (*examples[start:], *examples[:start]) if e.name != problem.name]
    prefix, size = "", CHARACTERS * tokens - len(problem.prompt)
    for other in others:
        text = f"{other.prompt}{other.solution}\n\n"
        if len(prefix) + len(text) / 2 > size:
            return replace(problem, prompt=prefix + problem.prompt)
        prefix += text
    most = int(len(prefix + problem.prompt) / CHARACTERS)
    raise under_load.OptionError(
        f"--prompt-tokens: {tokens}; allowed: less than {most}, "
        f"the length of all {len(examples)} problems"
    )


@dataclass(frozen=True)
class Way:
    """A way to decode: a method of the protocol with its parameters, on a deployment of CONFIG."""

    name: str
    method: str
    deployment: str = "pair"
    parameters: dict = field(default_factory=dict, hash=False)
    promises_exact: bool = False  # also when tokens are sampled
    peer: Program | None = None  # another server instead, greedy, with these settings
    settings: Settings = Settings("")

    def message(self, messages):
        return getattr(messages, self.method)(**self.parameters)


def bild(fallback: float, rollback: float, masks: int = 0) -> Way:
    parameters = {"fallback_threshold": fallback, "rollback_threshold": rollback}
    name = f"BiLD ({fallback:g}, {rollback:g})" + (", parallel drafting" if masks else "")
    return Way(name, "Bild", parameters=parameters | {"num_masks": masks})


def speculative(name: str, masks: int = 0, **parameters) -> Way:
    name += ", parallel drafting" if masks else ""
    return Way(
        name, "Speculative", parameters=parameters | {"num_masks": masks}, promises_exact=True
    )


AR = Way("autoregressive", "Autoregressive", promises_exact=True)
WAYS = (
    AR,
    Way("small model alone", "Autoregressive", "small"),
    speculative("speculative, γ 4, full draft vocabulary", draft_tokens=4, draft_vocabulary=0),
    speculative("speculative, γ 4", draft_tokens=4),
    speculative("speculative, adaptive, γ 8", draft_tokens=8, pace="PACE_ADAPTIVE"),
    speculative("speculative, γ 8, min p 0.5", draft_tokens=8, min_draft_probability=0.5),
    speculative("speculative, γ 8, min p 0.5", 1, draft_tokens=8, min_draft_probability=0.5),
    Way("n-grams, γ 4", "Ngram", parameters={"draft_tokens": 4}, promises_exact=True),
    Way("auto", "Auto", promises_exact=True),
    bild(0.6, 0.69),
    *(bild(0.6, rollback, masks=1) for rollback in (0.69, 2, 5)),
    bild(0.4, 5, masks=1),
    Way(
        f"early exit, layers 1-{EARLY}, BiLD (0.6, 0.69)",
        "Bild",
        "early",
        {"fallback_threshold": 0.6, "rollback_threshold": 0.69, "early_exit": True},
    ),
)

# They read a prompt with all models of a deployment.
READERS = {
    way.deployment: way
    for way in WAYS
    if way.method in ("Speculative", "Bild") or way.deployment == "small"
}

READ_TOKENS = 18  # fill the page of the prompt's last tokens, which later requests then share
TRIAL = 2  # problems that choose the repacking of a peer's way


def peer_ways(peer: Program) -> list[Way]:
    """A llama-server on the same files. Its default n-grams need 12 equal tokens."""
    kinds = {
        "autoregressive": Settings(""),
        "0.5B drafts up to 4": peer.model_drafts(SMALL, 4),
        "0.5B drafts up to 8 while p > 0.6": peer.model_drafts(SMALL, 8, 0.6),
        "n-grams": peer.ngrams(),
        "n-grams, short matches": peer.ngrams(3, 8),
    }
    return [
        Way(f"{peer.name}, {kind}", "", "", peer=peer, settings=settings)
        for kind, settings in kinds.items()
    ]


def started(way: Way):
    return llama_server(way.peer.path, LARGE, way.settings.flags)


def repacked(
    way: Way,
    problems: Sequence[Problem],
    new_tokens: int,
    start: Callable[[Way], AbstractContextManager[LlamaServer]] = started,
    clock: Callable[[], float] = time.perf_counter,
) -> Way:
    """The way with the faster repacking of the weights; the settings show both speeds."""
    speeds: dict[Settings, float] = {}
    for choice in way.peer.repacking():
        with start(replace(way, settings=way.settings + choice)) as server:
            tokens, seconds = 0, 0.0
            for problem in problems[:TRIAL]:
                server.complete(problem.text, 2, problem.stops)  # reads the prompt
                begin = clock()
                tokens += server.complete(problem.text, new_tokens, problem.stops).count
                seconds += clock() - begin
        speeds[choice] = tokens / seconds
    fastest, *others = sorted(speeds, key=speeds.__getitem__, reverse=True)
    settings = way.settings + fastest
    if others:
        beside = "; ".join(f"{s.shown} {speeds[s]:.1f}" for s in others)
        shown = f"{settings.shown} (trial: {speeds[fastest]:.1f} tokens/s; {beside})"
        settings = replace(settings, shown=shown)
    return replace(way, settings=settings)


@dataclass
class Solved:
    """What a way wrote for one problem."""

    tokens: list[int]  # none of a server that does not return them
    seconds: float
    passed: bool
    text: str = ""
    count: int = 0  # of tokens, if there are none

    def equals(self, other: "Solved") -> bool:
        """By texts if one has no tokens."""
        if self.tokens and other.tokens:
            return self.tokens == other.tokens
        return self.text == other.text


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
        """Standard error of the share, for independent problems."""
        return math.sqrt(self.share * (1 - self.share) / len(self.solved))

    @property
    def speed(self) -> float:
        tokens = sum(len(s.tokens) or s.count for s in self.solved)
        return tokens / sum(s.seconds for s in self.solved)

    def equal(self, ar: "Result") -> int:
        return sum(a.equals(b) for a, b in zip(self.solved, ar.solved, strict=True))

    def speed_up(self, ar: "Result") -> tuple[float, float, float]:
        """Speed relative to AR's, and its 95 % interval by a paired bootstrap over problems."""
        pairs = [
            (len(s.tokens) or s.count, s.seconds, len(a.tokens), a.seconds)
            for s, a in zip(self.solved, ar.solved, strict=True)
        ]

        def ratio(pairs: Sequence[tuple[int, float, int, float]]) -> float:
            tokens, seconds, of_ar, seconds_of_ar = map(sum, zip(*pairs, strict=True))
            return tokens / seconds / (of_ar / seconds_of_ar)

        drawn = random.Random(0)
        resampled = sorted(ratio(drawn.choices(pairs, k=len(pairs))) for _ in range(RESAMPLED))
        outside = RESAMPLED * 25 // 1000
        return ratio(pairs), resampled[outside], resampled[-1 - outside]


def write_config(folder: str, small_dtype: str, cached: bool = True) -> Path:
    path = Path(folder) / "humaneval.textproto"
    dtype = f"DTYPE_{small_dtype.upper()}"
    values = {"large": LARGE, "small": SMALL, "masks": MASKS, "dtype": dtype, "early": EARLY}
    path.write_text(CONFIG.format(**values, cached=str(cached).lower()))
    return path


def request_of(
    client: Client,
    way: Way,
    problem: Problem,
    new_tokens: int,
    temperature: float,
    top_p: float = 1,
    trace: bool = False,
):
    m = client.messages
    names = {
        f.message_type.name: f.name
        for f in m.GenerateRequest.DESCRIPTOR.oneofs_by_name["method"].fields
    }
    # A seed for each problem, the same for every way: exact ones give the same tokens.
    seed = int(problem.name.rsplit("/", 1)[-1])
    request = m.GenerateRequest(
        model=way.deployment,
        text=problem.text,
        temperature=temperature,
        top_p=top_p,
        top_k=0,
        repetition_penalty=1,
        seed=seed,
        trace=trace,
        max_new_tokens=new_tokens,
        stop_sequences=problem.stops,
        return_tokens=True,
    )
    getattr(request, names[way.method]).CopyFrom(way.message(m))
    if way.promises_exact:  # the server must agree, or it refuses
        request.require_contract = m.CONTRACT_EXACT
    return request


@dataclass
class Written:
    text: str
    tokens: list[int]
    seconds: float
    count: int = 0

    def judged(self, problem: Problem, judge: Callable[[str], sandbox.Outcome]) -> Solved:
        passed = judge(problem.program(self.text)).passed
        return Solved(self.tokens, self.seconds, passed, self.text, self.count)


def write(
    client: Client,
    way: Way,
    problem: Problem,
    new_tokens: int,
    temperature: float,
    llamas: Mapping[Way, LlamaServer] = MappingProxyType({}),
    top_p: float = 1,
) -> Written:
    start = time.perf_counter()
    if way in llamas:
        answer = llamas[way].complete(problem.text, new_tokens, problem.stops)
        return Written(answer.text, answer.tokens, time.perf_counter() - start, answer.count)
    choice = client.complete(request_of(client, way, problem, new_tokens, temperature, top_p))
    seconds = time.perf_counter() - start
    return Written(choice.text, [token.id for token in choice.tokens], seconds)


def measure(
    client: Client,
    ways: Sequence[Way],
    problems: Sequence[Problem],
    new_tokens: int,
    temperature: float,
    progress: Callable[[], None] = lambda: None,
    judge: Callable[[str], sandbox.Outcome] = sandbox.run,
    llamas: Mapping[Way, LlamaServer] = MappingProxyType({}),
    top_p: float = 1,
) -> list[Result]:
    """Problem by problem all ways, in a new order each time, one request at a time: what else the
    machine does hits all alike. Each server reads the prompt with all models before."""
    order = random.Random(0)
    results = {way: Result(way) for way in ways}
    for problem in problems:
        ours = [way for way in ways if way.peer is None]
        for deployment in {way.deployment for way in ours}:
            client.complete(request_of(client, READERS[deployment], problem, READ_TOKENS, 0))
        for llama in llamas.values():
            llama.complete(problem.text, 2, problem.stops)
        runs = list(ways)
        order.shuffle(runs)
        for way in runs:
            written = write(client, way, problem, new_tokens, temperature, llamas, top_p)
            results[way].solved.append(written.judged(problem, judge))
            progress()
    return list(results.values())


def measure_load(
    client: Client,
    ways: Sequence[Way],
    problems: Sequence[Problem],
    run: "Run",
    temperature: float,
    progress: Callable[[], None] = lambda: None,
    shown: Callable[[str], None] = lambda line: None,
) -> under_load.Cells:
    """Each way under each load, in turns (under_load.py). `shown` takes a line for each window."""
    named = {way.name: way for way in ways}
    examples = read_problems() if run.prompt_tokens else []

    def one(name: str, load: under_load.Load, turn: int) -> under_load.Window:
        asked = [
            request_of(
                client,
                named[name],
                problem,
                run.new_tokens,
                temperature,
                run.top_p,
                trace=True,
            )
            for problem in asked_in(turn, load, problems, run, examples)
        ]
        measured = under_load.bursts if load.bursts else under_load.closed_loop
        window = measured(client.stub.Generate, asked, load.clients)
        shown(
            f"{name}, {load}, turn {turn + 1}: {window.speed:.1f} tokens/s "
            f"({window.tokens} tokens in {window.seconds:.1f} s)"
        )
        progress()
        return window

    return under_load.measure(list(named), run.loads, run.turns, one)


def asked_in(
    turn: int,
    load: under_load.Load,
    problems: Sequence[Problem],
    run: "Run",
    examples: Sequence[Problem],
) -> list[Problem]:
    """The list of a turn's windows. Turns continue in the problems, which repeat after the last one."""
    size = load.clients * (1 + run.answers)
    numbers = range(turn * size, (turn + 1) * size)
    asked = [problems[number % len(problems)] for number in numbers]
    if not run.prompt_tokens:
        return asked
    return [
        lengthened(problem, examples, run.prompt_tokens, number)
        for problem, number in zip(asked, numbers, strict=True)
    ]


def kind_of(temperature: float, top_p: float = 1) -> str:
    nucleus = "" if top_p == 1 else f", top p {top_p:g}"
    if temperature == 0:
        return "Greedy:"
    return f"Temperature {temperature:g}{nucleus}, one seed per problem:"


def table(results: Sequence[Result], temperature: float, top_p: float = 1) -> str:
    ar = next(r for r in results if r.way is AR)
    count = len(ar.solved)
    peers = any(r.way.peer for r in results)
    lines = [
        f"| method | pass@1 of {count} | tokens/s | × AR (95 %) | equal to AR |"
        + (" settings |" if peers else ""),
        "|---|---:|---:|---:|---:|" + ("---|" if peers else ""),
    ]
    for r in results:
        ratio, least, most = r.speed_up(ar)
        interval = "" if r is ar or count == 1 else f" ({least:.2f}-{most:.2f})"
        lines.append(
            f"| {r.way.name} | {100 * r.share:.1f} ± {100 * r.error:.1f} % | {r.speed:.1f} "
            f"| {ratio:.2f}{interval} | {r.equal(ar)} of {count} |"
            + (f" {r.way.settings.shown} |" if peers else "")
        )
    return f"{kind_of(temperature, top_p)}\n\n" + "\n".join(lines)


def unequal(results: Sequence[Result]) -> list[str]:
    """Ways that promise AR's tokens and gave others."""
    ar = next(r for r in results if r.way is AR)
    return [r.way.name for r in results if r.way.promises_exact and r.equal(ar) < len(ar.solved)]


def missing() -> list[str]:
    names = {LARGE: "qwen2.5-coder-1.5b", SMALL: "qwen2.5-coder-0.5b", PROBLEMS: "humaneval"}
    return [name for path, name in names.items() if not path.exists()]


def put(page: str, measured: str, place: str) -> str:
    """`page` with the text at `place` replaced; ValueError where it has no such place."""
    begin, end = f"<!-- {place} -->", f"<!-- end of {place} -->"
    if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
        raise ValueError(f"the page must have one {begin} and, behind it, one {end}")
    return f"{page.split(begin)[0]}{begin}\n\n{measured.strip()}\n\n{end}{page.split(end)[1]}"


def chosen(names: str | None, ways: Sequence[Way]) -> list[Way]:
    """Those whose names contain one of `names`; autoregressive decoding always. `names` are separated by
    commas without a space, as names of ways have commas with one."""
    wanted = re.split(r",(?! )", (names or "").lower())
    return [w for w in ways if w is AR or any(name in w.name.lower() for name in wanted)]


@dataclass(frozen=True)
class Run:
    """What is measured."""

    count: int
    new_tokens: int
    temperatures: Sequence[float]
    ways: str | None = None
    streams: Sequence[int] = ()  # numbers of clients at the same time; none: one, and quality too
    bursts: Sequence[int] = ()  # sizes of bursts
    answers: int = 3  # of a client in a window, after its first one
    prompt_tokens: int | None = None  # under load; None: the problems alone
    turns: int = 2
    peers: Sequence[Program] = ()  # llama-servers
    write: bool = False
    small_dtype: str = "stored"
    top_p: float = 1
    chat: bool = False  # problems as chat messages
    stopped: bool = True  # answers end after the function

    def problems(self) -> list[Problem]:
        problems = read_problems()[: self.count]
        return [replace(p, chat=self.chat, stopped=self.stopped) for p in problems]

    @property
    def loads(self) -> list[under_load.Load]:
        loops = [under_load.Load(k) for k in self.streams]
        return loops + [under_load.Load(k, bursts=True) for k in self.bursts]


def measured(client: Client, run: Run, temperature: float, bar) -> list[Result]:
    problems = run.problems()
    with ExitStack() as stack:
        of_peers = [way for peer in run.peers if temperature == 0 for way in peer_ways(peer)]
        of_peers = [repacked(way, problems, run.new_tokens) for way in of_peers]
        llamas = {way: stack.enter_context(started(way)) for way in of_peers}
        ways = [*chosen(run.ways, WAYS), *llamas]
        with bar(len(problems) * len(ways), f"HumanEval at {temperature:g}") as shown:
            return measure(
                client,
                ways,
                problems,
                run.new_tokens,
                temperature,
                shown.update,
                llamas=llamas,
                top_p=run.top_p,
            )


def measured_load(client: Client, run: Run, temperature: float, bar) -> tuple[str, list[str]]:
    """The table, and the ways that promise AR's tokens and gave others."""
    ways = chosen(run.ways, WAYS)
    names = [way.name for way in ways]
    windows = len(ways) * len(run.loads) * run.turns
    with bar(windows, f"HumanEval under load at {temperature:g}") as shown:
        cells = measure_load(
            client, ways, run.problems(), run, temperature, shown.update, shown.write
        )
    exact = {way.name for way in ways if way.promises_exact}
    failed = [n for n in under_load.unequal(cells, names, run.loads) if n in exact]
    return (
        f"{kind_of(temperature, run.top_p)}\n\n{under_load.table(cells, names, run.loads)}",
        failed,
    )


def place_of(run: Run) -> str:
    """The mark on the page that this run's table goes to."""
    if run.loads:
        return "humaneval batch"
    return "humaneval llama-server" if run.peers else "humaneval"


def main(serve, run: Run, command: str, bar) -> int:
    """`serve`: from a deployment file to a context with a Client. `command`: this one, for the page."""
    if missing():
        print(f"not here: {', '.join(missing())}; scripts/models fetch {' '.join(missing())}")
        return 1
    if run.peers and run.loads:
        print("--llama-server: it is measured with one stream at a time")
        return 1
    if not sandbox.own_namespaces():
        print("note: no namespaces here, so programs are run with the machine's network")
    failed, tables, started = [], [], time.monotonic()
    busy = machine.load_before(run.write)
    with (
        tempfile.TemporaryDirectory() as folder,
        serve(write_config(folder, run.small_dtype, not run.loads)) as client,
    ):
        for temperature in run.temperatures:
            if run.loads:
                try:
                    shown, different = measured_load(client, run, temperature, bar)
                except under_load.OptionError as error:
                    print(error)
                    return 1
            else:
                results = measured(client, run, temperature, bar)
                shown, different = table(results, temperature, run.top_p), unequal(results)
            tables.append(shown)
            print(f"\n{shown}\n", flush=True)
            failed += different
    for name in failed:
        print(f"not equal to AR, and must be: {name}")
    if run.write:
        minutes = (time.monotonic() - started) / 60
        how = "One request at a time, methods in a new order for each problem"
        if run.loads:
            how = (
                f"Closed loop: a window is a list of {1 + run.answers} requests for each client, the "
                "same for all methods, measured from the time when each client has had an answer "
                "until the list is empty. Tokens per second of all clients, prompts included, "
                f"without a prefix cache: medians of {run.turns} turns, and ratios within a turn"
            )
            if run.bursts:
                how += ". Bursts: measured while a request is active"
            if run.prompt_tokens:
                how += f". Prompts of about {run.prompt_tokens} tokens"
        if not run.stopped:
            how += f". No stop sequences: answers of {run.new_tokens} tokens"
        if run.chat:
            how += f". Problems as chat messages, answers of at most {run.new_tokens} tokens"
        conditions = (
            f"`{command}`. Commit {machine.commit(ROOT)}. {machine.cores()} cores of "
            f"{machine.processor()} ({machine.instructions()}), load before {busy:.0%}, after "
            f"{machine.load():.0%}, {minutes:.1f} minutes. {how}."
        )
        PAGE.write_text(put(PAGE.read_text(), "\n\n".join([conditions, *tables]), place_of(run)))
    return 1 if failed else 0
