"""What attacks on a running tandem-server have in common: a client of it, looks at its process, and a
bystander whose stream has to come through.

An attack asserts what happens (codes, bounds, that others are served), never how fast: the machine of a
test is shared. What a bystander saw is printed (pytest -s), and appended to the file that
TANDEM_ATTACK_RECORD names (tests/attack/table.py makes a page of it).
"""

import contextlib
import importlib
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import grpc
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[2]
PROTOBUF = Path(protoc.__file__).parent / "_proto"  # google/protobuf/*.proto

# `fake` answers at once; `slow` takes 5 ms a token.
MODELS = """
models { name: "fake" fake {} }
models { name: "slow" fake { pass_seconds: 0.005 } }
"""


def record(**figures):
    """Keeps what a test saw, in a line of JSON."""
    if path := os.environ.get("TANDEM_ATTACK_RECORD"):
        test = os.environ["PYTEST_CURRENT_TEST"].split(" ")[0].removeprefix("tests/attack/")
        with Path(path).open("a") as file:
            file.write(json.dumps({"test": test, **figures}) + "\n")


class Api:
    """The modules of the protos, which lie in `folder`."""

    def __init__(self, folder):
        proto = ROOT / "proto"
        out = [
            f"-I{proto}",
            f"-I{PROTOBUF}",
            f"--python_out={folder}",
            f"--grpc_python_out={folder}",
        ]
        for part in ("tandem/v1", "google/rpc"):
            for file in (proto / part).glob("*.proto"):
                assert protoc.main(["", *out, str(file)]) == 0
        self._load(folder)

    @classmethod
    def generated(cls, folder):
        """The same where they have been generated already."""
        api = cls.__new__(cls)
        api._load(folder)
        return api

    def _load(self, folder):
        self.folder = str(folder)
        sys.path.insert(0, self.folder)
        self.messages = importlib.import_module("tandem.v1.generation_pb2")
        self.services = importlib.import_module("tandem.v1.generation_pb2_grpc")
        self.status = importlib.import_module("google.rpc.status_pb2")
        self.error_details = importlib.import_module("google.rpc.error_details_pb2")


class Client:
    """One connection, and what is said on it. `token`: sent as bearer token."""

    def __init__(self, address, api, token=None):
        # A pool of its own: clients that share a process would share a connection, too.
        self.channel = grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        self.api, self.messages = api, api.messages
        self.stub = api.services.GenerationStub(self.channel)
        self.metadata = [("authorization", f"Bearer {token}")] if token else []

    def close(self):
        self.channel.close()

    def request(self, text="x", model="fake", max_new_tokens=3, **fields):
        if "chat" not in fields and "token_ids" not in fields:
            fields["text"] = text
        return self.messages.GenerateRequest(
            model=model, max_new_tokens=max_new_tokens, ignore_eos=True, **fields
        )

    def generate(self, request=None, timeout=60, **fields):
        """The call; iterate over it for events."""
        request = request or self.request(**fields)
        return self.stub.Generate(request, timeout=timeout, metadata=self.metadata)

    def complete(self, request=None, timeout=60, **fields):
        request = request or self.request(**fields)
        return self.stub.Complete(request, timeout=timeout, metadata=self.metadata)

    def refusal(self, request=None, timeout=60, **fields):
        """The grpc.RpcError that a Complete ends with; None when it is answered."""
        try:
            self.complete(request, timeout, **fields)
        except grpc.RpcError as error:
            return error
        return None

    def details(self, error):
        """(reason, seconds to wait or None) of an error's google.rpc details."""
        reason, wait = None, None
        for key, value in error.trailing_metadata() or ():
            if key != "grpc-status-details-bin":
                continue
            for packed in self.api.status.Status.FromString(value).details:
                info = self.api.error_details.ErrorInfo()
                retry = self.api.error_details.RetryInfo()
                if packed.Unpack(info):
                    reason = info.reason
                elif packed.Unpack(retry):
                    wait = retry.retry_delay.ToTimedelta().total_seconds()
        return reason, wait


