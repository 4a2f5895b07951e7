"""`tandem` from end to end: what it prints, and how it ends."""

import json
import os
import pty
import re
import subprocess

import pytest

GENERATE = ("generate", "--model", "fake", "--ignore-eos")


def test_text_is_the_prompt_and_its_completion(tandem):
    whole = json.loads(
        tandem(*GENERATE, "--prompt=ab", "--max-new-tokens=8", "--format=json").stdout
    )
    run = tandem(*GENERATE, "--prompt=ab", "--max-new-tokens", "8")
    assert run.returncode == 0
    assert run.stdout.decode() == "ab" + whole["text"] + "\n"
    assert run.stderr == b""
    run = tandem(*GENERATE, "--prompt=ab", "--max-new-tokens=8", "--echo=false")
    assert run.stdout.decode() == whole["text"] + "\n"


def test_no_colours_off_a_terminal(tandem):
    run = tandem("generate", "--model=fake", "--prompt=ab", "--max-new-tokens=1", "--echo")
    assert run.returncode == 0
    assert b"\x1b[" not in run.stdout


PAIR = ("generate", "--model=pair", "--ignore-eos", "--prompt=ab", "--max-new-tokens=24")


def without_colours(text):
    return re.sub("\x1b\\[[0-9]*m", "", text)


@pytest.mark.parametrize(
    "way",
    [
        ("--method=speculative",),
        ("--set", "ngram.max_ngram=1"),
        ("--method=bild", "--set", "bild.rollback_threshold=0.69"),
        ("--set", "bild={fallback_threshold: 0 rollback_threshold: 3}"),
        ("--set", "bild.early_exit=true"),
    ],
)
def test_colours_show_who_wrote_what_and_change_no_text(tandem, way):
    plain = tandem(*PAIR, *way)
    assert plain.returncode == 0
    assert plain.stderr == b""
    painted = tandem(*PAIR, *way, "--color=always")
    assert painted.returncode == 0
    assert without_colours(painted.stdout.decode()) == plain.stdout.decode()
    legend, figures = painted.stderr.decode().splitlines()
    answer = json.loads(tandem(*PAIR, *way, "--format=json", "--color=always").stdout)
    assert answer["text"] == without_colours(painted.stdout.decode())[2:-1]
    small = sum(token["provenance"]["proposed"] != "large" for token in answer["tokens"])
    corrected = sum("corrected" in token["provenance"] for token in answer["tokens"])
    stats = answer["stats"]
    assert stats["small_tokens"] == small
    assert stats["large_tokens"] == 24 - small
    assert sum(i * n for i, n in enumerate(stats["accept_lengths"])) == small
    assert ("corrected" in legend) == (corrected > 0)
    assert ("accepted" in legend) == (small > 0)
    assert (
        f"24 tokens in {stats['large_passes']} large and {stats['small_passes']} small" in figures
    )
    if answer["method"] == "bild":
        assert corrected == stats["rollbacks"]
        assert {"fallbacks", "forced_calls", "rolled_back_tokens"} <= set(stats)
        assert f"{stats['fallbacks']} fallback" in figures
    else:
        assert "fallbacks" not in stats


def test_every_token_of_small_is_coloured(tandem):
    way = ("--set", "bild={fallback_threshold: 0 rollback_threshold: inf}")
    run = tandem(*PAIR, *way, "--color=always")
    answer = json.loads(tandem(*PAIR, *way, "--format=json").stdout)
    green = "".join(re.findall("\x1b\\[32m([^\x1b]*)", run.stdout.decode()))
    texts = [chr(token["id"]) for token in answer["tokens"]]  # bytes are tokens here
    sources = [token["provenance"]["proposed"] for token in answer["tokens"]]
    assert green == "".join(t for t, s in zip(texts, sources, strict=True) if s == "small")
    assert green


def test_a_plain_answer_has_no_legend(tandem):
    run = tandem(*PAIR, "--method=autoregressive", "--color=always")
    assert run.stderr == b""
    assert without_colours(run.stdout.decode()) == tandem(*PAIR).stdout.decode()


@pytest.mark.parametrize(
    "env, args, coloured",
    [
        ({"TERM": "xterm", "NO_COLOR": ""}, (), True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, (), False),
        ({"TERM": "dumb", "NO_COLOR": ""}, (), False),
        ({"TERM": "xterm", "NO_COLOR": ""}, ("--color=never",), False),
        ({"TERM": "dumb", "NO_COLOR": "1"}, ("--color=always",), True),
    ],
)
def test_colours_on_a_terminal(binaries, server, env, args, coloured):
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [binaries / "tandem", *PAIR, "--method=bild", "--set", "bild.fallback_threshold=0", *args],
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**os.environ, "TANDEM_SERVER": server.grpc, **env},
    ) as run:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 4096):
                shown += part
        except OSError:  # the other side is closed
            pass
        stderr = run.stderr.read()
        assert run.wait(60) == 0
    os.close(ours)
    assert (b"\x1b[" in shown) == coloured
    assert (stderr != b"") == coloured


