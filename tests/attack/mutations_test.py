"""Requests with bytes and fields that make no sense: each has an answer, none is INTERNAL.

TANDEM_MUTATIONS=10000 sends more of them, TANDEM_MUTATION=n one of them.
"""

import collections
import concurrent.futures
import os

import grpc

from tests.attack.harness import record
from tests.attack.mutations import Mutations

# What a client's bytes may lead to. Not INTERNAL, UNKNOWN, UNAVAILABLE, ...
FINE = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.DEADLINE_EXCEEDED,  # what was asked for may take longer than this waits
}
# Methods, chats and an early exit; the model with weights takes every tenth request.
PAIR = """
models { name: "little" fake { seed: 2 } }
deployments { name: "fake" large: "fake" }
deployments { name: "slow" large: "slow" small: "fake" }
deployments { name: "pair" large: "fake" small: "little" bild { early_exit_layer: 2 } }
"""


def test_mutations_and_extremes(attack, llama):
    models, deployment = llama
    target = attack(models + PAIR + deployment)
    mutations = Mutations(target.api.messages, ["fake"] * 4 + ["pair"] * 5 + ["llama"])
    channels = [target.client().channel for _ in range(4)]

    def send(number):
        path, data = mutations.case(number)
        try:
            for _ in channels[number % 4].unary_stream(path)(data, timeout=4):
                pass
        except grpc.RpcError as error:
            return number, error.code(), error.details()
        return number, grpc.StatusCode.OK, ""

    chosen = os.environ.get("TANDEM_MUTATION")
    count = int(os.environ.get("TANDEM_MUTATIONS", 1000))
    numbers = [int(chosen)] if chosen else range(count)
    codes, wrong = collections.Counter(), []
    # glibc keeps freed memory: 12,000 requests leave 20 MiB in use, and 150 MiB more resident. Trimming returns half of these.
    allowed = 96 if count <= 1000 else 320
    with target.bystander(allowed=allowed), concurrent.futures.ThreadPoolExecutor(4) as pool:
        for number, code, details in pool.map(send, numbers):
            codes[code.name] += 1
            if code not in FINE:
                wrong.append((number, code.name, details))
    record(codes=codes)
    print(dict(codes))
    assert not wrong, wrong[:5]
    assert target.metric("tandem_requests_failed_total", status="INTERNAL") == 0
    target.assert_quiet()
    target.assert_serves()
