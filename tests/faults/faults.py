"""The n-th allocation, thread start, file call or system call of a server fails, for n = 1, 2, 3, ... until
nothing fails: during the start, a request through gRPC, a request through HTTP, and a reload.

    scripts/faults [--all | --points N] [--phase NAME] [--class NAME] [--write]

A library (faults.c) fails the call. Accepted outcomes: the server does not start, with status 1 and a
message; the request or the reload fails and the next one succeeds; nothing is noticed; the process ends
with status 1 and a message. Other outcomes are failures: a signal, a hang, a wrong answer, another
status, a server that serves no later request, or memory that stays charged.
"""

import argparse
import contextlib
import http.client
import json
import mmap
import os
import re
import shutil
import signal
import ssl
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from measure.report import put, table
from tests.attack.harness import ROOT, Api
from tests.conftest import CHAT_CONFIG

PAGE = ROOT / "docs" / "reports" / "faults.md"
CLASSES = {"memory": 1, "thread": 2, "file": 3, "system": 4}
PHASES = ("start", "grpc", "http", "reload")
HANDSHAKE = 5  # seconds; ends connections that gRPC no longer watches
LIMIT = 60  # seconds, after which the server hangs
TOKEN = "ann-0123456789abcdef"
BAD = ("crash", "hang", "wrong", "broken", "leak", "status")


@dataclass(frozen=True)
class Known:
    """An outcome that the server cannot change."""

    stack: str  # regular expression for "FUNCTION\nOBJECT SYMBOL\n..."
    outcome: str
    reason: str


KNOWN = (
    Known(
        r"^\w+\n  faults\.so .*\n  lib(grpc|gpr|absl)\S* ",
        "crash",
        "gRPC and Abseil end the process with abort() and a message when a call of their own fails",
    ),
    Known(
        r"^calloc\n  faults\.so .*\n  libc\.so\.6 __cxa_thread_atexit_impl\n",
        "crash",
        "glibc ends the process with a message when it cannot register a thread's destructor",
    ),
)


@dataclass
class Point:
    phase: str
    which: str
    n: int
    outcome: str
    detail: str = ""
    stack: str = ""

    @property
    def known(self):
        return next(
            (k for k in KNOWN if k.outcome == self.outcome and re.search(k.stack, self.stack)), None
        )

    @property
    def bad(self):
        return self.outcome in BAD and self.known is None

    def __str__(self):
        return f"{self.phase} {self.which} {self.n}: {self.outcome} {self.detail}\n{self.stack}"


class Control:
    """The memory that faults.c reads: struct control."""

    SIZE = 6 * 8 + 16000

    def __init__(self, folder, library):
        self.path = folder / "control"
        self.path.write_bytes(bytes(self.SIZE))
        with self.path.open("r+b") as file:
            self.memory = mmap.mmap(file.fileno(), self.SIZE)
        self.environment = {"LD_PRELOAD": str(library), "TANDEM_FAULTS": str(self.path)}

    def arm(self, which, n, stay=False):
        """n = 0: calls are counted only."""
        self.memory[:] = bytes(self.SIZE)
        struct.pack_into("qqq", self.memory, 8, CLASSES[which], n, stay)
        struct.pack_into("q", self.memory, 0, 1)

    def disarm(self):
        struct.pack_into("q", self.memory, 0, 0)

    def clear(self):
        """Disarms, and forgets the last failure."""
        self.memory[:] = bytes(self.SIZE)

    @property
    def calls(self):
        return struct.unpack_from("q", self.memory, 32)[0]

    @property
    def failed(self):
        return struct.unpack_from("q", self.memory, 40)[0] > 0

    @property
    def stack(self):
        """The function that failed, and its callers: "OBJECT OFFSET SYMBOL" each."""
        return self.memory[48:].split(b"\0", 1)[0].decode().splitlines()

    @property
    def function(self):
        """The name of the function that failed."""
        return "".join(self.stack[:1])


