"""Three servers behind Envoy with kills, drains, partitions, slow links and TLS: every call ends once,
with the text that it must have, and fails only while there is a fault.
"""

import contextlib
import http.client
import itertools
import json
import os
import random
import signal
import ssl
import threading
import time

import grpc
import pytest

from tests.attack.harness import Client
from tests.deploy.envoy_test import here
from tests.deploy.history import Call, History, Window, check
from tests.deploy.link import Links
from tests.deploy.proxy import start_envoy

yaml = pytest.importorskip("yaml")

TOKENS = {"ann": "ann-0123456789abcdef", "bob": "bob-0123456789abcdef"}
MODELS = """
models { name: "large" fake { pass_seconds: 0.002 } }
models { name: "small" fake { seed: 2 } }
deployments { name: "pair" large: "large" small: "small" }
"""
TOKENS_PER_ANSWER = 24
CLIENTS = 6
SEED = int(os.environ.get("TANDEM_HISTORY_SEED", "1"))
# A short run has each fault once.
FAULTS = 100 if os.environ.get("TANDEM_NIGHT") else 0
CALLS_PER_STEP = 20
SERVERS = 3


class Replica:
    """A server and the links to its ports. The links keep their addresses when the server is replaced."""

    def __init__(self, links, start):
        self.start = start
        self.server = start()
        self.links = {name: links.open(self.server.ports[name]) for name in self.server.ports}

    @property
    def ports(self):
        return {name: link.address for name, link in self.links.items()}

    @property
    def http(self):
        return self.ports["http"]

    def each(self, action):
        for link in self.links.values():
            getattr(link, action)()

    def replace(self, number):
        """Ends the server with a signal and starts another."""
        self.server.stop(number)
        self.server = self.start()
        for name, link in self.links.items():
            link.target = self.server.ports[name]


class Traffic:
    """Clients in a closed loop. Each call has a prompt of its own."""

    def __init__(self, proxy, api):
        self.proxy, self.api = proxy, api
        self.history = History()
        self.changed = threading.Condition()
        self.over = False
        self.ended = 0
        self.errors = []
        self.threads = [threading.Thread(target=self.work, args=(k,)) for k in range(CLIENTS)]
        for thread in self.threads:
            thread.start()

    def work(self, k):
        tenant = list(TOKENS)[k % 2]
        client = self.proxy.client(self.api)
        client.metadata = [("authorization", f"Bearer {TOKENS[tenant]}")]
        ways = itertools.cycle([self.complete, self.stream, self.post])
        try:
            for number, way in enumerate(ways):
                call = Call(tenant, f"{tenant} {k} {number} ", time.monotonic())
                with self.changed:
                    if self.over:
                        return
                    self.history.calls.append(call)
                way(client, call)
                call.end = time.monotonic()
                with self.changed:
                    self.ended += 1
                    self.changed.notify_all()
        except Exception as error:
            self.errors.append(error)
            raise

    def request(self, client, call):
        return client.request(call.prompt, "pair", TOKENS_PER_ANSWER)

    def complete(self, client, call):
        try:
            answer = client.complete(self.request(client, call), timeout=10)
        except grpc.RpcError as error:
            call.error = error.code().name
            return
        call.finished = len(answer.choices)
        call.text = answer.choices[0].text

    def stream(self, client, call):
        try:
            for event in client.generate(self.request(client, call), timeout=10):
                if call.finished:
                    call.after_finished += 1
                call.text += event.chunk.text
                call.finished += event.HasField("finished")
        except grpc.RpcError as error:
            call.error = error.code().name

    def post(self, client, call):
        del client
        body = {
            "model": "pair",
            "prompt": call.prompt,
            "max_tokens": TOKENS_PER_ANSWER,
            "ignore_eos": True,
        }
        context = ssl.create_default_context(cafile=self.proxy.certificate / "tls.crt")
        connection = http.client.HTTPSConnection(
            "localhost", self.proxy.port, context=context, timeout=10
        )
        head = {
            "Content-Type": "application/json",
            "Authorization": f"Bearer {TOKENS[call.tenant]}",
        }
        with contextlib.closing(connection):
            try:
                connection.request("POST", "/v1/completions", json.dumps(body), head)
                response = connection.getresponse()
                text = response.read()
            except (OSError, http.client.HTTPException):
                call.error = "connection"
                return
        if response.status != 200:
            call.error = str(response.status)
            return
        choices = json.loads(text)["choices"]
        call.finished = len(choices)
        call.text = choices[0]["text"]

    def more(self, count):
        """Waits until so many further calls have ended; `120` only bounds a failure."""
        with self.changed:
            goal = self.ended + count
            assert self.changed.wait_for(lambda: self.ended >= goal or self.errors, 120)

    def end(self):
        with self.changed:
            self.over = True
        for thread in self.threads:
            thread.join()
        assert self.errors == []
        return self.history


def kill(replica, traffic):
    replica.replace(signal.SIGKILL)