def test_json_has_the_documented_members(tandem):
    run = tandem(
        *GENERATE,
        "--prompt=ab",
        "--max-new-tokens=4",
        "--format=json",
        "--logprobs",
        "--request-id=mine",
        "--seed=7",
    )
    assert run.returncode == 0
    answer = json.loads(run.stdout)
    assert {
        "text",
        "token_ids",
        "finish_reason",
        "method",
        "contract",
        "usage",
        "stats",
        "tokens",
    } <= set(answer)
    assert answer["finish_reason"] == "MAX_TOKENS"
    assert answer["method"] == "ngram"  # chosen by auto
    assert answer["contract"] == "EXACT"
    assert answer["usage"] == {
        "prompt_tokens": 2,
        "cached_tokens": 0,
        "completion_tokens": 4,
        "reasoning_tokens": 0,
    }
    assert answer["seed"] == 7
    assert answer["request_id"] == "mine"
    assert len(answer["token_ids"]) == 4
    assert [token["id"] for token in answer["tokens"]] == answer["token_ids"]
    for token in answer["tokens"]:
        assert token["provenance"]["proposed"] in ("large", "ngram")
        assert token["provenance"]["confirmed"] == "large"
        assert token["logprob"] <= 0
    assert 1 <= answer["stats"]["large_passes"] <= 4
    assert {
        "tokens_per_pass",
        "time_to_first_token_seconds",
        "decode_seconds",
        "queue_seconds",
        "large_seconds",
        "small_seconds",
    } <= set(answer["stats"])


def test_several_choices_are_printed_separately(tandem):
    flags = (*GENERATE, "--prompt=ab", "--max-new-tokens=8", "--temperature=1.3", "--seed=2")
    one = json.loads(tandem(*flags, "--format=json").stdout)
    answer = json.loads(tandem(*flags, "--n=3", "--format=json").stdout)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    texts = [choice["text"] for choice in answer["choices"]]
    assert texts[0] == one["text"]
    assert len(set(texts)) == 3
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"MAX_TOKENS"}
    assert "text" not in answer
    assert answer["seed"] == 2
    run = tandem(*flags, "--n=3", "--stats")
    assert run.returncode == 0
    parts = "".join(f"[choice {i}]\n{text}\n" for i, text in enumerate(texts))
    assert run.stdout.decode() == "ab\n" + parts
    assert b"24 tokens" in run.stderr


def test_summary_gets_a_line_of_json_per_run(tandem, tmp_path):
    file = tmp_path / "summary"
    for prompt in ("a", "b"):
        run = tandem(*GENERATE, f"--prompt={prompt}", "--max-new-tokens=3", "--summary", file)
        assert run.returncode == 0
        last = json.loads(file.read_text().splitlines()[-1])
        assert run.stdout.decode() == prompt + last["text"] + "\n"
    assert len(file.read_text().splitlines()) == 2


def test_the_same_seed_gives_the_same_text(tandem):
    args = (*GENERATE, "--prompt=ab", "--max-new-tokens=8", "--temperature=1")
    one = tandem(*args, "--seed=1").stdout
    assert tandem(*args, "--seed", "1").stdout == one
    assert tandem(*args, "--seed", "2").stdout != one


def test_prompts_from_files_ids_and_standard_input(tandem, tmp_path):
    file = tmp_path / "prompt"
    file.write_text("ab")
    tail = ("--max-new-tokens=5", "--format=json")
    text = json.loads(tandem(*GENERATE, "--prompt=ab", *tail).stdout)["text"]
    for args, stdin in (
        ((f"--prompt-file={file}",), ""),
        (("--prompt-file=-",), "ab"),
        (("--token-ids=97,98",), ""),
        (("--set", "text=ab"), ""),
    ):
        assert json.loads(tandem(*GENERATE, *args, *tail, stdin=stdin).stdout)["text"] == text


@pytest.mark.parametrize(
    "args, message",
    [
        (("--top-p=2",), "INVALID_ARGUMENT: top_p: 2; allowed: (0, 1]"),
        (("--temperature=nan",), "INVALID_ARGUMENT: temperature: nan; allowed: [0, 100]"),
        (("--set", "bild.window=0"), "INVALID_ARGUMENT: bild.window: 0; allowed: [1, 64]"),
        (("--set", "n=17"), "INVALID_ARGUMENT: n: 17; allowed: [1, 16]"),
        (("--n=3", "--top-p=2"), "INVALID_ARGUMENT: top_p: 2; allowed: (0, 1]"),
        (("--method=bild",), "FAILED_PRECONDITION: method: bild; offered by model"),
        (("--set", "bild.rollback_threshold=0.69"), "FAILED_PRECONDITION: method: bild; offered"),
        (("--model=nope",), "NOT_FOUND: "),
    ],
)
def test_a_failed_request_is_one_line_and_status_1(tandem, args, message):
    run = tandem("generate", "--model=fake", "--prompt=SECRETPROMPT", *args)
    assert run.returncode == 1
    assert run.stdout == b""
    lines = run.stderr.decode().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(message)
    assert "SECRETPROMPT" not in lines[0]