def named(stack):
    """The same in words. Symbols that are not exported are looked up, which takes seconds."""
    found = stack[:1]
    for line in stack[1:]:
        object_, offset, symbol = line.rsplit(" ", 2)
        if symbol == "-":
            name = ["addr2line", "-Cfe", object_, hex(int(offset, 16) - 1)]
            with contextlib.suppress(OSError):
                symbol = subprocess.run(name, capture_output=True, text=True).stdout
                symbol = symbol.splitlines()[0] if symbol else "-"
        found.append(f"  {Path(object_).name} {symbol}")
    return "\n".join(found)


def make_library(folder):
    made = folder / "faults.so"
    source = Path(__file__).with_name("faults.c")
    flags = ["-shared", "-fPIC", "-O1", "-fno-builtin"]
    subprocess.run(["cc", *flags, "-o", made, source, "-ldl"], check=True)
    return made


def make_certificate(folder):
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-keyout", "key.pem", "-out", "certificate.pem", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


class Gone(Exception):
    """The connection ended without an answer."""


class Refused(Exception):
    """The answer is an error."""


class Hung(Exception):
    """No answer within the limit."""


@dataclass
class Bench:
    """What all points share: the library, files of a deployment and the expected answers."""

    binaries: Path
    folder: Path
    api: Api
    control: Control = field(init=False)
    expected: dict = field(default_factory=dict)
    unique: int = 0
    token: str = ""

    def __post_init__(self):
        self.control = Control(self.folder, make_library(self.folder))
        make_certificate(self.folder)
        self.write_token("bob-0123456789abcdef-0")
        base = f'server {{ bearer_token_file: "{self.folder}/tokens" grace_seconds: 1 %s'
        base += f" handshake_timeout_seconds: {HANDSHAKE} }}\n"
        tls = f'tls {{ certificate: "{self.folder}/certificate.pem" key: "{self.folder}/key.pem" }}'
        (self.folder / "plain").write_text(CHAT_CONFIG + base % "", "utf-8")
        (self.folder / "tls").write_text(CHAT_CONFIG + base % tls, "utf-8")

    def write_token(self, token):
        """The token of the second client."""
        self.token = token
        (self.folder / "tokens").write_text(f"ann {TOKEN}\nbob {token}\n", "utf-8")

    def next(self):
        """A number that makes a request unlike all earlier ones, so that no cache has its grammar."""
        self.unique += 1
        return self.unique


