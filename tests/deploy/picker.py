"""An endpoint picker for tests: Envoy asks it by ext_proc for the server of each request.

It extracts metrics as llm-d-router does (getLatestMetric, spec.go): of the series of a name it takes the
first, and sums none. The scores and weights are those of deploy/gateway: a short queue 2, unused KV cache 2.

    python -m tests.deploy.picker --port-file FILE --interval 0.05 HOST:PORT...

Standard output has a line of JSON for each change of what it knows of a server.
"""

import argparse
import importlib
import json
import os
import random
import re
import sys
import tempfile
import threading
import time
import urllib.request
from concurrent import futures
from pathlib import Path

import grpc
from grpc_tools import protoc

PROTO = Path(__file__).parent / "data" / "ext_proc.proto"
HEADER = "x-gateway-destination-endpoint"
NAMES = {"waiting": "vllm:num_requests_waiting", "kv_cache": "vllm:kv_cache_usage_perc"}


def load_proto(folder):
    command = [
        "", f"-I{PROTO.parent}", f"--python_out={folder}", f"--grpc_python_out={folder}", str(PROTO)
    ]  # fmt: skip
    assert protoc.main(command) == 0
    sys.path.insert(0, str(folder))
    return importlib.import_module("ext_proc_pb2"), importlib.import_module("ext_proc_pb2_grpc")


def extract(page):
    """{"waiting": ..., "kv_cache": ...} of a metrics page; None for what it lacks."""
    values = {}
    for key, name in NAMES.items():
        found = re.search(rf"^{name}(?:\{{[^}}]*\}})? (\S+)", page, re.MULTILINE)
        values[key] = float(found.group(1)) if found else None
    return values


def pick(known, choose=random.choice):
    """The server with the highest score, of several one at random. `known`: {server: values}, without
    the servers that do not answer."""
    if not known:
        return None
    queues = [values["waiting"] for values in known.values()]
    least, most = min(queues), max(queues)

    def score(values):
        queue = (most - values["waiting"]) / (most - least) if most > least else 1
        return 2 * queue + 2 * (1 - values["kv_cache"])

    best = max(map(score, known.values()))
    return choose([server for server, values in known.items() if score(values) == best])


class Scraper:
    def __init__(self, servers, interval):
        self.known = {}
        for server in servers:
            threading.Thread(target=self._run, args=(server, interval), daemon=True).start()

    def _run(self, server, interval):
        while True:
            try:
                url = f"http://{server}/metrics/gateway"
                with urllib.request.urlopen(url, timeout=10) as answer:
                    values = extract(answer.read().decode())
            except OSError:
                values = None
            if self.known.get(server) != values:
                line = json.dumps({"server": server, **(values or {})}) + "\n"
                os.write(1, line.encode())  # at once, unlike print()
            if values:
                self.known[server] = values
            else:
                self.known.pop(server, None)
            time.sleep(interval)


class Picker:
    def __init__(self, messages, scraper):
        self.messages, self.scraper = messages, scraper

    def Process(self, requests, _):
        m = self.messages
        for request in requests:
            kind = request.WhichOneof("request")
            answer = m.ProcessingResponse()
            if kind == "request_headers":
                common = answer.request_headers.response
                server = pick(dict(self.scraper.known))
                if server:
                    option = common.header_mutation.set_headers.add()
                    option.header.key, option.header.raw_value = HEADER, server.encode()
                    common.clear_route_cache = True
                else:
                    answer.request_headers.SetInParent()
            elif kind == "request_body":
                body = answer.request_body.response.body_mutation.streamed_response
                body.body = request.request_body.body
                body.end_of_stream = request.request_body.end_of_stream
            else:
                getattr(answer, kind).SetInParent()
            yield answer


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port-file", type=Path, required=True)
    parser.add_argument("--interval", type=float, default=0.05)
    parser.add_argument("servers", nargs="+")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        messages, services = load_proto(folder)
        server = grpc.server(futures.ThreadPoolExecutor(64))
        picker = Picker(messages, Scraper(args.servers, args.interval))
        services.add_ExternalProcessorServicer_to_server(picker, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        written = args.port_file.with_suffix(".new")
        written.write_text(str(port))
        os.replace(written, args.port_file)
        server.wait_for_termination()


if __name__ == "__main__":
    main()
