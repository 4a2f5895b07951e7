"""docs/http_fields.md has every parameter of OpenAI's client, and the server handles each as its row says."""

import inspect
import re

import pytest

from tests.conftest import ROOT

openai = pytest.importorskip("openai")
from openai.resources.chat.completions import Completions as Chats  # noqa: E402
from openai.resources.completions import Completions  # noqa: E402
from openai.resources.embeddings import Embeddings  # noqa: E402

# Options of the client, not fields of the request.
OF_THE_CLIENT = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}

TAKEN, REFUSED = "taken", "refused"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": {}}}
# Parameter: values that mean something, and what happens to them.
CHAT = {
    "messages": [([{"role": "user", "content": [{"type": "text", "text": "x"}]}], TAKEN)],
    "model": [("fake", TAKEN)],
    "audio": [({"voice": "alloy", "format": "wav"}, REFUSED)],
    "frequency_penalty": [(0.5, TAKEN), (3, REFUSED)],
    "function_call": [("auto", REFUSED)],
    "functions": [([{"name": "f"}], REFUSED)],
    "logit_bias": [({"65": 100}, TAKEN), ({"x": 1}, REFUSED)],
    "logprobs": [(True, TAKEN)],
    "max_completion_tokens": [(2, TAKEN), (0, REFUSED)],
    "max_tokens": [(2, TAKEN)],
    "metadata": [({"a": "b"}, TAKEN)],
    "modalities": [(["text"], TAKEN), (["text", "audio"], REFUSED)],
    "moderation": [({}, REFUSED)],
    "n": [(2, TAKEN), (50, REFUSED)],
    "parallel_tool_calls": [(True, TAKEN), (False, TAKEN)],
    "prediction": [({"type": "content", "content": "x"}, REFUSED)],
    "presence_penalty": [(0.5, TAKEN)],
    "prompt_cache_key": [("k", TAKEN)],
    "prompt_cache_options": [({"mode": "auto"}, TAKEN)],
    "prompt_cache_retention": [("24h", TAKEN)],
    "reasoning_effort": [("low", REFUSED)],
    "response_format": [({"type": "text"}, TAKEN), (SCHEMA, TAKEN), ({"type": "x"}, REFUSED)],
    "safety_identifier": [("u", TAKEN)],
    "seed": [(7, TAKEN)],
    "service_tier": [("auto", TAKEN), ("default", TAKEN), ("flex", REFUSED)],
    "stop": [("x", TAKEN), (["x", "y"], TAKEN)],
    "store": [(False, TAKEN), (True, REFUSED)],
    "stream": [(True, TAKEN)],
    "stream_options": [({"include_usage": True}, REFUSED)],  # without a stream
    "temperature": [(0.5, TAKEN), (-1, REFUSED)],
    "tool_choice": [("none", TAKEN), ("required", TAKEN), ("all", REFUSED)],
    "tools": [([TOOL], TAKEN)],
    "top_logprobs": [(2, REFUSED), (0, TAKEN)],  # without logprobs
    "top_p": [(0.5, TAKEN)],
    "user": [("u", TAKEN)],
    "verbosity": [("low", REFUSED)],
    "web_search_options": [({}, REFUSED)],
}
COMPLETION = {
    "prompt": [("x", TAKEN), ([120], TAKEN), (["x", "y"], TAKEN), ([[120], [121]], TAKEN), ({}, REFUSED)],
    "best_of": [(1, TAKEN), (3, TAKEN), (17, REFUSED)],
    "echo": [(False, TAKEN), (True, TAKEN)],
    "logprobs": [(2, TAKEN), (99, REFUSED)],
    "suffix": [("", TAKEN), ("x", REFUSED)],  # fake models have no tokens for it
    **{
        name: CHAT[name]
        for name in (
            "frequency_penalty", "logit_bias", "max_tokens", "model", "n", "presence_penalty", "seed",
            "stop", "stream", "stream_options", "temperature", "top_p", "user",
        )
    },
}  # fmt: skip
EMBEDDINGS = {
    "input": [("x", TAKEN), ([120], TAKEN), (["x", "y"], TAKEN), ([[120], [121]], TAKEN), ({}, REFUSED)],
    "model": [("fake", TAKEN)],
    "dimensions": [(4, TAKEN), (0, REFUSED)],
    "encoding_format": [("float", TAKEN), ("base64", TAKEN), ("hex", REFUSED)],
    "user": [("u", TAKEN)],
}  # fmt: skip


