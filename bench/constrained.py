"""Speed of answers under a JSON schema: tandem-server by method, and llama-server with the same schema.

    python -m bench.constrained --large FILE.gguf [--small FILE.gguf] [--small-masks FOLDER] [--llama-server PATH]
        [--tandem build/release/bin/tandem-server] [--streams 1 8] [--turns 5] [--new-tokens 192] [--out FILE]

In each turn, each side answers the same greedy prompts; the first side changes from turn to turn. Every answer has
--new-tokens tokens, because the schema requires longer ones, so speeds compare per token. A speed counts the tokens
that arrive while all streams have a first token and none has ended. Ratios are medians over the turns.

Each side of Tandem is a client with a token of its own, so none finds the answers of another in the history of texts.

With --out, each measurement is a line of JSON, and a run that was interrupted continues there.
"""

import argparse
import contextlib
import json
import signal
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.peers import cli
from measure import machine, serving
from measure.llama_server import LlamaServer, llama_server
from measure.paths import ROOT
from measure.report import spread, table

ITEMS = 8
TOPICS = (
    "programming languages",
    "sorting algorithms",
    "relational databases",
    "operating systems",
    "network protocols",
    "text editors",
    "compilers",
    "web frameworks",
    "file formats",
    "version control systems",
    "message queues",
    "machine learning libraries",
    "hash functions",
    "build tools",
    "test frameworks",
    "game engines",
)
SCHEMA = {
    "type": "array",
    "minItems": ITEMS,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "year": {"type": "integer", "minimum": 1900, "maximum": 2030},
            "license": {"enum": ["proprietary", "permissive", "copyleft", "none"]},
            "tags": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 4},
            "summary": {"type": "string", "minLength": 20},
        },
        "required": ["name", "year", "license", "tags", "summary"],
        "additionalProperties": False,
    },
}
PROMPT = (
    "Task {number}. Write a JSON array of {items} {topic}, most influential first. Each object has "
    "name, year, license, tags and a summary of one sentence."
)
CHATML = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"

CONFIG = """\
models {{ name: "large" path: "{large}" prefix_cache: false }}
{small_model}
deployments {{ name: "measured" large: "large" {draft} }}
server {{ bearer_token_file: "{tokens}" }}
"""


@dataclass(frozen=True)
class Side:
    name: str
    engine: str  # "Tandem" or "llama-server"
    method: str = ""  # of Tandem
    constrained: bool = True


FREE = Side("Tandem, autoregressive, no schema", "Tandem", "Autoregressive", False)
PLAIN = Side("Tandem, autoregressive, schema", "Tandem", "Autoregressive")
AUTO = Side("Tandem, auto, schema", "Tandem", "Auto")
LLAMA_FREE = Side("llama-server, no schema", "llama-server", constrained=False)
LLAMA = Side("llama-server, schema", "llama-server")
SIDES = (FREE, PLAIN, AUTO, LLAMA_FREE, LLAMA)
RATIOS = ((PLAIN, FREE), (AUTO, PLAIN), (PLAIN, LLAMA), (AUTO, LLAMA), (LLAMA, LLAMA_FREE))


@dataclass(frozen=True)
class Answer:
    arrivals: list[tuple[float, int]]  # seconds on the monotonic clock, and tokens
    prompt_tokens: int
    text: str
    method: str = ""  # that Tandem chose

    @property
    def tokens(self) -> int:
        return sum(n for _, n in self.arrivals)


@dataclass(frozen=True)
class Measured:
    """A side's answers to the prompts of a turn."""

    side: str
    streams: int
    turn: int
    rate: float  # tokens per second of all streams, while all of them run
    first: float  # seconds to the first token, median of the streams
    seconds: float  # from the requests to the last end
    prompt_tokens: int
    methods: list[str]
    texts: list[str]


