"""The same prompt and seed give the same text through every API and client."""

import json
import subprocess
import urllib.request

import pytest

SEED = 2**64 - 1
TOKENS = 24
PROMPT = "Grüße: “example”"  # characters of several tokens each


@pytest.fixture(scope="module")
def served(start_server):
    server = start_server(None, "--openai=127.0.0.1:0")
    server.openai = f"http://{server.ports['openai']}/v1"
    return server


def of(done):
    assert done.returncode == 0, done.stderr
    return done.stdout


def by_command_line(served, request):
    flags = ["--model=pair", f"--prompt={PROMPT}", f"--max-new-tokens={TOKENS}", f"--seed={SEED}"]
    flags += ["--temperature=1", "--ignore-eos", "--format=json"]
    tandem = request.getfixturevalue("tandem")
    return json.loads(of(tandem("generate", *flags, address=served.grpc)))["text"]


FIELDS = {
    "model": "pair",
    "max_new_tokens": TOKENS,
    "seed": str(SEED),
    "temperature": 1,
    "ignore_eos": True,
}
EXAMPLE = ["-model=pair", f"-prompt={PROMPT}", f"-max-new-tokens={TOKENS}"]
MORE = json.dumps({"seed": str(SEED), "temperature": 1, "ignore_eos": True})
COMPLETION = {
    "model": "pair",
    "prompt": PROMPT,
    "max_tokens": TOKENS,
    "temperature": 1,
    "seed": SEED,
}


def by_python_package(served, request):
    package = request.getfixturevalue("tandem_client")
    fields = {name: value for name, value in FIELDS.items() if name != "model"} | {"seed": SEED}
    with package.Client(served.grpc) as client:
        return "".join(chunk.text for chunk in client.stream("pair", PROMPT, **fields))


def by_node(served, request):
    node = request.getfixturevalue("node")
    flags = [f"-{flag}" for flag in EXAMPLE]
    return of(node("generate.js", f"--server={served.grpc}", *flags, f"--fields={MORE}"))


def by_go(served, request):
    program = request.getfixturevalue("go_program")
    flags = [f"-server={served.grpc}", *EXAMPLE, f"-fields={MORE}"]
    return of(subprocess.run([program, *flags], capture_output=True, text=True, timeout=120))


def by_grpcurl(served, request):
    tool = request.getfixturevalue("tool")("grpcurl")
    command = [tool, "-plaintext", "-max-time", "60", "-d", json.dumps(FIELDS | {"text": PROMPT})]
    call = [served.grpc, "tandem.v1.Generation/Complete"]
    done = subprocess.run([*command, *call], capture_output=True, text=True, timeout=120)
    return json.loads(of(done))["choices"][0]["text"]


def by_openai_python(served, request):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=served.openai, api_key="none", max_retries=0) as client:
        stream = client.completions.create(
            **COMPLETION, stream=True, extra_body={"tandem": {"ignore_eos": True}}
        )
        return "".join(chunk.choices[0].text for chunk in stream)


def by_openai_node(served, request):
    node = request.getfixturevalue("node")
    flags = [f"--server={served.ports['openai']}", "--model=pair", f"--prompt={PROMPT}"]
    flags += [f"--max-tokens={TOKENS}", f"--seed={SEED}"]
    return of(node("openai.js", *flags, '--fields={"temperature":1,"tandem":{"ignore_eos":true}}'))


def by_http(served, request):
    asked = urllib.request.Request(
        f"{served.openai}/completions",
        json.dumps(COMPLETION | {"tandem": {"ignore_eos": True}}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return json.load(answer)["choices"][0]["text"]


@pytest.mark.parametrize(
    "ask",
    [
        by_python_package,
        by_node,
        by_go,
        by_grpcurl,
        by_openai_python,
        by_openai_node,
        by_http,
    ],
)
def test_the_same_seed_gives_the_same_text(served, request, ask):
    text = ask(served, request)
    assert text == by_command_line(served, request) != ""
