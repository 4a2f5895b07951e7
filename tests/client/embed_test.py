"""Embeddings against Transformers, by gRPC and by OpenAI's client: random models of four families."""

import base64
import json
import shutil
import struct

import pytest

from tests.conftest import ROOT

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")
openai = pytest.importorskip("openai")

TEXTS = ["def add(a, b):\n    return a + b", "import os", "class Point:", "x = 3\n" * 60]
CLOSE = 1e-4
WIDTH = 64
SIZES = {
    "hidden_size": WIDTH,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
}
# Name: configuration, model, pooling of Sentence Transformers.
MODELS = {
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM, "lasttoken"),
    "gemma3": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM, "mean_tokens"),
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM, "cls_token"),
    "embeddinggemma": (transformers.Gemma3TextConfig, transformers.Gemma3TextModel, "mean_tokens"),
}
# Files of the base model have no output matrix, so such models only embed.
BASE = "embeddinggemma"
MORE = {
    BASE: {
        "use_bidirectional_attention": True,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    }
}
# Modules behind the pooling: output width, bias, activation.
DENSE = {BASE: [(96, False, torch.nn.Identity()), (48, True, torch.nn.Tanh())]}
STEP_ROWS = 400
PROMPTS = {"query": "Instruct: find code\nQuery:", "document": ""}


def save_modules(folder, dense):
    """modules.json and the Dense modules, as Sentence Transformers writes them."""
    kinds = ["models.Transformer", "models.Pooling", *["models.Dense"] * len(dense)]
    kinds.append("models.Normalize")
    paths = ["", "1_Pooling", *(f"{i}_Dense" for i in range(2, 2 + len(dense))), "4_Normalize"]
    width = WIDTH
    for path, (out, bias, activation) in zip(paths[2:-1], dense, strict=True):
        (folder / path).mkdir()
        kind = type(activation)
        text = {
            "in_features": width,
            "out_features": out,
            "bias": bias,
            "activation_function": f"{kind.__module__}.{kind.__name__}",
        }
        (folder / path / "config.json").write_text(json.dumps(text))
        linear = torch.nn.Linear(width, out, bias)
        tensors = {f"linear.{name}": t.detach() for name, t in linear.named_parameters()}
        safetensors.save_file(tensors, folder / path / "model.safetensors")
        width = out
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.{kind}"}
        for i, (path, kind) in enumerate(zip(paths, kinds, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))


def save(folder, family):
    source = ROOT / "models/code-small"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, folder)
    words = json.loads((source / "tokenizer.json").read_text("utf-8"))
    size = 1 + max(max(words["model"]["vocab"].values()), *(t["id"] for t in words["added_tokens"]))
    config, model, pooling = MODELS[family]
    torch.manual_seed(1)
    sizes = {**SIZES, **MORE.get(family, {})}
    model(config(vocab_size=size, tie_word_embeddings=True, **sizes)).eval().save_pretrained(folder)
    if family in DENSE:
        save_modules(folder, DENSE[family])
    if family == "qwen3":  # the names of the base model, as in Qwen3-Embedding
        path = folder / "model.safetensors"
        tensors = safetensors.load_file(path)
        bare = {
            name.removeprefix("model."): t for name, t in tensors.items() if "lm_head" not in name
        }
        safetensors.save_file(bare, path, metadata={"format": "pt"})
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(
        json.dumps({f"pooling_mode_{pooling}": True, "include_prompt": True})
    )
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": PROMPTS}))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {family: tmp_path_factory.mktemp(family) for family in MODELS}
    for family, folder in made.items():
        save(folder, family)
    return made


@pytest.fixture(scope="module")
def server(start_server, folders):
    models = "".join(
        f'models {{ name: "{family}" path: "{folder}" dtype: DTYPE_FP32 }}\n'
        f'deployments {{ name: "{family}" large: "{family}" }}\n'
        for family, folder in folders.items()
    )
    return start_server(models + f"limits {{ step_rows: {STEP_ROWS} }}", "--openai=127.0.0.1:0")


