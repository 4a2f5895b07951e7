"""Measures the decoding methods on the demo pair, and writes docs/reports/fidelity.md.

    scripts/evaluate [--quick] [--write]
    scripts/evaluate --docstrings [--quick] [--write]
    scripts/evaluate --llm-to-slm [--acceptance] [--write]
    scripts/evaluate --llm-to-slm-cost [--prompts N] [--write]
    scripts/evaluate --humaneval [N]
    scripts/evaluate --editing [N]

Decodes held-out completion tasks through the server. First checks that exact methods return the large
model's tokens, then measures speed and quality over a grid of parameters. Other tasks:
    --docstrings       the encoder-decoder pair on held-out functions (docstrings.py)
    --humaneval        the coder pair on HumanEval (humaneval.py)
    --editing          the coder pair on edits of source files (editing.py)
    --llm-to-slm       small models conditioned on a large one (conditioned.py)
    --llm-to-slm-cost  the cost of conditioning (conditioned_cost.py)
Exits with status 1 if an answer of an exact method differs.
"""

import argparse
import functools
import sys
import time
from pathlib import Path

from tokenizers import Tokenizer
from tqdm import tqdm

from measure import llama_programs, machine
from measure.paths import ROOT
from measure.serving import BINARY, server
from tuning import corpus
from tuning.evaluate import (
    acceptance,
    conditioned,
    conditioned_cost,
    docstrings,
    editing,
    humaneval,
    page,
)
from tuning.evaluate.grid import configurations, exact_ones
from tuning.evaluate.measure import count_equal, cut_tasks, rate, rated_halves, take_turns
from tuning.evaluate.plot import draw
from tuning.windows import TokenStream

PAIRS_FILE = Path(__file__).with_name("pairs.textproto")
PAGE = ROOT / "docs" / "reports" / "fidelity.md"
FIGURE = PAGE.with_name("fidelity.svg")
STREAMS = 8
SAME = object()  # --bursts without numbers: those of --streams