def rate(streams: Sequence[Sequence[tuple[float, int]]]) -> float:
    """Tokens per second from the last first arrival to the first end."""
    begin = max(arrivals[0][0] for arrivals in streams)
    end = min(arrivals[-1][0] for arrivals in streams)
    if end <= begin:
        raise ValueError("a stream ended before another began: more --new-tokens are needed")
    tokens = sum(n for arrivals in streams for at, n in arrivals if begin < at <= end)
    return tokens / (end - begin)


def prompts(turn: int, streams: int, chat: bool) -> list[str]:
    """Distinct in each turn and for each number of streams."""
    made = []
    for i in range(streams):
        number = (turn * 100 + streams) * 100 + i
        topic = TOPICS[(turn * streams + i) % len(TOPICS)]
        text = PROMPT.format(number=number, items=ITEMS, topic=topic)
        made.append(CHATML.format(text) if chat else f"{text}\n")
    return made


def from_tandem(client: serving.Client, side: Side, prompt: str, new_tokens: int) -> Answer:
    m = client.messages
    request = client.request("measured", [], new_tokens, getattr(m, side.method)())
    request.text = prompt
    if side.constrained:
        request.json_schema = json.dumps(SCHEMA)
    else:
        request.ignore_eos = True
    arrivals, text, prompt_tokens, method = [], [], 0, ""
    metadata = (("authorization", f"Bearer {token_of(side)}"),)
    for event in client.stub.Generate(request, metadata=metadata):
        kind = event.WhichOneof("event")
        if kind == "started":
            prompt_tokens = event.started.prompt_tokens
            method = m.Method.Name(event.started.method).removeprefix("METHOD_").lower()
        elif kind == "chunk" and event.chunk.tokens:
            arrivals.append((time.monotonic(), len(event.chunk.tokens)))
        if kind == "chunk":
            text.append(event.chunk.text)
    return Answer(arrivals, prompt_tokens, "".join(text), method)


def llama_body(side: Side, prompt: str, new_tokens: int) -> dict:
    body = {
        "prompt": prompt,
        "n_predict": new_tokens,
        "temperature": 0,
        "top_k": 1,
        "cache_prompt": False,
        "return_tokens": True,
        "stream": True,
    }
    return body | ({"json_schema": SCHEMA} if side.constrained else {"ignore_eos": True})


def read_llama(lines, clock: Callable[[], float] = time.monotonic) -> Answer:
    """Of server-sent events."""
    arrivals, text, prompt_tokens = [], [], 0
    for line in lines:
        if not line.startswith(b"data: "):
            continue
        event = json.loads(line.removeprefix(b"data: "))
        if "error" in event:
            raise RuntimeError(f"llama-server: {event['error']}")
        if event.get("tokens"):
            arrivals.append((clock(), len(event["tokens"])))
        text.append(event.get("content", ""))
        prompt_tokens = event.get("tokens_evaluated", prompt_tokens)
    return Answer(arrivals, prompt_tokens, "".join(text))


def from_llama(server: LlamaServer, side: Side, prompt: str, new_tokens: int) -> Answer:
    request = urllib.request.Request(
        f"{server.url}/completion",
        data=json.dumps(llama_body(side, prompt, new_tokens)).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=1200) as answer:
        return read_llama(answer)


def measure(
    side: Side, turn: int, texts: list[str], new_tokens: int, ask: Callable[[str], Answer]
) -> Measured:
    """All prompts at once."""
    ready = threading.Barrier(len(texts) + 1)

    def one(text: str) -> Answer:
        ready.wait()
        return ask(text)

    with ThreadPoolExecutor(len(texts)) as pool:
        calls = [pool.submit(one, text) for text in texts]
        ready.wait()
        began = time.monotonic()
        answers = [call.result() for call in calls]
        seconds = time.monotonic() - began
    short = [answer for answer in answers if answer.tokens != new_tokens]
    if short:
        raise RuntimeError(
            f"{side.name}: an answer has {short[0].tokens} tokens, not {new_tokens}: {short[0].text[-200:]!r}"
        )
    return Measured(
        side.name,
        len(texts),
        turn,
        rate([answer.arrivals for answer in answers]),
        statistics.median(answer.arrivals[0][0] - began for answer in answers),
        seconds,
        sum(answer.prompt_tokens for answer in answers),
        sorted({answer.method for answer in answers}),
        [answer.text for answer in answers],
    )


