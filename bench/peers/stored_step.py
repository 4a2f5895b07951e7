"""Parts of a decoding step with a GGUF file, and the time of reading its weights.

    python -m bench.peers.stored_step [MODEL ...] [--write]

bench_step (bench/torch) runs passes with the weights of each file through the backend, without
scheduler and server, with 256 rows of context. The memory probe reads floats sequentially on all cores.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from bench.peers import cli
from measure import machine
from measure.paths import ROOT
from measure.report import table

PAGE = ROOT / "docs" / "reports" / "gguf.md"
BINARY = ROOT / "build/release/bin/bench_step"
PARTS = ("product", "head", "attention")  # shown separately; other parts are summed
PASSES = ("2 rows", "4 rows", "8 rows", "8 sequences", "64 rows, 1 read")


def untied_embedding(path: Path) -> int:
    """Bytes of an embedding matrix that the head does not share; a pass reads one row of it. 0: shared."""
    import gguf

    sizes = {tensor.name: int(tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors}
    return sizes.get("token_embd.weight", 0) if "output.weight" in sizes else 0


def weight_bytes(text: str) -> int:
    """Bytes of the weights in memory, which differ from the file for some block types (CSV as below)."""
    (line,) = [line for line in text.splitlines() if line.startswith("weights,")]
    return int(float(line.split(",")[-2]))


def milliseconds(text: str) -> dict[str, dict[str, float]]:
    """Time of the parts by kind of pass, from the CSV of bench_step (table "parts")."""
    found: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        kind, rest = line.split(",", 1)
        if kind == "parts":  # MODEL:PART:PASS,rows,milliseconds; names have commas
            names, _, time = rest.rsplit(",", 2)
            _, part, name = names.split(":")
            found.setdefault(name, {})[part] = float(time)
    return found


def row(name: str, read: int, passes: dict[str, dict[str, float]], probe: float) -> list[str]:
    """`read`: bytes of a token's weights; `probe`: bytes per second of reading memory."""
    one = passes["1 row"]
    whole = sum(one.values())
    # Matrix products and head are limited by memory, the rest by the processor.
    rate = read / (one["product"] + one["head"]) * 1e3
    rest = whole - sum(one[part] for part in PARTS)
    return [
        name,
        f"{read / 1e6:,.0f}",
        f"{whole:.2f}",
        *(f"{100 * one[part] / whole:.0f} %" for part in PARTS),
        f"{100 * rest / whole:.0f} %",
        f"{rate / 1e9:.1f}",
        f"{100 * rate / probe:.0f} %",
        *(f"{sum(passes[name].values()) / whole:.2f}" for name in PASSES),
    ]


def page(rows: list[list[str]], about: str) -> str:
    head = [
        "file",
        "MB per token",
        "ms, 1 row",
        *PARTS,
        "the rest",
        "GB/s",
        "share of probe",
        *PASSES,
    ]
    return f"{about}\n\n{table(head, rows)}\n"


def main(arguments: list[str] | None = None) -> int:
    parser = cli.gguf_parser(__doc__, PAGE)
    parser.add_argument("--seconds", type=float, default=1.5, help="seconds per kind of pass")
    parser.add_argument("--binary", type=Path, default=BINARY)
    args = parser.parse_args(arguments)
    files = cli.gguf_files(args.models, [args.binary], "scripts/build release bench_step")
    run = cli.Run("python -m bench.peers.stored_step", arguments, args.write)
    rows, probes = [], [machine.bandwidth()]
    for file in files:
        with tempfile.NamedTemporaryFile("r", suffix=".csv") as out:
            command = [args.binary, "--file", f"{file.stem}={file}", "--table", "parts"]
            command += ["--seconds", args.seconds, "--csv", out.name]
            command += ["--threads", machine.cores()]
            subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
            text = out.read()
        passes, read = milliseconds(text), weight_bytes(text) - untied_embedding(file)
        probes.append(machine.bandwidth())
        rows.append(row(file.stem, read, passes, max(probes[-2:])))
        print(" | ".join(rows[-1]), flush=True)
    shown = ", ".join(f"{probe / 1e9:.1f}" for probe in probes)
    about = run.about(f"Memory probe before and after each file: {shown} GB/s. Medians.")
    cli.publish(page(rows, about), args.write, PAGE, "step")
    return 0


if __name__ == "__main__":
    sys.exit(main())
