"""The examples in client/examples/node run against a server."""

import json

import pytest


@pytest.fixture(scope="module")
def served(start_server):
    return start_server(None, "--openai=127.0.0.1:0")


def by_grpc(node, served, **fields):
    fields = {"seed": "18446744073709551615", "temperature": 1, "ignore_eos": True, **fields}
    return node(
        "generate.js",
        f"--server={served.grpc}",
        "--model=pair",
        "--prompt=example",
        "--max-new-tokens=20",
        f"--fields={json.dumps(fields)}",
    )


def by_openai(node, served, *args):
    address = served.ports["openai"]
    return node(
        "openai.js",
        f"--server={address}",
        "--model=pair",
        "--prompt=example",
        "--max-tokens=20",
        *args,
    )


def test_grpc_streams(node, served, tandem):
    done = by_grpc(node, served)
    assert done.returncode == 0, done.stderr
    assert "[MAX_TOKENS: 20 tokens, seed 18446744073709551615]" in done.stderr
    expected = tandem(
        "generate",
        "--model=pair",
        "--prompt=example",
        "--max-new-tokens=20",
        "--temperature=1",
        "--ignore-eos",
        "--seed=18446744073709551615",
        "--format=json",
        address=served.grpc,
    )
    assert done.stdout == json.loads(expected.stdout)["text"]


def test_grpc_names_that_the_loader_would_drop_are_errors(node, served):
    for fields, message in (
        ({"maxNewTokens": 3}, "maxNewTokens: no such field"),
        ({"bild": {"rollback": 1}}, "bild.rollback: no such field"),
    ):
        done = by_grpc(node, served, **fields)
        assert done.returncode == 1
        assert message in done.stderr


def test_openais_client_lists_completes_streams_and_fails(node, served):
    address = served.ports["openai"]
    listed = node("openai.js", f"--server={address}", "--list")
    assert listed.stdout.split() == ["fake", "slow", "pair"], listed.stderr
    whole = by_openai(
        node, served, "--whole", "--seed=18446744073709551615", "--method=speculative"
    )
    assert whole.returncode == 0, whole.stderr
    assert "[speculative: " in whole.stderr
    streamed = by_openai(node, served, "--seed=18446744073709551615")
    assert streamed.returncode == 0, streamed.stderr
    assert streamed.stderr.strip() == whole.stderr.replace("speculative: ", "").strip()
    assert streamed.stdout == whole.stdout != ""
    failed = by_openai(node, served, "--method=none")
    assert failed.returncode == 1
    assert "400 invalid_field: tandem.method: another method; allowed: auto" in failed.stderr


@pytest.mark.parametrize("flags", [(), ("--whole",)])
def test_openais_client_calls_tools(node, start_server, flags):
    call = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
    script = f'answers: {json.dumps(call)} answers: "It is 18 degrees."'
    server = start_server(
        f'models {{ name: "script" fake {{ {script} }} }}', "--openai=127.0.0.1:0"
    )
    done = node(
        "tools.js",
        f"--server={server.ports['openai']}",
        "--model=script",
        "--prompt=How warm is it?",
        *flags,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == 'get_weather {"city": "Paris"}\n'
    assert done.stdout == "It is 18 degrees.\n"