class Process:
    """A server with the library."""

    def __init__(self, bench, tls=False):
        self.bench, self.tls = bench, tls
        ports, log = bench.folder / "ports", bench.folder / "log"
        ports.unlink(missing_ok=True)
        self.log_file, self.port_file = log, ports
        command = [
            bench.binaries / "tandem-server",
            f"--config={bench.folder / ('tls' if tls else 'plain')}",
        ]
        command += [f"--{port}=127.0.0.1:0" for port in ("listen", "http", "openai")]
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [*command, f"--port-file={ports}"],
                stdout=subprocess.DEVNULL,
                stderr=out,
                env={**os.environ, **bench.control.environment},
            )
        self.ports = {}
        self.token = bench.token  # of the second client, as the process knows it

    def ready(self):
        """Whether it serves; False: it has ended."""
        end = time.monotonic() + LIMIT
        while not self.port_file.exists():
            if self.process.poll() is not None:
                return False
            if time.monotonic() > end:
                raise Hung("the start")
            time.sleep(0.003)
        text = self.port_file.read_text()
        self.ports = dict(line.split("=", 1) for line in text.split())
        return True

    def log(self):
        return self.log_file.read_text("utf-8", "replace")

    def ended(self):
        """(outcome, detail) of a process that ends by itself."""
        try:
            status = self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            return "hang", "it does not end"
        log = self.log()
        last = log.strip().splitlines()[-1:] or [""]
        if status < 0:
            return "crash", f"{signal.Signals(-status).name}: {last[0][:300]}"
        said = re.search(r"^tandem(-server)?: \S", log, re.MULTILINE)
        if status != 1 or not said:
            return "status", f"{status}: {last[0][:300]}"
        return "ended", last[0][:300]

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def terminate(self):
        """(outcome, detail) of a drain."""
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self.kill()
            return "hang", "it does not drain"
        if status < 0:
            return "crash", f"{signal.Signals(-status).name} in the drain"
        return ("ok", "") if status == 0 else ("status", f"{status} after the drain")

    # Requests: each returns its answer, or raises Gone, Refused or Hung.

    def grpc(self, token=TOKEN):
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        address = self.ports["grpc"]
        if self.tls:
            root = (self.bench.folder / "certificate.pem").read_bytes()
            credentials = grpc.ssl_channel_credentials(root)
            channel = grpc.secure_channel(address, credentials, options)
        else:
            channel = grpc.insecure_channel(address, options)
        api = self.bench.api
        messages = api.messages
        request = messages.GenerateRequest(
            model="fake", max_new_tokens=4, regex=f"[a-c]{{9}}{self.bench.next()}"
        )
        request.temperature = 0
        request.chat.messages.add(role="user", content="hello")
        metadata = [("authorization", f"Bearer {token}")]
        with channel:
            try:
                text, finished = "", []
                stub = api.services.GenerationStub(channel)
                for event in stub.Generate(request, timeout=LIMIT, metadata=metadata):
                    text += event.chunk.text
                    if event.HasField("finished"):
                        finished.append(event.finished.finish_reason)
                return text, finished
            except grpc.RpcError as error:
                code, details = error.code(), error.details() or ""
                if code == grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise Hung("gRPC") from None
                if code == grpc.StatusCode.UNAVAILABLE:
                    raise Gone(details) from None
                raise Refused(f"{code.name}: {details}") from None

    def http(self, token=TOKEN):
        host, port = self.ports["openai"].rsplit(":", 1)
        if self.tls:
            trusted = ssl.create_default_context(cafile=self.bench.folder / "certificate.pem")
            connection = http.client.HTTPSConnection(
                host, int(port), timeout=LIMIT, context=trusted
            )
        else:
            connection = http.client.HTTPConnection(host, int(port), timeout=LIMIT)
        pattern = f"^[a-c]{{9}}{self.bench.next()}$"
        schema = {"name": "s", "schema": {"type": "string", "pattern": pattern}}
        body = {
            "model": "fake",
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 4,
            "temperature": 0,
            "response_format": {"type": "json_schema", "json_schema": schema},
        }
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        with contextlib.closing(connection):
            try:
                connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
                response = connection.getresponse()
                text = response.read()
            except TimeoutError:
                raise Hung("HTTP") from None
            except (OSError, http.client.HTTPException) as error:
                raise Gone(repr(error)) from None
        if response.status != 200:
            said = json.loads(text)["error"]["message"]
            raise Refused(f"{response.status}: {said}")
        (choice,) = json.loads(text)["choices"]
        return choice["message"]["content"], choice["finish_reason"]

    def healthy(self):
        address = f"http://{self.ports['http']}/healthz"
        try:
            with urllib.request.urlopen(address, timeout=LIMIT) as page:
                return page.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def quiet(self):
        """Whether no request is left and no memory charged."""
        names = ("tandem_requests_waiting", "tandem_requests_running", "tandem_memory_bytes")
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            with urllib.request.urlopen(f"http://{self.ports['http']}/metrics") as page:
                text = page.read().decode()
            sums = [
                sum(float(v) for v in re.findall(rf"^{n}(?:{{.*}})? (\S+)$", text, re.M))
                for n in names
            ]
            if not any(sums):
                return True
            time.sleep(0.02)
        return False


def tried(process, phase):
    """(outcome, detail) of a request while a call may fail."""
    try:
        answer = getattr(process, phase)()
    except Gone as error:
        return "disconnected", str(error)
    except Refused as error:
        return "refused", str(error)
    except Hung as error:
        return "hang", str(error)
    if answer != process.bench.expected[phase]:
        return "wrong", f"{answer}; expected: {process.bench.expected[phase]}"
    return "answered", ""


