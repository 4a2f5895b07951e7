"""The HTTP API through OpenAI's Python client: sync, asyncio, streams, errors, and the same
answers as gRPC."""

import asyncio
import json
import re
import socket
import urllib.request

import pytest

openai = pytest.importorskip("openai")
grpc = pytest.importorskip("grpc")

PROMPT = "def fib(n):"


@pytest.fixture(scope="module")
def http_server(start_server):
    server = start_server(None, "--openai=127.0.0.1:0")
    server.url = f"http://{server.ports['openai']}/v1"
    return server


@pytest.fixture(scope="module")
def client(http_server):
    with openai.OpenAI(base_url=http_server.url, api_key="none", max_retries=0) as client:
        yield client


def complete(client, **fields):
    fields = {"model": "fake", "prompt": PROMPT, "max_tokens": 20, "seed": 7, **fields}
    return client.completions.create(**fields)


def chat(client, content="hello", **fields):
    fields = {"model": "fake", "max_tokens": 20, "seed": 7, **fields}
    return client.chat.completions.create(messages=[{"role": "user", "content": content}], **fields)


@pytest.fixture(scope="module")
def has_template(client):
    """Fake models have a chat template; were it not so, chats would be refused."""
    return client.models.retrieve("fake").tandem["has_chat_template"]


def test_lists_models(client):
    models = client.models.list().data
    assert [model.id for model in models] == ["fake", "slow", "pair"]
    assert {model.object for model in models} == {"model"}
    pair = client.models.retrieve("pair").tandem
    assert {m["method"] for m in pair["methods"]} >= {"METHOD_SPECULATIVE", "METHOD_BILD"}
    assert pair["limits"]["context_length"] > 0
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("org/none")
    assert error.value.code == "model_not_found"
    assert 'known: "fake", "slow", "pair"' in error.value.message


def test_completes(client):
    answer = complete(client, logprobs=2)
    assert answer.object == "text_completion" and answer.model == "fake"
    choice = answer.choices[0]
    assert choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 20
    assert answer.usage.prompt_tokens == len(PROMPT)
    assert answer.usage.total_tokens == 20 + len(PROMPT)
    assert len(choice.logprobs.tokens) == len(choice.logprobs.top_logprobs) == 20
    assert choice.logprobs.text_offset[0] == 0
    assert answer._request_id in answer.id
    assert answer.tandem["method"] == "ngram" and answer.tandem["seed"] == "7"


def test_a_stream_is_the_answer_in_pieces(client):
    for fields in ({}, {"n": 3, "temperature": 1}, {"logprobs": 1}):
        whole = complete(client, **fields)
        texts, reasons, usage, tokens = {}, {}, None, []
        stream = complete(client, stream=True, stream_options={"include_usage": True}, **fields)
        for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                texts[choice.index] = texts.get(choice.index, "") + choice.text
                reasons[choice.index] = choice.finish_reason or reasons.get(choice.index)
                tokens += choice.logprobs.tokens if choice.logprobs else []
        assert texts == {choice.index: choice.text for choice in whole.choices}
        assert reasons == {choice.index: choice.finish_reason for choice in whole.choices}
        assert usage.completion_tokens == whole.usage.completion_tokens
        if "logprobs" in fields:
            assert tokens == whole.choices[0].logprobs.tokens


def test_a_stream_without_text_is_one(client):
    first = complete(client, max_tokens=1).choices[0].text
    stream = complete(client, stream=True, extra_body={"tandem": {"stop_token_ids": [ord(first)]}})
    chunks = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks) == ""
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_chats(client, has_template):
    if not has_template:
        with pytest.raises(openai.BadRequestError) as error:
            chat(client)
        assert error.value.code == "no_chat_template"
        return
    whole = chat(client, logprobs=True, top_logprobs=2)
    message = whole.choices[0].message
    assert message.role == "assistant" and message.content
    token = whole.choices[0].logprobs.content[0]
    assert bytes(token.bytes).decode(errors="replace") == token.token
    assert len(token.top_logprobs) == 2
    text = "".join(
        chunk.choices[0].delta.content or "" for chunk in chat(client, stream=True) if chunk.choices
    )
    assert text == message.content


