"""The tables of docs/reports/models.md, of the parts that whole_model.py measured."""

import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path

from bench.peers.engines import SHOWN, bytes_per_weight
from measure.report import folded, table

WIDTH_NAMES = {"32": "32 bit", "16": "16 bit", "8": "8 bit"}
# Goals: decoding speed over that of the best peer of equal width, by (width, streams).
GOALS = {
    ("32", 1): 1.15,
    ("16", 1): 1.6,
    ("8", 1): 1.6,
    ("32", 8): 1.5,
    ("16", 8): 1.5,
    ("8", 8): 1.5,
}
PASS_ROWS, PASS_GOAL = 8, 1.35  # fp32: time of a pass of this many rows, relative to one row
TYPES = {"LlamaCpp": {"fp32": "F32", "bf16": "BF16", "fp16": "F16", "int8": "Q8_0"}}


def engine_name(kind: str, precision: str) -> str:
    """Name on the page, such as "llama.cpp Q8_0"."""
    return f"{SHOWN.get(kind, kind)} {TYPES.get(kind, {}).get(precision, precision)}"


def kind_and_precision(name: str) -> tuple[str, str]:
    """The inverse of engine_name."""
    shown, precision = name.rsplit(" ", 1)
    kind = next((k for k, v in SHOWN.items() if v == shown), shown)
    types = {v: k for k, v in TYPES.get(kind, {}).items()}
    return kind, types.get(precision, precision)


def rates(case: dict, name: str, whole: bool = False) -> list[float]:
    """Tokens per second of each turn, all streams together.

    Decoding: all tokens except the first, in the time of the call less the median time of a call for the
    first tokens only. Otherwise all tokens, in the time of the call.
    """
    streams, new = case["streams"], case["new_tokens"]
    runs = case["runs"][name]
    if whole:
        return [streams * new / run["seconds"] for run in runs]
    first = statistics.median(run["first"] for run in runs)
    return [streams * (new - 1) / (run["seconds"] - first) for run in runs]


def rate(case: dict, name: str, whole: bool = False) -> float:
    return statistics.median(rates(case, name, whole))


@dataclass
class Part:
    """A model at a width: the JSON of whole_model.measure(), and its profile."""

    result: dict
    profile: dict = field(default_factory=dict)

    @staticmethod
    def read(result: Path, profile: Path) -> "Part":
        lines = json.loads(profile.read_text()) if profile.exists() else {}
        return Part(json.loads(result.read_text()), lines)

    @property
    def model(self) -> str:
        return self.result["model"]

    @property
    def width(self) -> str:
        return self.result["width"]

    @property
    def ours(self) -> str:
        return self.result["ours"]

    def cases(self) -> list[dict]:
        return self.result["cases"]

    def best(self, case: dict, whole: bool = False) -> str:
        peers = [name for name in case["runs"] if name != self.ours]
        return max(peers, key=lambda name: rate(case, name, whole))

    def ratio(self, case: dict, whole: bool = False) -> float:
        return rate(case, self.ours, whole) / rate(case, self.best(case, whole), whole)

    def goal(self, case: dict) -> float | None:
        return GOALS.get((self.width, case["streams"]))

    def met(self, case: dict) -> bool:
        goal = self.goal(case)
        return goal is None or self.ratio(case) >= goal

    def probe(self, case: dict) -> float:
        return statistics.median(case["probes"])

    def bandwidth(self, case: dict, name: str) -> float:
        """Bytes of weights that one stream reads per second."""
        return (
            self.result["weights"] * bytes_per_weight(*kind_and_precision(name)) * rate(case, name)
        )

    def pass_ratio(self, name: str, rows: int) -> float:
        times = self.result["passes"][name]
        return times[str(rows)] / times["1"]


def spread(figures: list[float]) -> str:
    """Median, minimum and maximum, as integers if these are precise enough."""
    middle = statistics.median(figures)
    digits = 0 if middle >= 100 else 1
    return f"{middle:,.{digits}f} ({min(figures):,.{digits}f}-{max(figures):,.{digits}f})"


def verdict(value: str, met: bool) -> str:
    return f"**{value}**" if met else f"**{value}** (missed)"


def goals_table(parts: list[Part]) -> str:
    lines = []
    for part in parts:
        for case in part.cases():
            goal = part.goal(case)
            lines.append(
                [
                    part.model,
                    part.ours.split()[-1],
                    str(case["streams"]),
                    spread(rates(case, part.ours)),
                    spread(rates(case, part.best(case))),
                    part.best(case),
                    verdict(f"{part.ratio(case):.2f}", part.met(case)),
                    f"{goal:.2f}" if goal else "-",
                    f"{part.ratio(case, whole=True):.2f}",
                ]
            )
    head = ["model", "weights", "streams", "Tandem, tokens/s", "best peer, tokens/s", "which"]
    return table([*head, "ratio", "goal", "ratio with prompts"], lines)


