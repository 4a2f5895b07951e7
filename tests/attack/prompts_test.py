"""Prompts: what is refused costs the server next to nothing, and others nothing at all."""

import random
import string

import grpc

MIB = 1 << 20
LONG = "lorem ipsum " * (4_000_000 // 12)  # about as much as one message may hold
# Its context admits such a prompt by its bytes. By its tokens, which are counted later, it is too long.
WIDE = 'models { name: "wide" fake { max_positions: 262144 } }\n'


def test_long_prompts_are_refused_by_their_size(attack):
    target = attack()
    with target.bystander():
        clients = [target.client() for _ in range(4)]
        calls = [client.generate(text=LONG) for client in clients for _ in range(2)]
        for call in calls:
            assert call.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert f"text: {len(LONG)} bytes; allowed: at most 65536 bytes" in call.details()
            assert clients[0].details(call)[0] == "CONTEXT_LENGTH_EXCEEDED"
    assert target.metric("tandem_requests_failed_total", status="INVALID_ARGUMENT") == 8
    target.assert_quiet()
    target.assert_serves()


def test_what_waits_stays_within_its_memory(attack):
    target = attack(WIDE + "limits { max_waiting_bytes: 33554432 }")
    before = target.memory()
    with target.bystander(allowed=320):
        calls = [target.client().generate(model="wide", text=LONG) for _ in range(4) for _ in "ab"]
        more = [target.client().generate(model="wide", text=LONG) for _ in range(40)]
        for call in more:  # of one client: that address may have half of the memory
            call.cancel()
        for _ in range(40):  # where those have been tokenized meanwhile, others wait
            refused = target.client().refusal(model="wide", text=LONG)
            if refused.code() != grpc.StatusCode.INVALID_ARGUMENT:
                break
            calls = [call for call in calls if not call.done()]
            calls += [target.client().generate(model="wide", text=LONG) for _ in range(8)]
        assert refused.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        reason, wait = target.client().details(refused)
        assert reason == "CLIENT_QUEUE_FULL"
        assert wait > 0
        assert target.metric("tandem_waiting_bytes") <= 16 * MIB
        for call in calls:
            call.cancel()
    target.assert_quiet()
    target.until(lambda: target.metric("tandem_waiting_bytes") == 0, "no memory of what waited")
    print(f"grew by {(target.memory() - before) // MIB} MiB")
    target.assert_serves()


def test_stop_strings_of_many_choices(attack):
    target = attack("limits { max_running: 16 max_waiting: 1000 }")
    letters = random.Random(1)
    client = target.client()

    def stops(count, size):
        return ["".join(letters.choices(string.ascii_letters, k=size)) for _ in range(count)]

    error = client.refusal(stop_sequences=stops(64, 1024), n=16)
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "stop_sequences: 65536 bytes in all of them; allowed: at most 4096" in error.details()
    before = target.memory()
    with target.bystander(allowed=200):
        calls = [
            client.generate(model="slow", n=16, max_new_tokens=20, stop_sequences=stops(64, 64))
            for _ in range(200)
        ]
        target.until(
            lambda: target.metric("tandem_requests_tokenizing") == 0, "all of them are in the queue"
        )
        grown = target.memory() - before
        print(f"grew by {grown // MIB} MiB")
        assert grown < 200 * MIB
        for call in calls:
            call.cancel()
    target.assert_quiet()
    target.assert_serves()
