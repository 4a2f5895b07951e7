"""The attacks' page: what a client beside each of them saw, beside what a review had measured before.

    scripts/attacks [--write] [--mutations N] [--keep FILE]

Runs the attacks of this folder once, each against a server of its own, and makes
docs/benchmarks/attacks.md of what they kept (harness.record).
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.peers import machine
from bench.peers.report import table

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "benchmarks" / "attacks.md"
STREAMS = "connections_test.py::test_streams_without_settings_ack"
GENERATE, COMPLETE = "/tandem.v1.Generation/Generate", "/tandem.v1.Generation/Complete"
WATCH = "/grpc.health.v1.Health/Watch"


@dataclass(frozen=True)
class Attack:
    test: str
    what: str
    before: str = ""  # what the review of commit 8c14fd7 measured


ATTACKS = (
    Attack("alone_test.py::test_a_bystander_alone", "none: two seconds without an attack"),
    Attack(
        "prompts_test.py::test_fat_prompts_are_refused_by_their_size",
        "8 prompts of 4 MB, refused",
        "a stream stood still for 30.7 s; 1.9 to 4.5 s for each prompt",
    ),
    Attack(
        "prompts_test.py::test_what_waits_stays_within_its_memory",
        "48 prompts of 4 MB that fit, 40 cancelled",
        "2,920 MiB after 250 of them, refusals after 18.6 s",
    ),
    Attack(
        "prompts_test.py::test_stop_strings_of_many_choices",
        "200 requests with stop strings × 16 choices",
        "streams stood still for 1.2 s beside 10; 22 MiB each",
    ),
    Attack(
        "chat_test.py::test_tools_that_grow_with_their_indents",
        "chats with tools 60 deep",
        "after three of them no chat of anybody was answered; 612 MiB each, for good",
    ),
    Attack(
        "chat_test.py::test_a_template_of_operators",
        "a template of operators alone",
        "the same; a thread and its memory stayed each time",
    ),
    Attack(
        "chat_test.py::test_chats_of_much_json",
        "20 calls with 4 MB of JSON in a chat, refused",
        "others waited 1.3 s for an answer",
    ),
    Attack(
        f"{STREAMS}[{GENERATE}-whole]",
        "60,000 streams of `Generate` without SETTINGS ACK",
        "all of 20,000 open, 237 MiB",
    ),
    Attack(f"{STREAMS}[{COMPLETE}-whole]", "the same of `Complete`"),
    Attack(
        f"{STREAMS}[{WATCH}-whole]",
        "the same of health watches",
        "8.2 MiB each with long names",
    ),
    Attack(
        f"{STREAMS}[{GENERATE}-indexed]",
        "`Generate` again, headers of a byte each",
        "363 MiB with gRPC's own reads",
    ),
    Attack(f"{STREAMS}[{COMPLETE}-indexed]", "`Complete`", "467 MiB so"),
    Attack(f"{STREAMS}[{WATCH}-indexed]", "health watches", "186 MiB so"),
    Attack(
        "connections_test.py::test_calls_that_end_at_once[cancelled]",
        "30,000 streams on 20 connections, reset at once",
        "on one connection: refusals 8 to 12 ms, 25 at most",
    ),
    Attack(
        "connections_test.py::test_calls_that_end_at_once[expired]",
        "the same with deadlines that have passed",
    ),
    Attack(
        "connections_test.py::test_one_host_leaves_room_for_others",
        "all calls, checks and watches that one host can open, and nothing more of them",
        "(not tried)",
    ),
    Attack(
        "connections_test.py::test_reflection_without_settings_ack[v1]",
        "600 streams of reflection without it",
        "a thread each",
    ),
    Attack(
        "connections_test.py::test_reflection_without_settings_ack[v1alpha]",
        "the same of its older version",
        "a thread each",
    ),
    Attack(
        "connections_test.py::test_more_connections_than_files",
        "400 connections, files run out",
        "never accepted again, `/healthz` 200",
    ),
    Attack(
        "http_test.py::test_silent_and_dripping_connections",
        "200 silent and dripping HTTP connections",
        "`/healthz` after 49.9 s, or never",
    ),
    Attack(
        "http_test.py::test_heads_and_bodies_without_end",
        "heads and bodies of HTTP without end",
        "+452 to +601 MiB each",
    ),
    Attack(
        "process_test.py::test_a_log_that_nobody_reads",
        "2,000 log lines into a pipe that nobody reads",
        "stood still after 254 requests, SIGTERM ignored",
    ),
    Attack(
        "mutations_test.py::test_mutations_and_extremes",
        "requests with bytes and fields that make no sense",
        "600 and 490, none INTERNAL",
    ),
    Attack(
        "openai_test.py::test_silent_dripping_and_closing_connections",
        "OpenAI door: 200 silent and dripping connections",
        "(the door is newer)",
    ),
    Attack(
        "openai_test.py::test_heads_and_bodies_without_end",
        "OpenAI door: heads, bodies without end",
    ),
    Attack(
        "openai_test.py::test_more_bodies_than_memory_for_them",
        "OpenAI door: 40 bodies of 4 MiB, memory for 16 MiB",
    ),
    Attack("openai_test.py::test_readers_that_do_not_read", "OpenAI door: 20 that read nothing"),
    Attack("openai_test.py::test_hostile_json", "OpenAI door: JSON a million deep or long"),
)
BACKLOG = "process_test.py::test_a_drain_with_a_backlog_ends"
RESTART = "process_test.py::test_a_rolling_restart_loses_no_request"


def merged(lines: list[str]) -> dict[str, dict]:
    """What each test kept, by its name."""
    found: dict[str, dict] = {}
    for line in lines:
        kept = json.loads(line)
        found.setdefault(kept.pop("test"), {}).update(kept)
    return found


def rows(kept: dict[str, dict]) -> list[list[str]]:
    known = {attack.test for attack in ATTACKS} | {BACKLOG, RESTART}
    if strangers := set(kept) - known:
        raise ValueError(f"tests/attack/table.py: ATTACKS lacks {sorted(strangers)}")
    found = []
    for attack in ATTACKS:
        saw = kept.get(attack.test)
        if saw is None:
            found.append([attack.what, attack.before, *["did not run"] * 4])
            continue
        probe = "" if saw["probe"] is None else f"{saw['probe']:.0f}"
        found.append(
            [
                attack.what,
                attack.before,
                f"{saw['gap_p99']:.0f}, {saw['gap']:.0f}",
                f"{saw['refusal_median']:.1f}, {saw['refusal']:.0f}",
                probe,
                f"{saw['grown']:.0f} of {saw['allowed']}",
            ]
        )
    return found


def sentences(kept: dict[str, dict]) -> list[str]:
    """Of what has no client beside it, and of the codes that mutations ended with."""
    said = []
    if drain := kept.get(BACKLOG):
        said.append(
            f"- **A drain with a backlog**, {drain['drained']} calls with hours of work and a grace of 1 s: "
            f"ended with status 0 after {drain['seconds']:.1f} s (before: 49.2 s with a grace of 2 s)."
        )
    if restart := kept.get(RESTART):
        counts = " and ".join(f"{n} {kind}" for kind, n in restart["answered"].items())
        said.append(
            "- **A rolling restart of two servers** under eight clients that retry as documented: "
            f"{counts} calls were answered, **{restart['lost']} lost** (before: not tried)."
        )
    if codes := kept.get("mutations_test.py::test_mutations_and_extremes", {}).get("codes"):
        counts = ", ".join(
            f"{n:,} {code}" for code, n in sorted(codes.items(), key=lambda c: -c[1])
        )
        said.append(
            f"- **{sum(codes.values()):,} requests of mutated bytes and extreme fields** ended with {counts}: "
            "no INTERNAL, no crash."
        )
    return said


def verdict(kept: dict[str, dict]) -> str:
    """How many keep to what was set out for."""
    beside = [saw for saw in kept.values() if "gap" in saw]
    gaps = sum(saw["gap"] < 100 for saw in beside)
    medians = sum(saw["refusal_median"] < 10 for saw in beside)
    worst = sum(saw["refusal"] < 10 for saw in beside)
    return (
        f"Of {len(beside)} rows the longest gap is under 100 ms in {gaps}; the median refusal is under 10 ms in "
        f"{medians}, the slowest one in {worst}."
    )


def markdown(kept: dict[str, dict], conditions: dict[str, str]) -> str:
    head = ["attack", "before", "gap: p99, longest, ms", "refusal: median, slowest, ms"]
    main = table([*head, "`/healthz`, slowest, ms", "grew, of allowed, MiB"], rows(kept))
    facts = "\n".join(f"| {name} | {value} |" for name, value in conditions.items())
    return f"""# Attacks, before and after

