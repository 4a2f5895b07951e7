"""Endpoints next to completions: tokens, status pages, Responses, Messages, CORS, credentials."""

import json
import urllib.error
import urllib.request

import pytest

from tests.conftest import CHAT_CONFIG

PROMPT = "def fib(n):"
ORIGIN = "https://chat.example.com"


def call(server, path, body=None, method=None, **headers):
    """Status, headers and body of a request; the body parsed if it is JSON."""
    data = None if body is None else json.dumps(body).encode()
    if data is not None:
        headers.setdefault("Content-Type", "application/json")
    url = f"http://{server.ports['openai']}{path}"
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            status, got, text = answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        status, got, text = error.code, error.headers, error.read().decode()
    is_json = got.get("content-type", "").startswith("application/json")
    return status, got, json.loads(text) if is_json else text


def events(text):
    """(event, data) of a stream."""
    found = []
    for part in filter(None, text.split("\n\n")):
        event, data = part.split("\n")
        found.append((event.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


@pytest.fixture(scope="module")
def api(start_server):
    config = CHAT_CONFIG + f'server {{ cors_origins: "{ORIGIN}" }}'
    return start_server(config, "--openai=127.0.0.1:0")


@pytest.fixture(scope="module")
def guarded(start_server, tmp_path_factory):
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.write_text("alice aaaaaaaaaaaaaaaaaaaa\n")
    server = f'server {{ openai_metrics: false bearer_token_file: "{tokens}" }}'
    return start_server(CHAT_CONFIG + server, "--openai=127.0.0.1:0")


def test_texts_become_tokens_and_texts_again(api):
    ids = [ord(c) for c in PROMPT]
    status, _, answer = call(api, "/tokenize", {"model": "fake", "prompt": PROMPT})
    assert (status, answer["tokens"], answer["count"]) == (200, ids, len(ids))
    assert answer["token_strs"] is None and answer["max_model_len"] > 256
    _, _, answer = call(
        api, "/tokenize", {"model": "fake", "prompt": "é", "return_token_strs": True}
    )
    assert answer["token_strs"] == ["\ufffd", "\ufffd"], "bytes, which are no text alone"
    _, _, chat = call(
        api, "/tokenize", {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
    )
    assert chat["count"] > 2
    status, _, answer = call(api, "/detokenize", {"model": "fake", "tokens": ids})
    assert (status, answer) == (200, {"prompt": PROMPT, "content": PROMPT})
    _, _, answer = call(api, "/tokenize", {"model": "fake", "content": PROMPT})
    assert answer["tokens"] == ids, "llama.cpp's name"


def test_wrong_token_requests_are_named(api):
    status, _, answer = call(api, "/detokenize", {"model": "fake", "tokens": [10**6]})
    assert (status, answer["error"]["param"]) == (400, "token_ids[0]")
    status, _, answer = call(api, "/tokenize", {"model": "none", "prompt": "x"})
    assert (status, answer["error"]["code"]) == (404, "model_not_found")
    status, _, answer = call(api, "/tokenize", {"prompt": "x"})
    assert (status, answer["error"]["param"]) == (400, "model"), "there are several"


def test_one_model_needs_no_name(start_server):
    server = start_server(
        'models { name: "m" fake {} } deployments { name: "m" large: "m" }', "--openai=127.0.0.1:0"
    )
    status, _, answer = call(server, "/tokenize", {"content": "ab"})
    assert (status, answer["tokens"]) == (200, [97, 98])


def test_status_pages(api):
    assert call(api, "/health")[::2] == (200, {"status": "ok"})
    assert call(api, "/healthz")[::2] == (200, "ok\n")
    assert call(api, "/readyz")[::2] == (200, "ready\n")
    assert call(api, "/version")[2]["version"] == "0.1.0"
    status, headers, text = call(api, "/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    other = {line.split()[2] for line in api.metrics().splitlines() if line.startswith("# TYPE")}
    assert names == other
    assert call(api, "/health", {}, method="POST")[0] == 405


def test_gateway_gauges(api):
    """One series of each name, on both ports and in the full page."""
    status, headers, text = call(api, "/metrics/gateway")
    assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
    series = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    names = [name.partition("{")[0] for name in series]
    assert names == [
        "tandem_num_requests_waiting", "vllm:num_requests_waiting",
        "tandem_num_requests_running", "vllm:num_requests_running",
        "tandem_kv_cache_usage", "vllm:kv_cache_usage_perc",
        "tandem_cache_config_info", "vllm:cache_config_info",
    ]  # fmt: skip
    assert all('model_name="' in name for name in series if name.startswith("vllm:"))
    assert series["tandem_num_requests_waiting"] == series["tandem_num_requests_running"] == "0"
    assert len(text) < 2000
    with urllib.request.urlopen(f"http://{api.http}/metrics/gateway", timeout=60) as answer:
        assert answer.read().decode() == text
    full = call(api, "/metrics")[2].splitlines()
    for name in series:
        assert sum(line.rpartition(" ")[0] == name for line in full) == 1, name


def test_request_ids_of_proxies_are_kept(api):
    body = {"model": "fake", "max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]}
    for path in ("/v1/chat/completions", "/v1/messages", "/tokenize"):
        _, headers, _ = call(
            api,
            path,
            body if path != "/tokenize" else {"model": "fake", "content": "x"},
            X_Request_Id="from-proxy",
        )
        assert headers["x-request-id"] == "from-proxy", path
    _, headers, _ = call(api, "/v1/models", X_Request_Id="listed")
    assert headers["x-request-id"] == "listed"
    _, headers, _ = call(
        api, "/v1/chat/completions", {**body, "model": "none"}, X_Request_Id="wrong"
    )
    assert headers["x-request-id"] == "wrong", "errors too"
    own = {**body, "tandem": {"request_id": "mine"}}
    _, headers, _ = call(api, "/v1/chat/completions", own, X_Request_Id="from-proxy")
    assert headers["x-request-id"] == "mine", "the client's field comes first"
    _, headers, _ = call(api, "/v1/models", X_Request_Id="x" * 200)
    assert headers["x-request-id"].startswith("req-"), "too long"


def test_credentials(guarded):
    for path in ("/health", "/healthz", "/readyz", "/version"):
        assert call(guarded, path)[0] == 200
    status, _, answer = call(guarded, "/metrics", Authorization="Bearer aaaaaaaaaaaaaaaaaaaa")
    assert status == 404, "switched off"
    assert call(guarded, "/metrics/gateway", Authorization="Bearer aaaaaaaaaaaaaaaaaaaa")[0] == 404
    body = {"model": "fake", "max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]}
    status, _, answer = call(guarded, "/v1/messages", body)
    assert (status, answer["type"], answer["error"]["type"]) == (
        401,
        "error",
        "authentication_error",
    )
    assert call(guarded, "/v1/messages", body, x_api_key="aaaaaaaaaaaaaaaaaaaa")[0] == 200
    assert call(guarded, "/v1/messages", body, x_api_key="wrong")[0] == 401
    body = {"model": "fake", "prompt": "x"}
    assert call(guarded, "/tokenize", body)[0] == 401
    assert call(guarded, "/tokenize", body, Authorization="Bearer aaaaaaaaaaaaaaaaaaaa")[0] == 200


def test_only_pages_of_allowed_origins_may_read_answers(api):
    allow = "access-control-allow-origin"
    assert call(api, "/v1/models", Origin=ORIGIN)[1][allow] == ORIGIN
    assert call(api, "/v1/none", Origin=ORIGIN)[1][allow] == ORIGIN, "errors too"
    assert allow not in call(api, "/v1/models", Origin="https://other.example.com")[1]
    assert allow not in call(api, "/v1/models")[1]
    ask = {
        "method": "OPTIONS",
        "Access_Control_Request_Method": "POST",
        "Access_Control_Request_Headers": "authorization,content-type",
    }
    status, headers, _ = call(api, "/v1/chat/completions", Origin=ORIGIN, **ask)
    assert (status, headers[allow]) == (200, ORIGIN)
    assert headers["access-control-allow-headers"] == "authorization,content-type"
    status, headers, _ = call(api, "/v1/chat/completions", Origin="https://x.example", **ask)
    assert status == 405 and allow not in headers


def chat(api, **fields):
    body = {"model": "fake", "max_tokens": 12, "messages": [{"role": "user", "content": "hi"}]}
    return call(api, "/v1/chat/completions", {**body, **fields})[2]


def test_messages_are_chats(api):
    body = {"model": "fake", "max_tokens": 12, "messages": [{"role": "user", "content": "hi"}]}
    status, _, answer = call(api, "/v1/messages", body)
    expected = chat(api)
    text = expected["choices"][0]["message"]["content"]
    assert status == 200 and answer["type"] == "message" and answer["stop_reason"] == "max_tokens"
    assert answer["content"] == [{"type": "text", "text": text}]
    assert answer["usage"]["output_tokens"] == 12
    counts = answer["usage"]
    prompt = counts["input_tokens"] + counts["cache_read_input_tokens"]
    assert prompt == expected["usage"]["prompt_tokens"]
    counted = call(api, "/v1/messages/count_tokens", {k: body[k] for k in ("model", "messages")})
    assert counted[::2] == (200, {"input_tokens": prompt})

    stream = events(call(api, "/v1/messages", {**body, "stream": True})[2])
    assert [event for event, data in stream if event != data["type"]] == []
    assert [event for event, _ in stream][0] == "message_start"
    assert [event for event, _ in stream][-2:] == ["message_delta", "message_stop"]
    assert (
        "".join(data["delta"]["text"] for event, data in stream if event == "content_block_delta")
        == text
    )
    assert stream[0][1]["message"]["usage"]["input_tokens"] == prompt
    assert stream[-2][1]["usage"]["output_tokens"] == 12

    stop = call(api, "/v1/messages", {**body, "stop_sequences": [text[2]]})[2]
    assert (stop["stop_reason"], stop["stop_sequence"]) == ("stop_sequence", text[2])


def test_errors_of_messages_have_anthropics_shape(api):
    body = {"model": "none", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}
    status, headers, answer = call(api, "/v1/messages", body)
    assert (status, answer["error"]["type"]) == (404, "not_found_error")
    assert answer["request_id"] == headers["x-request-id"]
    status, _, answer = call(api, "/v1/messages", {**body, "model": "fake", "max_tokens": 0})
    assert status == 400 and answer["error"]["message"].startswith("max_tokens: 0; allowed: ")
    status, _, answer = call(api, "/v1/messages", {**body, "model": "fake", "top_k": -3})
    assert "top_k: -3" in answer["error"]["message"]
    assert call(api, "/v1/messages", [], Content_Type="text/plain")[2]["type"] == "error"


def test_responses_are_chats(api):
    body = {"model": "fake", "input": "hi", "max_output_tokens": 12}
    status, _, answer = call(api, "/v1/responses", body)
    text = chat(api)["choices"][0]["message"]["content"]
    assert status == 200 and answer["object"] == "response"
    assert answer["output"][0]["content"][0]["text"] == text
    assert (answer["status"], answer["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )
    assert answer["usage"]["output_tokens"] == 12

    stream = events(call(api, "/v1/responses", {**body, "stream": True})[2])
    assert [data["sequence_number"] for _, data in stream] == list(range(len(stream)))
    deltas = [data["delta"] for event, data in stream if event == "response.output_text.delta"]
    assert "".join(deltas) == text
    last, data = stream[-1]
    assert (
        last == "response.incomplete"
        and data["response"]["output"][0]["content"][0]["text"] == text
    )

    status, _, answer = call(api, "/v1/responses", {**body, "max_output_tokens": 0})
    assert (status, answer["error"]["param"]) == (400, "max_output_tokens")
    status, _, answer = call(api, "/v1/responses", {**body, "previous_response_id": "r"})
    assert (status, answer["error"]["param"]) == (400, "previous_response_id")