@pytest.fixture(scope="module")
def client(tandem_client, server):
    with tandem_client.Client(server.grpc) as client:
        yield client


@pytest.fixture(scope="module")
def http(server):
    url = f"http://{server.ports['openai']}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def tokenizer(folders):
    return transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folders["qwen3"] / "tokenizer.json")
    )


def expected(folder, family, ids):
    model = MODELS[family][1].from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        body = model if family == BASE else model.model
        rows = body(torch.tensor([ids])).last_hidden_state[0].double()
    pooling = MODELS[family][2]
    state = {"lasttoken": rows[-1], "mean_tokens": rows.mean(0), "cls_token": rows[0]}[pooling]
    for i, (_, _, activation) in enumerate(DENSE.get(family, []), 2):
        tensors = safetensors.load_file(folder / f"{i}_Dense/model.safetensors")
        state = tensors["linear.weight"].double() @ state
        state = activation(state + tensors.get("linear.bias", torch.zeros(1)).double())
    return state


def unit(vector):
    return (vector / vector.norm()).tolist()


def test_the_tokenizer_splits_the_texts(tokenizer):
    """The last text is longer than a chunk of 256 rows, so its mean is made of several."""
    lengths = [len(tokenizer.encode(text)) for text in TEXTS]
    assert min(lengths) > 1 and 180 < max(lengths) < STEP_ROWS


@pytest.mark.parametrize("family", MODELS)
def test_embeddings_of_transformers(client, http, folders, tokenizer, family):
    ids = [tokenizer.encode(text) for text in TEXTS]
    states = [expected(folders[family], family, one) for one in ids]
    want = [unit(state) for state in states]
    got = client.embed(family, TEXTS)
    for one, should in zip(got, want, strict=True):
        assert one == pytest.approx(should, abs=CLOSE)
    for one, should in zip(client.embed(family, ids), want, strict=True):
        assert one == pytest.approx(should, abs=CLOSE)
    for one, state in zip(client.embed(family, TEXTS, normalize=False), states, strict=True):
        assert one == pytest.approx(state.tolist(), abs=CLOSE * max(1, state.norm().item()))
    for one, state in zip(client.embed(family, TEXTS, dimensions=5), states, strict=True):
        assert one == pytest.approx(unit(state[:5]), abs=CLOSE)
    answer = http.embeddings.create(model=family, input=TEXTS)  # base64 is this client's default
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, ids))
    for i, item in enumerate(answer.data):
        assert item.index == i and item.embedding == pytest.approx(want[i], abs=CLOSE)


def test_forms_of_input_are_equal(http, tokenizer):
    def embed(value, **options):
        answer = http.embeddings.create(model="qwen3", input=value, **options)
        return [item.embedding for item in answer.data]

    text = TEXTS[0]
    ids = tokenizer.encode(text)
    (want,) = embed(text, encoding_format="float")
    for value in (ids, [ids], [text]):
        (got,) = embed(value, encoding_format="float")
        assert got == pytest.approx(want, abs=1e-6)
    (raw,) = embed(text, encoding_format="base64")
    assert struct.unpack(f"<{WIDTH}f", base64.b64decode(raw)) == pytest.approx(want, abs=1e-6)
    (short,) = embed(text, dimensions=7)
    assert len(short) == 7 and sum(x * x for x in short) == pytest.approx(1, abs=1e-5)


def test_prefixes(client, http):
    query = PROMPTS["query"]
    (want,) = client.embed("qwen3", query + "sum")
    (plain,) = client.embed("qwen3", "sum")
    assert plain != pytest.approx(want, abs=CLOSE)
    for options in ({"prefix": query}, {"prompt_name": "query"}):
        (got,) = client.embed("qwen3", "sum", **options)
        assert got == pytest.approx(want, abs=1e-6)
        answer = http.embeddings.create(model="qwen3", input="sum", extra_body=options)
        assert answer.data[0].embedding == pytest.approx(want, abs=1e-6)
    (got,) = client.embed("qwen3", "sum", prompt_name="document")
    assert got == pytest.approx(plain, abs=1e-6)


