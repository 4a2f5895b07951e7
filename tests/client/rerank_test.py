"""Rerank and /v1/rerank against Transformers: a random Qwen 3, whose tokenizer has `yes` as one token."""

import json
import shutil
import urllib.error
import urllib.request

import pytest

from tests.conftest import ROOT

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

PROMPT = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: {}\n'
    "<Query>: {}\n<Document>: {}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
DOCUMENTS = [
    "def add(a, b):\n    return a + b",
    "import os",
    "class Point:",
    "x = 3",
    "# a comment",
]
CLOSE = 1e-4


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reranker")
    source = ROOT / "models/code-small"
    tokenizer = json.loads((source / "tokenizer.json").read_text("utf-8"))
    yes = 1 + max(
        max(tokenizer["model"]["vocab"].values()), *(t["id"] for t in tokenizer["added_tokens"])
    )
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tokenizer["added_tokens"].append({"id": yes, "content": "yes", "special": False, **plain})
    config = transformers.Qwen3Config(
        vocab_size=yes + 1,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        initializer_range=0.15,
    )
    torch.manual_seed(1)
    transformers.Qwen3ForCausalLM(config).eval().save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    shutil.copy(source / "tokenizer_config.json", folder)
    return folder


@pytest.fixture(scope="module")
def server(start_server, checkpoint):
    return start_server(
        f'models {{ name: "m" path: "{checkpoint}" dtype: DTYPE_FP32 }}', "--openai=127.0.0.1:0"
    )


@pytest.fixture(scope="module")
def http(server):
    """Status and body of POST /v1/rerank."""

    def rerank(**fields):
        request = urllib.request.Request(
            f"http://{server.ports['openai']}/v1/rerank",
            json.dumps({"model": "m", **fields}).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    return rerank


@pytest.fixture(scope="module")
def client(tandem_client, server):
    with tandem_client.Client(server.grpc) as client:
        yield client


def expected(checkpoint, query, instruction):
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(checkpoint / "tokenizer.json")
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.float32
    ).eval()
    yes, no = (tokenizer.encode(word, add_special_tokens=False) for word in ("yes", "no"))
    assert len(yes) == len(no) == 1
    scores = []
    for document in DOCUMENTS:
        ids = tokenizer.encode(
            PROMPT.format(instruction, query, document), add_special_tokens=False
        )
        with torch.inference_mode():
            logits = model(torch.tensor([ids])).logits[0, -1].double()
        scores.append(torch.softmax(logits[[yes[0], no[0]]], 0)[0].item())
    return scores


def test_scores_of_transformers(client, checkpoint):
    for instruction in (None, "Find code"):
        options = {} if instruction is None else {"instruction": instruction}
        answer = client.rerank("m", "sum of numbers", DOCUMENTS, **options)
        want = expected(
            checkpoint,
            "sum of numbers",
            instruction
            or "Given a web search query, retrieve relevant passages that answer the query",
        )
        assert max(want) - min(want) > 10 * CLOSE, "the scores tell the documents apart"
        assert [r.index for r in answer] == sorted(range(len(want)), key=lambda i: -want[i])
        for result in answer:
            assert result.relevance_score == pytest.approx(want[result.index], abs=CLOSE)


def test_http_gives_the_scores_of_transformers(client, http, checkpoint):
    want = expected(checkpoint, "sum of numbers", "Find code")
    fields = {"query": "sum of numbers", "instruction": "Find code", "documents": DOCUMENTS}
    status, answer = http(**fields)
    assert status == 200, answer
    assert answer["model"] == "m" and answer["id"]
    results = answer["results"]
    assert [r["index"] for r in results] == sorted(range(len(want)), key=lambda i: -want[i])
    for result in results:
        assert result["relevance_score"] == pytest.approx(want[result["index"]], abs=CLOSE)
        assert "document" not in result
    tokens = answer["usage"]["prompt_tokens"]
    assert tokens == answer["usage"]["total_tokens"] > 50 * len(DOCUMENTS)
    # Jina's and Cohere's other forms.
    status, objects = http(
        **{**fields, "documents": [{"text": text} for text in DOCUMENTS]},
        top_n=2,
        return_documents=True,
    )
    assert status == 200 and len(objects["results"]) == 2
    for got, same in zip(objects["results"], results, strict=False):
        assert got["index"] == same["index"]
        assert got["relevance_score"] == pytest.approx(same["relevance_score"], abs=1e-6)
        assert got["document"] == {"text": DOCUMENTS[got["index"]]}
    same = client.rerank("m", "sum of numbers", DOCUMENTS, instruction="Find code")
    assert [r.index for r in same] == [r["index"] for r in results]


def test_many_documents_are_one_request(server, http):
    def metric(name):
        lines = server.metrics().splitlines()
        return float(next(line for line in lines if line.startswith(name)).split()[1])

    before = metric('tandem_client_requests_total{client=""}')
    status, answer = http(query="q", documents=["x = 3"] * 60, top_n=1)
    assert status == 200 and answer["results"][0]["index"] == 0, "of equal ones, the first"
    assert metric('tandem_client_requests_total{client=""}') == before + 1


def test_http_errors(http):
    for fields, param in (
        ({"query": "", "documents": ["a"]}, "query"),
        ({"query": "q", "documents": []}, "documents"),
        ({"query": "q", "documents": ["a"], "top_n": 0}, "top_n"),
        ({"query": "q", "documents": ["a", "b " * 2000]}, "documents[1]"),
        ({"query": "q", "documents": ["a"], "rank_fields": ["text"]}, "rank_fields"),
        ({"query": "q", "documents": ["a", 3]}, "documents[1]"),
    ):
        status, answer = http(**fields)
        assert (status, answer["error"]["type"]) == (400, "invalid_request_error"), answer
        message = answer["error"]["message"]
        assert message.startswith(param) and "allowed: " in message, answer
    _, answer = http(query="q", documents=["a", "b " * 2000])
    assert "at most 512" in answer["error"]["message"]


def test_best_documents(client):
    best = client.rerank("m", "sum of numbers", DOCUMENTS, top_n=2, return_documents=True)
    assert len(best) == 2 and best[0].document == DOCUMENTS[best[0].index]
    whole = client.rerank("m", "sum of numbers", DOCUMENTS)
    assert [r.index for r in best] == [r.index for r in whole[:2]] and whole[0].document == ""


def test_errors(client, tandem_client):
    with pytest.raises(tandem_client.TandemError) as error:
        client.rerank("m", "", [])
    assert set(error.value.fields) == {"query", "documents"}
    with pytest.raises(tandem_client.TandemError, match=r"documents\[1\]") as error:
        client.rerank("m", "q", ["a", "b " * 2000])
    assert error.value.status == "INVALID_ARGUMENT"
    with pytest.raises(TypeError, match="instruction"):
        client.rerank("m", "q", ["a"], instructions="x")


def test_models_that_are_no_rerankers(tandem_client, start_server):
    server = start_server(f'models {{ name: "m" path: "{ROOT}/models/code-small" }}')
    with tandem_client.Client(server.grpc) as other:
        with pytest.raises(tandem_client.TandemError, match="allowed: a reranker") as error:
            other.rerank("m", "q", ["a"])
        assert error.value.status == "FAILED_PRECONDITION"
