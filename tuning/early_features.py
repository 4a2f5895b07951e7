"""Hidden states of a frozen model after some of its layers and after all, computed once."""

from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from tuning.calibration import Sample


@dataclass(frozen=True)
class Features:
    """`early`: by number of layers run, [rows, hidden]; `top`: after all of them, before the last
    norm. In bf16."""

    early: dict[int, torch.Tensor]
    top: torch.Tensor

    def __len__(self) -> int:
        return len(self.top)

    def every(self, n: int) -> "Features":
        """One row in n."""
        return Features({layer: rows[::n] for layer, rows in self.early.items()}, self.top[::n])

    def only(self, layers: list[int]) -> "Features":
        """Of these layers."""
        return Features({layer: self.early[layer] for layer in layers}, self.top)


def read(model: PreTrainedModel, hidden: torch.Tensor) -> torch.Tensor:
    """Logits [rows, vocabulary] as the model's own norm and output matrix read rows."""
    return model.lm_head(model.model.norm(hidden.to(model.dtype)))


def rows_that_write(sample: Sample) -> slice:
    """Rows whose next token is known from the sample's output."""
    first = max(0, len(sample.prompt) - 1)
    return slice(first, len(sample.prompt) + len(sample.output) - 1)


@torch.no_grad()
def compute(
    model: PreTrainedModel, samples: list[Sample], layers: list[int], title: str, batch: int = 16
) -> Features:
    """Rows of each sample's output, sample after sample."""
    tops: list[torch.Tensor] = []
    hook = model.model.norm.register_forward_pre_hook(lambda _, inputs: tops.append(inputs[0]))
    parts: dict[int, list[torch.Tensor]] = {layer: [] for layer in [*layers, -1]}
    order = sorted(samples, key=lambda s: len(s.prompt) + len(s.output))
    try:
        for at in tqdm(range(0, len(order), batch), unit="batch", desc=title, mininterval=5):
            chosen = order[at : at + batch]
            longest = max(len(s.prompt) + len(s.output) for s in chosen)
            ids = torch.tensor(
                [(s.prompt + s.output + [0] * longest)[:longest] for s in chosen]
            )  # attention is causal: nothing sees what follows
            tops.clear()
            out = model.model(input_ids=ids, use_cache=False, output_hidden_states=True)
            for row, sample in enumerate(chosen):
                rows = rows_that_write(sample)
                for layer in layers:
                    parts[layer].append(out.hidden_states[layer][row, rows].bfloat16())
                parts[-1].append(tops[0][row, rows].bfloat16())
    finally:
        hook.remove()
    whole = {layer: torch.cat(rows) for layer, rows in parts.items()}
    return Features({layer: whole[layer] for layer in layers}, whole[-1])


def stored(file: Path, make) -> Features:
    """Cached result of `make()`."""
    if not file.exists():
        made = make()
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"early": made.early, "top": made.top}, file.with_suffix(".part"))
        file.with_suffix(".part").replace(file)
    return Features(**torch.load(file, weights_only=True))