def test_embeddings_share_batches_with_answers(client):
    """A generation alongside has the same tokens, and nothing of an embedding's rows is cached."""
    alone = client.complete("qwen3", "def f(", max_new_tokens=16)
    client.embed("qwen3", ["def f("] * 40 + TEXTS)
    again = client.complete("qwen3", "def f(", max_new_tokens=16)
    assert again.text == alone.text
    first = client.embed("llama", TEXTS[3])
    answer = client.complete("llama", TEXTS[3], max_new_tokens=1)
    assert answer.choices[0].finished.usage.cached_tokens == 0
    assert client.embed("llama", TEXTS[3])[0] == pytest.approx(first[0], abs=1e-6)


def test_models_that_only_embed(client, http, tandem_client):
    for call in (
        lambda: client.complete(BASE, "x", max_new_tokens=1),
        lambda: client.score(BASE, "x", "y"),
    ):
        with pytest.raises(
            tandem_client.TandemError, match="is bidirectional; offered: Embed"
        ) as error:
            call()
        assert error.value.status == "FAILED_PRECONDITION"
    with pytest.raises(openai.BadRequestError, match="offered: Embed"):
        http.completions.create(model=BASE, prompt="x", max_tokens=1)
    # Its pass is never divided.
    allowed = rf"allowed: at most {STEP_ROWS} \(limits.step_rows\)"
    with pytest.raises(tandem_client.TandemError, match=allowed):
        client.embed(BASE, [[5] * (STEP_ROWS + 1)])
    assert len(client.embed(BASE, [[5] * STEP_ROWS])[0]) == DENSE[BASE][-1][0]
    with pytest.raises(tandem_client.TandemError, match="dimensions: 49; allowed: 1 to 48"):
        client.embed(BASE, "x", dimensions=49)


def test_bidirectional_rows_see_what_follows(client):
    first, other = client.embed(BASE, [[5, 6, 7], [5, 6, 8]], normalize=False)
    assert first != pytest.approx(other, abs=CLOSE)
    # The pooling of `llama` is the first row, which is causal.
    first, other = client.embed("llama", [[5, 6, 7], [5, 6, 8]], normalize=False)
    assert first == pytest.approx(other, abs=1e-6)


def test_errors(client, http, tandem_client):
    for options, field in (
        ({"dimensions": WIDTH + 1}, "dimensions"),
        ({"prompt_name": "other"}, "document, query"),
        ({"prefix": "a", "prompt_name": "query"}, "prompt_name"),
    ):
        with pytest.raises(tandem_client.TandemError, match=field) as error:
            client.embed("qwen3", ["a", "b"], **options)
        assert error.value.status == "INVALID_ARGUMENT"
    with pytest.raises(tandem_client.TandemError, match="token ids"):
        client.embed("qwen3", [[1, 2]], prefix="a")
    with pytest.raises(tandem_client.TandemError, match=r"inputs\[1\]"):
        client.embed("qwen3", ["a", "x = 3\n" * 200])
    with pytest.raises(openai.BadRequestError, match=r"input\[1\]") as refused:
        http.embeddings.create(model="qwen3", input=["a", [10**6]])
    assert refused.value.status_code == 400
    with pytest.raises(openai.BadRequestError) as refused:
        http.embeddings.create(model="qwen3", input="")
    assert refused.value.param.startswith("input")
    with pytest.raises(openai.BadRequestError, match="at most 512"):
        http.embeddings.create(model="qwen3", input="x = 3\n" * 400)
    with pytest.raises(openai.NotFoundError):
        http.embeddings.create(model="other", input="a")