What another client sees while the server is attacked, by the scripts of `tests/attack`, which run in every test run, too (there they
assert what happens, and nothing about time). That client is a process of its own: it reads streams of 5 ms a token, asks for what is
refused at once, and looks at `/healthz`, which has to say 200. *Grew* is the server's resident memory from before to after, beside
what the test allows it to.
*Before* is what the review of commit 8c14fd7 measured, where it measured that.

{main}

{verdict(kept)} Attacker, server and that client share this machine's processors, so these are upper bounds; where the client may, it
runs at a higher priority than the others, to see how long the server takes and not how long it waits for a processor itself. In the rows
without SETTINGS ACK the server has one processor.

{chr(10).join(sentences(kept))}

| condition | |
|---|---|
{facts}
"""


def attacked(binaries: Path, mutations: int, keep: Path) -> None:
    tests = sorted({attack.test.split("[")[0] for attack in ATTACKS} | {BACKLOG, RESTART})
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *(f"tests/attack/{test}" for test in tests)],
        cwd=ROOT,
        env={
            **os.environ,
            "TANDEM_BIN": str(binaries),
            "TANDEM_ATTACK_RECORD": str(keep),
            "TANDEM_MUTATIONS": str(mutations),
        },
    )
    if run.returncode != 0:
        raise SystemExit("an attack did what it must not, see above")


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binaries", type=Path, default=ROOT / "build" / "release" / "bin")
    parser.add_argument("--mutations", type=int, default=10_000)
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.relative_to(ROOT)}")
    parser.add_argument("--keep", type=Path, help="what was seen, as lines of JSON")
    args = parser.parse_args(arguments)

    with tempfile.TemporaryDirectory(prefix="tandem-attacks-") as folder:
        keep = args.keep or Path(folder) / "kept"
        keep.unlink(missing_ok=True)
        before = machine.load()
        attacked(args.binaries.resolve(), args.mutations, keep)
        kept = merged(keep.read_text().splitlines())
    binaries = os.path.relpath(args.binaries.resolve(), ROOT)
    given = f"TANDEM_BIN={binaries} " if os.environ.get("TANDEM_BIN") else ""
    conditions = {
        "command": f"`{given}scripts/attacks --mutations {args.mutations}`",
        "binaries": binaries,
        "commit": machine.commit(ROOT),
        "date": datetime.date.today().isoformat(),
        "processor": f"{machine.processor()} ({machine.instructions()}), {machine.cores()} cores",
        "machine busy before and after": f"{before:.0%}, {machine.load():.0%}",
    }
    page = markdown(kept, conditions)
    if args.write:
        PAGE.write_text(page)
    else:
        print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