def config_of(args, tokens: Path) -> str:
    """The server's configuration. The server resolves relative paths in the folder of this file, so
    paths are absolute."""
    small = draft = masks = ""
    if args.small_masks:
        masks = f' extras {{ name: "masks" path: "{args.small_masks.absolute()}" }}'
    if args.small:
        path = args.small.absolute()
        small = f'models {{ name: "small" path: "{path}" prefix_cache: false{masks} }}'
        draft = 'small: "small"' + (' speculative { adapter: "masks" }' if masks else "")
    return CONFIG.format(large=args.large.absolute(), small_model=small, draft=draft, tokens=tokens)


def token_of(side: Side) -> str:
    """A server's tokens have 16 characters or more."""
    return f"side-{SIDES.index(side)}".ljust(16, "x")


@contextlib.contextmanager
def servers(args) -> Iterator[dict[str, Callable[[Side, str, int], Answer]]]:
    """Functions that ask, by engine. All servers run until the end of the block; those without requests are idle."""
    with contextlib.ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="tandem-constrained-"))
        )
        config, tokens = folder / "config.textproto", folder / "tokens"
        tokens.write_text("".join(f"side{i} {token_of(s)}\n" for i, s in enumerate(SIDES)))
        config.write_text(config_of(args, tokens))
        client = stack.enter_context(serving.server(args.tandem, config=config))
        asks = {"Tandem": lambda side, text, n: from_tandem(client, side, text, n)}
        if args.llama_server:
            most = max(args.streams)
            flags = ["--parallel", str(most), *args.llama_flags.split()]
            server = stack.enter_context(
                llama_server(args.llama_server, args.large, flags, machine.cores(), 1024 * most)
            )
            asks["llama-server"] = lambda side, text, n: from_llama(server, side, text, n)
        yield asks


def stored(path: Path | None, settings: dict) -> list[Measured]:
    """Measurements of an earlier run with these settings. Exits with status 1 if the file has others."""
    if path is None or not path.exists() or not path.read_text():
        return []
    first, *lines = (json.loads(line) for line in path.read_text().splitlines())
    if first != settings:
        print(f"{path} has other settings: {first}, not {settings}", file=sys.stderr)
        raise SystemExit(1)
    return [Measured(**line) for line in lines]


def in_order(sides: Sequence[Side], turn: int) -> list[Side]:
    first = turn % len(sides)
    return [*sides[first:], *sides[:first]]


def run(args, sides: Sequence[Side], found: list[Measured], out) -> list[Measured]:
    done = {(m.side, m.streams, m.turn) for m in found}
    with servers(args) as asks:
        for side in sides:  # also compiles the schema
            for text in prompts(999, 1, args.chat):
                asks[side.engine](side, text, 8)
        for turn in range(args.turns):
            for streams in args.streams:
                texts = prompts(turn, streams, args.chat)
                for side in in_order(sides, turn):
                    if (side.name, streams, turn) in done:
                        continue
                    ask = asks[side.engine]
                    measured = measure(
                        side,
                        turn,
                        texts,
                        args.new_tokens,
                        lambda text, side=side, ask=ask: ask(side, text, args.new_tokens),
                    )
                    print(
                        f"turn {turn}, {streams} streams, {side.name}: {measured.rate:.1f} tokens/s",
                        file=sys.stderr,
                    )
                    print(json.dumps(asdict(measured)), file=out, flush=True)
                    found.append(measured)
    return found