def test_no_server_is_status_1(tandem):
    run = tandem("health", address="127.0.0.1:1")
    assert run.returncode == 1
    assert run.stderr.decode().startswith("UNAVAILABLE: cannot connect to 127.0.0.1:1")


def test_deadline(tandem):
    run = tandem(
        "generate",
        "--model=slow",
        "--prompt=a",
        "--max-new-tokens=3000",
        "--ignore-eos",
        "--timeout=0.2",
    )
    assert run.returncode == 1
    assert run.stderr.decode().startswith("DEADLINE_EXCEEDED: ")


@pytest.mark.parametrize(
    "args, message",
    [
        ((), "tandem: command-line client"),
        (("dance",), 'tandem: no command "dance"'),
        (("generate", "--nope"), "tandem generate: --nope: no such flag"),
        (("generate", "--model=fake"), "tandem generate: prompt: none"),
        (("generate", "--prompt=x"), "tandem generate: --model: none"),
        (("generate", "--model=fake", "x", "y"), 'tandem generate: argument: "y"'),
        (("generate", "--model=fake", "--prompt=x", "--top-k=many"), "tandem generate: top_k:"),
        (("generate", "--model=fake", "--prompt=x", "--set", "x"), "tandem generate: --set:"),
        (("generate", "--model=fake", "--prompt=x", "--format=xml"), "tandem generate: --format:"),
        (("generate", "--model=fake", "--prompt=x", "--color=red"), "tandem generate: --color:"),
        (("tokenize", "--model=fake"), "tandem tokenize: prompt: none"),
        (("models", "a", "b"), "tandem models: argument:"),
    ],
)
def test_wrong_usage_is_status_2(tandem, args, message):
    run = tandem(*args)
    assert run.returncode == 2
    assert run.stderr.decode().startswith(message)
    assert run.stdout == b""


def test_help_names_all_commands_and_flags(tandem):
    commands = ("generate", "chat", "compare", "bench", "models", "tokenize", "detokenize")
    commands += ("score", "health", "adapters", "deployments")
    for command in (*commands, "completion", "version"):
        assert command in tandem("--help").stdout.decode()
    for command in commands:
        run = tandem(command, "--help")
        assert run.returncode == 0
        assert "--server HOST:PORT" in run.stdout.decode()


def test_models(tandem):
    run = tandem("models")
    assert run.returncode == 0
    text = run.stdout.decode()
    assert "autoregressive" in text
    assert "method   bild            greedy LOSSY, sampled LOSSY\n" in text
    assert re.search(r"\n +draft_tokens +4 +\[1, 64\] +draft tokens in a round, at most\n", text)
    assert re.search(r"\n +fallback_threshold +0\.6 +\[0, 2\] +falls back to the large model", text)
    assert re.search(r"\n +window +unset +\[1, 64\] ", text)
    answer = json.loads(tandem("models", "--format=json").stdout)
    assert [model["name"] for model in answer["models"]] == ["fake", "slow", "pair"]
    one = json.loads(tandem("models", "slow", "--format", "json").stdout)
    assert one == answer["models"][1]
    assert one["methods"][0]["method"] == "speculative"
    assert tandem("models", "nope").returncode == 1


def test_tokenize_and_detokenize(tandem):
    assert tandem("tokenize", "--model=fake", "--prompt=hi").stdout == b"104,105\n"
    assert tandem("detokenize", "--model=fake", "--token-ids=104,105").stdout == b"hi\n"
    answer = json.loads(tandem("tokenize", "--model=fake", "--prompt=hi", "--format=json").stdout)
    assert answer["token_ids"] == [104, 105]
    run = tandem("detokenize", "--model=fake", "--token-ids=257")
    assert run.returncode == 1
    assert run.stderr.decode().startswith("INVALID_ARGUMENT: ")


def test_score(tandem):
    run = tandem("score", "--model=fake", "--prompt=a", "--continuation=bc", "--format=json")
    assert run.returncode == 0
    answer = json.loads(run.stdout)
    assert [token["id"] for token in answer["continuation_tokens"]] == [98, 99]
    total = sum(token["logprob"] for token in answer["continuation_tokens"])
    assert abs(total - answer["total_logprob"]) < 1e-4
    assert (
        "total" in tandem("score", "--model=fake", "--prompt=a", "--continuation=b").stdout.decode()
    )


def test_health_and_version(tandem):
    run = tandem("health")
    assert (run.returncode, run.stdout) == (0, b"SERVING\n")
    assert tandem("health", "--service=tandem.v1.Models").returncode == 0
    assert tandem("health", "--service=nope").returncode == 1
    run = tandem("version")
    assert run.returncode == 0
    assert run.stdout.startswith(b"tandem 0.")
