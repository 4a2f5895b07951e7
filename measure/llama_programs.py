"""Programs of llama.cpp and ik_llama.cpp at any path: the flags that each takes, and the settings worth trying.

The two have other flags for the same setting, so a program's flags are read from its --help.
"""

import argparse
import functools
import json
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """Flags of a program, and what a table shows of them."""

    shown: str
    flags: tuple[str, ...] = ()

    def __add__(self, other: "Settings") -> "Settings":
        shown = ", ".join(part for part in (self.shown, other.shown) if part)
        return Settings(shown, self.flags + other.flags)


@dataclass(frozen=True)
class Program:
    """An executable and its name in tables."""

    name: str
    path: Path

    @functools.cached_property
    def help(self) -> str:
        # ik_llama.cpp's llama-batched-bench prints the flags and exits with status 1.
        done = subprocess.run([self.path, "--help"], capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    def takes(self, flag: str) -> bool:
        return re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", self.help) is not None

    @property
    def of_ik(self) -> bool:
        """ik_llama.cpp, by a flag that llama.cpp does not have."""
        return self.takes("--run-time-repack")

    def repacking(self) -> list[Settings]:
        """Both settings of the weights' repacking at load, the default first; one where there is no choice."""
        if self.of_ik:
            return [Settings("not repacked"), Settings("repacked", ("--run-time-repack",))]
        if self.takes("--no-repack"):
            return [Settings("repacked"), Settings("not repacked", ("--no-repack",))]
        return [Settings("")]

    def threads(self, count: int) -> Settings:
        return Settings(f"{count} threads", ("--threads", str(count)))

    def trials(self, threads: Sequence[int]) -> list[Settings]:
        """Settings of llama-batched-bench to choose from: the defaults, then changes of them. The first of
        `threads` is the default."""
        default = self.threads(threads[0])
        plain, other = (*self.repacking(), None)[:2]
        changes = [Settings("flash attention off", ("--flash-attn", "off"))]
        if self.of_ik:
            bf16 = Settings("keys and values bf16", ("-ctk", "bf16", "-ctv", "bf16"))
            changes.append(bf16)
        else:
            changes.append(Settings("flash attention on", ("--flash-attn", "on")))
            changes.append(Settings("poll 0", ("--poll", "0")))
        found = [default + plain, *(default + plain + change for change in changes)]
        if other is not None:
            found.append(default + other)
            if self.of_ik:
                found.append(default + other + bf16)
        return [*found, *(self.threads(n) + plain for n in threads[1:])]

    def model_drafts(self, model: Path, most: int, least_probability: float = 0) -> Settings:
        """llama-server with a draft model."""
        shown = f"draft model, {most} drafts, p above {least_probability:g}"
        flags = ("--model-draft", str(model), "--threads-draft", "2")
        if self.of_ik:
            stage = f"draft:n_max={most},p_min={least_probability:g}"
            return Settings(shown, (*flags, "--spec-type", stage))
        # Threads that poll take the processor from the other model's.
        flags += ("--poll", "0", "--poll-draft", "0", "--spec-type", "draft-simple")
        flags += ("--spec-draft-n-max", str(most), "--spec-draft-p-min", f"{least_probability:g}")
        return Settings(shown + ", poll 0", flags)

    def ngrams(self, match: int | None = None, drafts: int | None = None) -> Settings:
        """llama-server with n-grams: drafts of up to `drafts` tokens behind `match` equal ones; by default the
        program's own numbers."""
        if match is None or drafts is None:
            return Settings("n-grams, default sizes", ("--spec-type", "ngram-simple"))
        shown = f"n-grams, size n {match}, size m {drafts}"
        if self.of_ik:
            # n_max: else its draft models' number would count.
            stage = f"ngram-simple:n_max={drafts},ngram_size_n={match},ngram_size_m={drafts}"
            return Settings(shown, ("--spec-type", stage))
        # Newer builds have sizes for each kind of n-grams, and refuse the common ones.
        name = next(
            (n for n in ("--spec-ngram-simple-size", "--spec-ngram-size") if self.takes(f"{n}-n")),
            None,
        )
        if name is None:
            raise ValueError(f"{self.path}: no flag for the sizes of n-grams")
        sizes = (f"{name}-n", str(match), f"{name}-m", str(drafts))
        return Settings(shown, ("--spec-type", "ngram-simple", *sizes))


COLUMNS = ("pp", "tg", "pl", "n_kv", "t_pp", "speed_pp", "t_tg", "speed_tg", "t", "speed")


def batched_bench_rows(said: str) -> list[dict[str, float]]:
    """Rows of llama-batched-bench, as JSON or as a table."""
    rows = []
    for line in said.splitlines():
        if line.startswith('{"') and '"pl":' in line.replace(" ", ""):
            rows.append(json.loads(line))
        elif re.fullmatch(r"\|(\s*[\d.]+\s*\|){10}", line.strip()):
            cells = map(float, line.strip().strip("|").split("|"))
            rows.append(dict(zip(COLUMNS, cells, strict=True)))
    return rows


def named(text: str, name: str | None = None) -> Program:
    """NAME=PATH, or a PATH that gets `name`."""
    given, separator, path = text.partition("=")
    if not separator:
        given, path = name, text
    if not given or not path:
        form = "[NAME=]PATH" if name else "NAME=PATH"
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: {form}")
    return Program(given, Path(path))


def add_option(
    parser: argparse.ArgumentParser, flag: str, help_text: str, name: str | None = None
) -> None:
    """A repeatable option of programs; a path without a name gets `name`."""
    parser.add_argument(
        flag,
        type=functools.partial(named, name=name),
        action="append",
        default=[],
        metavar="[NAME=]PATH" if name else "NAME=PATH",
        help=f"{help_text}; repeatable",
    )
