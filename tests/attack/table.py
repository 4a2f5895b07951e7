"""The table of docs/reports/attacks.md: what another client sees during each attack.

    scripts/attacks [--write] [--mutations N] [--keep FILE]

Runs the attacks of this folder once, each against a new server, and writes the results that they
recorded (harness.record) into docs/reports/attacks.md.
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

from measure import machine
from measure.report import put, table

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reports" / "attacks.md"
STREAMS = "connections_test.py::test_streams_without_settings_ack"
GENERATE, COMPLETE = "/tandem.v1.Generation/Generate", "/tandem.v1.Generation/Complete"
WATCH = "/grpc.health.v1.Health/Watch"
TOGETHER = "together_test.py::test_all_attacks_at_once"


@dataclass(frozen=True)
class Attack:
    test: str
    what: str


ATTACKS = (
    Attack("alone_test.py::test_a_bystander_alone", "none: two seconds without an attack"),
    Attack(
        "prompts_test.py::test_long_prompts_are_refused_by_their_size",
        "8 prompts of 4 MB, rejected",
    ),
    Attack(
        "prompts_test.py::test_what_waits_stays_within_its_memory",
        "48 prompts of 4 MB within the limit, 40 cancelled",
    ),
    Attack(
        "prompts_test.py::test_stop_strings_of_many_choices",
        "200 requests with stop strings × 16 choices",
    ),
    Attack("chat_test.py::test_tools_that_grow_with_their_indents", "chats with tools 60 deep"),
    Attack("chat_test.py::test_a_template_of_operators", "a chat template of operators only"),
    Attack(
        "chat_test.py::test_chats_of_much_json",
        "20 chats with 4 MB of JSON, rejected",
    ),
    Attack(
        "grammar_test.py::test_constraints_that_are_made_to_be_slow[bytes]",
        "31 hostile schemas, expressions and grammars, 4 at once each",
    ),
    Attack(
        "grammar_test.py::test_constraints_that_are_made_to_be_slow[tokens]",
        "the same with a vocabulary of 4,096 tokens",
    ),
    Attack(
        f"{STREAMS}[{GENERATE}-whole]",
        "60,000 `Generate` streams, no SETTINGS ACK",
    ),
    Attack(f"{STREAMS}[{COMPLETE}-whole]", "60,000 `Complete` calls, no SETTINGS ACK"),
    Attack(f"{STREAMS}[{WATCH}-whole]", "60,000 health watches, no SETTINGS ACK"),
    Attack(
        f"{STREAMS}[{GENERATE}-indexed]",
        "the same `Generate` streams, one-byte headers",
    ),
    Attack(f"{STREAMS}[{COMPLETE}-indexed]", "the same `Complete` calls, one-byte headers"),
    Attack(f"{STREAMS}[{WATCH}-indexed]", "the same health watches, one-byte headers"),
    Attack(
        "connections_test.py::test_calls_that_end_at_once[cancelled]",
        "30,000 streams on 20 connections, reset at once",
    ),
    Attack(
        "connections_test.py::test_calls_that_end_at_once[expired]",
        "30,000 streams with expired deadlines",
    ),
    Attack(
        "connections_test.py::test_one_host_leaves_capacity_for_others",
        "one host opens all calls, checks and watches that its limits allow",
    ),
    Attack(
        "connections_test.py::test_reflection_without_settings_ack[v1]",
        "600 reflection streams (v1), no SETTINGS ACK",
    ),
    Attack(
        "connections_test.py::test_reflection_without_settings_ack[v1alpha]",
        "600 reflection streams (v1alpha), no SETTINGS ACK",
    ),
    Attack(
        "connections_test.py::test_more_connections_than_files",
        "400 connections, file descriptors exhausted",
    ),
    Attack(
        "http_test.py::test_silent_and_dripping_connections",
        "metrics port: 200 silent or slow connections",
    ),
    Attack(
        "http_test.py::test_heads_and_bodies_without_end",
        "metrics port: endless headers and bodies",
    ),
    Attack(
        "process_test.py::test_a_log_without_a_reader",
        "2,000 log lines into a full pipe",
    ),
    Attack(
        "mutations_test.py::test_mutations_and_extremes",
        "requests with mutated bytes and extreme fields",
    ),
    Attack("frames_test.py::test_random_frames", "1,000 connections with random HTTP/2 frames"),
    Attack(
        "openai_test.py::test_silent_dripping_and_closing_connections",
        "HTTP API: 200 silent or slow connections",
    ),
    Attack(
        "openai_test.py::test_heads_and_bodies_without_end",
        "HTTP API: endless headers and bodies",
    ),
    Attack(
        "openai_test.py::test_more_bodies_than_memory_for_them",
        "HTTP API: 40 bodies of 4 MiB, memory for 16 MiB",
    ),
    Attack("openai_test.py::test_readers_that_do_not_read", "HTTP API: 20 clients that never read"),
    Attack(
        "memory_test.py::test_compressed_messages_are_refused[/tandem.v1.Generation/Complete]",
        "gzip messages that inflate to 512 MiB, `Complete`",
    ),
    Attack(
        "memory_test.py::test_compressed_messages_are_refused[/tandem.v1.Generation/Generate]",
        "gzip messages that inflate to 512 MiB, `Generate`",
    ),
    Attack(
        "memory_test.py::test_compressed_messages_are_refused[/grpc.health.v1.Health/Check]",
        "gzip messages that inflate to 512 MiB, health `Check`",
    ),
    Attack(
        "memory_test.py::test_compressed_messages_are_refused[/grpc.reflection.v1.ServerReflection/ServerReflectionInfo]",
        "gzip messages that inflate to 512 MiB, reflection",
    ),
    Attack(
        "memory_test.py::test_empty_messages_are_counted_before_they_are_parsed",
        "24 chats of 2 million empty messages",
    ),
    Attack(
        "memory_test.py::test_answers_that_are_not_read_end",
        "48 unary calls and 48 streams, answers never read",
    ),
    Attack(
        "memory_test.py::test_a_call_without_a_token_sends_no_message",
        "calls without a token that send headers only",
    ),
    Attack(
        "memory_test.py::test_the_account_is_full_for_one_client_only",
        "800 prompts of one client, memory for 36 MiB of them",
    ),
    Attack("openai_test.py::test_hostile_json", "HTTP API: JSON a million levels deep or long"),
    Attack(
        "openai_test.py::test_bodies_of_many_members",
        "HTTP API: 10 bodies of 800,000 members",
    ),
    Attack(
        "openai_test.py::test_chats_of_empty_messages",
        "HTTP API: 24 chats of 1.3 million messages",
    ),
    Attack(
        "openai_test.py::test_bodies_whose_clients_leave",
        "HTTP API: 60 bodies whose clients disconnect",
    ),
    Attack("openai_test.py::test_bodies_without_a_token", "HTTP API: 40 bodies without a token"),
    Attack("openai_test.py::test_answers_that_are_not_read", "HTTP API: 48 answers, never read"),
    Attack(TOGETHER, "14 attacks at once"),
)
BACKLOG = "process_test.py::test_a_drain_with_a_backlog_ends"
BODIES = "openai_test.py::test_a_drain_drops_waiting_bodies"
RESTART = "process_test.py::test_a_rolling_restart_loses_no_request"


def merged(lines: list[str]) -> dict[str, dict]:
    """What each test kept, by its name."""
    found: dict[str, dict] = {}
    for line in lines:
        kept = json.loads(line)
        found.setdefault(kept.pop("test"), {}).update(kept)
    return found


def rows(kept: dict[str, dict]) -> list[list[str]]:
    known = {attack.test for attack in ATTACKS} | {BACKLOG, BODIES, RESTART}
    if strangers := set(kept) - known:
        raise ValueError(f"tests/attack/table.py: ATTACKS lacks {sorted(strangers)}")
    found = []
    for attack in ATTACKS:
        saw = kept.get(attack.test)
        if saw is None:
            found.append([attack.what, *["did not run"] * 7])
            continue
        probe = "" if saw["probe"] is None else f"{saw['probe']:.0f}"
        api = [f"{saw[what]:.0f}" for what in ("listing", "completion") if what in saw]
        found.append(
            [
                attack.what,
                f"{saw['gap_p99']:.0f}, {saw['gap']:.0f}",
                f"{saw['refusal_median']:.1f}, {saw['refusal']:.0f}",
                probe,
                ", ".join(api),
                f"{saw['grown']:.0f} of {saw['allowed']}",
                f"{saw['peak']:.0f} of {saw['limit']:.0f}",
                str(saw.get("status", "")),
            ]
        )
    return found


def sentences(kept: dict[str, dict]) -> list[str]:
    """Of what has no client beside it, and of the codes that mutations ended with."""
    said = []
    if drain := kept.get(BACKLOG):
        said.append(
            f"- **Drain with a backlog**: with {drain['drained']} calls queued and a grace period of 1 s, the server "
            f"exits with status 0 after {drain['seconds']:.1f} s."
        )
    if drain := kept.get(BODIES):
        said.append(
            f"- **Drain with {drain['drained']} unparsed bodies of 4 MB** and a grace period of 1 s: the server exits "
            f"with status 0 after {drain['seconds']:.1f} s."
        )
    if "kills" in (together := kept.get(TOGETHER, {})):
        said.append(
            f"- **14 attacks at once** for {together['seconds']:.0f} s with another tenant. The memory limit is the "
            f"documented sum, {together['total']:.0f} MiB, {together['enforced']}. Peak: {together['resident']:.0f} MiB. "
            f"The server was killed {together['kills']} times and exits with status 0 after {together['drain']:.1f} s."
        )
    if restart := kept.get(RESTART):
        counts = " and ".join(f"{n} {kind}" for kind, n in restart["answered"].items())
        said.append(
            "- **Rolling restart of two servers**, eight clients with the documented retries: "
            f"{counts} calls were answered, **{restart['lost']} lost**."
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
    half = sum(saw["gap"] < 500 for saw in beside)
    medians = sum(saw["refusal_median"] < 10 for saw in beside)
    worst = sum(saw["refusal"] < 10 for saw in beside)
    asked = [saw["listing"] for saw in beside if "listing" in saw]
    return (
        f"Of {len(beside)} rows, the longest stream gap is under 100 ms in {gaps}, and under 500 ms in {half}. The median "
        f"rejection is under 10 ms in {medians}, the slowest in {worst}. The HTTP API lists its models within a second in "
        f"{sum(s < 1000 for s in asked)} of {len(asked)} rows. `/healthz` returned 200 in all rows."
    )


def markdown(kept: dict[str, dict], conditions: dict[str, str]) -> str:
    head = ["attack", "stream gap: p99, max, ms", "rejection: median, max, ms"]
    head += ["`/healthz`, max, ms", "HTTP API: models, completion, max, ms"]
    head += ["memory growth, of limit, MiB", "peak of the account, of its limit, MiB"]
    main = table([*head, "exit status"], rows(kept))
    facts = "\n".join(f"| {name} | {value} |" for name, value in conditions.items())
    return f"""{main}

{verdict(kept)}

{chr(10).join(sentences(kept))}

| condition | |
|---|---|
{facts}
"""


def attacked(binaries: Path, mutations: int, keep: Path) -> None:
    tests = sorted({attack.test.split("[")[0] for attack in ATTACKS} | {BACKLOG, BODIES, RESTART})
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
        raise SystemExit("an attack test failed, see above")


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
        put(PAGE, "attacks", page)
    else:
        print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