def numbers(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(word) for word in text.split(","))
    except ValueError:
        found = (0,)
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text}; allowed: numbers from 1, separated by commas")
    return found


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a coarse grid, few prompts")
    parser.add_argument("--exactness", action="store_true", help="only the check of exact methods")
    parser.add_argument(
        "--acceptance",
        action="store_true",
        help="only counts accepted drafts: by both rules, or for the pairs of --llm-to-slm",
    )
    parser.add_argument(
        "--docstrings", action="store_true", help="the encoder-decoder pair, on held-out functions"
    )
    parser.add_argument(
        "--llm-to-slm",
        action="store_true",
        help="small models conditioned on a large one",
    )
    parser.add_argument(
        "--conditioned-models",
        type=Path,
        help="of --llm-to-slm: a folder of conditioned and tuned small models",
    )
    parser.add_argument("--llm-to-slm-cost", action="store_true", help="the cost of conditioning")
    parser.add_argument("--prompts", type=int, help="per turn (default: 20, quick: 4)")
    parser.add_argument("--turns", type=int, help="sets of prompts (default: 3, quick: 2)")
    parser.add_argument("--exact-prompts", type=int, help="default: 200, quick: 24")
    parser.add_argument(
        "--prompt-tokens",
        type=int,
        help="default: 64; with --streams: solved problems before each prompt, up to about this length (none)",
    )
    parser.add_argument(
        "--new-tokens",
        type=int,
        help="default: 128, with --humaneval 256, with --editing 1200, with --llm-to-slm-cost 100",
    )
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--stdlib", type=Path, default=corpus.standard_library())
    parser.add_argument("--config", type=Path, default=PAIRS_FILE)
    parser.add_argument("--server", type=Path, default=BINARY)
    parser.add_argument("--write", action="store_true", help="into docs/reports")
    parser.add_argument("--figure", type=Path, help="also writes the curve here, as SVG")
    parser.add_argument(
        "--humaneval",
        type=int,
        nargs="?",
        const=164,
        metavar="N",
        help="its first N problems (164)",
    )
    parser.add_argument(
        "--chat",
        action="store_true",
        help="of --humaneval: problems as chat messages; answers end where the model ends them",
    )
    parser.add_argument(
        "--no-stops",
        action="store_true",
        help="of --streams and --bursts: answers continue after the function, up to --new-tokens",
    )
    parser.add_argument(
        "--editing", type=int, nargs="?", const=10, metavar="N", help="edits of N files (10)"
    )
    parser.add_argument(
        "--temperature", type=float, action="append", help="of --humaneval (0 and 0.8); repeatable"
    )
    parser.add_argument("--top-p", type=float, default=1.0, help="of --humaneval (1)")
    parser.add_argument(
        "--ways",
        metavar="NAME,...",
        help="of --humaneval and --editing: methods whose names contain one of these (all); no space "
        "after the commas between them",
    )
    parser.add_argument(
        "--streams",
        type=numbers,
        default=(),
        metavar="K,...",
        help="of --humaneval: speed with this number of clients in a closed loop",
    )
    parser.add_argument(
        "--bursts",
        type=numbers,
        nargs="?",
        const=SAME,
        default=(),
        metavar="K,...",
        help="of --humaneval: also speed with this number of requests sent at once (those of --streams)",
    )
    parser.add_argument(
        "--answers",
        type=int,
        default=3,
        metavar="N",
        help="of --streams and --bursts: a window is a list of 1 + N requests for each client (3); "
        "from 8 clients on, ratios need 6",
    )
    parser.add_argument(
        "--small-dtype", default="stored", help="of --humaneval: the small model's weights (stored)"
    )
    llama_programs.add_option(
        parser,
        "--llama-server",
        "of --humaneval: also measure this llama-server, greedy",
        name="llama-server",
    )
    args = parser.parse_args(arguments)
    if args.acceptance and args.write:
        parser.error("--write: not with --acceptance, which goes into no page")
    if args.bursts is SAME:
        args.bursts = args.streams
        if not args.bursts:
            parser.error("--bursts: no number, and no --streams; allowed: numbers from 1")
    if args.answers < 1:
        parser.error(f"--answers: {args.answers}; allowed: at least 1")
    if args.prompt_tokens is None:
        args.prompt_tokens = None if args.humaneval else 64
    elif args.prompt_tokens < 1:
        parser.error(f"--prompt-tokens: {args.prompt_tokens}; allowed: at least 1")
    elif args.humaneval and not (args.streams or args.bursts):
        parser.error("--prompt-tokens: with --humaneval only with --streams or --bursts")
    if args.chat and not args.humaneval:
        parser.error("--chat: only with --humaneval")
    if args.no_stops and not (args.humaneval and (args.streams or args.bursts)):
        parser.error("--no-stops: only with --humaneval and --streams or --bursts")
    usual = (4, 2, 24) if args.quick else (20, 3, 200)
    for name, value in zip(("prompts", "turns", "exact_prompts"), usual, strict=True):
        if getattr(args, name) is None:
            setattr(args, name, value)
    others = (args.humaneval, args.editing, args.llm_to_slm, args.llm_to_slm_cost, args.acceptance)
    if args.prompts < 2 and not any(others):
        parser.error(
            f"--prompts: {args.prompts}; allowed: at least 2, as settings are chosen on half"
        )
    if args.new_tokens is None:
        sizes = ((args.humaneval, 256), (args.editing, 1200), (args.llm_to_slm_cost, 100))
        args.new_tokens = next((n for asked, n in sizes if asked), 128)
    return args


def bar(total: int, what: str):
    return tqdm(total=total, desc=what, unit="answer", mininterval=5)