def engines_table(parts: list[Part]) -> str:
    lines = []
    for part in parts:
        for case in part.cases():
            for name in case["runs"]:
                same = "-"
                if name in case["equal"]:
                    equal, total = case["equal"][name]
                    same = f"{equal / total:.0%}"
                first = statistics.median(run["first"] for run in case["runs"][name])
                lines.append(
                    [
                        part.model,
                        str(case["streams"]),
                        name,
                        spread(rates(case, name)),
                        spread(rates(case, name, whole=True)),
                        f"{first * 1e3:.1f}",
                        same,
                    ]
                )
    head = ["model", "streams", "engine", "decoding, tokens/s", "with prompts, tokens/s"]
    return table([*head, "first tokens, ms", "same tokens"], lines)


def bandwidth_table(parts: list[Part]) -> str:
    lines = []
    for part in parts:
        for case in part.cases():
            if case["streams"] != 1:
                continue
            probe = part.probe(case)
            for name in case["runs"]:
                bandwidth = part.bandwidth(case, name)
                read = bandwidth / rate(case, name)
                lines.append(
                    [
                        part.model,
                        name,
                        f"{read / 1e6:,.0f}",
                        f"{1e3 / rate(case, name):.2f}",
                        f"{bandwidth / 1e9:.1f}",
                        f"{probe / 1e9:.1f}",
                        f"{bandwidth / probe:.0%}",
                    ]
                )
    head = ["model", "engine", "weights, MB", "token, ms", "GB/s", "probe, GB/s", "share of probe"]
    return table(head, lines)


def pass_table(parts: list[Part]) -> str:
    rows = sorted({int(r) for p in parts for times in p.result["passes"].values() for r in times})
    lines = []
    for part in parts:
        passes = part.result["passes"]
        for name in [part.ours, *(n for n in passes if n != part.ours)]:
            if name not in passes:
                continue
            cells = [f"{part.pass_ratio(name, r):.2f}" for r in rows[1:]]
            if part.width == "32" and name == part.ours and PASS_ROWS in rows:
                met = part.pass_ratio(name, PASS_ROWS) <= PASS_GOAL
                at = rows[1:].index(PASS_ROWS)
                cells[at] = verdict(cells[at], met)
            lines.append([part.model, name, f"{passes[name]['1'] * 1e3:.2f}", *cells])
    return table(["model", "engine", "1 row, ms", *(f"{r} rows" for r in rows[1:])], lines)


def profile_text(parts: list[Part]) -> str:
    """Parts of Tandem's step, for each part that missed a goal."""
    sections, facts = [], []
    for part in parts:
        missed = [c["streams"] for c in part.cases() if not part.met(c)]
        if not missed or not part.profile:
            continue
        cases = {"1": "1 row", "8": "8 sequences"}
        columns = [cases[str(n)] for n in missed if str(n) in cases]
        times: dict[str, dict[str, float]] = {}
        for kind, name, _, milliseconds in part.profile["lines"]:
            if kind == "parts":
                _, what, case = name.split(":")
                times.setdefault(what, {})[case] = milliseconds
        lines = []
        totals = {c: sum(by[c] for by in times.values()) for c in columns}
        for what, by in times.items():
            cells = [f"{by[c]:.3f} ({by[c] / totals[c]:.0%})" for c in columns]
            lines.append([what, *cells])
        lines.append(["all", *(f"{totals[c]:.3f}" for c in columns)])
        facts += [step_facts(part, case, totals) for case in part.cases() if not part.met(case)]
        sections.append(
            f"#### {part.model}, {part.ours.split()[-1]}\n\n" + table(["part, ms", *columns], lines)
        )
    if not sections:
        return "No goal is missed."
    return "\n\n".join([table(STEP_FACTS, [fact for fact in facts if fact]), *sections])


def step_facts(part: Part, case: dict, totals: dict[str, float]) -> list[str] | None:
    """Bytes that a step reads, and its time in the server, in bench_step and at memory bandwidth."""
    streams = case["streams"]
    column = {1: "1 row", 8: "8 sequences"}.get(streams)
    if column not in totals:
        return None
    ours = 1e3 * streams / rate(case, part.ours)
    peer = 1e3 * streams / rate(case, part.best(case))
    kind, precision = kind_and_precision(part.ours)
    weights = part.result["weights"] * bytes_per_weight(kind, precision)
    kept = part.profile["kept_bytes"] * 256 * streams
    return [
        f"{part.model}, {part.ours.split()[-1]}",
        str(streams),
        f"{weights / 1e6:,.0f} + {kept / 1e6:,.0f}",
        f"{part.profile['probe'] / 1e9:.1f}",
        f"{ours:.2f}",
        f"{totals[column]:.2f}",
        f"{1e3 * weights / part.probe(case):.2f}",
        f"{peer:.2f}",
        f"{peer / part.goal(case):.2f}",
    ]


