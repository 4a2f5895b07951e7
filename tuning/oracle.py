"""Quality of a small model's text if a large model replaces a share of its tokens (arXiv 2302.07863, figure 2).

    python -m tuning.oracle models/code-large models/code-small

The small model writes greedily. A token whose probability under the large model is below a threshold is replaced
by the large model's likeliest token. Both models read the resulting text. Prompts are beginnings of statements of
held-out files.
"""

import argparse
import statistics
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

from measure.report import table
from tuning import corpus, frozen_model
from tuning.evaluate.measure import Task, held_out_tasks
from tuning.evaluate.quality import edit_similarity, rouge_l

THRESHOLDS = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.4)


@dataclass
class Written:
    """Answers to all prompts, without end tokens."""

    tokens: list[list[int]]
    replaced: int  # tokens in place of another one of the small model
    written: int  # tokens, ends included

    @property
    def share(self) -> float:
        return self.replaced / self.written


@torch.no_grad()
def write(
    large: PreTrainedModel,
    small: PreTrainedModel,
    prompts: list[list[int]],
    new_tokens: int,
    threshold: float,
    end: int,
) -> Written:
    """All prompts have the same length. With threshold 0 the text is the small model's; above 1 the large one's."""
    ids = torch.tensor(prompts)
    caches = [None, None]
    answers: list[list[int]] = [[] for _ in prompts]
    alive = torch.ones(len(prompts), dtype=torch.bool)
    replaced = written = 0
    for _ in range(new_tokens):
        logits = []
        for i, model in enumerate((large, small)):
            out = model(input_ids=ids, past_key_values=caches[i], use_cache=True)
            caches[i] = out.past_key_values
            logits.append(out.logits[:, -1].float())
        proposed = logits[1].argmax(-1)
        likely = logits[0].softmax(-1).gather(-1, proposed.unsqueeze(-1)).squeeze(-1)
        other = logits[0].argmax(-1)
        change = (likely < threshold) & (other != proposed)
        chosen = torch.where(change, other, proposed)
        written += int(alive.sum())
        replaced += int((change & alive).sum())
        for i, token in enumerate(chosen.tolist()):
            if alive[i] and token == end:
                alive[i] = False
            elif alive[i]:
                answers[i].append(token)
        if not alive.any():
            break
        ids = chosen.unsqueeze(-1)
    return Written(answers, replaced, written)


def line(threshold: float, written: Written, reference: Written, tasks: list[Task]) -> list[str]:
    """`reference`: the large model's own answers."""
    similar = statistics.mean(
        edit_similarity(a, b) for a, b in zip(written.tokens, reference.tokens, strict=True)
    )
    rouge = statistics.mean(
        rouge_l(tokens, list(task.reference))
        for tokens, task in zip(written.tokens, tasks, strict=True)
    )
    return [
        f"{threshold:g}",
        f"{100 * written.share:.1f}",
        f"{100 * similar:.1f}",
        f"{100 * rouge:.1f}",
    ]


HEAD = ["threshold", "replaced, %", "similar to large's text, %", "ROUGE-L with the file"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("large", type=Path)
    parser.add_argument("small", type=Path)
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--stdlib", type=Path, default=corpus.standard_library())
    arguments = parser.parse_args()
    large = frozen_model.load_weights(arguments.large)
    small = frozen_model.load_weights(arguments.small)
    stream, tasks = held_out_tasks(
        arguments.large, arguments.stdlib, arguments.prompts, arguments.new_tokens
    )
    prompts = [list(task.prompt) for task in tasks]

    def of(threshold: float) -> Written:
        models = (large, small)
        return write(*models, prompts, arguments.new_tokens, threshold, stream.end_of_text)

    by_threshold = {threshold: of(threshold) for threshold in THRESHOLDS}
    reference = of(2.0)  # replaces every token that differs
    lines = [line(t, written, reference, tasks) for t, written in by_threshold.items()]
    print(table(HEAD, [*lines, ["all that differ", *line(0, reference, reference, tasks)[1:]]]))


if __name__ == "__main__":
    main()