def parameters(create):
    return set(inspect.signature(create).parameters) - OF_THE_CLIENT


def rows(path):
    """Field -> (API that defines the name, effect), from docs/http_fields.md."""
    page = (ROOT / "docs/http_fields.md").read_text("utf-8")
    text = page.split(f"\n## POST {path}\n")[1].split("\n## ")[0]
    found = re.findall(r"^\| `(\w+)` \| ([\w.]+) \| (.*) \|$", text, re.MULTILINE)
    assert len(found) == len({name for name, _, _ in found})
    return {name: (origin, effect) for name, origin, effect in found}


ROWS = {"/v1/completions": COMPLETION, "/v1/chat/completions": CHAT, "/v1/embeddings": EMBEDDINGS}


def test_the_tables_have_what_openais_client_sends():
    for path, create in (
        ("/v1/completions", Completions.create),
        ("/v1/chat/completions", Chats.create),
        ("/v1/embeddings", Embeddings.create),
    ):
        assert {
            name for name, (origin, _) in rows(path).items() if origin == "OpenAI"
        } == parameters(create)


@pytest.fixture(scope="module")
def client(start_server):
    server = start_server(None, "--openai=127.0.0.1:0")
    url = f"http://{server.ports['openai']}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def check(create, name, value, outcome, **least):
    try:
        answer = create(**{**least, name: value})
        if name == "stream":
            answer = list(answer)
        assert answer and outcome == TAKEN, f"{name}={value!r} was taken"
    except openai.BadRequestError as error:
        if error.code == "no_chat_template":  # all of the request was right, and the fake has none
            assert outcome == TAKEN
            return
        assert outcome == REFUSED, f"{name}={value!r}: {error.message}"
        assert (error.param or "").startswith(name.split(".")[0]), error.message


def test_each_field_of_a_chat_does_what_its_row_says(client):
    assert set(CHAT) == parameters(Chats.create)
    least = {"model": "fake", "messages": [{"role": "user", "content": "x"}]}
    for name, values in CHAT.items():
        few = {} if name.startswith("max") else {"max_tokens": 1}
        for value, outcome in values:
            check(client.chat.completions.create, name, value, outcome, **least, **few)


def test_each_field_of_a_completion_does_what_its_row_says(client):
    assert set(COMPLETION) == parameters(Completions.create)
    for name, values in COMPLETION.items():
        few = {} if name.startswith("max") else {"max_tokens": 1}
        for value, outcome in values:
            least = {"model": "fake", "prompt": "x", **few}
            check(client.completions.create, name, value, outcome, **least)


def test_each_field_of_embeddings_does_what_its_row_says(client):
    assert set(EMBEDDINGS) == parameters(Embeddings.create)
    for name, values in EMBEDDINGS.items():
        for value, outcome in values:
            check(client.embeddings.create, name, value, outcome, model="fake", input="x")


def test_rows_refused_and_ignored_are_true():
    """A row "Refused" means that no value is accepted, and "Ignored" that none is refused."""
    for path, values in ROWS.items():
        for name, (_, effect) in rows(path).items():
            outcomes = {outcome for _, outcome in values.get(name, [])}
            if effect.startswith("Refused") and name in values:
                assert outcomes == {REFUSED}, name
            if effect.startswith("Ignored") and name in values:
                assert outcomes == {TAKEN}, name
