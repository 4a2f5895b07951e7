"""Bad input to the real programs: every case has its status and message, and the server serves on."""

import json
import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

SMALL = Path(__file__).resolve().parents[2] / "models/code-small"
GOOD = ("generate", "--model=fake", "--prompt=x", "--max-new-tokens=3", "--ignore-eos")


def serves(tandem, **kwargs):
    return tandem(*GOOD, **kwargs).returncode == 0


@pytest.mark.parametrize(
    "args, status, part",
    [
        (("--model=nope", "--prompt=x"), "NOT_FOUND", "nope"),
        (("--model=fake", "--prompt="), "INVALID_ARGUMENT", "empty"),
        (("--model=fake", "--set", "token_ids={}"), "INVALID_ARGUMENT", "token_ids: empty"),
        (("--model=fake", "--prompt=" + "x" * 5000), "INVALID_ARGUMENT", "prompt: 5000 tokens"),
        (
            ("--model=fake", "--prompt=x", "--max-new-tokens=4", "--min-new-tokens=5"),
            "INVALID_ARGUMENT",
            "min_new_tokens: 5; allowed: 0 to 4 (max_new_tokens)",
        ),
        (("--model=fake", "--token-ids=257"), "INVALID_ARGUMENT", "257"),
        (("--model=fake", "--token-ids=-1"), "INVALID_ARGUMENT", "-1"),
        (("--model=fake", "--token-ids=2147483647"), "INVALID_ARGUMENT", "2147483647"),
        (
            ("--model=fake", "--prompt=x", "--method=bita"),
            "FAILED_PRECONDITION",
            'method: bita; offered by model "fake": ngram, autoregressive',
        ),
        (
            ("--model=fake", "--prompt=x", "--method=bild"),
            "FAILED_PRECONDITION",
            'method: bild; offered by model "fake": ngram, autoregressive',
        ),
        (
            ("--model=fake", "--prompt=x", "--method=speculative"),
            "FAILED_PRECONDITION",
            'method: speculative; offered by model "fake": ngram, autoregressive',
        ),
        (
            ("--model=slow", "--prompt=x", "--set", "bild.early_exit=true"),
            "FAILED_PRECONDITION",
            'bild.early_exit: true; offered by model "slow": false',
        ),
        (
            ("--model=pair", "--prompt=x", "--method=bild", "--require-contract=EXACT"),
            "FAILED_PRECONDITION",
            "require_contract: EXACT; bild gives LOSSY; needed: bild.rollback_threshold 0.69, or ",
        ),
        (
            ("--model=pair", "--prompt=x", "--set", "beam.width=4", "--temperature=1"),
            "INVALID_ARGUMENT",
            "temperature: 1; allowed: 0 with beam.width 4",
        ),
        (
            ("--model=pair", "--prompt=x", "--set", "beam.width=4", "--method=bild"),
            "INVALID_ARGUMENT",
            "beam.width: 4; allowed: 1 with method bild",
        ),
        (
            ("--model=fake", "--set", "chat.messages[0].role=user"),
            "FAILED_PRECONDITION",
            "no chat template",
        ),
    ],
)
def test_requests(tandem, args, status, part):
    run = tandem("generate", *args)
    error = run.stderr.decode()
    assert run.returncode == 1
    assert error.startswith(status + ": "), error
    assert part in error
    assert serves(tandem)


@pytest.mark.parametrize(
    "flag, part",
    [
        ("--temperature=NaN", "temperature: nan; allowed: [0, 100]"),
        ("--temperature=inf", "temperature: inf"),
        ("--top-p=2", "top_p: 2; allowed: (0, 1]"),
        ("--repetition-penalty=0", "repetition_penalty: 0; allowed: [0.01, 100]"),
        ("--typical-p=NaN", "typical_p: nan; allowed: (0, 1]"),
        ("--logit-bias=257=1", "logit_bias: 257; allowed: 0 to 256"),
        ("--logit-bias=3=NaN", "logit_bias[3]: nan; allowed: [-100, 100]"),
        ("--logit-bias=3=-inf", "logit_bias[3]: -inf; allowed: [-100, 100]"),
        ("--bad-token-ids=-1", "bad_token_ids: -1; allowed: 0 to 256"),
        (
            f"--bad-token-ids={','.join(map(str, range(257)))}",
            "bad_token_ids: all 257 tokens of the vocabulary; allowed: at least one token is left",
        ),
        ("--max-new-tokens=2147483647", "max_new_tokens: 2147483647"),
        ("--max-new-tokens=0", "max_new_tokens: 0"),
        ("--stop-token-ids=257", "257"),
        ("--top-logprobs=21", "top_logprobs: 21"),
        ("--n=1000000", "n: 1000000"),
    ],
)
def test_fields(tandem, flag, part):
    test_requests(tandem, ("--model=fake", "--prompt=x", flag), "INVALID_ARGUMENT", part)


