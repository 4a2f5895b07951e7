"""Compares the speed of BiTA with autoregressive decoding, n-grams and speculative sampling.

    python -m bench.peers.bita [--write]
    python -m bench.peers.bita --model FILE.gguf --masks FOLDER   # masks of tuning.bita

All methods take turns on one server, with one and eight concurrent greedy requests. Each answer must
equal that of autoregressive decoding. Figures are ratios within a turn.
"""

import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from bench.peers import cli
from measure.paths import HOME, ROOT
from measure.report import table
from measure.serving import BINARY, Client, at_once, server

PAGE = ROOT / "docs" / "reports" / "bita.md"
STREAMS = (1, 8)
CONFIG = """
models {{ name: "large" path: "{path}" dtype: {dtype} extras {{ name: "masks" path: "{masks}" }} }}
{small}
deployments {{ name: "served" large: "large" {pair} bita {{ adapter: "masks" num_masks: {num_masks} }} }}
"""


@dataclass(frozen=True)
class Subject:
    title: str
    path: Path
    masks: str | Path  # a folder, relative to models/
    dtype: str = "DTYPE_UNSPECIFIED"
    small: str = ""  # a model in models/, for speculative sampling

    @property
    def num_masks(self) -> int:
        """Of the file."""
        from safetensors import safe_open

        with safe_open(ROOT / "models" / self.masks / "adapter.safetensors", "numpy") as file:
            return file.get_slice("masks").get_shape()[0]

    def config(self) -> str:
        small = f'models {{ name: "small" path: "{ROOT / "models" / self.small}" }}'
        return CONFIG.format(
            path=self.path,
            dtype=self.dtype,
            masks=ROOT / "models" / self.masks,
            num_masks=self.num_masks,
            small=small if self.small else "",
            pair='small: "small"' if self.small else "",
        )


SMOLLM2 = HOME / "models" / "smollm2-135m.gguf"
CODER = HOME / "models" / "qwen2.5-coder-0.5b.gguf"
SUBJECTS = {
    "smollm2": Subject("SmolLM2 135M Instruct, 4-bit blocks", SMOLLM2, "smollm2-135m-bita"),
    "smollm2-int8": Subject(
        "SmolLM2 135M Instruct, int8", SMOLLM2, "smollm2-135m-bita", "DTYPE_INT8"
    ),
    "coder": Subject(
        "Qwen2.5-Coder 0.5B Instruct, blocks of 4 to 8 bits", CODER, "qwen2.5-coder-0.5b-bita"
    ),
    "code-large": Subject(
        "code-large", ROOT / "models" / "code-large", "code-large-bita", small="code-small"
    ),
}


@dataclass(frozen=True)
class Way:
    name: str
    method: str  # a message of the API
    parameters: dict = field(default_factory=dict, hash=False)

    def message(self, messages):
        given = dict(self.parameters)
        if "tree" in given:
            given["tree"] = messages.Bita.Tree.Value(given["tree"])
        return getattr(messages, self.method)(**given)


def tree(name: str, kind: str, masks: int, candidates: int) -> Way:
    parameters = {"num_masks": masks, "num_candidates": candidates, "tree": kind}
    return Way(f"BiTA, {name}", "Bita", parameters | {"pace": "PACE_FIXED"})


AR = Way("autoregressive", "Autoregressive")
WAYS = (
    AR,
    Way("BiTA, adaptive rows", "Bita"),
    tree("spine, M 1, k 2 (5 rows)", "TREE_SPINE", 1, 2),
    tree("efficient, M 3, k 5 (64 rows)", "TREE_EFFICIENT", 3, 5),
    Way("n-grams", "Ngram"),
)
SPECULATIVE = Way("speculative", "Speculative")


@dataclass
class Line:
    """A method at one number of streams: seconds of each turn, and statistics of its answers."""

    way: Way
    streams: int
    seconds: list[float] = field(default_factory=list)
    tokens: int = 0
    passes: int = 0
    equal: int = 0  # answers equal to autoregressive decoding
    answers: int = 0


def prompts_of(subject: Subject, count: int) -> list[list[int]]:
    """Prompts of HumanEval, as token ids of the model."""
    from tokenizers import Tokenizer

    from tuning import frozen_model
    from tuning.evaluate.humaneval import read_problems

    gguf = subject.path.suffix == ".gguf"
    tokenizer = (
        frozen_model.gguf_tokenizer(subject.path)
        if gguf
        else Tokenizer.from_file(str(subject.path / "tokenizer.json"))
    )
    return [tokenizer.encode(p.prompt.rstrip()).ids for p in read_problems()[:count]]


