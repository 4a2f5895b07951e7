"""Embeddings and rerank scores of GGUF files beside those of the checkpoints that they are made of: random models.

The files are written as llama.cpp's converter writes them, with the names of the package `gguf`.
"""

import json
import shutil

import pytest

from tests.conftest import ROOT

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")
gguf = pytest.importorskip("gguf")

CLOSE = 1e-4
LAYERS, WIDTH, LONGEST = 7, 64, 256
TEXTS = ["def add(a, b):\n    return a + b", "import os", "class Point:", "x = 3\n" * 30]
SIZES = {
    "hidden_size": WIDTH,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
# EmbeddingGemma: every sixth layer sees the whole text.
GEMMA = {
    "use_bidirectional_attention": True,
    "sliding_window": 16,
    "query_pre_attn_scalar": 16,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"],
    "pad_token_id": 0,
}
DENSE = [(WIDTH, 96), (96, WIDTH)]
QUERY = "task: search result | query: "
FAMILIES = {
    "qwen": (gguf.MODEL_ARCH.QWEN3, "lasttoken"),
    "gemma": (gguf.MODEL_ARCH.GEMMA_EMBEDDING, "mean_tokens"),
}
RERANKER = "reranker"
ARCHITECTURES = {
    RERANKER: gguf.MODEL_ARCH.QWEN3,
    **{name: arch for name, (arch, _) in FAMILIES.items()},
}


def save_tokenizer(folder, begin, yes=False):
    """That of code-small with the words of GPT-2, as GGUF names few kinds of words."""
    text = (ROOT / "models/code-small/tokenizer.json").read_text("utf-8")
    tokenizer = json.loads(text)
    tokenizer["pre_tokenizer"] = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": True,
    }
    mark = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
    words = {"Sequence": {"id": "A", "type_id": 0}}
    tokenizer["post_processor"]["single"] = [mark, words, mark] if begin else [words, mark]
    if yes:  # a token, as `no` is
        tokenizer["post_processor"] = None
        added = {**tokenizer["added_tokens"][0], "content": "yes", "special": False}
        tokenizer["added_tokens"].append({**added, "id": len(tokenizer["model"]["vocab"])})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    shutil.copy(ROOT / "models/code-small/tokenizer_config.json", folder)
    return tokenizer


def save_modules(folder, pooling):
    """The files of Sentence Transformers."""
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps({f"pooling_mode_{pooling}": True}))
    modules = [
        {"path": "", "type": "Transformer"},
        {"path": "1_Pooling", "type": "Pooling"},
        {"path": "4_Normalize", "type": "Normalize"},
    ]
    if pooling == "mean_tokens":
        for i, (width, out) in enumerate(DENSE, 2):
            path = folder / f"{i}_Dense"
            path.mkdir()
            config = {"in_features": width, "out_features": out, "bias": False}
            config["activation_function"] = "torch.nn.modules.linear.Identity"
            (path / "config.json").write_text(json.dumps(config))
            weight = torch.nn.Linear(width, out, bias=False).weight.detach()
            safetensors.save_file({"linear.weight": weight}, path / "model.safetensors")
            modules.insert(i, {"path": path.name, "type": "Dense"})
    for module in modules:
        module["type"] = f"sentence_transformers.models.{module['type']}"
    (folder / "modules.json").write_text(json.dumps(modules))


def save(folder, family):
    tokenizer = save_tokenizer(folder, begin=family == "gemma", yes=family == RERANKER)
    size = len(vocabulary(tokenizer))
    torch.manual_seed(3)
    if family != "gemma":
        config = transformers.Qwen3Config(vocab_size=size, tie_word_embeddings=True, **SIZES)
        model = transformers.Qwen3ForCausalLM(config)
    else:
        config = transformers.Gemma3TextConfig(vocab_size=size, **SIZES, **GEMMA)
        model = transformers.Gemma3TextModel(config)
    model.eval().save_pretrained(folder)
    if family in FAMILIES:
        save_modules(folder, FAMILIES[family][1])


def write_gguf(folder, path, family, dense=True):
    """The checkpoint in `folder` as llama.cpp's converter writes it."""
    arch = ARCHITECTURES[family]
    config = json.loads((folder / "config.json").read_text("utf-8"))
    out = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(config["hidden_size"])
    out.add_block_count(LAYERS)
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_head_count(config["num_attention_heads"])
    out.add_head_count_kv(config["num_key_value_heads"])
    out.add_key_length(config["head_dim"])
    out.add_value_length(config["head_dim"])
    out.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rope = config["rope_parameters"]
    out.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if family == "gemma":
        out.add_sliding_window(config["sliding_window"])
        out.add_pooling_type(gguf.PoolingType.MEAN)
    else:
        out.add_pooling_type(gguf.PoolingType.RANK if family == RERANKER else gguf.PoolingType.LAST)
    tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    write_vocabulary(out, tokenizer, family)
    names = gguf.get_tensor_name_map(arch, LAYERS)
    for name, tensor in safetensors.load_file(folder / "model.safetensors").items():
        if family == RERANKER and "embed_tokens" in name:
            words = vocabulary(tokenizer)
            rows = [tensor[words.index(word)].float() for word in ("yes", "no")]
            out.add_tensor("cls.output.weight", torch.stack(rows).numpy())
        name = names.get_name(name, (".weight",))
        shift = 1 if family == "gemma" and name.endswith("_norm.weight") else 0
        out.add_tensor(name, (tensor.float() + shift).numpy())
    for i, (width, to) in enumerate(DENSE if family == "gemma" and dense else (), 2):
        out.add_dense_features_dims(f"dense_{i}", width, to)
        weights = safetensors.load_file(folder / f"{i}_Dense/model.safetensors")
        out.add_tensor(f"dense_{i}.weight", weights["linear.weight"].numpy())
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def vocabulary(tokenizer):
    """All tokens by id."""
    ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    ids.update(tokenizer["model"]["vocab"])
    return sorted(ids, key=ids.get)


