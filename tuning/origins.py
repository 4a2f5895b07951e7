"""Prints an answer with the origin of each token (arXiv 2302.07863, figure 10).

    python -m tuning.origins --method bild --new-tokens 48

Plain text was proposed by the small model, [text] comes from the large one, and {text} replaced a rejected proposal.
"""

import argparse
import functools
import itertools
import tempfile
from pathlib import Path

from tokenizers import Tokenizer

from measure.paths import ROOT
from measure.serving import BINARY, server
from tuning import corpus
from tuning.evaluate.measure import cut_tasks
from tuning.windows import TokenStream

LARGE, SMALL = ROOT / "models/code-large", ROOT / "models/code-small"
ALIGNED = ROOT / "models/code-small-aligned"  # used if python -m tuning.align has made it
CONFIG = """
models {{ name: "large" path: "{large}" }}
models {{ name: "small" path: "{small}" }}
deployments {{ name: "code" large: "large" small: "small" }}
"""
MARKS = {"small": ("", ""), "large": ("[", "]"), "corrected": ("{", "}")}


def origin(token, messages) -> str:
    """One of MARKS."""
    if token.corrected:
        return "corrected"
    return "large" if token.proposed == messages.SOURCE_LARGE else "small"


def marked(tokens, messages, tokenizer: Tokenizer) -> str:
    """The text of the tokens; neighbours of one origin share a mark."""
    parts = []
    for kind, run in itertools.groupby(tokens, key=lambda t: origin(t, messages)):
        before, after = MARKS[kind]
        parts.append(f"{before}{tokenizer.decode([t.id for t in run])}{after}")
    return "".join(parts)


def counts(tokens, messages) -> str:
    kinds = [origin(token, messages) for token in tokens]
    return ", ".join(f"{name} {kinds.count(name)}" for name in MARKS)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--method", choices=("bild", "speculative"), default="bild")
    parser.add_argument("--fallback", type=float, default=0.4)
    parser.add_argument("--rollback", type=float, default=0.69)
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--stdlib", type=Path, default=corpus.standard_library())
    parser.add_argument("--server", type=Path, default=BINARY)
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(LARGE / "tokenizer.json"))
    _, held_out = corpus.split(corpus.read_documents(arguments.stdlib))
    stream = TokenStream(tokenizer, [document.text for document in held_out])
    tasks = cut_tasks(stream, arguments.prompts, 64, arguments.new_tokens, arguments.seed)
    serve = functools.partial(server, arguments.server, None)
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "pair.textproto"
        config.write_text(CONFIG.format(large=LARGE, small=ALIGNED if ALIGNED.exists() else SMALL))
        with serve(config) as client:
            m = client.messages
            method = m.Speculative()
            if arguments.method == "bild":
                thresholds = (arguments.fallback, arguments.rollback)
                method = m.Bild(fallback_threshold=thresholds[0], rollback_threshold=thresholds[1])
            for task in tasks:
                prompt = list(task.prompt)
                choice = client.complete(
                    client.request("code", prompt, arguments.new_tokens, method)
                )
                print(f"--- prompt ends with {tokenizer.decode(prompt[-12:])!r}")
                print(marked(choice.tokens, m, tokenizer))
                print(f"--- tokens: {counts(choice.tokens, m)}\n")


if __name__ == "__main__":
    main()
