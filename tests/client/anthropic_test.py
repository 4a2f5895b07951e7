"""Anthropic's own Python client, unmodified, against /v1/messages."""

import inspect
import re

import pytest

from tests.conftest import CHAT_CONFIG, ROOT

anthropic = pytest.importorskip("anthropic", reason="scripts/setup --full installs it")

MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def client(start_server):
    server = start_server(CHAT_CONFIG, "--openai=127.0.0.1:0")
    url = f"http://{server.ports['openai']}"
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def test_a_message(client):
    message = client.messages.create(model="fake", max_tokens=10, messages=MESSAGES, system="short")
    assert message.role == "assistant" and message.stop_reason == "max_tokens"
    assert message.content[0].type == "text" and message.content[0].text
    assert message.usage.output_tokens == 10


def test_a_stream_is_the_message_in_pieces(client):
    fields = {"model": "fake", "max_tokens": 20, "messages": MESSAGES}
    whole = client.messages.create(**fields)
    with client.messages.stream(**fields) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_conversations_and_tokens(client):
    turns = [
        *MESSAGES,
        {"role": "assistant", "content": [{"type": "text", "text": "a"}]},
        {"role": "user", "content": [{"type": "text", "text": "b"}]},
    ]
    count = client.messages.count_tokens(model="fake", messages=turns).input_tokens
    usage = client.messages.create(model="fake", max_tokens=1, messages=turns).usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == count


def test_errors_are_those_of_the_client(client):
    with pytest.raises(anthropic.NotFoundError) as error:
        client.messages.create(model="none", max_tokens=1, messages=MESSAGES)
    assert error.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="temperature: 200"):
        client.messages.create(
            model="fake", max_tokens=1, messages=MESSAGES, extra_body={"temperature": 200}
        )


def test_the_table_has_what_the_client_sends(client):
    own = {"extra_headers", "extra_query", "extra_body", "timeout"}
    page = (ROOT / "docs/http_fields.md").read_text("utf-8").split("\n## POST /v1/messages\n")[1]
    listed = set(re.findall(r"^\| `(\w+)` \| Anthropic ", page, re.MULTILINE))
    sent = set(inspect.signature(client.messages.create).parameters) - own
    assert sent <= listed, "older clients send more"
