"""A stub of the Hugging Face hub: API, file redirects to a storage path, ranges, and faults on demand."""

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER = "fedcba9876543210fedcba9876543210fedcba98"


@dataclass
class Repo:
    files: dict  # name -> bytes
    commits: dict = field(default_factory=lambda: {"main": COMMIT})
    small: tuple = (
        ".json",
        ".jinja",
        ".md",
    )  # endings of files that are not in the storage of large files


@dataclass
class Hub:
    """Faults: `cut` bytes per connection of the storage, once for each number; `held`: answers of the storage stop after as many
    bytes until `release` is set."""

    repos: dict
    gated: dict = field(default_factory=dict)  # repository -> token that may read it
    cuts: list = field(default_factory=list)
    held: int | None = None
    release: threading.Event = field(default_factory=threading.Event)
    sending: threading.Event = field(
        default_factory=threading.Event
    )  # set once `held` bytes are out
    ranges: bool = True
    damaged: set = field(default_factory=set)  # files whose last byte is wrong
    absolute: bool = False  # redirects name the host
    requests: list = field(default_factory=list)  # (method, path, range, authorization)
    address: str = ""

    def storage_requests(self):
        return [r for r in self.requests if r[0] == "GET" and r[1].startswith("/storage/")]


def etag_of(repo, name):
    data = repo.files[name]
    if name.endswith(repo.small):
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    return hashlib.sha256(data).hexdigest()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *args):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub, path = self.hub, unquote(self.path)
        headers = self.headers
        hub.requests.append((self.command, path, headers["range"], headers["authorization"]))
        if path.startswith("/storage/"):
            return self.storage(path)
        parts = path.strip("/").split("/")
        name = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
        repo = hub.repos.get(name)
        if repo is None:
            return self.answer(
                401 if headers["authorization"] is None else 404, X_Error_Code="RepoNotFound"
            )
        if parts[0] == "api":
            revision = "/".join(parts[5:])
            commit = repo.commits.get(revision, revision)
            if commit not in repo.commits.values():
                return self.answer(404, X_Error_Code="RevisionNotFound")
            listing = {"sha": commit, "siblings": [{"rfilename": f} for f in repo.files]}
            return self.answer(200, json.dumps(listing).encode(), Content_Type="application/json")
        token = hub.gated.get(name)
        if token is not None and headers["authorization"] != f"Bearer {token}":
            status = 401 if headers["authorization"] is None else 403
            return self.answer(
                status, X_Error_Code="GatedRepo", X_Error_Message="Access is restricted."
            )
        file = "/".join(parts[4:])
        if file not in repo.files:
            return self.answer(404, X_Error_Code="EntryNotFound")
        common = {"X_Repo_Commit": parts[3]}
        if file.endswith(repo.small):
            data = repo.files[file]
            if file in hub.damaged:
                data = data[:-1] + bytes([data[-1] ^ 1])
            return self.answer(200, data, ETag=f'"{etag_of(repo, file)}"', **common)
        where = f"/storage/{name}/{file}"
        return self.answer(
            302,
            X_Linked_ETag=f'"{etag_of(repo, file)}"',
            X_Linked_Size=len(repo.files[file]),
            Location=f"http://{hub.address.replace('127.0.0.1', 'localhost')}{where}"
            if hub.absolute
            else where,
            **common,
        )

    def storage(self, path):
        hub = self.hub
        org, name, file = path.removeprefix("/storage/").split("/", 2)
        data = bytearray(hub.repos[f"{org}/{name}"].files[file])
        if file in hub.damaged:
            data[-1] ^= 1
        begin = 0
        if self.headers["range"] and hub.ranges:
            begin = int(self.headers["range"].removeprefix("bytes=").removesuffix("-"))
        self.send_response(206 if begin else 200)
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - begin))
        self.end_headers()
        if hub.cuts:
            self.wfile.write(data[begin : begin + hub.cuts.pop(0)])
            self.wfile.flush()
            self.close_connection = True
            return self.connection.shutdown(2)
        if hub.held is not None:
            self.wfile.write(data[begin : begin + hub.held])
            self.wfile.flush()
            hub.sending.set()
            hub.release.wait(60)
            begin += hub.held
        try:
            self.wfile.write(data[begin:])
        except OSError:
            self.close_connection = True  # the client was killed


def serve(hub):
    """Starts the stub; returns its server, whose shutdown() ends it."""
    handler = type("BoundHandler", (Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.address = f"127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
