"""Resumable training of additions to a frozen model."""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from tqdm import tqdm

from tuning import corpus
from tuning.schedule import Budget, cosine_factor

CHECKS = 10  # over a budget


class Training:
    """Resumes from the last checkpoint in `folder` after load(). `curve`: results of checks. `rates`: by the first
    part of a parameter's name, if other than `rate`."""

    def __init__(
        self,
        own: torch.nn.Module,
        rate: float,
        warmup_steps: int,
        folder: Path,
        rates: dict[str, float] | None = None,
    ):
        self.own, self.warmup_steps, self.folder = own, warmup_steps, folder
        groups: dict[float, list[torch.nn.Parameter]] = {}
        for name, parameter in own.named_parameters():
            of = (rates or {}).get(name.partition(".")[0], rate)
            groups.setdefault(of, []).append(parameter)
        self.rates = list(groups)
        self.optimizer = torch.optim.AdamW(
            [{"params": group} for group in groups.values()], weight_decay=0
        )
        self.step, self.seconds = 0, 0.0
        self.curve: list[dict] = []

    def load(self) -> None:
        file = self.folder / "training.pt"
        if file.exists():
            state = torch.load(file, weights_only=True)
            self.own.load_state_dict(state["own"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step, self.seconds = state["step"], state["seconds"]
            self.curve = json.loads(state["curve"])

    def save(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        new = self.folder / "training.pt.new"
        torch.save(
            {
                "own": self.own.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "step": self.step,
                "seconds": self.seconds,
                "curve": json.dumps(self.curve),
            },
            new,
        )
        new.rename(self.folder / "training.pt")

    def run(
        self,
        loss_at: Callable[[int], torch.Tensor],
        budget: Budget,
        check: Callable[[], dict],
    ) -> None:
        """Half a cosine over the budget. `loss_at(step)` depends on the step alone; `check` gives
        what the curve shows."""
        bar = tqdm(unit="step", mininterval=10, initial=self.step)
        checks = int(CHECKS * budget.progress(self.step, self.seconds))
        while (progress := budget.progress(self.step, self.seconds)) < 1:
            started = time.monotonic()
            factor = cosine_factor(progress, self.step, self.warmup_steps)
            for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
                group["lr"] = rate * factor
            loss = loss_at(self.step)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.own.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.step += 1
            self.seconds += time.monotonic() - started
            bar.update()
            bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
            if int(CHECKS * budget.progress(self.step, self.seconds)) > checks:
                checks = int(CHECKS * budget.progress(self.step, self.seconds))
                seconds = round(self.seconds)
                seen = {"step": self.step, "seconds": seconds, "loss": round(loss.item(), 3)}
                self.curve.append({**seen, **check()})
                tqdm.write(json.dumps(self.curve[-1]))
                self.save()
        bar.close()


def add_arguments(parser: argparse.ArgumentParser, settings: object, name: str, keeps: str) -> None:
    """Arguments of all trainings on a frozen model: duration, the fields of `settings` (a dataclass with defaults),
    texts, and the folder `keeps` for intermediate files."""
    parser.add_argument("--minutes", type=float, help="of training")
    parser.add_argument("--steps", type=int, help="of training, instead of minutes")
    for field, value in vars(settings).items():
        option = "--" + field.replace("_", "-")
        parser.add_argument(option, type=type(value), default=value, help="default: %(default)s")
    parser.add_argument("--stdlib", type=Path, default=corpus.standard_library())
    parser.add_argument("--humaneval", type=Path, help="HumanEval.jsonl.gz: held-out prompts too")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path.home() / ".cache/tandem" / name,
        help=f"{keeps} and checkpoints (default: %(default)s)",
    )
    parser.add_argument("--threads", type=int, help="CPU threads (default: all)")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
