"""A Kubernetes API server for tests: it lists and watches objects that never change, and knows no other verbs.

Enough for programs that use controller-runtime, such as an endpoint picker.
"""

import contextlib
import http.server
import json
import threading
import urllib.parse

# What a client asks for when it wants the objects and then their changes in one stream.
INITIAL = {"k8s.io/initial-events-end": "true"}


class KubeApi:
    """`objects`: with apiVersion, kind and metadata. `kinds`: {(apiVersion, kind): plural}."""

    def __init__(self, objects, kinds):
        self.objects, self.kinds = objects, kinds
        self.closed = threading.Event()
        api = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                api.answer(self)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def address(self):
        return f"127.0.0.1:{self.server.server_port}"

    def kubeconfig(self):
        named = {"name": "test"}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{**named, "context": {"cluster": "test", "user": "test"}}],
            "clusters": [{**named, "cluster": {"server": f"http://{self.address}"}}],
            "users": [{**named, "user": {}}],
        }

    def close(self):
        self.closed.set()
        self.server.shutdown()
        self.server.server_close()

    def answer(self, handler):
        url = urllib.parse.urlsplit(handler.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        found = self._discovery(url.path)
        if found is not None:
            return self._send(handler, 200, found)
        kind = self._kind_at(url.path)
        if kind is None:
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404}
            return self._send(handler, 404, {**status, "reason": "NotFound"})
        items = self._items(kind, query.get("fieldSelector"))
        if query.get("watch") in ("true", "1"):
            return self._watch(handler, kind, items, "sendInitialEvents" in query)
        version, name = kind
        meta = {"resourceVersion": "1"}
        listed = {"apiVersion": version, "kind": f"{name}List", "metadata": meta, "items": items}
        return self._send(handler, 200, listed)

    def _discovery(self, path):
        groups = sorted({v for v, _ in self.kinds if "/" in v})
        if path == "/api":
            return {"kind": "APIVersions", "apiVersion": "v1", "versions": ["v1"]}
        if path == "/apis":
            entries = []
            for version in groups:
                entry = {"groupVersion": version, "version": version.split("/")[1]}
                name = version.split("/")[0]
                entries.append({"name": name, "versions": [entry], "preferredVersion": entry})
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": entries}
        for version in {v for v, _ in self.kinds}:
            if path == self._root(version):
                resources = [
                    {
                        "name": plural,
                        "singularName": kind.lower(),
                        "kind": kind,
                        "namespaced": True,
                        "verbs": ["get", "list", "watch"],
                    }
                    for (v, kind), plural in self.kinds.items()
                    if v == version
                ]
                named = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version}
                return {**named, "resources": resources}
        return None

    @staticmethod
    def _root(version):
        return f"/apis/{version}" if "/" in version else f"/api/{version}"

    def _kind_at(self, path):
        for (version, kind), plural in self.kinds.items():
            root = self._root(version)
            if path.startswith(f"{root}/") and path.rsplit("/", 1)[1] == plural:
                return version, kind
        return None

    def _items(self, kind, selector):
        name = selector.removeprefix("metadata.name=") if selector else None
        return [
            item
            for item in self.objects
            if (item["apiVersion"], item["kind"]) == kind
            and name in (None, item["metadata"]["name"])
        ]

    @staticmethod
    def _send(handler, status, body):
        data = json.dumps(body).encode()
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    def _watch(self, handler, kind, items, initial):
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()

        def send(event):
            data = json.dumps(event).encode() + b"\n"
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            handler.wfile.flush()

        with contextlib.suppress(OSError):
            if initial:
                for item in items:
                    send({"type": "ADDED", "object": item})
                meta = {"resourceVersion": "1", "annotations": INITIAL}
                mark = {"apiVersion": kind[0], "kind": kind[1], "metadata": meta}
                send({"type": "BOOKMARK", "object": mark})
            self.closed.wait()
        handler.close_connection = True
