"""When to retry a call. Never after its first token: text that was shown would be repeated, perhaps with
other tokens.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from .errors import TandemError


@dataclass(frozen=True)
class Retry:
    """At most `attempts` calls; 1: no retries. An overloaded server sends a delay
    (google.rpc.RetryInfo), limited to `most` seconds. If a server is unavailable, the delay is `first`
    seconds and doubles with each attempt, with a jitter of 50 %."""

    attempts: int = 4
    first: float = 0.2
    most: float = 30.0

    def wait(self, error: TandemError, attempt: int) -> float | None:
        """Returns the seconds before the attempt after number `attempt` (from 1); None: no further attempt."""
        if attempt >= self.attempts:
            return None
        if error.retry_after is not None:
            return min(error.retry_after, self.most)
        if error.status != "UNAVAILABLE":
            return None
        return min(self.first * 2 ** (attempt - 1) * random.uniform(0.5, 1.5), self.most)
