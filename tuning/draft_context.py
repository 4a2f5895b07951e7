"""Counts how many drafts are accepted, by the tokens of the prompt that the small model has read.

    python -m tuning.draft_context [--problems 12] [--prompt-tokens N] [--new-tokens 96] [--server PATH]

The large model answers HumanEval problems greedily. The small model, in Transformers, predicts each
token of an answer behind the last tokens of the prompt. A replay drafts while predictions are likely.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from measure import report
from measure.serving import BINARY, server
from tuning.evaluate.humaneval import AR, SMALL, lengthened, read_problems, request_of, write_config

CONTEXTS = (None, 512, 256, 128, 96, 64, 32, 8)  # None: the whole prompt
MOST = 8  # drafts of a round
LEAST = 0.5  # probability of a draft


def rounds(right: Sequence[bool], probability: Sequence[float]) -> int:
    """The passes of the large model for an answer. Each adds one token after the accepted drafts."""
    count = at = 0
    while at < len(right):
        drafts = 0
        while drafts < MOST and at < len(right) and right[at] and probability[at] >= LEAST:
            drafts, at = drafts + 1, at + 1
        count, at = count + 1, at + 1
    return count


def replay(model, prompt: list[int], answer: list[int], context: int | None) -> tuple[int, int]:
    """Right predictions, and rounds."""
    import torch

    read = prompt if context is None else prompt[-context:]
    with torch.no_grad():
        logits = model(torch.tensor([read + answer])).logits[0, len(read) - 1 : -1].float()
    probability, best = logits.softmax(-1).max(-1)
    right = (best == torch.tensor(answer)).tolist()
    return sum(right), rounds(right, probability.tolist())


def parser_of(text: str) -> argparse.ArgumentParser:
    """The options of the scripts that count accepted drafts."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--problems", type=int, default=12)
    parser.add_argument(
        "--prompt-tokens", type=int, help="solved problems before each, to this length"
    )
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--server", type=Path, default=BINARY)
    return parser


def load_answers(args: argparse.Namespace) -> list[tuple[list[int], list[int]]]:
    """Prompts and the large model's answers, without empty ones."""
    from transformers import AutoTokenizer

    problems = read_problems()
    asked = problems[: args.problems]
    if args.prompt_tokens:
        asked = [lengthened(p, problems, args.prompt_tokens, i) for i, p in enumerate(asked)]
    with (
        tempfile.TemporaryDirectory() as folder,
        server(args.server, config=write_config(folder, "stored")) as client,
    ):
        requests = [request_of(client, AR, p, args.new_tokens, 0) for p in asked]
        answers = [[t.id for t in client.complete(r).tokens] for r in requests]
    tokenizer = AutoTokenizer.from_pretrained(SMALL.parent, gguf_file=SMALL.name)
    prompts = [tokenizer(p.prompt, add_special_tokens=False).input_ids for p in asked]
    return [(p, a) for p, a in zip(prompts, answers, strict=True) if a]


def load_small():
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(SMALL.parent, gguf_file=SMALL.name).eval()


def row(name: str, model, texts, context: int | None) -> list[str]:
    """Share of right predictions, and tokens per round."""
    counts = [replay(model, prompt, answer, context) for prompt, answer in texts]
    right, passes = (sum(column) for column in zip(*counts, strict=True))
    tokens = sum(len(answer) for _, answer in texts)
    return [name, f"{right / tokens:.3f}", f"{tokens / passes:.2f}"]


def print_table(first: str, texts, rows: Sequence[Sequence[str]]) -> None:
    mean = sum(len(prompt) for prompt, _ in texts) / len(texts)
    tokens = sum(len(answer) for _, answer in texts)
    print(f"{len(texts)} prompts of {mean:.0f} tokens in the mean, {tokens} tokens of answers")
    print(report.table([first, "right", "tokens per round"], rows))


def main() -> None:
    texts = load_answers(parser_of(__doc__).parse_args())
    model = load_small()
    rows = [row(str(context or "all"), model, texts, context) for context in CONTEXTS]
    print_table("tokens read", texts, rows)


if __name__ == "__main__":
    main()
