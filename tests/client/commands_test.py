"""`tandem bench`, `compare`, `completion` and what may be left out, from end to end."""

import itertools
import json
import shutil
import subprocess

import pytest

ONE = 'models { name: "only" fake {} }'


@pytest.fixture(scope="module")
def lonely(start_server):
    return start_server(ONE)


def test_the_model_may_be_left_out_where_there_is_one(tandem, lonely):
    for args in (("generate", "ab"), ("tokenize", "--prompt=ab"), ("compare", "ab")):
        run = tandem(*args, address=lonely.grpc)
        assert run.returncode == 0, run.stderr
    run = tandem("generate", "ab")
    assert run.returncode == 2
    assert run.stderr.decode().startswith('tandem generate: --model: none; allowed: "fake", ')


def test_a_prompt_stands_alone_or_comes_by_standard_input(tandem):
    args = ("--model=fake", "--max-new-tokens=8")
    expected = tandem("generate", "--prompt=ab", *args).stdout
    assert tandem("generate", "ab", *args).stdout == expected
    assert tandem("generate", *args, stdin="ab").stdout == expected
    assert tandem("generate", "-", *args, stdin="ab").stdout == expected


def test_a_system_message_needs_a_chat_template(tandem):
    run = tandem("generate", "hi", "--model=fake", "--system=Be brief.")
    assert run.returncode == 1
    assert "chat" in run.stderr.decode()


def test_a_wrong_name_is_guessed(tandem):
    assert 'no command "generte"; did you mean generate?' in tandem("generte").stderr.decode()
    run = tandem("generate", "--model=fake", "--max-tokens", "5", "x")
    assert run.returncode == 2
    assert "--max-tokens: no such flag; did you mean --max-new-tokens?" in run.stderr.decode()


def test_compare_by_all_methods(tandem):
    run = tandem("compare", "ab", "--model=pair", "--max-new-tokens=24", "--ignore-eos")
    assert run.returncode == 0, run.stderr
    text = run.stdout.decode()
    assert "== autoregressive\n" in text
    assert "== speculative: the same, token for token\n" in text
    table = text[text.index("\nmethod ") + 1 :].splitlines()
    assert {line.split()[0] for line in table[1:]} >= {
        "autoregressive",
        "speculative",
        "bild",
        "ngram",
    }
    assert all(line.split()[2] == "24" for line in table[1:])


def test_compare_shows_what_differs(tandem):
    args = ("compare", "ab", "--model=pair", "--max-new-tokens=24", "--ignore-eos")
    args += ("--methods=autoregressive,bild",)
    args += ("--set", "bild={fallback_threshold: 0 rollback_threshold: inf}")
    run = tandem(*args)
    assert run.returncode == 0, run.stderr
    assert "[-" in run.stdout.decode()
    assert "{+" in run.stdout.decode()
    assert "\x1b[32m" in tandem(*args, "--color=always").stdout.decode()
    answer = json.loads(tandem(*args, "--format=json").stdout)
    first, second = answer["answers"]
    assert (first["requested_method"], second["requested_method"]) == ("autoregressive", "bild")
    assert (first["same"], second["same"]) == (True, False)
    assert second["contract"] == "LOSSY"
    assert first["stats"]["large_passes"] > second["stats"]["large_passes"]


def test_compare_shows_a_method_that_fails_and_continues(tandem):
    args = ("compare", "ab", "--model=pair", "--max-new-tokens=8", "--ignore-eos")
    args += ("--methods=bita,autoregressive,speculative",)
    run = tandem(*args)
    assert run.returncode == 1
    text = run.stdout.decode()
    assert "== bita: " in text
    assert "== autoregressive\n" in text
    assert "== speculative: the same, token for token\n" in text
    table = text[text.index("\nmethod ") + 1 :].splitlines()
    assert [line.split()[0] for line in table[1:4]] == ["bita", "autoregressive", "speculative"]
    assert run.stderr.decode().count("\n") == 1
    run = tandem(*args, "--format=json")
    assert run.returncode == 1
    first, second, third = json.loads(run.stdout)["answers"]
    assert first["requested_method"] == "bita"
    assert set(first["error"]) == {"status", "message"}
    assert (second["same"], third["same"]) == (True, True)


