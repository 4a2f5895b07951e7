"""A gateway names the client and the objective of a request; others cannot. By gRPC and by HTTP."""

import json
import re
import urllib.error
import urllib.request

import grpc
import pytest

from tests.attack.harness import Api, Target

TOKENS = {"gateway": "gateway-0123456789ab", "eve": "eve-0123456789abcdef"}
CONFIG = """
models { name: "fake" fake {} }
limits {
  clients { key: "ann" value { max_priority: 5 } }
  clients { key: "low" value { max_priority: -50 } }
  clients { key: "gateway" value {} }
  clients { key: "eve" value {} }
}
server {
  bearer_token_file: "%s"
  trusted_gateways: "gateway"
  objectives { key: "batch" value: -10 }
  objectives { key: "urgent" value: 50 }
}
"""
FAIRNESS, OBJECTIVE = "x-gateway-inference-fairness-id", "x-gateway-inference-objective"


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    return Api(tmp_path_factory.mktemp("api"))


@pytest.fixture(scope="module")
def server(start_server, tmp_path_factory):
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.write_text("".join(f"{name} {token}\n" for name, token in TOKENS.items()))
    return start_server(CONFIG % tokens, "--openai=127.0.0.1:0")


@pytest.fixture(params=["grpc", "http"])
def ask(request, server, api):
    """ask(sender, headers, priority): None, or the refusal of a request."""

    def by_grpc(sender, headers, priority=0):
        client = target.client(TOKENS[sender])
        client.metadata += list(headers.items())
        error = client.refusal(priority=priority)
        if error is None:
            return None
        assert error.code() == grpc.StatusCode.PERMISSION_DENIED
        return error.details()

    def by_http(sender, headers, priority=0):
        body = {"model": "fake", "prompt": "x", "max_tokens": 3}
        body["tandem"] = {"priority": priority}
        sent = {"Authorization": f"Bearer {TOKENS[sender]}", "Content-Type": "application/json"}
        url = f"http://{server.ports['openai']}/v1/completions"
        call = urllib.request.Request(url, json.dumps(body).encode(), {**sent, **headers})
        try:
            with urllib.request.urlopen(call, timeout=60) as answer:
                assert answer.status == 200
        except urllib.error.HTTPError as error:
            assert error.code == 403
            return json.load(error)["error"]["message"]
        return None

    target = Target(server, api)
    yield by_grpc if request.param == "grpc" else by_http
    for client in target.clients:
        client.close()


def requests(server):
    """By client that the limits name."""
    found = re.findall(
        r'^tandem_client_requests_total\{client="(\w*)"\} (\d+)', server.metrics(), re.MULTILINE
    )
    return {name: int(count) for name, count in found}


def test_the_client_is_whom_a_gateway_names(ask, server):
    before = requests(server)
    assert ask("gateway", {FAIRNESS: "ann"}) is None
    assert ask("gateway", {FAIRNESS.replace("gateway", "llm-d"): "ann"}) is None
    assert ask("gateway", {}) is None
    after = requests(server)
    assert after["ann"] - before["ann"] == 2
    assert after["gateway"] - before["gateway"] == 1


def test_from_others_the_headers_are_ignored(ask, server):
    before = requests(server)
    assert ask("eve", {FAIRNESS: "ann", OBJECTIVE: "urgent"}) is None
    assert "priority: 1; allowed: at most 0" in ask("eve", {FAIRNESS: "ann"}, priority=1)
    after = requests(server)
    assert after["ann"] == before["ann"]
    assert after["eve"] == before["eve"] + 1


def test_an_objective_replaces_the_priority_up_to_the_clients_highest(ask):
    ann, low = {FAIRNESS: "ann"}, {FAIRNESS: "low"}
    assert "priority: 50; allowed: at most 5" in ask("gateway", ann, priority=50)
    assert ask("gateway", {**ann, OBJECTIVE: "urgent"}, priority=50) is None
    assert ask("gateway", {**ann, OBJECTIVE: "batch"}, priority=50) is None
    assert "priority: 0; allowed: at most -50" in ask("gateway", low)
    assert ask("gateway", {**low, OBJECTIVE: "batch"}) is None
    assert "priority: 50" in ask("gateway", {**ann, OBJECTIVE: "unknown"}, priority=50)
