"""The table at the end of a part: every step, then every figure with its expected value."""

import re

# What figures of an H200 should be, and why (docs/gpu_check.md). A pattern of names; the least or the
# most, of the value or of another field; calculated, published, or from the first runs on an H200.
EXPECTED = [
    (r"copy", "value", ">=", 4000, "others' copies on this chip: 4.3 TB/s, read and written"),
    (r"read", "value", ">=", 4000, "4.8 TB/s by the datasheet"),
    (r"copy_to_(host|device)", "value", ">=", 40, "PCIe 5 x16, pinned"),
    (r"launch", "value", "<=", 10, "LibTorch's dispatch of one small kernel"),
    (r"round_trip", "value", "<=", 20, "one launch that is waited for"),
    (r"record_and_wait", "value", "<=", 3, "two calls of the driver"),
    (
        r"product\.(qkv|gate_up|down|head)\.rows_(1|2|4|8)",
        "share",
        ">=",
        0.7,
        "weights are read once",
    ),
    (
        r"product\.o\.rows_(1|2|4|8)",
        "share",
        ">=",
        0.5,
        "34 MB: 8 us, of which launching is a part",
    ),
    (
        r"packed\.(qkv|gate_up|down|head)\.rows_(1|2|4|8|16)",
        "share",
        ">=",
        0.7,
        "16 bytes a lane, eight such on their way; rows come out of caches",
    ),
    (r"packed\.o\.rows_(1|2|4|8|16)", "share", ">=", 0.5, "as product.o"),
    (
        r"blocks\.q8_0\.gate_up\.rows_(1|8)",
        "share",
        ">=",
        0.5,
        "a product of tiles to 512 bytes of codes",
    ),
    (
        r"blocks\.q[456]_[01k]\.(qkv|gate_up|down|head)\.rows_(1|8)",
        "share",
        ">=",
        0.3,
        "half the bytes to as much unpacking",
    ),
    (r"blocks\.\w+\.\w+\.difference", "value", "<=", 1e-5, "sums in another order alone"),
    (r"packed\.\w+\.difference", "value", "<=", 1e-4, "fp32 sums of products of 16 bits"),
    (r"product\.\w+\.difference", "value", "<=", 3e-2, "results of 16 bits"),
    (r"attention\..*\.difference", "value", "<=", 3e-2, "results of 16 bits"),
    (r"lora\..*\.difference", "value", "<=", 1e-4, "fp32 sums, as packed products"),
    (r"kernels\.failed", "value", "<=", 0, "checks of the program of kernels"),
    (
        r"kernels\.product\.(qkv|gate_up|down|head)\.rows_(1|2|4|8|16)",
        "share",
        ">=",
        0.7,
        "as packed",
    ),
    (
        r"kernels\.chain\.sequences_1\.rows_1\.context_256",
        "value",
        "<=",
        4000,
        "measured: 3758; 2.9 ms of reading weights",
    ),
    (r"blocks\.served\.below_best", "value", "<=", 0.1, "rows between products are bf16"),
    (r"blocks\.served\.difference", "value", "<=", 0.02, "as below_best"),
    (r"7b\.q4_k\.step\.context_256", "value", "<=", 3.0, "measured: 2.6; 0.9 ms of weights"),
    (r"attention\.sequences_32\.rows_1\.context_2048", "share", ">=", 0.6, "keys and values once"),
    (r"7b\.step\.context_256", "value", "<=", 4.2, "measured: 3.8; 2.9 ms of weights"),
    (r"1b\.launches\.replayed", "value", "<=", 2.0, "as 1b.step.context_256"),
    (r"7b\.step\.context_2048", "value", "<=", 4.8, "0.25 ms more of keys and values"),
    (r"1b\.step\.context_256", "value", "<=", 2.0, "0.6 ms of weights, 149 launches"),
    (r"13b\.step\.context_256", "value", "<=", 8.5, "6.0 ms of weights, 365 launches"),
    (r"7b\.step\.ragged_32", "value", "<=", 12, "3.1 ms of weights, 4.4 ms of keys and values"),
    (r"7b\.ragged_32\.ratio\.eager", "value", ">=", 2, "who pads reads 1.8 times the keys"),
    (r".*\.graphs\.refused", "value", "<=", 0, "every step of few rows can be captured"),
    (r"7b\.prefill\.512", "value", "<=", 25, "measured: 14"),
    (r"7b\.prefill\.4096", "value", "<=", 180, "measured: 113"),
    (r"7b\.ratio\.eager", "value", ">=", 2, "eager PyTorch reaches a quarter of the floor"),
    (r"7b\.ratio\.compiled", "value", ">=", 0.8, "a graph of the whole step, as ours"),
]


def expected(name: str):
    """The row of EXPECTED whose pattern is the whole name."""
    return next((row for row in EXPECTED if re.fullmatch(row[0], name)), None)


def judged(figure: dict) -> tuple[str, str]:
    """What a figure should be, and whether it is: "yes", "NO", or nothing."""
    row = expected(figure["name"])
    if row is None:
        return "", ""
    _, key, way, bound, _ = row
    if key not in figure:
        return f"{key} {way} {bound:g}", ""
    holds = figure[key] >= bound if way == ">=" else figure[key] <= bound
    return f"{'' if key == 'value' else key + ' '}{way} {bound:g}", "yes" if holds else "NO"


def lines(head: list[str], rows: list[list[str]]) -> list[str]:
    widths = [max(len(r[i]) for r in [head, *rows]) for i in range(len(head))]
    out = [
        "  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip()
        for r in [head, *rows]
    ]
    return [out[0], "  ".join("-" * w for w in widths), *out[1:]]


def table(results, judge: bool) -> str:
    """judge: whether figures are held against EXPECTED, which is of an H200."""
    steps = [[r.name, r.status, f"{r.seconds:.1f}", r.why[:80]] for r in results]
    text = lines(["step", "status", "s", ""], steps)
    figures = []
    for result in results:
        for f in result.figures:
            share = f"{100 * f['share']:.1f} %" if "share" in f else ""
            bits = "" if "bits" not in f else "same" if f["bits"] else "differ"
            want, holds = judged(f) if judge else ("", "")
            value = f["value"]
            if isinstance(value, bool):
                shown = "true" if value else "false"
            else:
                shown = f"{value:.4g}" if isinstance(value, (int, float)) else str(value)
            figures.append([f["name"], shown, f.get("unit", ""), share, bits, want, holds])
    if figures:
        head = ["figure", "value", "unit", "of what it reads", "bits of rows", "expected", ""]
        text += ["", *lines(head, figures)]
    counts = {}
    for r in results:
        counts[r.status] = counts.get(r.status, 0) + 1
    text += ["", ", ".join(f"{n} {status}" for status, n in sorted(counts.items()))]
    return "\n".join(text) + "\n"
