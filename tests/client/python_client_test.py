"""The package in client/python: installed as pip installs it, against a server, and against one that
refuses at first.
"""

import asyncio
import json
from concurrent import futures

import pytest

grpc = pytest.importorskip("grpc")


@pytest.fixture
def client(tandem_client, server):
    with tandem_client.Client(server.grpc) as client:
        yield client


def test_streams_and_completes_alike(client, tandem):
    how = {"max_new_tokens": 20, "temperature": 1, "seed": 2**64 - 1, "ignore_eos": True}
    whole = client.complete("pair", "example", return_tokens=True, method="bild", **how)
    assert whole.started.method == "bild" and whole.seed == 2**64 - 1
    assert len(whole.choices[0].tokens) == 20
    assert {token.proposed for token in whole.choices[0].tokens} <= {"large", "small"}
    text = "".join(chunk.text for chunk in client.stream("pair", "example", method="bild", **how))
    assert text == whole.text
    events = list(client.events("pair", "example", contract="exact", **how))
    assert events[0].contract == "exact"
    assert events[-1].finish_reason == "max_tokens" and events[-1].usage.completion_tokens == 20
    by_command = tandem(
        "generate",
        "--model=pair",
        "--prompt=example",
        "--max-new-tokens=20",
        "--temperature=1",
        "--ignore-eos",
        f"--seed={2**64 - 1}",
        "--format=json",
    )
    exact = "".join(event.text for event in events[1:-1])
    assert exact == json.loads(by_command.stdout)["text"]


def test_scores_tokenizes_and_lists(client, tandem_client):
    score = client.score("fake", "a", "bc")
    assert len(score.continuation) == 2 and score.total_logprob < 0
    assert sum(token.logprob for token in score.continuation) == pytest.approx(score.total_logprob)
    assert client.tokenize("fake", "hi") == [104, 105]
    assert client.detokenize("fake", [104, 105]) == "hi"
    assert client.models() == ["fake", "slow", "pair"]
    bytes_of = client.complete("fake", "x", max_new_tokens=1, logprobs=True, top_logprobs=2)
    token = bytes_of.choices[0].tokens[0]
    assert token.bytes.decode(errors="replace") == token.text and len(token.top_logprobs) == 2
    with pytest.raises(tandem_client.TandemError):
        client.complete("fake", messages=[{"role": "robot", "content": ""}], n=50)


def test_tool_calls_and_reasoning(tandem_client, start_server):
    call = '<tool_call>{"name": "now", "arguments": {"zone": "CET"}}</tool_call>'
    server = start_server(
        f"models {{ name: 'script' fake {{ answers: {json.dumps('<think>Hm.</think>Look.' + call)} }} }}"
        " deployments { name: 'script' large: 'script' reasoning_format: REASONING_FORMAT_THINK }"
    )
    chat = {
        "messages": [{"role": "user", "content": "?"}],
        "tools": ['{"type": "function", "function": {"name": "now"}}'],
    }
    with tandem_client.Client(server.grpc) as client:
        whole = client.complete("script", **chat).choices[0]
        assert (whole.reasoning, whole.text) == ("Hm.", "Look.")
        (made,) = whole.tool_calls
        assert (made.index, made.name, json.loads(made.arguments)) == (0, "now", {"zone": "CET"})
        assert whole.finished.tool_calls == 1 and len(made.id) == 9
        assert whole.finished.usage.reasoning_tokens == len("<think>Hm.</think>")
        events = list(client.events("script", **chat))
        assert "".join(event.reasoning for event in events[1:-1]) == "Hm."
        parts = [part for event in events[1:-1] for part in event.tool_calls]
        assert json.loads("".join(part.arguments for part in parts)) == {"zone": "CET"}
        raw = client.complete("script", raw_text=True, **chat)
        assert raw.text == "<think>Hm.</think>Look." + call
        none = client.complete("script", tool_choice="TOOL_CHOICE_NONE", **chat)
        assert none.text == "Look." + call


def test_errors_say_which_fields(client, tandem_client):
    with pytest.raises(tandem_client.TandemError) as error:
        client.complete("fake", "x", temperature=200, top_p=7, request_id="mine")
    assert error.value.status == "INVALID_ARGUMENT" and error.value.reason == "INVALID_FIELD"
    assert set(error.value.fields) == {"temperature", "top_p"}
    with pytest.raises(tandem_client.TandemError) as error:
        client.complete("none", "x")
    assert (error.value.status, error.value.reason) == ("NOT_FOUND", "MODEL_NOT_FOUND")
    for wrong, hint in (
        ({"max_tokens": 3}, "max_new_tokens"),
        ({"temprature": 1}, "temperature"),
        ({"method": "bold"}, "bild"),
    ):
        with pytest.raises(TypeError, match=hint):
            client.complete("fake", "x", **wrong)
    with pytest.raises(TypeError):
        client.complete("fake")