def test_asyncio_and_many_streams_at_once(http_server):
    """200 streams run at the same time, on few threads; each gets its own text."""

    async def run():
        limits = openai.DefaultAsyncHttpxClient(timeout=120)
        async with openai.AsyncOpenAI(
            base_url=http_server.url, api_key="none", max_retries=0, http_client=limits
        ) as client:
            streams = await asyncio.gather(
                *(
                    client.completions.create(
                        model="slow", prompt=f"{i}", max_tokens=30, seed=i, stream=True
                    )
                    for i in range(200)
                )
            )

            async def text(stream):
                return "".join([chunk.choices[0].text async for chunk in stream])

            texts = await asyncio.gather(*(text(stream) for stream in streams))
            again = await client.completions.create(
                model="slow", prompt="199", max_tokens=30, seed=199
            )
            return texts, again.choices[0].text

    texts, again = asyncio.run(run())
    assert len(texts) == 200 and texts[199] == again
    assert len(set(texts)) > 150


def test_the_same_seed_gives_the_same_text_through_both_apis(client, http_server, tandem):
    for temperature in ("0", "1"):
        done = tandem(
            "generate",
            "--model=pair",
            f"--prompt={PROMPT}",
            "--max-new-tokens=40",
            f"--temperature={temperature}",
            "--seed=11",
            "--format=json",
            address=http_server.grpc,
        )
        assert done.returncode == 0, done.stderr
        by_grpc = json.loads(done.stdout)
        answer = complete(
            client, model="pair", max_tokens=40, temperature=float(temperature), seed=11
        )
        assert answer.choices[0].text == by_grpc["text"]
        assert answer.tandem["method"] == by_grpc["method"].lower()


def test_methods_and_contracts_are_chosen_by_the_extension(client):
    for method in ("autoregressive", "speculative", "bild", "ngram"):
        answer = complete(client, model="pair", extra_body={"tandem": {"method": method}})
        assert answer.tandem["method"] == method
    exact = complete(
        client,
        model="pair",
        extra_body={"tandem": {"contract": "exact", "speculative": {"draft_tokens": 2}}},
    )
    assert exact.tandem == {**exact.tandem, "method": "speculative", "contract": "exact"}
    with pytest.raises(openai.BadRequestError) as error:
        complete(client, extra_body={"tandem": {"method": "speculative"}})
    assert error.value.code == "method_not_offered"


def test_stops_and_bias(client):
    text = complete(client).choices[0].text
    stopped = complete(client, stop=[text[5:8]])
    assert stopped.choices[0].text == text[: text.index(text[5:8])]
    assert stopped.choices[0].finish_reason == "stop"
    biased = complete(client, logit_bias={"65": 100})
    assert biased.choices[0].text == "A" * 20


def test_errors_are_openais_with_our_message(client):
    def refused(kind=openai.BadRequestError, **fields):
        with pytest.raises(kind) as error:
            complete(client, **fields)
        return error.value

    assert refused(temperature=200).message.endswith("temperature: 200; allowed: [0, 100]")
    assert refused(max_tokens=0).param == "max_tokens"
    assert refused(kind=openai.NotFoundError, model="none").code == "model_not_found"
    assert refused(prompt="x" * 20000).code == "context_length_exceeded"
    assert refused(logit_bias={"100000": 1}).param.startswith("logit_bias")
    assert "best_of" in refused(best_of=3, n=4).message
    assert "surprise: unknown field" in refused(extra_body={"surprise": 1}).message
    assert refused(stream=True, temperature=-1).param == "temperature"
    two = refused(temperature=200, top_p=7)
    assert "temperature" in two.message and "top_p" in two.message