STEP_FACTS = [
    "step",
    "streams",
    "weights + K and V, MB",
    "probe, GB/s",
    "over gRPC, ms",
    "`bench_step`",
    "weights at the probe",
    "best peer",
    "goal",
]


def client_text(parts: list[Part]) -> str:
    shares = [
        (statistics.median(run["client"] for run in case["runs"][part.ours]), part.model, case)
        for part in parts
        for case in part.cases()
    ]
    share, model, case = max(shares, key=lambda found: found[0])
    return (
        f"Tandem's client used {min(shares, key=lambda f: f[0])[0]:.1%} to {share:.1%} of the "
        f"machine, most with {case['streams']} streams of {model}."
    )


def conditions_table(parts: list[Part]) -> str:
    lines = []
    for part in parts:
        c = part.result["conditions"]
        probes = [p / 1e9 for case in part.cases() for p in case["probes"]]
        lines.append(
            [
                f"`{c['command']}`",
                c["commit"],
                c["date"],
                f"{min(probes):.0f}-{max(probes):.0f}",
                f"{c['busy']:.0%}",
                f"{c['others']:.1%} ({c['others_most']:.1%})",
                f"{c['idle']:.2f}",
                f"{c['prompt_tokens']}, {part.cases()[0]['new_tokens']}",
                str(c["repeats"]),
                f"{c['seconds']:.0f}",
            ]
        )
    return table(
        [
            "part",
            "commit",
            "date",
            "probe, GB/s",
            "busy before",
            "other load in turns (max)",
            "CPU of paused engines, s",
            "prompt, new tokens",
            "turns",
            "seconds",
        ],
        lines,
    )


def versions_table(parts: list[Part]) -> str:
    """A line per engine; values that differ between precisions are joined."""
    found: dict[str, dict[str, list[str]]] = {}
    for part in parts:
        for name, details in part.result["details"].items():
            kind = name.rsplit(" ", 1)[0]
            for key, value in details.items():
                values = found.setdefault(kind, {}).setdefault(key, [])
                if value not in values:
                    values.append(value)
    lines = []
    for kind, by_key in found.items():
        version = ", ".join(by_key.get("version", ["-"]))
        rest = "; ".join(f"{k}: {', '.join(v)}" for k, v in by_key.items() if k != "version")
        lines.append([kind, version, rest or "-"])
    return table(["engine", "version", "reported instructions and kernels"], lines)


def settings_table(parts: list[Part]) -> str:
    lines = []
    for part in parts:
        for name, by_streams in part.result["settings"].items():
            for streams, settings in by_streams.items():
                if settings:
                    values = ", ".join(
                        f"{k.replace('_', ' ') if not k.isupper() else k} {v}".replace(
                            "True", "on"
                        ).replace("False", "off")
                        for k, v in settings.items()
                        if v != ""
                    )
                    lines.append([part.model, name, streams, values])
    return table(["model", "engine", "streams", "settings"], lines)


def refused_text(parts: list[Part]) -> str:
    refused = {name: why for part in parts for name, why in part.result["refused"].items()}
    return "".join(f"- {name} is not available: {why}.\n" for name, why in refused.items())


def page(parts: list[Part], missing: list[str] = ()) -> str:
    """The page; `missing` names the parts that were not measured."""
    if not parts:
        return "Not measured.\n"
    c = parts[0].result["conditions"]
    return f"""### Decoding

{goals_table(parts)}
{"" if not missing else chr(10) + "Not measured: " + ", ".join(missing) + "." + chr(10)}
### Passes of several rows

Time relative to one row (medians), context 256. Goal: {PASS_ROWS} rows of fp32 at most {PASS_GOAL}.

{pass_table(parts)}

### Memory bandwidth

{bandwidth_table(parts)}

### Parts of a step

`bench_step`, context 256, for the cases that miss their goal.

{folded("Parts by model and width", profile_text(parts))}

### All engines

{folded("Every engine and number of streams", engines_table(parts))}

{refused_text(parts)}
### Conditions

Processor: {c["processor"]}, {c["cores"]} cores.

{conditions_table(parts)}

{client_text(parts)}

{versions_table(parts)}

{folded("Settings of each engine", settings_table(parts))}
"""