def different(found: list[Measured]) -> int:
    """Answers of `auto` that are not those of autoregressive decoding."""
    by = {(m.side, m.streams, m.turn): m.texts for m in found}
    pairs = [
        (texts, by.get((PLAIN.name, *key[1:]))) for key, texts in by.items() if key[0] == AUTO.name
    ]
    return sum(a != b for texts, plain in pairs if plain for a, b in zip(texts, plain, strict=True))


def markdown(
    found: list[Measured], sides: Sequence[Side], streams: list[int], conditions: str
) -> str:
    rates = {
        (side, n): {m.turn: m.rate for m in found if m.side == side.name and m.streams == n}
        for side in sides
        for n in streams
    }
    speeds = []
    for side in sides:
        own = [m for m in found if m.side == side.name]
        firsts = [
            f"{1000 * statistics.median(m.first for m in own if m.streams == n):.0f}"
            for n in streams
        ]
        methods = sorted({name for m in own for name in m.methods if name})
        speeds.append(
            [
                side.name,
                *(spread(list(rates[side, n].values())) for n in streams),
                *firsts,
                ", ".join(methods),
            ]
        )
    ratios = []
    for above, below in RATIOS:
        if above not in sides or below not in sides:
            continue
        cells = []
        for n in streams:
            turns = rates[above, n].keys() & rates[below, n].keys()
            values = [rates[above, n][t] / rates[below, n][t] for t in sorted(turns)]
            cells.append(
                f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"
                if values
                else "-"
            )
        ratios.append([f"{above.name} / {below.name}", *cells])
    named = [f"{n} stream{'s' if n > 1 else ''}" for n in streams]
    return "\n\n".join(
        [
            table(
                [
                    "side",
                    *(f"tokens/s, {n}" for n in named),
                    *(f"first token, ms, {n}" for n in named),
                    "method",
                ],
                speeds,
            ),
            table(["ratio", *named], ratios),
            conditions,
        ]
    )


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--large", type=Path, required=True, help="a GGUF file")
    parser.add_argument("--small", type=Path, help="a GGUF file: the draft model of `auto`")
    parser.add_argument(
        "--small-masks", type=Path, help="masks of the small model: parallel draft tokens"
    )
    parser.add_argument("--tandem", type=Path, default=ROOT / "build/release/bin/tandem-server")
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--llama-flags", default="", help="further flags of llama-server")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--new-tokens", type=int, default=192, help="of each answer")
    parser.add_argument(
        "--plain", dest="chat", action="store_false", help="prompts without the ChatML template"
    )
    parser.add_argument("--out", type=Path, help="each measurement, as lines of JSON")
    return parser.parse_args(arguments)


def main(arguments=None) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers end too
    args = parse(arguments)
    program = cli.Run("python -m bench.constrained", arguments, write=False)
    sides = [s for s in SIDES if s.engine == "Tandem" or args.llama_server]
    settings = {
        "large": args.large.name,
        "small": args.small.name if args.small else None,
        "small masks": args.small_masks.name if args.small_masks else None,
        "new_tokens": args.new_tokens,
        "chat": args.chat,
        "tandem built": int(args.tandem.stat().st_mtime),
    }
    found = stored(args.out, settings)
    with open(args.out or "/dev/null", "a") as out:
        if not found and out.tell() == 0:
            print(json.dumps(settings), file=out, flush=True)
        found = run(args, sides, found, out)
    differing = different(found)
    conditions = program.conditions(
        f"{machine.cores()} threads",
        [
            (
                "models",
                ", ".join(
                    str(settings[role])
                    for role in ("large", "small", "small masks")
                    if settings[role]
                ),
            ),
            ("tokens of each answer, turns", f"{args.new_tokens}, {args.turns}"),
            (
                "prompt tokens of the turns",
                ", ".join(
                    f"{engine} {sum(m.prompt_tokens for m in found if m.side == side.name)}"
                    for engine, side in (("Tandem", PLAIN), ("llama-server", LLAMA))
                    if side in sides
                ),
            ),
            ("answers of `auto` that differ", str(differing)),
        ],
    )
    print(markdown(found, sides, args.streams, conditions))
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
