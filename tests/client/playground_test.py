"""The playground in a headless browser, served by tandem-server with scripted models."""

import json
import os
import re
import shutil
import subprocess
import threading
import urllib.error
import urllib.request

import pytest

from tests.conftest import HOME, ROOT

SCRIPT = ROOT / "tests" / "client" / "playground.mjs"
MODULES = HOME / "web" / "node_modules"
TOKEN = "aaaaaaaaaaaaaaaaaaaa"
CHECKS = re.findall(r"^  async (\w+)\(\) \{", SCRIPT.read_text("utf-8"), re.MULTILINE)

ANSWER = """Here is a function:

```python
def fib(n):
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a
```

It needs **n steps**. The values grow fast.
"""
HOSTILE = (
    "<script>window.attacked = 1</script>\n\n"
    "<img src=x onerror=window.attacked=1> <svg onload=window.attacked=1>\n\n"
    "[link](javascript:window.attacked=1) ![image](http://example.com/x.png) <a href=//example.com>a</a>\n\n"
    "access \u202egnp.exe\u2066 and \u061c\u200f marks\n\n"
    "```<b onclick=window.attacked=1>\n<style>*{display:none}</style>\n```\n\n"
    + "w" * 3000
    + "\n\n<iframe src=/v1/models></iframe><form action=//example.com><input>\x1b[31m\x00end"
)
LONG = "".join(f"{i:4} tokens of a long answer, with code and some text\n" for i in range(400))
LONG = LONG[:10_000]


def quoted(text):
    """A string literal of a deployment file."""
    return '"' + "".join(f"\\{byte:03o}" for byte in text.encode()) + '"'


def models(slow):
    """`code`: a pair whose small model errs now and then. `other` answers differently."""
    small = ANSWER.replace("range", "Range").replace("steps", "Steps").replace("0, 1", "1, 1")
    texts = {
        "code": (ANSWER, 0, 1),
        "small": (small, 0, 2),
        "slow": (ANSWER, slow, 1),
        "other": (ANSWER.replace("fib", "fibonacci"), 0, 3),
        "hostile": (HOSTILE, 0, 1),
        "long": (LONG, 0, 1),
    }
    out = ""
    for name, (text, seconds, seed) in texts.items():
        answers = f"answers: {quoted(text)} answers: {quoted(text)}"
        out += (
            f'models {{ name: "{name}" fake {{ {answers} pass_seconds: {seconds} seed: {seed} '
            "max_positions: 16384 } }\n"
        )
        pair = 'small: "small" default_method: METHOD_SPECULATIVE' if name == "code" else ""
        if name != "small":
            out += f'deployments {{ name: "{name}" large: "{name}" {pair} }}\n'
    return out


@pytest.fixture(scope="module")
def results(start_server, tmp_path_factory):
    """Results of all checks, by name. One browser for all."""
    chromium = shutil.which("chromium")
    if not (shutil.which("node") and chromium and (MODULES / "playwright-core").is_dir()):
        pytest.skip(f"node, chromium or packages in {MODULES} are missing (scripts/setup --full)")
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.write_text(f"alice {TOKEN}\n")
    http = "--openai=127.0.0.1:0"
    served = start_server(models(0.03), http)
    try:
        urllib.request.urlopen(f"http://{served.ports['openai']}/", timeout=60).close()
    except urllib.error.HTTPError:
        pytest.skip("this build has no playground: Node.js or its packages were missing")
    guarded = start_server(models(0.03) + f'server {{ bearer_token_file: "{tokens}" }}', http)
    doomed = start_server(models(0.03), http)
    options = {
        "chromium": chromium,
        "open": served.ports["openai"],
        "guarded": guarded.ports["openai"],
        "doomed": doomed.ports["openai"],
        "token": TOKEN,
        "answer": ANSWER,
        "long": len(LONG),
        "models": 5,
    }
    if only := os.environ.get("TANDEM_PLAYGROUND"):  # names of checks
        options["only"] = only.split()
    process = subprocess.Popen(
        ["node", SCRIPT, MODULES, json.dumps(options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    limit = threading.Timer(300, process.kill)
    limit.start()
    found, other = {}, []
    for line in process.stdout:
        if line.strip() == "end the server":
            doomed.process.kill()
        elif line.startswith("{"):
            result = json.loads(line)
            found[result["check"]] = result
            print(f"\n{result['check']}: {result['seconds']} s {result['notes']}", end="")
        else:
            other.append(line)
    errors = process.stderr.read()
    process.wait()
    limit.cancel()
    assert process.returncode == 0, "".join(other) + errors
    return found


@pytest.mark.parametrize("check", CHECKS)
def test_page(results, check):
    if check not in results:
        pytest.skip("not chosen")
    assert results[check]["ok"], results[check]["error"]


def test_functions():
    if not (shutil.which("node") and (MODULES / "esbuild").is_dir()):
        pytest.skip(f"node or packages in {MODULES} are missing (scripts/setup)")
    script = ROOT / "tests/client/playground_units.mjs"
    done = subprocess.run(
        ["node", script, MODULES, ROOT / "client/web/src"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
