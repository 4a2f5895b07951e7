"""A well-behaved client in a separate process, during an attack.

Until its standard input ends it reads streams, each of which must come through whole; sends requests that
are rejected at once; requests /healthz; and, where there is an HTTP API, lists its models and completes a
text there. Its output is a line when the first token has come, and one of JSON.

    python -m tests.attack.bystander FOLDER GRPC HTTP OPENAI|- MODEL TOKENS [BEARER_TOKEN]
"""

import http.client
import json
import sys
import threading
import time
import urllib.error
import urllib.request

import grpc

from tests.attack.harness import Api, Client

PAUSE = 0.02  # between two refusals, and between two probes


class Bystander:
    def __init__(self, folder, address, http, openai, model, tokens, token=None):
        self.openai, self.token = openai, token
        self.client = Client(address, Api.generated(folder), token)
        self.http, self.model, self.tokens = http, model, int(tokens)
        self.stop = threading.Event()
        self.gaps, self.refusals, self.probes, self.wrong = [], [], [], []
        self.listings, self.completions = [], []

    def run(self):
        # What the first call makes, a connection and this process' own code, is no answer of the server.
        self.client.refusal(model="unknown")
        threads = [
            threading.Thread(target=self._repeat, args=(act,))
            for act in (
                self._refuse,
                self._probe,
                *((self._list, self._complete) if self.openai != "-" else ()),
            )
        ]
        for thread in threads:
            thread.start()
        threading.Thread(target=self._listen, daemon=True).start()
        self._stream(began=lambda: print("began", flush=True))
        while not self.stop.is_set():
            self._stream()
        for thread in threads:
            thread.join()
        return {
            "gaps": self.gaps,
            "refusals": self.refusals,
            "probes": self.probes,
            "listings": self.listings,
            "completions": self.completions,
            "wrong": self.wrong,
        }

    def _listen(self):
        sys.stdin.read()
        self.stop.set()

    def _repeat(self, act):
        while not self.stop.is_set():
            act()
            self.stop.wait(PAUSE)

    def _stream(self, began=None):
        read, last = 0, None
        call = self.client.generate(
            model=self.model, max_new_tokens=self.tokens, return_tokens=True, timeout=120
        )
        try:
            for event in call:
                if not event.HasField("chunk"):
                    continue
                now = time.monotonic()
                if last is not None:
                    self.gaps.append(now - last)
                if began is not None and last is None:
                    began()
                last = now
                read += len(event.chunk.tokens)
        except grpc.RpcError as error:
            self.wrong.append(f"a stream ended with {error.code()}: {error.details()}")
        if read != self.tokens:
            self.wrong.append(f"a stream had {read} tokens of {self.tokens}")
            self.stop.wait(PAUSE)

    def _refuse(self):
        start = time.monotonic()
        error = self.client.refusal(model="unknown")
        self.refusals.append(time.monotonic() - start)
        if error is None or error.code() != grpc.StatusCode.NOT_FOUND:
            self.wrong.append(f"refused with {error and error.code()}")

    def _probe(self):
        start = time.monotonic()
        try:
            with urllib.request.urlopen(f"http://{self.http}/healthz", timeout=60) as page:
                page.read()
        except urllib.error.HTTPError as error:
            self.wrong.append(f"/healthz said {error.code}")
        except OSError as error:
            self.wrong.append(f"/healthz failed with {error!r}")
        self.probes.append(time.monotonic() - start)

    def _list(self):
        self._api(self.listings, "GET", "/v1/models")

    def _complete(self):
        body = json.dumps({"model": self.model, "prompt": "x", "max_tokens": 3})
        self._api(self.completions, "POST", "/v1/completions", body)

    def _api(self, times, method, path, body=None):
        """One request of the HTTP API, on a connection of its own."""
        headers = {"Content-Type": "application/json"} if body else {}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        start = time.monotonic()
        connection = http.client.HTTPConnection(self.openai, timeout=60)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            response.read()
        except (OSError, http.client.HTTPException) as error:
            self.wrong.append(f"{path} failed with {error!r}")
            return
        finally:
            connection.close()
        if response.status != 200:
            self.wrong.append(f"{path} returned {response.status}")
        times.append(time.monotonic() - start)


if __name__ == "__main__":
    print(json.dumps(Bystander(*sys.argv[1:]).run()))
