"""gRPC's own retries wait as the server asks: the documented retryPolicy and the trailer
`grpc-retry-pushback-ms`, without code of the client."""

import json
import re

import pytest

from tests.conftest import FAKE_CONFIG, ROOT

grpc = pytest.importorskip("grpc")


@pytest.fixture(scope="module")
def limited(start_server):
    return start_server(FAKE_CONFIG + "limits { default_client { max_requests: 1 } }")


def service_config():
    """The service config of docs/grpc_api.md."""
    page = (ROOT / "docs/grpc_api.md").read_text("utf-8")
    return json.loads(re.search(r"```json\n(\{\"loadBalancingConfig.*?)```", page, re.S).group(1))


def complete(m, channel, model, tokens):
    method = channel.unary_unary(
        "/tandem.v1.Generation/Complete",
        m.GenerateRequest.SerializeToString,
        m.CompleteResponse.FromString,
    )
    request = m.GenerateRequest(model=model, text="x", max_new_tokens=tokens, ignore_eos=True)
    return method(request, timeout=60)


def hold(m, channel):
    """A running request of 0.5 s, the only one that the client may have."""
    method = channel.unary_stream(
        "/tandem.v1.Generation/Generate",
        m.GenerateRequest.SerializeToString,
        m.GenerateResponse.FromString,
    )
    request = m.GenerateRequest(model="slow", text="x", max_new_tokens=100, ignore_eos=True)
    request.autoregressive.SetInParent()
    stream = method(request)
    next(stream)
    return stream


def test_the_trailer_is_the_delay_of_retry_info(limited, tandem_client):
    m = tandem_client.messages
    options = [("grpc.enable_retries", 0)]
    with grpc.insecure_channel(limited.grpc, options) as channel:
        stream = hold(m, channel)
        with pytest.raises(grpc.RpcError) as error:
            complete(m, channel, "fake", 1)
        assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        trailers = dict(error.value.trailing_metadata())
        assert int(trailers["grpc-retry-pushback-ms"]) > 0
        stream.cancel()
        with pytest.raises(grpc.RpcError) as error:
            complete(m, channel, "none", 1)
        assert "grpc-retry-pushback-ms" not in dict(error.value.trailing_metadata())


def test_the_documented_policy_retries(limited, tandem_client):
    m = tandem_client.messages
    options = [("grpc.service_config", json.dumps(service_config()))]
    with grpc.insecure_channel(limited.grpc, options) as channel:
        stream = hold(m, channel)
        assert complete(m, channel, "fake", 3).choices[0].finished.usage.completion_tokens == 3
        assert len(list(stream)) > 0, "the stream ran while the other call waited"
