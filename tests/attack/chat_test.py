"""Chats whose templates could make much of little: each fails alone, and leaves nothing behind."""

import json
import shutil
from pathlib import Path

import grpc
import pytest

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20


@pytest.fixture
def llama(tmp_path):
    """A small model with Llama 3's chat template, which writes tools with tojson(indent=4)."""
    for file in (ROOT / "models/code-small").iterdir():
        shutil.copy(file, tmp_path / file.name)
    template = ROOT / "tests/engine/text/data/chat/llama3/chat_template.jinja"
    shutil.copy(template, tmp_path / "chat_template.jinja")
    return f'models {{ name: "llama" path: "{tmp_path}" device: "cpu:1" }}\n'


def tool(depth, items):
    """A JSON object: lists in one another, the innermost of so many numbers."""
    value = [1] * items
    for _ in range(depth - 2):
        value = [value]
    return json.dumps({"a": value}, separators=(",", ":"))


def test_tools_that_grow_with_their_indents(attack, llama):
    target = attack(llama)
    client = target.client()

    def chat(*tools):
        messages = [client.messages.ChatMessage(role="user", content="hi")]
        return client.messages.Chat(messages=messages, tools=tools)

    def refused(*tools):
        error = client.refusal(model="llama", chat=chat(*tools))
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        return error.details()

    assert client.refusal(model="llama", chat=chat()) is None
    memory, threads = target.memory(), target.threads()
    with target.bystander():
        for _ in range(6):  # three of these once switched chat off for everybody
            assert "writes more than" in refused(tool(60, 120_000))
            assert "allowed are 64" in refused(tool(100, 10))
            assert "bytes of JSON" in refused(tool(60, 60_000), tool(60, 2_000_000 // 2))
    assert client.refusal(model="llama", chat=chat(tool(3, 10))) is None
    assert target.threads() <= threads + 1
    print(f"grew by {(target.memory() - memory) // MIB} MiB")
    target.assert_quiet()
    target.assert_serves()
