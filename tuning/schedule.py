"""Training budget and learning rate schedules.

`rate_factor`: warm up, stay constant, then fall to zero ("warmup, stable, decay"). The constant part does not depend on the
end, so a training can continue with a larger budget or end early. The decay starts with the last fifth of the
budget and uses the rest of it.

`cosine_factor`: warm up, then half a cosine down to zero over a budget that does not change.
"""

import math
from dataclasses import asdict, dataclass

DECAY_SHARE = 0.2


@dataclass(frozen=True)
class Budget:
    """How much to train over all resumed runs together: `minutes` of training, or `steps`."""

    minutes: float | None = None
    steps: int | None = None

    def __post_init__(self):
        if (self.minutes is None) == (self.steps is None):
            raise ValueError("a budget is either minutes or steps")

    def progress(self, step: int, seconds: float) -> float:
        """The share of the budget that is used up after `step` steps in `seconds`."""
        if self.steps is not None:
            return step / self.steps if self.steps > 0 else 1
        return seconds / (60 * self.minutes)


@dataclass
class TrainingState:
    """State of a checkpoint besides weights and optimizer states."""

    step: int = 0
    seconds: float = 0.0  # spent in training steps, over all runs
    tokens: int = 0
    decay_start: float | None = None  # in the budget's own unit: seconds, or steps

    def state_dict(self) -> dict:
        return asdict(self)

    def load_state_dict(self, values: dict) -> None:
        for name, value in values.items():
            setattr(self, name, value)


def rate_factor(budget: Budget, state: TrainingState, warmup_steps: int) -> float:
    """What the peak learning rates are multiplied with for the step after `state`; 0 is the end.

    Keeps `state.decay_start`.
    """
    if budget.steps is not None:
        now, end = float(state.step), float(budget.steps)
    else:
        now, end = state.seconds, 60 * budget.minutes
    if now >= end:
        return 0.0
    if now < (1 - DECAY_SHARE) * end:
        state.decay_start = None  # also when a finished training resumes with a larger budget
    elif state.decay_start is None:
        state.decay_start = now
    warmup = min(1.0, (state.step + 1) / warmup_steps)
    if state.decay_start is None:
        return warmup
    return warmup * (end - now) / (end - state.decay_start)


def cosine_factor(progress: float, step: int, warmup_steps: int) -> float:
    """The same for step `step`, from 0, when a share `progress` of the budget is used up."""
    warmup = min(1.0, (step + 1) / max(1, warmup_steps))
    return warmup * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