def main(arguments: list[str] | None = None) -> int:
    args = parse(arguments)
    command = "scripts/evaluate " + " ".join(arguments if arguments else sys.argv[1:])
    if args.humaneval:
        run = humaneval.Run(
            args.humaneval,
            args.new_tokens,
            args.temperature or (0, 0.8),
            args.ways,
            streams=args.streams,
            bursts=args.bursts,
            answers=args.answers,
            prompt_tokens=args.prompt_tokens,
            turns=args.turns,
            peers=args.llama_server,
            write=args.write,
            small_dtype=args.small_dtype,
            top_p=args.top_p,
            chat=args.chat,
            stopped=not args.no_stops,
        )
        return humaneval.main(lambda config: server(args.server, config=config), run, command, bar)
    if args.editing:
        return editing.main(
            lambda config: server(args.server, config=config),
            args.editing,
            args.new_tokens,
            args.ways,
            args.stdlib,
            bar,
        )
    sections = {
        docstrings: args.docstrings,
        conditioned: args.llm_to_slm,
        conditioned_cost: args.llm_to_slm_cost,
    }
    for section, wanted in sections.items():
        if wanted:
            serve = functools.partial(server, args.server, None)
            return section.main(serve, args, command, bar)
    started = time.monotonic()
    busy = [machine.load_before(args.write)]
    tokenizer = Tokenizer.from_file(str(ROOT / "models/code-large/tokenizer.json"))
    _, held_out = corpus.split(corpus.read_documents(args.stdlib))
    stream = TokenStream(tokenizer, [document.text for document in held_out])
    timed = args.turns * args.prompts
    tasks = cut_tasks(
        stream, timed + args.exact_prompts, args.prompt_tokens, args.new_tokens, args.seed
    )
    turns = [tasks[i * args.prompts : (i + 1) * args.prompts] for i in range(args.turns)]
    grid, exact = configurations(args.quick), exact_ones(args.quick)

    with server(args.server, config=args.config) as client:
        if args.acceptance:
            runs = len(acceptance.TEMPERATURES) * len(acceptance.RULES) * timed
            with bar(runs, "drafts that stay") as shown:
                kept = acceptance.measure(
                    client, tasks[:timed], args.new_tokens, 4, STREAMS, shown.update
                )
            print(acceptance.table(kept, 4))
            return 0
        with bar((len(exact) + 1) * args.exact_prompts, "equal to AR") as shown:
            counts = count_equal(
                client, exact, tasks[timed:], args.new_tokens, STREAMS, shown.update
            )
        print(page.exactness(counts, args.exact_prompts))
        unequal = [c for c, equal in counts.items() if equal < args.exact_prompts]
        if not args.exactness:
            runs = len(grid) + max(1, len(grid) // 10)
            with bar(timed * runs, "speed and quality") as shown:
                ar, rows = take_turns(client, grid, turns, args.new_tokens, args.seed, shown.update)
            rate(client, ar, rows, turns)
            unequal += [
                r.configuration for r in rows if r.configuration.promises_exact and r.equal < 1
            ]
    busy.append(machine.load())

    if not args.exactness:
        conditions = page.Conditions.here(
            started,
            command=command,
            busy=busy,
            prompts=timed,
            prompt_tokens=args.prompt_tokens,
            new_tokens=args.new_tokens,
            turns=args.turns,
        )
        halves = rated_halves(ar, rows, turns)
        measured = page.markdown(
            conditions, ar, rows, counts, args.exact_prompts, FIGURE.name, halves
        )
        print(measured)
        figure = draw(page.panels(ar, rows), "speed-up over AR", "likeness to AR's text, %")
        if args.figure:
            args.figure.write_text(figure)
        if args.write:
            PAGE.write_text(page.put(PAGE.read_text(), measured))
            FIGURE.write_text(figure)
    for configuration in unequal:
        print(f"not equal to AR, and must be: {configuration}", file=sys.stderr)
    return 1 if unequal else 0


if __name__ == "__main__":
    sys.exit(main())
