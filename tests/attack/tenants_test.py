"""Clients of one server: none learns what another sent, takes his turn, or uses up what is his."""

import grpc
import pytest

TOKENS = {"ann": "ann-0123456789abcdef", "bob": "bob-0123456789abcdef"}


@pytest.fixture
def tenants(attack, tmp_path):
    """tenants(config): a Target whose clients are ann and bob."""
    (tmp_path / "tokens").write_text("".join(f"{n} {t}\n" for n, t in TOKENS.items()))

    def start(config=""):
        return attack(f'server {{ bearer_token_file: "{tmp_path}/tokens" }}\n' + config)

    return start


def clients_of(target):
    return (target.client(TOKENS[name]) for name in ("ann", "bob"))


def cached(client, text):
    return client.complete(text=text).choices[0].finished.usage.cached_tokens


def test_the_prefix_cache_reveals_nothing_about_others(tenants):
    target = tenants()
    ann, bob = clients_of(target)
    secret = "the secret is 4711 and no other client may know it, or a part of it"
    assert cached(ann, secret) == 0
    assert cached(bob, secret) == 0
    assert cached(ann, secret) > 0
    target.assert_serves(TOKENS["ann"])


def test_priority_is_a_right(tenants):
    target = tenants('limits { clients { key: "ann" value { max_priority: 5 } } }')
    ann, bob = clients_of(target)
    assert ann.refusal(priority=5) is None
    assert bob.refusal(priority=-100) is None
    error = bob.refusal(priority=1)
    assert error.code() == grpc.StatusCode.PERMISSION_DENIED
    assert bob.details(error) == ("PRIORITY_NOT_ALLOWED", None)
    assert 'priority: 1; allowed: at most 0 for client "bob"' in error.details()
    assert target.metric("tandem_requests_rejected_total", reason="priority") == 1
    target.assert_serves(TOKENS["bob"])


def test_quotas_are_a_clients_own(tenants):
    target = tenants("""limits {
      clients { key: "ann" value { max_requests: 2 tokens_per_minute: 50 } }
      clients { key: "bob" value { requests_per_minute: 3 } }
    }""")
    ann, bob = clients_of(target)

    def refused(client, metric):
        error = client.refusal()
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        reason, wait = client.details(error)
        assert reason == "QUOTA_EXCEEDED"
        assert wait > 0
        assert target.metric("tandem_requests_rejected_total", reason=metric) == 1

    open_ones = [ann.generate(model="slow", max_new_tokens=4000) for _ in range(2)]
    for call in open_ones:
        next(iter(call))
    refused(ann, "quota_open_requests")
    for call in open_ones:
        call.cancel()
    target.assert_quiet()
    assert ann.refusal(text="x" * 60) is None
    refused(ann, "quota_tokens")

    for _ in range(3):
        assert bob.refusal() is None
    refused(bob, "quota_requests")
    assert target.http("/healthz")[0] == 200