def drain(replica, traffic):
    replica.replace(signal.SIGTERM)


def cut(replica, traffic):
    replica.each("cut")
    traffic.more(CALLS_PER_STEP)
    replica.each("restore")


def divide(replica, traffic):
    replica.each("stall")
    traffic.more(CALLS_PER_STEP)
    replica.each("restore")


def slow(replica, traffic):
    replica.each("slow")
    traffic.more(CALLS_PER_STEP)
    replica.each("restore")


KINDS = (kill, drain, cut, divide, slow)


def schedule():
    """Faults, and the number of the server that each one meets."""
    chance = random.Random(SEED)
    kinds = list(KINDS) if FAULTS == 0 else [chance.choice(KINDS) for _ in range(FAULTS)]
    chance.shuffle(kinds)
    return [(kind, chance.randrange(SERVERS)) for kind in kinds]


MEMBERS = {"tandem": SERVERS, "tandem-openai": SERVERS}


def configuration(certificate, replicas):
    config = here(certificate, replicas, checks=1)
    for cluster in config["static_resources"]["clusters"]:
        for health_check in cluster["health_checks"]:
            health_check["timeout"] = "1s"
    return yaml.safe_dump(config)


def healthy(proxy):
    with contextlib.suppress(OSError, ValueError):
        members = {name: proxy.stat(f"cluster.{name}.membership_healthy") for name in MEMBERS}
        return members == MEMBERS


def test_calls_end_once_with_their_text(envoy, certificate, start_server, api, tmp_path):
    (tmp_path / "tokens").write_text("".join(f"{n} {t}\n" for n, t in TOKENS.items()))
    config = f'server {{ bearer_token_file: "{tmp_path}/tokens" }}\n{MODELS}'

    def start():
        return start_server(config, "--openai=127.0.0.1:0", "--grace-seconds=20")

    links = Links()
    replicas = [Replica(links, start) for _ in range(SERVERS)]
    (tmp_path / "envoy.yaml").write_text(configuration(certificate, replicas), "utf-8")
    with contextlib.ExitStack() as stack:
        proxy = start_envoy(stack, envoy, tmp_path, certificate, MEMBERS)
        traffic = Traffic(proxy, api)
        traffic.more(CALLS_PER_STEP)
        for kind, number in schedule():
            begin = time.monotonic()
            kind(replicas[number], traffic)
            replicas[number].server.until(lambda: healthy(proxy), "all servers are healthy")
            traffic.more(2 * CLIENTS)  # those that the fault met
            traffic.history.windows.append(Window(kind.__name__, begin, time.monotonic()))
            traffic.more(CALLS_PER_STEP)
        history = traffic.end()
    links.close()

    direct = Client(replicas[0].server.grpc, api, TOKENS["ann"])
    texts = {}
    for call in history.calls:
        answer = direct.complete(text=call.prompt, model="pair", max_new_tokens=TOKENS_PER_ANSWER)
        texts[call.prompt] = answer.choices[0].text
    direct.close()
    assert len(set(texts.values())) == len(texts)  # else one could pass for another
    failed = [call for call in history.calls if call.error]
    print(f"{len(history.calls)} calls, {len(failed)} failed, {len(history.windows)} faults")
    assert check(history, texts) == []
    assert len(failed) < len(history.calls) / 2


# --- The checker finds what it looks for

ANSWER = {"p": "pppp", "q": "qqqq"}


def found(**changes):
    call = Call("ann", "p", 1, 2, text="pppp", finished=1)
    for name, value in changes.items():
        setattr(call, name, value)
    return check(History([call], [Window("kill", 5, 6)]), ANSWER)


def test_a_right_history_has_no_violation():
    assert found() == []
    assert found(start=5, end=7, error="UNAVAILABLE", finished=0, text="pp") == []


@pytest.mark.parametrize(
    "changes, violation",
    [
        ({"end": None}, "no outcome"),
        ({"finished": 2}, "answered 2 times"),
        ({"after_finished": 1}, "1 messages after the last one"),
        ({"finished": 0, "text": ""}, "neither an answer nor an error"),
        ({"text": "ppp"}, "text 'ppp', not 'pppp'"),
        ({"text": "qqqq"}, "the answer to 'q'"),
        ({"error": "UNAVAILABLE", "finished": 0, "text": ""}, "without a fault"),
        ({"error": "UNKNOWN", "finished": 0, "start": 5, "text": ""}, "failed with UNKNOWN"),
        ({"error": "INTERNAL", "finished": 0, "start": 5, "end": 7, "text": "q"}, "text 'q'"),
    ],
)
def test_violations(changes, violation):
    assert any(violation in line for line in found(**changes)), found(**changes)


def test_a_prompt_is_asked_once():
    call = Call("ann", "p", 1, 2, text="pppp", finished=1)
    assert any("asked twice" in line for line in check(History([call, call]), ANSWER))