def serves(process, phases=("grpc", "http"), token=TOKEN):
    """(outcome, detail) of requests without a fault: "ok", or how the process ended."""
    end = time.monotonic() + LIMIT
    for phase in phases:
        while True:
            try:
                answer = getattr(process, phase)(token)
                break
            except Gone as error:
                if process.process.poll() is not None:
                    return process.ended()
                if time.monotonic() > end:
                    return "broken", f"{phase}: {error}"
                time.sleep(0.01)  # it may be about to end
            except Refused as error:
                return "broken", f"{phase}: {error}"
            except Hung as error:
                return "hang", f"{error}, the next request"
        if answer != process.bench.expected[phase]:
            return "wrong", f"the next request: {answer}"
    return ("ok", "") if process.healthy() else ("broken", "/healthz fails")


def failed_point(bench, phase, which, n, outcome, detail):
    """The point of the call that failed last; with its callers if the outcome is a failure."""
    stack = named(bench.control.stack) if outcome in BAD else ""
    return Point(phase, which, n, outcome, detail, stack)


def fail_start(bench, which, n, stay=False):
    """The point, or None if the start has fewer calls."""
    bench.control.arm(which, n, stay)
    process = Process(bench)
    try:
        try:
            ready = process.ready()
        except Hung as error:
            return failed_point(bench, "start", which, n, "hang", str(error))
        finally:
            bench.control.disarm()
        if not ready:
            outcome, detail = process.ended()
            outcome = "refused" if outcome == "ended" else outcome
        else:
            outcome, detail = serves(process)
            if outcome == "ok":
                outcome, detail = process.terminate()
            outcome = "served" if outcome == "ok" else outcome
        if not bench.control.failed:
            assert outcome == "served", f"without a fault: {outcome} {detail}\n{process.log()}"
            return None
        return failed_point(bench, "start", which, n, outcome, detail)
    finally:
        process.kill()


def reload(process):
    """(outcome, detail) of a reload while a call may fail."""
    bench, before = process.bench, process.log().count("event=reload")
    old, new = process.token, f"bob-0123456789abcdef-{bench.next()}"
    bench.write_token(new)
    process.process.send_signal(signal.SIGHUP)
    end, failed = time.monotonic() + LIMIT, None
    while process.log().count("event=reload") == before:
        if process.process.poll() is not None:
            return process.ended()
        # The log line itself may have failed: then the tokens show whether the server works.
        if bench.control.failed:
            failed = failed or time.monotonic()
            if time.monotonic() > failed + 5 or bench.control.function.startswith("write"):
                break
        if time.monotonic() > end:
            return "hang", "the reload"
        time.sleep(0.003)
    bench.control.disarm()
    accepted = []
    for token in (old, new):
        try:
            process.http(token)
            accepted.append(token)
        except Refused:
            pass
        except Gone as error:
            return "disconnected", str(error)  # the next request shows why
    if len(accepted) != 1:
        return "wrong", f"{len(accepted)} of the old and the new token are accepted"
    process.token = accepted[0]
    return ("reloaded" if accepted[0] == new else "kept"), ""


def act(process, phase):
    return reload(process) if phase == "reload" else tried(process, phase)


def fresh(bench, phase):
    """A server that has served, so that what is made once is there."""
    bench.control.clear()
    process = Process(bench, tls=phase == "reload")
    try:
        assert process.ready(), process.log()
        if phase == "reload":
            outcome, detail = reload(process)
            assert outcome == "reloaded", detail
        outcome, detail = serves(process)
        assert outcome == "ok", detail
    except BaseException:
        process.kill()
        raise
    return process


