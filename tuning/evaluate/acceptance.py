"""Acceptance of sampled drafts: by match with the large model's draws (EXACT), and by the papers' ratio rule
(DISTRIBUTION). Results are counts, independent of load.

    scripts/evaluate --acceptance
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from measure.serving import Client, at_once
from tuning.evaluate.measure import Task

TEMPERATURES = (0.5, 1.0)
RULES = {"match": "ACCEPTANCE_MATCH", "ratio": "ACCEPTANCE_RATIO"}


@dataclass
class Kept:
    """Totals of all answers by one rule at one temperature."""

    temperature: float
    rule: str
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    large_passes: int = 0

    def add(self, choice) -> None:
        stats = choice.finished.stats
        self.drafted += stats.draft_tokens
        self.accepted += sum(i * n for i, n in enumerate(stats.accept_lengths))
        self.tokens += len(choice.tokens)
        self.large_passes += stats.large_passes

    @property
    def share(self) -> float:
        return self.accepted / max(1, self.drafted)


def measure(
    client: Client,
    tasks: Sequence[Task],
    new_tokens: int,
    draft_tokens: int,
    streams: int,
    progress: Callable[[], None] = lambda: None,
) -> list[Kept]:
    """Runs every task with both rules at each temperature, with one seed per task."""
    m = client.messages
    results = []
    for temperature in TEMPERATURES:
        for rule, name in RULES.items():
            kept = Kept(temperature, rule)

            def one(numbered, temperature=temperature, name=name):
                seed, task = numbered
                method = m.Speculative(draft_tokens=draft_tokens, acceptance=name)
                request = client.request("code", list(task.prompt), new_tokens, method, seed=seed)
                request.temperature = temperature
                progress()
                return client.complete(request)

            for choice in at_once(one, list(enumerate(tasks)), streams):
                kept.add(choice)
            results.append(kept)
    return results


def table(results: Sequence[Kept], draft_tokens: int) -> str:
    lines = [
        f"| temperature | rule | drafts of γ = {draft_tokens} that stayed | tokens per large pass |",
        "|---:|---|---:|---:|",
    ]
    for r in results:
        lines.append(
            f"| {r.temperature:g} | {r.rule} | {100 * r.share:.1f} % of {r.drafted:,} "
            f"| {r.tokens / max(1, r.large_passes):.2f} |"
        )
    return "\n".join(lines)
