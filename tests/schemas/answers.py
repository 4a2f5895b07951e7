"""Answers under real schemas: whether they are valid, and equal under every decoding method.

    python tests/schemas/answers.py --binaries build/test/bin [--schemas 500] [--compared 50]

Schemas come from the folder TANDEM_SCHEMAS, such as `maskbench/data` of a copy of the repository
guidance-ai/jsonschemabench, or else from a copy of SchemaStore that scripts/setup --full installs.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import functools
import io
import json
import os
import pickle
import random
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import grpc
import jsonschema

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests.attack.harness import Api, Client  # noqa: E402
from tests.conftest import HOME  # noqa: E402

STORE = HOME / "schemastore/schemastore/cache.sqlite"
MOST_BYTES = 32 << 10
CODE = ROOT / "models"
CONFIG = f"""
devices {{ name: "cpu:0" threads: 1 }}
devices {{ name: "cpu:0/1" threads: 1 }}
devices {{ name: "cpu:1" threads: 1 }}
models {{ name: "fake" device: "cpu:1" fake {{}} }}
models {{
  name: "large" path: "{CODE}/code-large" kv_pages: 1024
  extras {{ name: "bita" path: "{CODE}/code-large-bita" }}
  extras {{ name: "layer-4" path: "{CODE}/code-large-heads/layer-4" }}
}}
models {{ name: "small" path: "{CODE}/code-small" kv_pages: 1024 }}
models {{
  name: "worker" path: "{CODE}/code-large" layers: 4 device: "cpu:0/1" kv_pages: 1024
  extras {{ name: "layer-4" path: "{CODE}/code-large-heads/layer-4" }}
}}
deployments {{ name: "random" large: "fake" }}
deployments {{
  name: "code" large: "large" small: "small"
  bita {{ adapter: "bita" }}
  ppd {{ exit_layer: 4 workers: "worker" head: "layer-4" }}
}}
"""
METHODS = {
    "autoregressive": {},
    "speculative": {},
    "ngram": {},
    "bild": {"rollback_threshold": 0.69},  # EXACT if greedy
    "bita": {},
    "ppd": {},
    "auto": {},
}


class PlainPickle(pickle.Unpickler):
    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"{module}.{name}: allowed: plain values")


def stored():
    """Schemas of SchemaStore: (name, schema)"""
    rows = sqlite3.connect(f"file:{STORE}?mode=ro", uri=True).execute(
        "select key, value from responses order by key"
    )
    for key, value in rows:
        try:
            text = PlainPickle(io.BytesIO(value)).load()["_content"]
            schema = json.loads(text)
        except (pickle.UnpicklingError, ValueError, TypeError):
            continue
        if len(text) <= MOST_BYTES and isinstance(schema, dict) and "$schema" in schema:
            yield key, schema


def in_folder(folder):
    for path in sorted(folder.rglob("*.json")):
        text = path.read_text()
        value = json.loads(text)
        schema = value.get("schema", value) if isinstance(value, dict) else None
        if isinstance(schema, dict) and len(text) <= MOST_BYTES:
            yield path.stem, schema


def real_schemas(most):
    """At most so many, chosen at random, but the same in each run."""
    folder = os.environ.get("TANDEM_SCHEMAS")
    if not folder and not STORE.exists():
        return []
    found = list(in_folder(Path(folder)) if folder else stored())
    random.Random(1).shuffle(found)
    return found[:most]


def is_valid(text, schema):
    """Raises what is wrong."""
    value = json.loads(text)
    kind = jsonschema.validators.validator_for(schema)
    kind(schema).validate(value)


def keyword_of(message):
    """A refusal in short: the keyword, or the message without names of the schema."""
    found = re.search(r"/([^/:\s]+): keyword not supported", message)
    if found:
        return f"{found[1]}: keyword not supported"
    return re.sub(r"[\"'`][^\"'`]*[\"'`]|\d+", "_", message)[:90]


class Asker:
    def __init__(self, address, folder):
        self.api = Api(folder)
        self.client = Client(address, self.api)
        messages = self.api.messages
        closing = json.loads((CODE / "code-large/tokenizer.json").read_text())["model"]["vocab"]
        # Random text seldom ends by itself.
        self.closing = {
            "random": [ord('"'), ord("}"), ord("]"), 256],
            "code": [closing['"'], closing["}"], closing["]"], 0],
        }
        self.messages = messages

    def ask(self, model, schema, method="autoregressive", temperature=1.0, most=600):
        """(status, message or text, tokens)"""
        request = self.messages.GenerateRequest(
            model=model, text="{", json_schema=json.dumps(schema), seed=7, temperature=temperature
        )
        request.max_new_tokens = most
        request.return_tokens = True
        for token in self.closing[model]:
            request.logit_bias[token] = 4
        getattr(request, method).SetInParent()
        for name, value in METHODS[method].items():
            setattr(getattr(request, method), name, value)
        try:
            answer = self.client.stub.Complete(request, timeout=300)
        except grpc.RpcError as error:
            return error.code().name, error.details(), []
        choice = answer.choices[0]
        done = choice.finished.constraint_satisfied
        return ("OK" if done else "CUT"), choice.text, [token.id for token in choice.tokens]


def check_answers(asker, schemas, jobs=4):
    """One answer of random bytes for each schema. Returns counts by outcome, and what is wrong."""
    counts, wrong = collections.Counter(), []

    def one(named):
        name, schema = named
        status, text, _ = asker.ask("random", schema)
        if status == "OK":
            try:
                is_valid(text, schema)
            except (ValueError, jsonschema.ValidationError) as error:
                first = str(error).splitlines()[0]
                return "wrong", f"{name}: {first}: {text[:200]}"
        elif status not in ("CUT", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"):
            return "wrong", f"{name}: {status}: {text}"
        return (status, "" if status in ("OK", "CUT") else keyword_of(text)), None

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for outcome, problem in pool.map(one, schemas):
            counts[outcome] += 1
            if problem:
                wrong.append(problem)
    return counts, wrong


def check_methods(asker, schemas, most, jobs=4):
    """Tokens of each method against those of autoregressive decoding, for `most` schemas."""
    counts, wrong = collections.Counter(), []
    compared = 0
    for name, schema in schemas:
        if compared == most:
            break
        for temperature in (0.0, 0.8):
            methods = [m for m in METHODS if m != "bild" or temperature == 0]
            ask = functools.partial(asker.ask, "code", schema, temperature=temperature, most=120)
            with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
                answers = dict(zip(methods, pool.map(ask, methods), strict=True))
            expected = answers["autoregressive"]
            if expected[0] == "INVALID_ARGUMENT":
                break
            for method, answer in answers.items():
                same = answer[0] == expected[0] and answer[2] == expected[2]
                counts[method, temperature, "same" if same else "differs"] += 1
                if not same:
                    wrong.append(
                        f"{name}: {method} at {temperature}: {answer[:2]}, not {expected[:2]}"
                    )
        else:
            compared += 1
    return counts, wrong


@contextlib.contextmanager
def server(binaries, folder):
    """The address of a server of these models."""
    (folder / "config").write_text(CONFIG)
    ports = folder / "ports"
    process = subprocess.Popen(
        [
            binaries / "tandem-server",
            f"--config={folder / 'config'}",
            "--listen=127.0.0.1:0",
            f"--port-file={ports}",
            "--log-level=warn",
        ]
    )
    try:
        while not ports.exists():
            assert process.poll() is None
            time.sleep(0.05)
        yield dict(line.split("=", 1) for line in ports.read_text().split())["grpc"]
    finally:
        process.terminate()
        process.wait(60)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binaries", type=Path, default=ROOT / "build/release/bin")
    parser.add_argument("--schemas", type=int, default=500)
    parser.add_argument("--compared", type=int, default=50)
    arguments = parser.parse_args()
    schemas = real_schemas(arguments.schemas)
    with (
        tempfile.TemporaryDirectory() as folder,
        server(arguments.binaries, Path(folder)) as address,
    ):
        asker = Asker(address, folder)
        counts, wrong = check_answers(asker, schemas)
        for outcome, number in counts.most_common():
            print(f"{number:6} {outcome}")
        counts, differing = check_methods(asker, schemas, arguments.compared)
        for outcome, number in sorted(counts.items()):
            print(f"{number:6} {outcome}")
    for line in wrong + differing:
        print("WRONG", line)
    sys.exit(1 if wrong or differing else 0)


if __name__ == "__main__":
    main()
