"""Tokens with their origin, statistics and traces of passes over HTTP, and descriptions of parameters."""

import json
import urllib.error
import urllib.request

import pytest

from tests.conftest import CHAT_CONFIG

METHODS = ("autoregressive", "speculative", "ngram", "bild")


@pytest.fixture(scope="module")
def api(start_server):
    return start_server(CHAT_CONFIG, "--openai=127.0.0.1:0")


def send(api, path, body=None):
    return urllib.request.Request(
        f"http://{api.ports['openai']}{path}",
        None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )


def post(api, path, **body):
    try:
        with urllib.request.urlopen(send(api, path, body), timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return json.load(error)


def events(api, path, **body):
    with urllib.request.urlopen(send(api, path, {**body, "stream": True}), timeout=60) as answer:
        lines = [line[6:].strip() for line in answer if line.startswith(b"data: ")]
    assert lines[-1] == b"[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def completion(**tandem):
    return {
        "model": "pair",
        "prompt": "def fib(n):",
        "max_tokens": 24,
        "temperature": 0,
        "tandem": {"ignore_eos": True, **tandem},
    }


def text_of(tokens):
    return b"".join(
        bytes(t["bytes"]) if "bytes" in t else t["text"].encode() for t in tokens
    ).decode(errors="replace")


@pytest.mark.parametrize("method", METHODS)
def test_tokens_and_passes_agree_with_the_statistics(api, method):
    answer = post(api, "/v1/completions", **completion(method=method, tokens=True, trace=True))
    (choice,) = answer["choices"]
    tokens, stats, trace = (choice["tandem"][name] for name in ("tokens", "stats", "trace"))
    assert len(tokens) == answer["usage"]["completion_tokens"] == 24
    assert text_of(tokens) == choice["text"]
    passes = {record["pass"]: record for record in trace["passes"]}
    assert trace["omitted"] == 0 and len(passes) == len(trace["passes"])
    roles = [record["role"] for record in passes.values()]
    assert roles.count("large") == stats["large_passes"]
    assert roles.count("small") == stats["small_passes"]
    accepted = sum(record["accepted"] for record in passes.values())
    assert accepted == sum(i * n for i, n in enumerate(stats["accept_lengths"]))
    for token in tokens:
        record = passes[token["pass"]]
        assert record["role"] == "large" and token["confirmed"] == "large"
        assert record["start_us"] <= record["end_us"]
        assert "logprob" not in token
    if method != "autoregressive":
        small = sum(token["proposed"] != "large" for token in tokens)
        assert small == stats["small_tokens"]
        kinds = {record["kind"] for record in passes.values()}
        assert kinds <= {"prefill", "draft", "verify", "decode"}
        assert method != "speculative" or {"draft", "verify"} <= kinds
    else:
        assert {record["kind"] for record in passes.values()} == {"prefill", "decode"}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_stream_has_what_an_answer_has(api, path):
    body = completion(method="speculative", tokens=True, trace=True)
    body["logprobs"] = 2
    if "chat" in path:
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
        body |= {"logprobs": True, "top_logprobs": 2}
    (whole,) = post(api, path, **body)["choices"]
    streamed = [choice for event in events(api, path, **body) for choice in event["choices"]]
    tokens = []
    for choice in streamed[:-1]:
        listed = choice.get("tandem", {}).get("tokens", [])
        logprobs = choice["logprobs"] or {}
        assert len(listed) == len(logprobs.get("content", logprobs.get("tokens", [])))
        tokens += listed
    last = streamed[-1]["tandem"]
    strip = [{k: v for k, v in t.items() if k != "logprob"} for t in tokens]
    assert strip == [
        {k: v for k, v in t.items() if k != "logprob"} for t in whole["tandem"]["tokens"]
    ]
    assert all(token["logprob"] <= 0 for token in tokens)
    assert "tokens" not in last
    assert last["stats"]["large_passes"] == whole["tandem"]["stats"]["large_passes"]

    def shape(trace):
        # The second request finds the prompt in the prefix cache.
        passes = sorted(trace["passes"], key=lambda p: p["pass"])
        return [
            (
                p["role"],
                p["kind"],
                p["kind"] == "prefill" or p["rows"],
                p["accepted"],
                p["rejected"],
            )
            for p in passes
        ]

    assert shape(last["trace"]) == shape(whole["tandem"]["trace"])


def test_nothing_is_added_unless_asked_for(api):
    answer = post(api, "/v1/completions", **completion())
    assert "tandem" not in answer["choices"][0]
    for event in events(api, "/v1/completions", **completion()):
        assert all("tandem" not in choice for choice in event["choices"])
    only = post(api, "/v1/completions", **completion(trace=True))["choices"][0]["tandem"]
    assert set(only) == {"stats", "trace"}
    only = post(api, "/v1/completions", **completion(tokens=True))["choices"][0]["tandem"]
    assert set(only) == {"tokens", "stats"}


def test_each_choice_has_its_own(api):
    # Special tokens are listed, and left out of the text unless it is asked for.
    body = completion(tokens=True, trace=True, skip_special_tokens=False)
    body |= {"n": 3, "temperature": 1, "seed": 5}
    answer = post(api, "/v1/completions", **body)
    for choice in answer["choices"]:
        more = choice["tandem"]
        assert text_of(more["tokens"]) == choice["text"]
        numbers = {record["pass"] for record in more["trace"]["passes"]}
        assert {token["pass"] for token in more["tokens"]} <= numbers


def test_an_echoed_prompt_is_no_part_of_the_tokens(api):
    body = completion(tokens=True) | {"echo": True, "logprobs": 0}
    (choice,) = post(api, "/v1/completions", **body)["choices"]
    assert choice["text"].startswith("def fib(n):")
    assert len(choice["tandem"]["tokens"]) == 24


@pytest.mark.parametrize("name", ["tokens", "trace"])
def test_other_apis_refuse_them(api, name):
    body = {"model": "pair", "max_tokens": 5, "tandem": {name: True}}
    messages = [{"role": "user", "content": "x"}]
    refused = post(api, "/v1/messages", messages=messages, **body)
    assert f"tandem.{name}: true; allowed: false" in refused["error"]["message"]
    del body["max_tokens"]
    refused = post(api, "/v1/responses", input="x", **body)
    assert f"tandem.{name}: true; allowed: false" in refused["error"]["message"]
    refused = post(api, "/v1/completions", model="pair", prompt="x", tandem={name: "yes"})
    assert f"tandem.{name}: a string" in refused["error"]["message"]


def test_a_form_can_be_built_from_the_models(api):
    with urllib.request.urlopen(send(api, "/v1/models/pair"), timeout=60) as answer:
        model = json.load(answer)["tandem"]
    for described in [*model["methods"], {"parameters": model["sampling"]}]:
        for parameter in described["parameters"]:
            kind = parameter["type"].removeprefix("PARAMETER_TYPE_")
            assert parameter["meaning"] and parameter["allowed"]
            assert ("min" in parameter) == (kind in ("INTEGER", "NUMBER"))
            assert bool(parameter["choices"]) == (kind == "CHOICE")
            if kind == "CHOICE" and parameter["default_value"]:
                assert parameter["default_value"] in parameter["choices"]
    for method in model["methods"]:
        name = method["method"].removeprefix("METHOD_").lower()
        for parameter in method["parameters"]:
            if parameter["type"] != "PARAMETER_TYPE_INTEGER":
                continue
            # Values at and behind the bounds, as the server itself judges them.
            field = {parameter["name"]: parameter["min"] - 1}
            refused = post(api, "/v1/completions", **completion(**{name: field}))
            assert f"{name}.{parameter['name']}" in refused["error"]["message"]