def test_tokens_are_asked_for(start_server, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("alice aaaaaaaaaaaaaaaaaaaa\n")
    server = start_server(
        f'models {{ name: "fake" fake {{}} }} server {{ bearer_token_file: "{tokens}" }}',
        "--openai=127.0.0.1:0",
    )
    url = f"http://{server.ports['openai']}/v1"
    for key, status in (("aaaaaaaaaaaaaaaaaaaa", None), ("wrong", 401)):
        with openai.OpenAI(base_url=url, api_key=key, max_retries=0) as client:
            for call in (client.models.list, lambda c=client: complete(c)):
                if status is None:
                    call()
                    continue
                with pytest.raises(openai.AuthenticationError) as error:
                    call()
                assert error.value.code == "invalid_api_key"
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(f"{url}/models")
    assert error.value.code == 401
    assert error.value.headers["WWW-Authenticate"] == "Bearer"
    server.wait_for_log("client=alice")


def test_a_full_server_says_when_to_retry(start_server):
    server = start_server(
        'models { name: "slow" fake { pass_seconds: 0.05 } } limits { max_running: 1 max_waiting: 1 }',
        "--openai=127.0.0.1:0",
    )
    url = f"http://{server.ports['openai']}/v1"

    async def run():
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            return await asyncio.gather(
                *(complete(client, model="slow", max_tokens=10) for _ in range(8)),
                return_exceptions=True,
            )

    refused = [answer for answer in asyncio.run(run()) if isinstance(answer, Exception)]
    assert 0 < len(refused) < 8
    for error in refused:
        assert isinstance(error, openai.RateLimitError)
        assert error.type == "rate_limit_error"
        assert int(error.response.headers["retry-after"]) >= 1
        assert int(error.response.headers["retry-after-ms"]) > 0


def test_an_answer_that_is_no_stream_has_a_bound(start_server):
    server = start_server(
        'models { name: "slow" fake { pass_seconds: 0.01 } } server { max_send_bytes: 65536 }',
        "--openai=127.0.0.1:0",
    )
    url = f"http://{server.ports['openai']}/v1"
    how = {"model": "slow", "max_tokens": 4000, "logprobs": 20}
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        with pytest.raises(openai.BadRequestError) as error:
            complete(client, extra_body={"tandem": {"ignore_eos": True}}, **how)
        assert error.value.code == "answer_too_large"
    assert server.stop() == 0, "the engine was notified: a drain has nothing to wait for"


def test_a_closed_connection_cancels(start_server):
    server = start_server(
        'models { name: "slow" fake { pass_seconds: 0.05 } }', "--openai=127.0.0.1:0"
    )
    url = f"http://{server.ports['openai']}/v1"
    long = {"model": "slow", "max_tokens": 4000}
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        stream = complete(client, **long, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
    server.until(lambda: "openai/completions" in server.log_text(), "the call has ended")
    running = r'^tandem_requests_running{model="slow",.*} %d$'

    def runs(count):
        return re.search(running % count, server.metrics(), re.MULTILINE)

    server.until(lambda: runs(0), "nothing runs")
    # One that is not streamed: the connection goes while the server works.
    host, port = server.ports["openai"].rsplit(":", 1)
    body = json.dumps({**long, "prompt": "x", "ignore_eos": True}).encode()
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        server.until(lambda: runs(1), "the second runs")
    assert server.stop() == 0, "nothing is left that a drain would wait for"
    ended = [line for line in server.log_text().splitlines() if "openai/completions" in line]
    assert len(ended) == 2 and all("status=CANCELLED" in line for line in ended)


def test_a_drain_finishes_streams(start_server):
    server = start_server(
        'models { name: "slow" fake { pass_seconds: 0.02 } }', "--openai=127.0.0.1:0"
    )
    url = f"http://{server.ports['openai']}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        stream = complete(client, model="slow", max_tokens=50, stream=True)
        chunks = iter(stream)
        next(chunks)
        server.process.terminate()
        rest = list(chunks)
        assert rest[-1].choices[0].finish_reason == "length"
    assert server.process.wait(60) == 0


def test_a_body_is_no_larger_than_what_one_client_may_hold(start_server):
    """A client may hold half of 16 MiB, and a body takes a quarter of that. A larger body gets 413: with
    429 the client would try again for ever."""
    server = start_server(
        'models { name: "fake" fake {} } '
        "server { max_receive_bytes: 1073741824 memory_bytes: 33554432 max_transport_bytes: 16777216 }",
        "--openai=127.0.0.1:0",
    )
    most = 2 << 20
    host, port = server.ports["openai"].rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % (most + 1)
        )
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 413 ")
    # All that it may hold is read, and is no JSON.
    body = urllib.request.Request(
        f"http://{server.ports['openai']}/v1/completions",
        b"x" * most,
        {"Content-Type": "application/json"},
    )
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(body)
    assert error.value.code == 400


def test_other_types_and_paths_are_refused(http_server):
    def post(path, content_type, method="POST"):
        request = urllib.request.Request(
            f"{http_server.url}{path}", b"{}", {"Content-Type": content_type}, method=method
        )
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(request)
        assert json.loads(error.value.read())["error"]["message"]
        return error.value.code

    assert post("/completions", "text/plain") == 415
    assert post("/audio/speech", "application/json") == 404
    assert post("/completions", "application/json", "PUT") == 405
    assert post("/completions", "application/json; charset=utf-8") == 400
