"""When a call is worth another try. Never once a token of it has come: what was shown would be shown
again, and perhaps differently.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from .errors import TandemError


@dataclass(frozen=True)
class Retry:
    """`attempts` in all; 1: none but the first. A server that is full says how long to wait
    (google.rpc.RetryInfo), `most` seconds of which are waited; one that is away (UNAVAILABLE) is tried
    after `first` seconds, then twice as many, give or take a half."""

    attempts: int = 4
    first: float = 0.2
    most: float = 30.0

    def wait(self, error: TandemError, attempt: int) -> float | None:
        """Seconds until the try after the `attempt`-th, from 1; None: there is none."""
        if attempt >= self.attempts:
            return None
        if error.retry_after is not None:
            return min(error.retry_after, self.most)
        if error.status != "UNAVAILABLE":
            return None
        return min(self.first * 2 ** (attempt - 1) * random.uniform(0.5, 1.5), self.most)