def fail_requests(process, phase, which, points, on_point):
    """Calls on_point for each; ends where the request has fewer calls. A server serves several points,
    `process` the first ones."""
    bench = process.bench
    try:
        for n in points:
            process = process or fresh(bench, phase)
            bench.control.arm(which, n)
            outcome, detail = act(process, phase)
            bench.control.disarm()
            failed, after = bench.control.failed, None
            if not failed:
                assert outcome in ("answered", "reloaded"), f"without a fault: {outcome} {detail}"
                break
            if outcome in ("answered", "refused", "disconnected", "reloaded", "kept"):
                after, why = serves(process)
                if after != "ok":
                    outcome, detail = after, f"{detail}; {why}"
            on_point(failed_point(bench, phase, which, n, outcome, detail))
            if after != "ok":
                process.kill()
                process = None
        if process is not None:
            leak = "" if process.quiet() else "memory stays charged"
            outcome, detail = process.terminate()
            if leak or outcome != "ok":
                on_point(Point(phase, which, 0, "leak" if leak else outcome, leak or detail))
    finally:
        if process is not None:
            process.kill()


def spread(calls, points):
    """Numbers of calls from 1 to `calls`, evenly spread: at most `points`."""
    if calls <= points:
        return list(range(1, calls + 1))
    return sorted({1 + i * (calls - 1) // (points - 1) for i in range(points)})


def learn(bench):
    """The expected answers."""
    process = Process(bench)
    try:
        assert process.ready(), process.log()
        bench.expected = {phase: getattr(process, phase)() for phase in ("grpc", "http")}
    finally:
        process.kill()


def run(bench, phase, which, points, on_point):
    """Number of calls without a fault. `points`: at most so many of them fail; None: each."""

    def numbers(calls):
        return range(1, 10**9) if points is None else spread(calls, points)

    if phase == "start":
        assert fail_start(bench, which, 0) is None
        calls = bench.control.calls
        for n in numbers(calls):
            point = fail_start(bench, which, n)
            if point is None:
                break
            on_point(point)
        return calls
    process = fresh(bench, phase)
    try:
        bench.control.arm(which, 0)
        outcome, detail = act(process, phase)
        assert outcome in ("answered", "reloaded"), detail
        calls = bench.control.calls
    except BaseException:
        process.kill()
        raise
    fail_requests(process, phase, which, numbers(calls), on_point)
    return calls


def markdown(results):
    head = ["phase", "class", "calls", "failed", "outcomes", "known exceptions", "failures"]
    rows = []
    for (phase, which), (calls, points) in results.items():
        fine = Counter(p.outcome for p in points if p.outcome not in BAD)
        known = Counter(p.outcome for p in points if p.known)
        bad = [p for p in points if p.bad]
        rows.append(
            [
                phase,
                which,
                f"{calls:,}",
                f"{sum(p.n > 0 for p in points):,}",
                ", ".join(f"{n:,} {name}" for name, n in fine.most_common()),
                ", ".join(f"{n:,} {name}" for name, n in known.most_common()),
                f"{len(bad):,}",
            ]
        )
    return table(head, rows)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binaries", type=Path, default=ROOT / "build" / "release" / "bin")
    parser.add_argument("--all", action="store_true", help="each call fails once")
    parser.add_argument("--points", type=int, default=200, help="of a phase and class")
    parser.add_argument("--phase", choices=PHASES, action="append")
    parser.add_argument("--class", dest="which", choices=CLASSES, action="append")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.relative_to(ROOT)}")
    args = parser.parse_args(arguments)

    results, folder = {}, Path(tempfile.mkdtemp(prefix="tandem-faults-"))
    (folder / "api").mkdir()
    try:
        bench = Bench(args.binaries.resolve(), folder, Api(folder / "api"))
        learn(bench)
        for phase in args.phase or PHASES:
            for which in args.which or CLASSES:
                points = []

                def keep(point, points=points):
                    points.append(point)
                    if point.bad:
                        print(point, flush=True)

                calls = run(bench, phase, which, None if args.all else args.points, keep)
                results[phase, which] = (calls, points)
                seen = dict(Counter(p.outcome for p in points))
                print(f"{phase} {which}: {calls} calls, {len(points)} failed, {seen}", flush=True)
    finally:
        shutil.rmtree(folder)
    page = markdown(results)
    if args.write:
        put(PAGE, "faults", page)
    else:
        print(page)
    return 1 if any(p.bad for _, points in results.values() for p in points) else 0


if __name__ == "__main__":
    sys.exit(main())
