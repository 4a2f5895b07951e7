"""OpenAI's Python client, unmodified, against /v1/responses."""

import inspect
import re

import pytest

from tests.conftest import CHAT_CONFIG, ROOT

openai = pytest.importorskip("openai")


@pytest.fixture(scope="module")
def client(start_server):
    server = start_server(CHAT_CONFIG, "--openai=127.0.0.1:0")
    url = f"http://{server.ports['openai']}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def test_a_response(client):
    fields = {"model": "fake", "max_output_tokens": 10, "temperature": 0}
    answer = client.responses.create(input="hello", instructions="short", **fields)
    assert answer.output_text and answer.status == "incomplete"
    assert answer.usage.output_tokens == 10
    items = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": answer.output_text},
        {"role": "user", "content": [{"type": "input_text", "text": "more"}]},
    ]
    assert client.responses.create(input=items, **fields).output_text


def test_a_stream_is_the_response_in_pieces(client):
    fields = {"model": "fake", "input": "hello", "max_output_tokens": 20, "temperature": 0}
    whole = client.responses.create(**fields)
    types, text = [], ""
    with client.responses.stream(**fields) as stream:
        for event in stream:
            types.append(event.type)
            if event.type == "response.output_text.delta":
                text += event.delta
    assert text == whole.output_text
    assert types[0] == "response.created" and types[-1] == "response.incomplete"


def test_errors_are_those_of_the_client(client):
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="none", input="x")
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.create(model="fake", input="x", top_p=7)
    assert error.value.param == "top_p"


def test_the_table_has_what_the_client_sends(client):
    own = {"extra_headers", "extra_query", "extra_body", "timeout"}
    page = (ROOT / "docs/http_fields.md").read_text("utf-8")
    section = page.split("## POST /v1/responses\n")[1].split("\n## ")[0]
    listed = set(re.findall(r"^\| `(\w+)` \| OpenAI ", section, re.MULTILINE))
    assert listed == set(inspect.signature(client.responses.create).parameters) - own