@pytest.mark.parametrize(
    "field, allowed, values",
    [
        ("speculative.draft_tokens", "[1, 64]", (-(2**31), -1, 0, 65, 10**6, 2**31 - 1)),
        ("speculative.min_draft_probability", "[0, 1]", (-1e-9, 1.01, "nan", "inf", "-inf")),
        ("bild.fallback_threshold", "[0, 2]", (-1e-9, 2.5, "nan", "inf", "-inf")),
        ("bild.rollback_threshold", "[0, inf]", (-1, -1e-9, "nan", "-inf")),
        ("bild.max_small_run", "[0, 4096]", (-(2**31), -1, 4097, 2**31 - 1)),
        ("bild.window", "[1, 64]", (-1, 0, 65, 2**31 - 1)),
        ("beam.width", "[1, 16]", (-1, 0, 17, 10**6)),
        ("beam.length_penalty", "[-10, 10]", (-10.1, 10.1, "nan", "inf", "-inf")),
    ],
)
def test_parameters_of_methods(tandem, field, allowed, values):
    for value in values:
        run = tandem("generate", "--model=pair", "--prompt=x", "--set", f"{field}={value}")
        error = run.stderr.decode()
        assert run.returncode == 1, error
        assert error.startswith(f"INVALID_ARGUMENT: {field}: "), error
        assert f"; allowed: {allowed}" in error
    assert serves(tandem)


METHODS = [
    ("--method=auto",),
    ("--method=autoregressive",),
    ("--method=autoregressive", "--set", "beam.width=3"),
    ("--method=speculative",),
    ("--set", "speculative={pace: PACE_ADAPTIVE min_draft_probability: 0.1}"),
    ("--method=ngram",),
    ("--method=bild",),
    ("--set", "bild={fallback_threshold: 0 rollback_threshold: inf verify_eos: false}"),
    ("--set", "bild={early_exit: true window: 3}"),
    ("--method=bita",),
    ("--method=ppd",),
    ("--method=llm_to_slm",),
]
# Each method with each third option, and each option with four methods. At night all.
STEP = 1 if os.environ.get("TANDEM_NIGHT") else 3


@pytest.mark.parametrize("method", METHODS)
def test_every_method_with_every_option(tandem, method):
    """Each is served, or refused in words that name the option or the method; never ignored."""
    options = [
        ("temperature", "0"),
        ("temperature", "0.7"),
        ("temperature", "100"),
        ("top_k", "1"),
        ("top_k", "2147483647"),
        ("top_p", "0.5"),
        ("min_p", "1"),
        ("typical_p", "0.9"),
        ("repetition_penalty", "1.3"),
        ("presence_penalty", "0.5"),
        ("frequency_penalty", "-0.5"),
        ("logit_bias.65", "5"),
        ("bad_token_ids", "66,67"),
        ("seed", "18446744073709551615"),
        ("n", "2"),
        ("min_new_tokens", "3"),
        ("stop_sequences", "a"),
        ("stop_token_ids", "97,98"),
        ("include_stop_sequence", "true"),
        ("ignore_eos", "false"),
        ("time_limit_seconds", "30"),
        ("logprobs", "true"),
        ("top_logprobs", "20"),
        ("raw_logprobs", "true"),
        ("include_eos_token", "true"),
        ("trace", "true"),
        ("return_tokens", "true"),
        ("return_token_texts", "true"),
        ("require_contract", "EXACT"),
        ("max_new_tokens", "1"),
        ("truncate_prompt_tokens", "1"),
        ("beam.width", "2"),
    ]
    for field, value in options[METHODS.index(method) % STEP :: STEP]:
        args = ("--model=pair", "--prompt=xyz", "--ignore-eos", "--seed=1", "--max-new-tokens=6")
        run = tandem("generate", *args, *method, "--set", f"{field}={value}", "--format=json")
        error = run.stderr.decode()
        if run.returncode == 0:
            answer = json.loads(run.stdout)
            for choice in answer.get("choices", [answer]):
                assert len(choice["token_ids"]) <= 6
            continue
        code = error.split(": ")[0]
        assert run.returncode == 1, error
        assert code in ("INVALID_ARGUMENT", "FAILED_PRECONDITION"), error
        name = field.split(".")[0]
        assert name in error or "method: " in error or "beam.width" in error, (field, error)
    assert serves(tandem)