class Target:
    """A server under attack: `server` of conftest.py, with ways to look at it."""

    def __init__(self, server, api):
        self.server, self.api = server, api
        self.clients = []
        self.observed = False  # by a bystander

    def client(self, token=None):
        client = Client(self.server.grpc, self.api, token)
        self.clients.append(client)
        return client

    def close(self):
        """Ends the server; its exit status."""
        for client in self.clients:
            client.close()
        status = self.server.stop()
        if self.observed:
            record(status=status)
        return status

    def connect(self, source=None, api="grpc"):
        """A bare connection, perhaps from another of this machine's addresses."""
        host, port = self.server.ports[api].rsplit(":", 1)
        return socket.create_connection((host, int(port)), 30, (source, 0) if source else None)

    @property
    def pid(self):
        return self.server.process.pid

    def memory(self):
        """Resident bytes."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status).group(1)) << 10

    def threads(self):
        return len(list(Path(f"/proc/{self.pid}/task").iterdir()))

    def files(self):
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def on_one_processor(self):
        """From here on; its threads take turns."""
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(int(task.name), {min(os.sched_getaffinity(0))})

    def http(self, path, timeout=60):
        """(status, body)"""
        try:
            with urllib.request.urlopen(
                f"http://{self.server.http}{path}", timeout=timeout
            ) as page:
                return page.status, page.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name, **labels):
        """Sum of the samples of that name which have those labels; None where there is no sample."""
        total = None
        for line in self.http("/metrics")[1].splitlines():
            match = re.fullmatch(re.escape(name) + r"(?:\{(.*)\})? (\S+)", line)
            if not match:
                continue
            found = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match.group(1) or ""))
            if all(found.get(key) == value for key, value in labels.items()):
                total = (total or 0) + float(match.group(2))
        return total

    def until(self, condition, what, seconds=60):
        """Waits for what must come true; `seconds` only bounds a failure."""
        self.server.until(condition, what, seconds)

    def assert_serves(self, token=None):
        """Probes say 200, and a request is answered."""
        assert self.http("/healthz")[0] == 200
        assert self.http("/readyz")[0] == 200
        answer = self.client(token).complete(model="fake", max_new_tokens=3)
        assert answer.choices[0].finished.usage.completion_tokens == 3

    def assert_quiet(self):
        """Nothing of what was asked is left: no request, no page in use, no charge of memory."""

        def quiet():
            waiting = self.metric("tandem_requests_waiting")
            running = self.metric("tandem_requests_running")
            charged = self.metric("tandem_memory_bytes")
            used = self.metric("tandem_kv_cache_pages", state="used")
            return waiting == running == charged == used == 0

        self.until(quiet, "no request, no page in use and no memory charged")

    def assert_no_call_is_left(self):
        """Waits until no call has a place. A call that ended before a service received it keeps its
        place for up to a minute."""

        def none():
            open_calls, pending = (
                self.metric(f"tandem_{kind}_calls") for kind in ("open", "pending")
            )
            # Calls of other clients start and end meanwhile.
            return open_calls <= 2 and pending == 0

        self.until(none, "no call is left, and no place", 120)

    @contextlib.contextmanager
    def bystander(self, model="slow", tokens=200, token=None, allowed=96, openai=False):
        """Another client, in a process of its own, is served beside what is done in the `with`: its
        streams come through whole, what it must be refused is, and /healthz says 200. With `openai`,
        so are its requests of the HTTP API. The server's memory may grow by `allowed` MiB meanwhile.
        """
        command = [sys.executable, "-m", "tests.attack.bystander", self.api.folder]
        api = self.server.ports["openai"] if openai else "-"
        command += [self.server.grpc, self.server.http, api, model, str(tokens)]
        other = subprocess.Popen(
            command + ([token] if token else []),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        # It is to see how long the server takes, and not how long it waits for a processor itself.
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, other.pid, -10)
        assert other.stdout.readline() == "began\n"
        memory = self.memory()
        try:
            yield
        finally:
            grown = self.memory() - memory
            self.observed = True
            output, _ = other.communicate(timeout=180)
        saw = json.loads(output)
        assert saw["wrong"] == [], f"{len(saw['wrong'])}: {saw['wrong'][:3]}"
        self._record(saw, grown, allowed)
        assert grown < allowed << 20, f"{grown >> 20} MiB more; allowed: {allowed}"

    def _record(self, saw, grown, allowed):
        """What the bystander saw, in milliseconds, for people."""
        refusals, probes, gaps = (sorted(saw[what]) for what in ("refusals", "probes", "gaps"))
        gaps = gaps or [0.0]  # where each stream came in one message
        figures = {
            "gap": gaps[-1] * 1e3,
            "gap_p99": gaps[len(gaps) * 99 // 100] * 1e3,
            "refusal_median": statistics.median(refusals) * 1e3,
            "refusal": refusals[-1] * 1e3,
            "probe": probes[-1] * 1e3 if probes else None,
            "grown": grown / 2**20,
            "allowed": allowed,
        }
        for what in ("peak", "limit"):
            figures[what] = self.metric(f"tandem_memory_{what}_bytes") / 2**20
        for what in ("listings", "completions"):
            if saw[what]:
                figures[what[:-1]] = max(saw[what]) * 1e3
        print(f"beside it: {figures}")
        record(**figures)