def write_vocabulary(out, tokenizer, family):
    words = vocabulary(tokenizer)
    kinds = {token["content"]: 3 if token["special"] else 4 for token in tokenizer["added_tokens"]}
    merges = tokenizer["model"]["merges"]
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list(words)
    out.add_token_types([kinds.get(word, 1) for word in words])
    out.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    out.add_bos_token_id(0)
    out.add_eos_token_id(0)
    out.add_add_bos_token(family == "gemma")
    out.add_add_eos_token(family in FAMILIES)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Path by name of the model."""
    found = {}
    for family in ARCHITECTURES:
        folder = tmp_path_factory.mktemp(family)
        save(folder, family)
        found[family] = folder
        found[f"{family}-gguf"] = tmp_path_factory.mktemp("gguf") / f"{family}.gguf"
        write_gguf(folder, found[f"{family}-gguf"], family)
    # Converted without its Dense modules, which lie beside it.
    bare = tmp_path_factory.mktemp("bare")
    write_gguf(found["gemma"], bare / "gemma.gguf", "gemma", dense=False)
    found["gemma-bare"] = bare / "gemma.gguf"
    beside = tmp_path_factory.mktemp("beside")
    shutil.copy(bare / "gemma.gguf", beside)
    shutil.copy(found["gemma"] / "modules.json", beside)
    for i in (2, 3):
        shutil.copytree(found["gemma"] / f"{i}_Dense", beside / f"{i}_Dense")
    found["gemma-beside"] = beside / "gemma.gguf"
    return found


@pytest.fixture(scope="module")
def client(tandem_client, start_server, paths):
    models = "".join(
        f'models {{ name: "{name}" path: "{path}" dtype: DTYPE_FP32 }}\n'
        f'deployments {{ name: "{name}" large: "{name}" }}\n'
        for name, path in paths.items()
    )
    server = start_server(models + f"limits {{ step_rows: {LONGEST} }}")
    with tandem_client.Client(server.grpc) as client:
        yield client


def assert_close(got, want):
    assert len(got) == len(want)
    for one, should in zip(got, want, strict=True):
        assert one == pytest.approx(should, abs=CLOSE)


@pytest.mark.parametrize("family", FAMILIES)
def test_embeddings_are_those_of_the_checkpoint(client, paths, family):
    """Texts: the file adds the same tokens to them. Not normalized: neither hides a factor."""
    tokens = [client.tokenize(family, text) for text in TEXTS]
    assert [client.tokenize(f"{family}-gguf", text) for text in TEXTS] == tokens
    assert all(ids[-1] == 0 and len(ids) > 2 for ids in tokens)
    assert 100 < max(map(len, tokens)) < LONGEST
    for options in ({}, {"normalize": False}, {"dimensions": 5}):
        want = client.embed(family, TEXTS, **options)
        assert_close(client.embed(f"{family}-gguf", TEXTS, **options), want)
        assert_close(client.embed(f"{family}-gguf", tokens, **options), want)
    assert client.embed(family, TEXTS[0])[0] != pytest.approx(
        client.embed(family, TEXTS[1])[0], abs=100 * CLOSE
    )


def test_the_checkpoint_is_that_of_transformers(client, paths):
    """So that both are not wrong alike: the state before the Dense modules."""
    model = transformers.Gemma3TextModel.from_pretrained(paths["gemma"], dtype=torch.float32).eval()
    for text in TEXTS:
        ids = list(client.tokenize("gemma", text))
        with torch.inference_mode():
            state = model(torch.tensor([ids])).last_hidden_state[0].mean(0)
        (got,) = client.embed("gemma-bare", [ids], normalize=False)
        assert got == pytest.approx(state.tolist(), abs=CLOSE * max(1, state.norm().item()))


def test_dense_modules_may_lie_beside_the_file(client):
    want = client.embed("gemma", TEXTS)
    assert_close(client.embed("gemma-beside", TEXTS), want)
    assert client.embed("gemma-bare", TEXTS)[0] != pytest.approx(want[0], abs=100 * CLOSE)


def test_prompts_of_the_families(client, tandem_client):
    for name, query in (
        ("gemma-gguf", QUERY),
        (
            "qwen-gguf",
            "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:",
        ),
    ):
        (want,) = client.embed(name, query + "sum")
        (got,) = client.embed(name, "sum", prompt_name="query")
        assert got == pytest.approx(want, abs=1e-6)
    with pytest.raises(tandem_client.TandemError, match="allowed: .*document, query"):
        client.embed("qwen-gguf", "sum", prompt_name="other")


def test_embedding_gemma_only_embeds(client, tandem_client):
    with pytest.raises(tandem_client.TandemError, match="is bidirectional; offered: Embed"):
        client.complete("gemma-gguf", "x", max_new_tokens=1)
    # Qwen3-Embedding has the output matrix of its embedding.
    assert client.complete("qwen-gguf", "x", max_new_tokens=1).choices


def test_a_reranker_scores_as_its_checkpoint(client):
    for query in ("add two numbers", "class"):
        want = {r.index: r.relevance_score for r in client.rerank(RERANKER, query, TEXTS[:3])}
        got = {
            r.index: r.relevance_score for r in client.rerank(f"{RERANKER}-gguf", query, TEXTS[:3])
        }
        assert len(want) == 3 and len(set(want.values())) == 3
        assert got == pytest.approx(want, abs=CLOSE)