def test_compare_writes_the_passes_as_a_time_line(tandem, tmp_path):
    file = tmp_path / "trace.json"
    run = tandem(
        *("compare", "ab", "--model=pair", "--max-new-tokens=24", "--ignore-eos"),
        *("--methods=autoregressive,speculative,bild", f"--trace={file}", "--format=json"),
    )
    assert run.returncode == 0, run.stderr
    answers = json.loads(run.stdout)["answers"]
    trace = json.loads(file.read_text("utf-8"))
    assert trace["displayTimeUnit"] == "ms"
    for pid, answer in enumerate(answers, 1):
        mine = [event for event in trace["traceEvents"] if event["pid"] == pid]
        names = {e["args"]["name"] for e in mine if e["name"] == "process_name"}
        assert names == {answer["requested_method"]}
        passes = [event for event in mine if event["ph"] == "X"]
        assert sum(e["cat"] == "large" for e in passes) == answer["stats"]["large_passes"]
        assert sum(e["cat"] == "small" for e in passes) == answer["stats"]["small_passes"]
        lengths = enumerate(answer["stats"]["accept_lengths"])
        assert sum(e["args"]["accepted"] for e in passes) == sum(i * n for i, n in lengths)
        threads = {e["tid"] for e in mine if e["name"] == "thread_name"}
        assert {e["tid"] for e in passes} == threads
        for tid in threads:  # a track has one pass at a time
            track = [(e["ts"], e["ts"] + e["dur"]) for e in passes if e["tid"] == tid]
            assert all(end <= start for (_, end), (start, _) in itertools.pairwise(track))


def test_compare_says_that_a_trace_cannot_be_written(tandem, tmp_path):
    run = tandem(
        *("compare", "ab", "--model=pair", "--max-new-tokens=4", "--methods=ngram"),
        f"--trace={tmp_path / 'none' / 'trace.json'}",
    )
    assert run.returncode == 1
    assert "--trace: cannot write" in run.stderr.decode()


def test_compare_asks_for_a_method_by_methods(tandem):
    run = tandem("compare", "ab", "--model=pair", "--method=bild")
    assert run.returncode == 2
    run = tandem("compare", "ab", "--model=pair", "--methods=nope")
    assert run.returncode == 2
    assert '"nope"; allowed: auto' in run.stderr.decode()


@pytest.mark.parametrize(
    "load", [("--concurrency=1,3",), ("--rate=500,1000", "--load-seed=3"), ("--rate=inf",)]
)
def test_bench(tandem, tmp_path, load):
    run = tandem(
        "bench",
        "--model=fake",
        *load,
        "--requests=12",
        "--prompt-tokens=16",
        "--max-new-tokens=8",
        "--limit-first=60",
        f"--json={tmp_path / 'figures.json'}",
        f"--html={tmp_path / 'report.html'}",
    )
    assert run.returncode == 0, run.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["model"] == "fake"
    levels = figures["levels"]
    assert len(levels) == (1 if load == ("--rate=inf",) else 2)
    for level in levels:
        assert (level["sent"], level["done"], level["errors"]) == (12, 12, {})
        assert level["within_limits"] == 1
        tokens = level["tokens_per_second"] * level["seconds"]
        assert round(tokens) == 12 * 8
        assert round(level["prompt_tokens_per_second"] * level["seconds"]) == 12 * 16
        first, whole = level["time_to_first_token_seconds"], level["request_seconds"]
        assert first["count"] == whole["count"] == 12
        assert 0 < first["p50"] <= first["p99"] <= first["max"]
        assert first["p50"] <= whole["p50"]
        # Not the first message's, of each request.
        assert level["between_tokens_seconds"]["count"] <= 12 * 7
    page = (tmp_path / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    # First tokens and whole answers; the time between tokens too where messages came one by one.
    assert page.count("<svg") == page.count("</svg>") >= 2
    assert run.stdout.decode().splitlines()[0].startswith("load ")


def test_bench_with_prompts_of_a_file_and_failures(tandem, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("ab\ncd\n", "utf-8")
    args = ("bench", f"--prompts={prompts}", "--requests=4", "--warm-up=0", "--format=json")
    run = tandem(*args, "--model=fake", "--max-new-tokens=2")
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["levels"][0]["done"] == 4
    run = tandem(*args, "--model=fake", "--max-new-tokens=100000")
    assert run.returncode == 1, "none ended well"
    assert json.loads(run.stdout)["levels"][0]["errors"] == {"INVALID_ARGUMENT": 4}
    assert "4 requests ended with INVALID_ARGUMENT" in run.stderr.decode()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--rate=1", "--concurrency=1"), "--rate and --concurrency: both"),
        (("--rate=0",), "--rate:"),
        (("--concurrency=x",), "--concurrency:"),
        (("--requests=0",), "--requests:"),
    ],
)
def test_bench_refuses_what_it_cannot_do(tandem, args, message):
    run = tandem("bench", "--model=fake", *args)
    assert run.returncode == 2
    assert message in run.stderr.decode()


