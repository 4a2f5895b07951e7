"""POST /v1/embeddings and /v1/rerank on fake models: forms of input, usage, refusals, quotas, cancellation."""

import base64
import json
import re
import socket
import struct

import pytest

from tests.server.http.endpoints_test import call

TEXT = "def fib(n):"
IDS = [ord(c) for c in TEXT]
WIDTH = 8  # of fake models
PATH = "/v1/embeddings"


@pytest.fixture(scope="module")
def api(start_server):
    config = 'models { name: "fake" fake { max_positions: 512 } }'
    return start_server(config, "--openai=127.0.0.1:0")


def embed(api, value, **fields):
    status, _, answer = call(api, PATH, {"model": "fake", "input": value, **fields})
    assert status == 200, answer
    return answer


def vectors(answer):
    return [item["embedding"] for item in answer["data"]]


def test_forms_of_input_give_equal_embeddings(api):
    (want,) = vectors(embed(api, TEXT))
    assert len(want) == WIDTH and sum(x * x for x in want) == pytest.approx(1, abs=1e-6)
    assert vectors(embed(api, IDS)) == [want]
    for value in ([TEXT, "x"], [IDS, [ord("x")]], [TEXT, [ord("x")]]):
        answer = embed(api, value)
        assert vectors(answer)[0] == want
        assert [item["index"] for item in answer["data"]] == [0, 1]
        assert answer["usage"] == {
            "prompt_tokens": len(TEXT) + 1,
            "total_tokens": len(TEXT) + 1,
        }
    many = embed(api, ["x"] * 100)
    assert [item["index"] for item in many["data"]] == list(range(100))
    assert (many["object"], many["model"]) == ("list", "fake")


def test_dimensions_and_formats(api):
    (whole,) = vectors(embed(api, TEXT))
    (raw,) = vectors(embed(api, TEXT, encoding_format="base64"))
    assert list(struct.unpack(f"<{WIDTH}f", base64.b64decode(raw))) == pytest.approx(
        whole, abs=1e-7
    )
    (short,) = vectors(embed(api, TEXT, dimensions=3))
    norm = sum(x * x for x in whole[:3]) ** 0.5
    assert short == pytest.approx([x / norm for x in whole[:3]], abs=1e-6)
    (plain,) = vectors(embed(api, TEXT, normalize=False))
    assert plain[0] / plain[1] == pytest.approx(whole[0] / whole[1], rel=1e-4)
    (prefixed,) = vectors(embed(api, TEXT[3:], prefix=TEXT[:3]))
    assert prefixed == whole


def test_names_of_other_servers_for_what_is_the_default(api):
    want = vectors(embed(api, TEXT))
    for fields in (
        {"embd_normalize": 2},
        {"embed_dtype": "float32", "endianness": "little"},
        {"encoding_format": "float", "user": "u"},
    ):
        assert vectors(embed(api, TEXT, **fields)) == want


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"input": ""}, "input[0]", "empty; allowed: a text or token ids"),
        ({"input": ["x", ""]}, "input[1]", "empty"),
        ({"input": ["x", []]}, "input[1]", "empty"),
        ({"input": []}, "input", "0 inputs; allowed: 1 to 2048"),
        ({"input": ["x"] * 2049}, "input", "2049 inputs; allowed: 1 to 2048"),
        ({}, "input", "a string, a list of token ids, or a list of these"),
        ({"input": {"text": "x"}}, "input", "a list of these"),
        ({"input": ["x", "y" * 513]}, "input", "input[1]: input: 513 tokens; allowed: at most 512"),
        ({"input": ["x", [10**6]]}, "token_ids[0]", "input[1]: token_ids[0]: 1000000"),
        ({"input": "x", "dimensions": WIDTH + 1}, "dimensions", "dimensions: 9; allowed: 1 to 8"),
        ({"input": "x", "dimensions": 0}, "dimensions", "dimensions: 0"),
        ({"input": "x", "encoding_format": "hex"}, "encoding_format", "allowed: float, base64"),
        ({"input": "x", "prompt_name": "query"}, "prompt_name", 'prompt_name: "query"'),
        ({"input": "x", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens", "truncate"),
        ({"input": "x", "embd_normalize": -1}, "embd_normalize", "embd_normalize: -1; allowed: 2"),
        ({"input": "x", "embed_dtype": "float16"}, "embed_dtype", "embed_dtype"),
        ({"input": "x", "messages": [{"role": "user"}]}, "messages", "messages: an array"),
    ],
)
def test_refusals_name_the_field_and_the_limit(api, fields, param, message):
    status, _, answer = call(api, PATH, {"model": "fake", **fields})
    assert status == 400, answer
    error = answer["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"].startswith(param) and message in error["message"], error


def test_a_model_that_is_unknown(api):
    for path, fields in (
        (PATH, {"input": "x"}),
        ("/v1/rerank", {"query": "q", "documents": ["d"]}),
    ):
        status, _, answer = call(api, path, {"model": "none", **fields})
        assert (status, answer["error"]["code"]) == (404, "model_not_found")


def test_reranking_needs_a_reranker(api):
    status, _, answer = call(api, "/v1/rerank", {"model": "fake", "query": "q", "documents": ["d"]})
    assert status == 400 and "allowed: a reranker" in answer["error"]["message"]


def test_a_call_of_many_inputs_is_one_request_for_quotas(start_server):
    server = start_server(
        'models { name: "fake" fake {} } limits { default_client { requests_per_minute: 1 } }',
        "--openai=127.0.0.1:0",
    )
    assert len(embed(server, ["x"] * 50)["data"]) == 50
    for path, fields in (
        (PATH, {"input": "x"}),
        ("/v1/rerank", {"query": "q", "documents": ["d"]}),
    ):
        status, headers, answer = call(server, path, {"model": "fake", **fields})
        assert (status, answer["error"]["code"]) == (429, "quota_exceeded")
        assert int(headers["retry-after"]) >= 1
    assert re.search(
        r'^tandem_client_tokens_total\{client=""\} 50$', server.metrics(), re.MULTILINE
    )


def test_a_closed_connection_frees_the_pages(start_server):
    server = start_server(
        'models { name: "slow" fake { pass_seconds: 0.05 } } limits { prefill_chunk_rows: 1 }',
        "--openai=127.0.0.1:0",
    )
    used = re.compile(r"^tandem_kv_cache_pages\{[^}]*state=\"used\"[^}]*\} (\d+)$", re.MULTILINE)

    def pages():
        return sum(map(int, used.findall(server.metrics())))

    assert used.search(server.metrics()) and pages() == 0
    host, port = server.ports["openai"].rsplit(":", 1)
    body = json.dumps({"model": "slow", "input": ["x" * 200] * 40}).encode()
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        server.until(lambda: pages() > 0, "the inputs have pages")
    server.until(lambda: pages() == 0, "the pages are free")
    server.until(lambda: "openai/embeddings" in server.log_text(), "the call has ended")
    assert server.stop() == 0, "nothing is left that a drain would wait for"
    (ended,) = [line for line in server.log_text().splitlines() if "openai/embeddings" in line]
    assert "status=CANCELLED" in ended