def test_asyncio(tandem_client, server):
    async def run():
        async with tandem_client.AsyncClient(server.grpc) as client:

            async def text(i):
                how = {"max_new_tokens": 10, "seed": i, "temperature": 1}
                pieces = [chunk.text async for chunk in client.stream("fake", f"{i}", **how)]
                whole = await client.complete("fake", f"{i}", **how)
                return "".join(pieces), whole.text

            texts = await asyncio.gather(*(text(i) for i in range(20)))
            assert await client.models() == ["fake", "slow", "pair"]
            assert (await client.score("fake", "a", "b")).total_logprob < 0
            with pytest.raises(tandem_client.TandemError):
                await client.complete("none", "x")
            return texts

    assert all(streamed == whole for streamed, whole in asyncio.run(run()))


class Refusing(grpc.GenericRpcHandler):
    """Refuses the first two tries with `code`; then answers one chunk, and fails after it if `late`."""

    def __init__(self, package, code, late=False):
        self.messages, self.code, self.late, self.tries = package.messages, code, late, 0

    def _details(self):
        m = self.messages
        retry = m.RetryInfo()
        retry.retry_delay.nanos = 1_000_000
        status = m.RpcStatus(code=8, message="full")
        status.details.add(
            type_url="type.googleapis.com/google.rpc.RetryInfo", value=retry.SerializeToString()
        )
        return (("grpc-status-details-bin", status.SerializeToString()),)

    def _generate(self, request, context):
        self.tries += 1
        if self.tries <= 2 and not self.late:
            if self.code == grpc.StatusCode.RESOURCE_EXHAUSTED:
                context.set_trailing_metadata(self._details())
            context.abort(self.code, "full")
        response = self.messages.GenerateResponse()
        response.started.request_id = "r"
        yield response
        response = self.messages.GenerateResponse()
        response.chunk.text = "hi"
        yield response
        if self.late:
            context.set_trailing_metadata(self._details())
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "slow reader")

    def service(self, call):
        return grpc.unary_stream_rpc_method_handler(
            self._generate,
            request_deserializer=self.messages.GenerateRequest.FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )


@pytest.fixture
def refusing(tandem_client):
    import tandem_client.messages

    servers = []

    def start(code, late=False):
        handler = Refusing(tandem_client, code, late)
        server = grpc.server(futures.ThreadPoolExecutor(2), handlers=[handler])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        servers.append(server)
        return handler, f"127.0.0.1:{port}"

    yield start
    for server in servers:
        server.stop(None).wait()


QUICK = {"first": 0.001}


def test_a_full_server_is_tried_again_when_it_says(tandem_client, refusing):
    for code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE):
        handler, address = refusing(code)
        with tandem_client.Client(address, retry=tandem_client.Retry(**QUICK)) as client:
            assert [chunk.text for chunk in client.stream("m", "x")] == ["hi"]
        assert handler.tries == 3

        handler, address = refusing(code)

        async def run(address):
            retry = tandem_client.Retry(**QUICK)
            async with tandem_client.AsyncClient(address, retry=retry) as client:
                return [chunk.text async for chunk in client.stream("m", "x")]

        assert asyncio.run(run(address)) == ["hi"]
        assert handler.tries == 3


def test_other_errors_and_the_last_try_are_final(tandem_client, refusing):
    for code, attempts, tries in (
        (grpc.StatusCode.INVALID_ARGUMENT, 4, 1),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 2, 2),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 1, 1),
    ):
        handler, address = refusing(code)
        retry = tandem_client.Retry(attempts=attempts, **QUICK)
        with (
            tandem_client.Client(address, retry=retry) as client,
            pytest.raises(tandem_client.TandemError),
        ):
            list(client.stream("m", "x"))
        assert handler.tries == tries


def test_nothing_is_tried_again_once_a_token_has_come(tandem_client, refusing):
    handler, address = refusing(grpc.StatusCode.RESOURCE_EXHAUSTED, late=True)
    with tandem_client.Client(address, retry=tandem_client.Retry(**QUICK)) as client:
        stream = client.stream("m", "x")
        assert next(stream).text == "hi"
        with pytest.raises(tandem_client.TandemError) as error:
            next(stream)
    assert error.value.retry_after == pytest.approx(0.001)
    assert handler.tries == 1
