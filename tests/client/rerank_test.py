"""Generation.Rerank against Transformers: a random Qwen 3, whose tokenizer has `yes` as one token."""

import json
import shutil

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
def client(tandem_client, start_server, checkpoint):
    server = start_server(f'models {{ name: "m" path: "{checkpoint}" dtype: DTYPE_FP32 }}')
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
