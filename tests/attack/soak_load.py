"""Clients of the soak test: threads that draw their next action from a seed.

Half of the connections go through a wire with faults. There a call may end in any way, and what comes
may be corrupt; on a direct connection a call ends as it asked to, and with the answer that is known.
"""

import contextlib
import itertools
import random
import socket
import threading
import time
import urllib.request

import grpc

from tests.attack.harness import Client
from tests.attack.mutations import Mutations

TEXTS = ("def f(x):", "import os\n", "class A:\n    def __init__(self", "x" * 700, "ä漢🙂" * 40)
METHODS = {  # of each model
    "fake": ("auto", "autoregressive", "ngram"),
    "pair": ("auto", "autoregressive", "speculative", "bild", "ngram"),
    "code": ("auto", "speculative", "bita"),
}
# On a direct connection what is not answered is full, late, or was cancelled.
ENDS = (
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
)
KNOWN = 48  # requests whose answers are known
CALLS_OF_A_CONNECTION = 40
PATIENCE = 20  # seconds; what a corrupt connection owes may never come


class Load:
    """`rate`: what is begun in a second, by all clients together."""

    def __init__(self, target, wire, rate, clients=12, seed=1):
        self.target, self.wire = target, wire
        self.pause = clients / rate
        self.mutations = Mutations(target.api.messages, ["fake", "fake", "pair"], seed)
        self.case = itertools.count()
        self.lock = threading.Lock()
        self.done, self.wrong = {}, []
        self.go, self.stop = threading.Event(), threading.Event()
        self.resting = threading.Semaphore(0)
        self.known = self._known_answers()
        self.threads = [
            threading.Thread(target=self._run, args=(random.Random(seed * 1000 + i), i))
            for i in range(clients)
        ]
        for thread in self.threads:
            thread.start()

    def rest(self):
        """Returns when nothing is under way and no client has a connection. Until resume()."""
        self.go.clear()
        for _ in self.threads:
            assert self.resting.acquire(timeout=120), "a client never came to its rest"
        self.wire.cut_all()

    def resume(self):
        self.go.set()

    def close(self):
        self.stop.set()
        self.go.set()
        for thread in self.threads:
            thread.join()

    # --- A client

    def _run(self, rng, number):
        while not self.stop.is_set():
            self.resting.release()
            self.go.wait()
            while self.go.is_set() and not self.stop.is_set():
                faulty = rng.random() < 0.5
                address = self.wire.address if faulty else self.target.server.grpc
                client = Client(address, self.target.api)
                client.faulty = faulty
                try:
                    for _ in range(rng.randint(1, CALLS_OF_A_CONNECTION)):
                        if not self.go.is_set() or self.stop.is_set():
                            break
                        self._act(rng, client)
                        time.sleep(rng.expovariate(1 / self.pause))
                finally:
                    client.close()

    def _act(self, rng, client):
        kinds = (
            "known",
            "stream",
            "cancel",
            "late",
            "slow",
            "vanish",
            "texts",
            "score",
            "mutation",
        )
        kind = rng.choices((*kinds, "garbage", "probe"), (6, 6, 4, 2, 1, 1, 2, 2, 2, 1, 1))[0]
        end = "OK"
        try:
            getattr(self, "_" + kind)(rng, client)
        except grpc.RpcError as error:
            end = error.code().name
            if kind != "mutation" and error.code() not in ENDS:
                self._complain(client, kind, error.code(), error.details())
        except Exception as error:  # whatever it is, the soak has to know
            self._complain(client, kind, type(error).__name__, error)
        with self.lock:
            self.done[kind, end] = self.done.get((kind, end), 0) + 1

    def _complain(self, client, *what):
        if client.faulty:
            return
        with self.lock:
            self.wrong.append(": ".join(map(str, what)))

    # --- What it does

    def _request(self, rng, client):
        model = rng.choices(("fake", "pair", "code"), (5, 5, 1))[0]
        request = client.request(
            model=model,
            text=rng.choice(TEXTS) + " " * rng.randrange(40),
            max_new_tokens=rng.randint(1, 12 if model == "code" else 60),
            seed=rng.randrange(100),
            n=rng.choice((1, 1, 1, 3)),
            temperature=rng.choice((0.0, 0.9)),
        )
        getattr(request, rng.choice(METHODS[model])).SetInParent()
        if rng.random() < 0.3:
            request.logprobs = True
            request.stop_sequences.append("zz")
        return request

    def _known_answers(self):
        rng, known = random.Random(7), []
        client = self.target.client()
        for _ in range(KNOWN):
            request = self._request(rng, client)
            known.append((request, [c.text for c in client.complete(request).choices]))
        client.close()
        return known

    def _known(self, rng, client):
        request, answer = rng.choice(self.known)
        texts = [""] * len(answer)
        for event in client.generate(request, timeout=PATIENCE):
            if event.HasField("chunk"):
                texts[event.chunk.index] += event.chunk.text
        if texts != answer:
            self._complain(client, "an answer changed", request, texts, answer)

    def _stream(self, rng, client, timeout=PATIENCE):
        """Every choice ends once, with as many tokens as it says."""
        request = self._request(rng, client)
        request.return_tokens = True
        tokens, ends = [0] * request.n, [None] * request.n
        for event in client.generate(request, timeout=timeout):
            if event.HasField("chunk"):
                tokens[event.chunk.index] += len(event.chunk.tokens)
            elif event.HasField("finished"):
                ends[event.finished.index] = event.finished.usage.completion_tokens
        if tokens != ends:
            self._complain(client, "tokens are missing", request, tokens, ends)

    def _cancel(self, rng, client):
        call = client.generate(self._request(rng, client), timeout=PATIENCE)
        for _ in itertools.islice(call, rng.randrange(4)):
            pass
        call.cancel()

    def _late(self, rng, client):
        self._stream(rng, client, timeout=rng.uniform(0.001, 0.1))

    def _slow(self, rng, client):
        for _ in client.generate(self._request(rng, client), timeout=PATIENCE):
            time.sleep(rng.uniform(0, 0.05))

    def _vanish(self, rng, client):
        """The connection goes in the middle of streams."""
        other = Client(self.wire.address, self.target.api)
        calls = [other.generate(self._request(rng, other)) for _ in range(4)]
        with contextlib.suppress(grpc.RpcError):
            next(calls[0])
        other.close()

    def _texts(self, rng, client):
        m = client.messages
        text = rng.choice(TEXTS)
        ids = client.stub.Tokenize(
            m.TokenizeRequest(model="code", text=text), timeout=PATIENCE
        ).token_ids
        back = client.stub.Detokenize(
            m.DetokenizeRequest(model="code", token_ids=ids), timeout=PATIENCE
        )
        if back.text != text:
            self._complain(client, "a text changed", text, back.text)

    def _score(self, rng, client):
        request = client.messages.ScoreRequest(
            model=rng.choice(("fake", "pair")), text="x" * 50, continuation_text="so it is"
        )
        client.stub.Score(request, timeout=PATIENCE)

    def _mutation(self, rng, client):
        with self.lock:
            path, data = self.mutations.case(next(self.case))
        for _ in client.channel.unary_stream(path)(data, timeout=1):
            pass

    def _garbage(self, rng, client):
        ports = self.target.server
        host, port = rng.choice((ports.grpc, ports.http)).rsplit(":", 1)
        with (
            contextlib.suppress(OSError),
            socket.create_connection((host, int(port)), 10) as connection,
        ):
            connection.sendall(rng.choice((b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET /", b"")))
            connection.sendall(rng.randbytes(rng.randrange(5000)))

    def _probe(self, rng, client):
        for path in ("/healthz", "/readyz", "/metrics"):
            with urllib.request.urlopen(
                f"http://{self.target.server.http}{path}", timeout=30
            ) as page:
                page.read()
