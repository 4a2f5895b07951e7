"""What is measured: decoding methods with their parameters, each on one deployment of pairs.textproto."""

import math
from dataclasses import dataclass, field

# docs/decoding_methods.md, BiLD: under ln 2, greedy BiLD is the large model's own text.
EXACT_ROLLBACK = 0.69
PAIRS = {"code": "normal", "code-aligned": "aligned"}  # deployment: its small model
DOCSTRING_PAIRS = {"docstring": "normal", "docstring-aligned": "aligned"}  # docstrings.textproto
EXITS = {2: "code-exit-2", 4: "code-exit-4", 6: "code-exit-6"}  # layer: deployment


@dataclass(frozen=True)
class Configuration:
    """A way to decode. `series` is what it is a point of; parameters are the method's fields."""

    series: str
    deployment: str
    method: str  # of the protocol: "Bild", "Speculative", "Ngram"
    parameters: dict = field(default_factory=dict, hash=False)
    promises_exact: bool = False

    def message(self, messages):
        return getattr(messages, self.method)(**self.parameters)

    @property
    def small(self) -> str:
        """What drafts."""
        if self.method == "Ngram":
            return "the text itself"
        for layer, deployment in EXITS.items():
            if deployment == self.deployment:
                return f"layers 1-{layer}"
        return (PAIRS | DOCSTRING_PAIRS)[self.deployment]

    @property
    def settings(self) -> str:
        """The parameters as the tables show them."""
        names = {
            "fallback_threshold": "α_FB",
            "rollback_threshold": "α_RB",
            "window": "window",
            "draft_tokens": "γ",
        }
        shown = [
            f"{names[name]} {'∞' if value == math.inf else value}"
            for name, value in self.parameters.items()
            if name in names
        ]
        return ", ".join(["adaptive"] * (self.parameters.get("pace") == "PACE_ADAPTIVE") + shown)


AR = Configuration("autoregressive", "code", "Autoregressive", promises_exact=True)


def bild(series: str, deployment: str, rollback: float, **parameters) -> Configuration:
    return Configuration(
        series,
        deployment,
        "Bild",
        {**parameters, "rollback_threshold": rollback},
        promises_exact=rollback <= EXACT_ROLLBACK,
    )


def speculative(series: str, deployment: str, **parameters) -> Configuration:
    return Configuration(series, deployment, "Speculative", parameters, promises_exact=True)


def ngram(**parameters) -> Configuration:
    return Configuration("n-gram", "code", "Ngram", parameters, promises_exact=True)


def configurations(quick: bool = False) -> list[Configuration]:
    """All of them, without AR. The papers' ranges: α_FB 0.2 to 0.9, α_RB 1 to 10."""
    fallbacks = [0.3, 0.7] if quick else [0.2, 0.4, 0.6, 0.8, 0.9]
    rollbacks = [EXACT_ROLLBACK, 2] if quick else [EXACT_ROLLBACK, 1, 2, 5]
    drafts = [4] if quick else [2, 4, 8]
    windows = [4] if quick else [3, 5, 10]
    found = []
    for pair in PAIRS:
        for rollback in rollbacks:
            for fallback in fallbacks:
                found.append(bild("BiLD", pair, rollback, fallback_threshold=fallback))
        for gamma in drafts:
            found.append(speculative("speculative", pair, draft_tokens=gamma))
        found.append(speculative("speculative", pair, draft_tokens=8, pace="PACE_ADAPTIVE"))
    for gamma in drafts[1:] or drafts:
        found.append(ngram(draft_tokens=gamma))
    # Figure 5 of the paper has its ablations on the aligned model.
    for fallback in fallbacks:
        found.append(bild("no rollback", "code-aligned", math.inf, fallback_threshold=fallback))
    for window in windows:
        found.append(bild("no fallback", "code-aligned", 2, window=window))
    for layer, deployment in EXITS.items():
        if not quick or layer == 4:
            found.append(bild("early exit", deployment, 1, fallback_threshold=0.6, early_exit=True))
    return found


def exact_ones(quick: bool = False) -> list[Configuration]:
    """The configurations that are compared with AR token by token: a few of each kind that is EXACT."""
    found = []
    for pair in PAIRS:
        found.append(speculative("speculative", pair, draft_tokens=4))
        found.append(speculative("speculative", pair, draft_tokens=8, pace="PACE_ADAPTIVE"))
        for fallback in [0.6] if quick else [0.2, 0.6]:
            found.append(bild("BiLD", pair, EXACT_ROLLBACK, fallback_threshold=fallback))
    found.append(ngram(draft_tokens=4))
    found.append(
        bild("early exit", EXITS[4], EXACT_ROLLBACK, fallback_threshold=0.6, early_exit=True)
    )
    return found