def run(client: Client, way: Way, prompts: list[list[int]], streams: int, new_tokens: int, line):
    def answer(prompt: list[int]):
        message = way.message(client.messages)
        return client.complete(client.request("served", prompt, new_tokens, message))

    started = time.perf_counter()
    answers = list(at_once(answer, prompts, streams))
    line.seconds.append(time.perf_counter() - started)
    for a in answers:
        line.tokens += len(a.tokens)
        line.passes += a.finished.stats.large_passes
    return [[token.id for token in a.tokens] for a in answers]


def measure(client: Client, ways, prompts, new_tokens: int, turns: int) -> list[Line]:
    lines = [Line(way, streams) for streams in STREAMS for way in ways]
    run(client, AR, prompts, 1, 1, Line(AR, 1))  # the prefix cache has the prompts for all methods
    for turn in range(-1, turns):  # the first one warms up
        expected: dict[int, list] = {}
        for number in range(len(lines)):
            line = lines[(number + turn + 1) % len(lines)]
            if turn < 0:
                run(client, line.way, prompts[:2], 1, 16, Line(line.way, 1))
                continue
            texts = run(client, line.way, prompts, line.streams, new_tokens, line)
            first = expected.setdefault(line.streams, texts)
            line.answers += len(texts)
            line.equal += sum(a == b for a, b in zip(texts, first, strict=True))
    return lines


def section(subject: Subject, lines: list[Line], turns: int) -> str:
    rows = []
    for line in lines:
        own = next(x for x in lines if x.way == AR and x.streams == line.streams)
        ratios = [a / b for a, b in zip(own.seconds, line.seconds, strict=True)]
        rows.append(
            [
                line.way.name,
                str(line.streams),
                f"{line.tokens / turns / statistics.median(line.seconds):.0f}",
                f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})",
                f"{line.tokens / line.passes:.2f}",
                f"{line.equal} of {line.answers}",
            ]
        )
    head = ["method", "streams", "tokens/s", "over autoregressive", "tokens a pass", "same text"]
    return f"### {subject.title}\n\n{table(head, rows)}\n"


def parse(arguments):
    parser = cli.parser(__doc__, PAGE, busy=True)
    parser.add_argument("--models", nargs="+", choices=list(SUBJECTS), default=list(SUBJECTS))
    parser.add_argument("--model", type=Path, help="only this model, with --masks")
    parser.add_argument("--masks", type=Path, help="the masks of --model")
    parser.add_argument("--prompts", type=int, default=max(STREAMS))
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--server", type=Path, default=BINARY)
    args = parser.parse_args(arguments)
    if (args.model is None) != (args.masks is None):
        parser.error("--model and --masks: one without the other; allowed: both or none")
    if args.model and args.write:
        parser.error("--write: not with --model, which is not in the report")
    return args


def ways_of(subject: Subject) -> tuple[Way, ...]:
    """Without trees that need more masks than there are."""
    ways = [way for way in WAYS if way.parameters.get("num_masks", 0) <= subject.num_masks]
    return (*ways, *([SPECULATIVE] if subject.small else []))


def subjects_of(args) -> list[Subject]:
    if args.model:
        return [Subject(args.model.stem, args.model.absolute(), args.masks.absolute())]
    return [SUBJECTS[name] for name in args.models]


def main(arguments=None) -> int:
    args = parse(arguments)
    run = cli.Run("python -m bench.peers.bita", arguments, args.write and not args.busy)
    sections = []
    for subject in subjects_of(args):
        with tempfile.NamedTemporaryFile("w", suffix=".textproto") as file:
            file.write(subject.config())
            file.flush()
            with server(args.server, config=Path(file.name)) as client:
                prompts = prompts_of(subject, args.prompts)
                lines = measure(client, ways_of(subject), prompts, args.new_tokens, args.turns)
        sections.append(section(subject, lines, args.turns))
    sizes = f"{args.prompts}, {args.new_tokens}, {args.turns}"
    conditions = run.conditions(
        more=[("prompts (HumanEval's first), new tokens, turns", sizes)],
    )
    cli.publish("\n".join(sections) + f"\n{conditions}", args.write, PAGE, "wall clock")
    return 0


if __name__ == "__main__":
    sys.exit(main())
