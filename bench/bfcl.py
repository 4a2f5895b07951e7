"""Tool calls: categories of the Berkeley Function Calling Leaderboard, on one GGUF file under several servers.

    pip download --no-deps --dest FOLDER bfcl-eval==2026.3.23
    python -m bench.bfcl --package FOLDER/bfcl_eval-2026.3.23-py3-none-any.whl --model FILE.gguf
        [--tandem build/release/bin/tandem-server] [--llama-server PATH] [--limit 100] [--out FILE]

Each problem is one greedy chat request with tools; the servers run one after the other. Problems, expected calls
and the comparison of calls (AST match) are those of the package, which is licensed under Apache 2.0 and is neither
installed nor changed. Its checks of Java and JavaScript, which need parsers, are not loaded. `irrelevance` is solved
by an answer without a call.

With --out, each answer is a line of JSON, and a run that was interrupted continues there.
"""

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
import types
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from measure.llama_server import llama_server
from measure.paths import ROOT

CATEGORIES = ("simple_python", "multiple", "irrelevance")
TOKENS = 400
SECONDS = 600
# Of the package's model names one that replaces "." in names of functions by "_", as the requests do.
MODEL = "any"
HINT = " Note that the provided function is in Python 3 syntax."


class Package:
    """The package's wheel: data, and the function that compares calls."""

    def __init__(self, wheel: Path):
        self._archive = zipfile.ZipFile(wheel)
        self.check = self._load_checker()
        types_of = self._module("bfcl_eval.constants.type_mappings")
        self._types: dict[str, str] = types_of.GORILLA_TO_OPENAPI

    def _text(self, name: str) -> str:
        return self._archive.read(f"bfcl_eval/{name}").decode()

    def _module(self, name: str) -> types.ModuleType:
        path = name.removeprefix("bfcl_eval.").replace(".", "/") + ".py"
        module = types.ModuleType(name)
        exec(compile(self._text(path), path, "exec"), module.__dict__)
        sys.modules[name] = module
        return module

    def _load_checker(self) -> Callable:
        folder = "bfcl_eval.eval_checker.ast_eval"
        for package in ("bfcl_eval", "bfcl_eval.constants", "bfcl_eval.eval_checker", folder):
            sys.modules[package] = types.ModuleType(package)
        self._module("bfcl_eval.constants.type_mappings")
        language = self._module("bfcl_eval.constants.enums").Language.PYTHON
        models = types.ModuleType("models")
        models.MODEL_CONFIG_MAPPING = {MODEL: types.SimpleNamespace(underscore_to_dot=True)}
        sys.modules["bfcl_eval.constants.model_config"] = models
        sys.modules[f"{folder}.type_convertor"] = types.ModuleType("type_convertor")
        for kind in ("java", "js"):
            stub = types.ModuleType(kind)
            setattr(stub, f"{kind}_type_converter", None)
            sys.modules[f"{folder}.type_convertor.{kind}_type_converter"] = stub
        checker = self._module(f"{folder}.ast_checker").ast_checker

        def check(functions: list, calls: list, expected: list, category: str) -> str | None:
            """None: they match; else the kind of difference."""
            found = checker(functions, calls, expected, language, category, MODEL)
            return None if found["valid"] else found.get("error_type", "other")

        return check

    def _lines(self, name: str) -> list[dict]:
        return [json.loads(line) for line in self._text(name).splitlines() if line]

    def problems(self, category: str, most: int) -> list[dict]:
        """At most so many, evenly spread."""
        found = self._lines(f"data/BFCL_v4_{category}.json")
        expected = {}
        if category != "irrelevance":
            answers = self._lines(f"data/possible_answer/BFCL_v4_{category}.json")
            expected = {line["id"]: line["ground_truth"] for line in answers}
        chosen = (
            [found[i * len(found) // most] for i in range(most)] if most < len(found) else found
        )
        return [
            {
                "id": problem["id"],
                "messages": problem["question"][0],
                "functions": problem["function"],
                "tools": [self._tool(function) for function in problem["function"]],
                "expected": expected.get(problem["id"]),
            }
            for problem in chosen
        ]

    def _tool(self, function: dict) -> dict:
        return {
            "type": "function",
            "function": {
                "name": function["name"].replace(".", "_"),
                "description": function["description"] + HINT,
                "parameters": self._schema(function["parameters"]),
            },
        }

    def _schema(self, value: dict) -> dict:
        """With the type names of JSON Schema."""
        out = dict(value)
        if isinstance(out.get("type"), str):
            out["type"] = self._types.get(out["type"], "string")
        if isinstance(out.get("properties"), dict):
            out["properties"] = {
                name: self._schema(member) for name, member in out["properties"].items()
            }
        if isinstance(out.get("items"), dict):
            out["items"] = self._schema(out["items"])
        return out


def verdict(package: Package, category: str, problem: dict, message: dict) -> str | None:
    """None: solved; else what is wrong."""
    calls = message.get("tool_calls") or []
    if category == "irrelevance":
        return "a call" if calls else None
    try:
        made = [
            {call["function"]["name"]: json.loads(call["function"]["arguments"])} for call in calls
        ]
    except ValueError:
        return "arguments are not JSON"
    if not made:
        return "no call"
    return package.check(problem["functions"], made, problem["expected"], category)


@contextlib.contextmanager
def tandem(binary: Path, model: Path) -> Iterator[str]:
    """The URL of its HTTP API."""
    with tempfile.TemporaryDirectory(prefix="tandem-bfcl-") as folder:
        ports, log = Path(folder) / "ports", Path(folder) / "log"
        command = [binary, f"--model=model={model}", "--listen=127.0.0.1:0", "--http=off"]
        with log.open("w") as out:
            process = subprocess.Popen(
                [*command, "--openai=127.0.0.1:0", f"--port-file={ports}"], stderr=out
            )
        try:
            while not ports.exists():
                if process.poll() is not None:
                    raise RuntimeError(f"tandem-server ended:\n{log.read_text()}")
                time.sleep(0.05)
            lines = dict(line.split("=", 1) for line in ports.read_text().splitlines())
            yield f"http://{lines['openai']}"
        finally:
            process.terminate()
            process.wait(60)


@contextlib.contextmanager
def llama(binary: Path, model: Path) -> Iterator[str]:
    with llama_server(binary, model, ["--jinja"], context=8192) as server:
        yield server.url


def ask(url: str, problem: dict) -> dict:
    body = {
        "model": "model",
        "messages": problem["messages"],
        "tools": problem["tools"],
        "temperature": 0,
        "max_tokens": TOKENS,
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return {"error": f"{error.code}: {error.read().decode(errors='replace')[:300]}"}


def answered(path: Path | None, settings: dict) -> dict[tuple[str, str], str | None]:
    """What is wrong with the answers of an earlier run, by server and problem. Exits with status 1 if the file has
    other settings. Drops a line that was not completed.
    """
    if path is None or not path.exists():
        return {}
    complete = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    path.write_text("".join(complete))
    if not complete:
        return {}
    first, *lines = map(json.loads, complete)
    if first != settings:
        print(f"{path} has other settings: {first}, not {settings}", file=sys.stderr)
        raise SystemExit(1)
    return {(line["server"], line["id"]): line["wrong"] for line in lines}


def run(name: str, start: Callable, package: Package, problems: dict, known: dict, out) -> dict:
    """What is wrong with each answer, by category. Starts the server if an answer is not known."""
    wrong: dict[str, list[str | None]] = {}
    with contextlib.ExitStack() as stack:
        url = None
        for category, cases in problems.items():
            wrong[category] = []
            for i, problem in enumerate(cases):
                if (name, problem["id"]) in known:
                    wrong[category].append(known[name, problem["id"]])
                    continue
                url = url or stack.enter_context(start())
                began = time.monotonic()
                answer = ask(url, problem)
                message = answer["choices"][0]["message"] if "choices" in answer else {}
                found = (
                    f"error {answer['error']}"
                    if "error" in answer
                    else verdict(package, category, problem, message)
                )
                wrong[category].append(found)
                seconds = round(time.monotonic() - began, 2)
                line = {
                    "server": name,
                    "id": problem["id"],
                    "wrong": found,
                    "message": message,
                    "seconds": seconds,
                }
                print(json.dumps(line), file=out, flush=True)
                print(
                    f"{name}, {category} {i + 1} of {len(cases)}: {found or 'solved'}, {seconds} s",
                    file=sys.stderr,
                )
    return wrong


def table(results: dict[str, dict[str, list[str | None]]]) -> list[str]:
    categories = list(next(iter(results.values())))
    lines = [
        "| server | " + " | ".join(categories) + " |",
        "|---|" + "---|" * len(categories),
    ]
    for name, by_category in results.items():
        cells = [f"{found.count(None)} of {len(found)}" for found in by_category.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    if len(results) == 2:
        first, second = results.values()
        cells = [
            str(sum((a is None) != (b is None) for a, b in zip(first[c], second[c], strict=True)))
            for c in categories
        ]
        lines.append("| only one of the two | " + " | ".join(cells) + " |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--package", type=Path, required=True, help="the wheel of bfcl-eval")
    parser.add_argument("--model", type=Path, required=True, help="a GGUF file")
    parser.add_argument("--tandem", type=Path, default=ROOT / "build/release/bin/tandem-server")
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument(
        "--limit", type=int, default=1 << 20, help="problems of each category, evenly spread"
    )
    parser.add_argument("--categories", nargs="+", choices=CATEGORIES, default=CATEGORIES)
    parser.add_argument("--out", type=Path, help="each answer, as lines of JSON")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers end too
    package = Package(arguments.package)
    problems = {c: package.problems(c, arguments.limit) for c in arguments.categories}
    servers = {"Tandem": lambda: tandem(arguments.tandem, arguments.model)}
    if arguments.llama_server:
        servers["llama-server"] = lambda: llama(arguments.llama_server, arguments.model)
    settings = {"model": arguments.model.name, "package": arguments.package.name, "tokens": TOKENS}
    known = answered(arguments.out, settings)
    results = {}
    with open(arguments.out or "/dev/null", "a") as out:
        if out.tell() == 0:
            print(json.dumps(settings), file=out, flush=True)
        for name, start in servers.items():
            results[name] = run(name, start, package, problems, known, out)
    print("\n".join(table(results)))


if __name__ == "__main__":
    main()