def test_ten_thousand_stop_strings(tandem):
    stops = [f"--stop-sequences=s{i}" for i in range(10000)]
    run = tandem(*GOOD, *stops)
    assert run.returncode == 1
    assert b"stop_sequences: more than 4096 of them; allowed: at most 4096" in run.stderr
    assert serves(tandem)


def test_huge_seed_is_fine(tandem):
    assert tandem(*GOOD, "--seed=18446744073709551615").returncode == 0


@pytest.mark.parametrize(
    "config, part",
    [
        ("models {", "config.textproto:1:"),
        ('models { name: "m" pth: "x" }', 'has no field named "pth"'),
        ('models { name: "m" path: "nowhere" }', "models[0].path"),
        ('models { name: "m" fake {} } models { name: "m" fake {} }', "models[1].name"),
        (
            'models { name: "m" fake {} device: "cpu:1" } devices { name: "cpu:0" }',
            "models[0].device",
        ),
        (
            'models { name: "m" fake {} } deployments { name: "d" large: "x" }',
            "deployments[0].large",
        ),
        (
            'models { name: "m" fake {} } deployments { name: "d" large: "m" default_method: METHOD_BILD }',
            "deployments[0].default_method",
        ),
        (
            'models { name: "m" fake {} } deployments { name: "d" large: "m" small: "m" }',
            "deployments[0].small",
        ),
        (
            'models { name: "m" fake {} } '
            'deployments { name: "d" large: "m" bild { early_exit_layer: 4 } }',
            "bild.early_exit_layer: 4; allowed: [1, 3], below",
        ),
        (
            'models { name: "m" fake {} } models { name: "s" fake { vocab_size: 400 } } '
            'deployments { name: "d" large: "m" small: "s" }',
            "different vocabulary sizes (400, 257)",
        ),
        (
            'models { name: "m" fake {} } server { max_receive_bytes: 1 }',
            "server.max_receive_bytes",
        ),
    ],
)
def test_configurations_that_cannot_be(binaries, tmp_path, config, part):
    file = tmp_path / "config.textproto"
    file.write_text(config)
    run = subprocess.run(
        [binaries / "tandem-server", f"--config={file}", "--listen=127.0.0.1:0", "--http=off"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 1
    assert "tandem-server: " in run.stderr
    assert part in run.stderr


def start(binaries, *args):
    """Starts a server that must not start."""
    run = subprocess.run(
        [binaries / "tandem-server", "--listen=127.0.0.1:0", "--http=off", *args],
        capture_output=True,
        text=True,
        timeout=120,
    )
    if "this build has no LibTorch" in run.stderr:
        pytest.skip("built without LibTorch")
    return run


def test_a_model_directory_that_does_not_exist(binaries, tmp_path):
    run = start(binaries, f"--model=m={tmp_path}/none")
    assert run.returncode == 1
    assert "allowed: a directory that exists" in run.stderr


def test_a_port_file_that_cannot_be_written(binaries, tmp_path):
    (tmp_path / "config.textproto").write_text('models { name: "fake" fake {} }')
    run = start(
        binaries, f"--config={tmp_path}/config.textproto", f"--port-file={tmp_path}/none/ports"
    )
    assert run.returncode == 1
    assert f"--port-file: cannot write {tmp_path}/none/ports" in run.stderr


def halve(data):
    return data[: len(data) // 2]


def other_architecture(data):
    config = json.loads(data)
    config["model_type"] = "unknowable"
    config["architectures"] = ["UnknowableForCausalLM"]
    return json.dumps(config).encode()


@pytest.mark.parametrize(
    "suffix, change, part",
    [
        ("config.json", lambda data: b"{", "config.json"),
        ("config.json", None, "config.json"),
        ("config.json", other_architecture, "nknowable"),
        (".safetensors", halve, ".safetensors"),
        (".safetensors", None, ".safetensors"),
        ("tokenizer.json", lambda data: b"{", "tokenizer.json"),
        ("tokenizer.json", None, "tokenizer.json"),
    ],
)
def test_model_directories_that_cannot_be(binaries, tmp_path, suffix, change, part):
    """A good directory with one file changed, or missing."""
    if not SMALL.exists():
        pytest.skip(f"{SMALL} is not there")
    for file in SMALL.iterdir():
        data = file.read_bytes()
        if file.name.endswith(suffix) and file.name not in (
            "generation_config.json",
            "tokenizer_config.json",
        ):
            if change is None:
                continue
            data = change(data)
        (tmp_path / file.name).write_bytes(data)
    run = start(binaries, f"--model=m={tmp_path}")
    assert run.returncode == 1
    assert run.stderr.count("tandem-server: ") == 1
    assert part in run.stderr


@pytest.mark.parametrize(
    "args", [("--nope",), ("--config=a", "--model=b=c"), (), ("--config=a", "--listen=x")]
)
def test_wrong_usage_is_status_2(binaries, args):
    run = subprocess.run([binaries / "tandem-server", *args], capture_output=True, timeout=60)
    assert run.returncode == 2
    assert run.stderr.startswith(b"tandem-server: ")


def test_help_and_version(binaries):
    for flag in ("--help", "--version"):
        run = subprocess.run([binaries / "tandem-server", flag], capture_output=True, timeout=60)
        assert run.returncode == 0
        assert run.stdout.startswith(b"tandem-server")


def test_prompts_and_outputs_are_never_logged(start_server, tandem):
    server = start_server()
    for args in ((), ("--top-p=2",), ("--method=bild",), ("--set", "chat.tools=CANARY")):
        tandem(
            "generate",
            "--model=fake",
            "--prompt=CANARY",
            "--max-new-tokens=4",
            *args,
            address=server.grpc,
        )
    tandem("tokenize", "--model=fake", "--prompt=CANARY", address=server.grpc)
    tandem("score", "--model=fake", "--prompt=CANARY", "--continuation=CANARY", address=server.grpc)
    assert server.stop() == 0
    log = server.log_text()
    assert "event=call" in log
    assert "CANARY" not in log


def test_the_trace_context_reaches_the_log(server, tandem):
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert tandem(*GOOD, f"--traceparent={trace}", "--request-id=traced").returncode == 0
    assert tandem(*GOOD, "--traceparent=forged", "--request-id=untraced").returncode == 0
    for name in ("traced", "untraced"):
        server.wait_for_log(f"request_id={name}")
    lines = {
        word: line
        for line in server.log_text().splitlines()
        for word in line.split()
        if word.startswith("request_id=")
    }
    assert f"traceparent={trace}" in lines["request_id=traced"]
    assert "traceparent" not in lines["request_id=untraced"]


def start_stream(binaries, server, tokens, *args, **pipes):
    """A client of the slow model, whose request runs."""
    client = subprocess.Popen(
        [
            binaries / "tandem",
            "generate",
            f"--server={server.grpc}",
            "--model=slow",
            "--prompt=x",
            f"--max-new-tokens={tokens}",
            "--ignore-eos",
            "--method=autoregressive",
            *args,
        ],
        **pipes,
    )
    # Until the server says so, it may not have the request yet.
    runs = 'requests_running{model="slow",method="autoregressive"} 1\n'
    server.until(lambda: runs in server.metrics(), "it runs")
    return client


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_ends_with_0(start_server, binaries, number):
    server = start_server()
    lines = []
    client = start_stream(binaries, server, 150, "--format=json", stdout=subprocess.PIPE)
    reader = threading.Thread(target=lambda: lines.append(client.stdout.read()))
    reader.start()
    assert server.stop(number) == 0
    assert client.wait(60) == 0
    reader.join()
    assert len(json.loads(lines[0])["token_ids"]) == 150


def test_streams_left_at_the_end_of_the_grace_get_unavailable(start_server, binaries):
    server = start_server(None, "--grace-seconds=0")
    client = start_stream(binaries, server, 3000, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert server.stop() == 0
    error = client.communicate(timeout=60)[1]
    assert client.returncode == 1
    assert error.startswith(b"UNAVAILABLE: ")