def complete(binaries, server, *words):
    """What bash offers for the last of the words."""
    script = f"""
      PATH={binaries}:$PATH
      eval "$(tandem completion bash)"
      COMP_WORDS=({" ".join(f"'{word}'" for word in words)})
      COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
      _tandem tandem
      printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    run = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": "/usr/bin:/bin", "TANDEM_SERVER": server.grpc},
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


def test_completion_in_bash(binaries, server):
    assert complete(binaries, server, "tandem", "co") == ["compare", "completion"]
    assert "--max-new-tokens" in complete(binaries, server, "tandem", "generate", "--ma")
    assert complete(binaries, server, "tandem", "bench", "--limit-f") == ["--limit-first"]
    assert complete(binaries, server, "tandem", "generate", "--method", "bi") == ["bild", "bita"]
    assert complete(binaries, server, "tandem", "models", "--format", "=", "j") == ["json"]
    assert complete(binaries, server, "tandem", "models", "--format", "=") == ["text", "json"]
    models = complete(binaries, server, "tandem", "generate", "--model", "")
    assert sorted(models) == ["fake", "pair", "slow"]


def test_completion_in_zsh_can_be_read(binaries, tandem):
    if not shutil.which("zsh"):
        pytest.skip("no zsh")
    script = tandem("completion", "zsh").stdout
    run = subprocess.run(["zsh", "-n"], input=script, capture_output=True, timeout=60)
    assert run.returncode == 0, run.stderr


def test_completion_of_an_unknown_shell(tandem):
    run = tandem("completion", "fish")
    assert run.returncode == 2
    assert 'SHELL: "fish"; allowed: bash, zsh' in run.stderr.decode()


def test_reasoning_and_calls_are_separate_from_the_text(tandem, start_server, tmp_path):
    call = '<tool_call>{"name": "now", "arguments": {"zone": "CET"}}</tool_call>'
    answer = json.dumps(f"<think>Hm.</think>Look.{call}")
    server = start_server(
        f'models {{ name: "script" fake {{ answers: {answer} }} }} '
        'deployments { name: "script" large: "script" reasoning_format: REASONING_FORMAT_THINK }'
    )
    chat = tmp_path / "chat.json"
    tools = [{"type": "function", "function": {"name": "now"}}]
    chat.write_text(json.dumps({"messages": [{"role": "user", "content": "?"}], "tools": tools}))
    run = tandem("generate", f"--chat={chat}", address=server.grpc)
    assert run.returncode == 0, run.stderr
    assert run.stdout == b"Look.\n"
    assert run.stderr == b'Hm.\ncall now: {"zone": "CET"}\n'
    run = tandem("generate", f"--chat={chat}", "--format=json", address=server.grpc)
    made = json.loads(run.stdout)
    assert made["text"] == "Look." and made["reasoning"] == "Hm."
    assert made["tool_calls"][0]["name"] == "now"
    assert json.loads(made["tool_calls"][0]["arguments"]) == {"zone": "CET"}
    talk = tandem("chat", address=server.grpc, stdin="?\n")
    assert talk.stdout.decode() == f"Look.{call}\n" and "Hm.\n" in talk.stderr.decode()
