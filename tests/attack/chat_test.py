"""Chats whose templates could make much of little: each fails alone, and leaves nothing behind."""

import json

import grpc

MIB = 1 << 20
GRPC_THREADS = 6  # it starts some as it sees fit; a render that left its own would leave more


def tool(depth, items):
    """A JSON object: lists in one another, the innermost of so many numbers."""
    value = [1] * items
    for _ in range(depth - 2):
        value = [value]
    return json.dumps({"a": value}, separators=(",", ":"))


def test_tools_that_grow_with_their_indents(attack, llama):
    target = attack(llama[0])
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
            assert "allowed: at most 64" in refused(tool(100, 10))
            assert "bytes of JSON" in refused(tool(60, 60_000), tool(60, 2_000_000 // 2))
    assert client.refusal(model="llama", chat=chat(tool(3, 10))) is None
    assert target.threads() <= threads + GRPC_THREADS
    print(f"grew by {(target.memory() - memory) // MIB} MiB")
    target.assert_quiet()
    target.assert_serves()


def test_a_template_of_operators(attack, llama, tmp_path):
    """A template that joins a text to itself, where a chat has two messages: each such render ends
    with its request, and others of the same model are served."""
    (tmp_path / "chat_template.jinja").write_text(
        "{% if messages | length > 1 %}{% set ns = namespace(s=messages[0].content) %}"
        "{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{% endif %}ok"
    )
    target = attack(llama[0])
    client = target.client()

    def chat(count):
        message = client.messages.ChatMessage(role="user", content="hi")
        return client.messages.Chat(messages=[message] * count)

    error = client.refusal(model="llama", chat=chat(2))  # renders once before memory is measured
    memory, threads = target.memory(), target.threads()
    with target.bystander():
        for _ in range(8):
            error = client.refusal(model="llama", chat=chat(2))
            assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert "MiB of memory" in error.details()
            assert client.refusal(model="llama", chat=chat(1)) is None
    assert target.threads() <= threads + GRPC_THREADS
    assert target.memory() < memory + (64 << 20)
    target.assert_quiet()
    target.assert_serves()


def test_chats_of_much_json(attack, llama):
    """Calls are looked at on one thread, one after the other: it has to be quick about each."""
    target = attack(llama[0])
    clients = [target.client() for _ in range(4)]
    messages = [clients[0].messages.ChatMessage(role="user", content="hi")]
    tools = ['{"a": [' + "1," * 2_000_000 + "1]}"]
    with target.bystander(allowed=160):
        calls = [
            client.generate(
                model="llama", chat=client.messages.Chat(messages=messages, tools=tools)
            )
            for client in clients
            for _ in range(5)
        ]
        for call in calls:
            assert call.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert "bytes of JSON" in call.details()
    target.assert_quiet()
    target.assert_serves()
