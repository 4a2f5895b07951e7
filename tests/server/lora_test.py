"""LoRA adapters through the real server: a checkpoint with PEFT folders that are written here, against
the same checkpoint with the adapters merged into its weights; and names, lists and metrics.
"""

import concurrent.futures
import json
import re
import shutil
import urllib.error
import urllib.request
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
safetensors = pytest.importorskip("safetensors.torch")
numpy_format = pytest.importorskip("safetensors.numpy")

SMALL = Path(__file__).resolve().parents[2] / "models/code-small"
PROMPTS = [
    "def quicksort(items):\n",
    "import os\n\n\nclass Reader:\n    def __init__(self, path):\n",
    "for i in range(10):\n",
]
# By name: rank, alpha, the layers that it changes.
ADAPTERS = {
    "attention": (4, 8, ["q_proj", "k_proj", "v_proj", "o_proj"]),
    "mlp": (8, 8, ["gate_proj", "up_proj", "down_proj"]),
}
TOLERANCE = 2e-3  # of a log-probability; fp32 sums in another order


def write_adapter(folder, base, name, seed):
    """A PEFT folder, and the weights of the merged layers by tensor name."""
    rank, alpha, targets = ADAPTERS[name]
    rng = np.random.default_rng(seed)
    tensors, merged = {}, {}
    for tensor, weight in base.items():
        layer = tensor.removesuffix(".weight")
        if layer.rsplit(".", 1)[-1] not in targets:
            continue
        out, width = weight.shape
        a = (rng.standard_normal((rank, width)) / width**0.5).astype(np.float32)
        b = (rng.standard_normal((out, rank)) * 0.3).astype(np.float32)
        tensors[f"base_model.model.{layer}.lora_A.weight"] = a
        tensors[f"base_model.model.{layer}.lora_B.weight"] = b
        merged[tensor] = weight + (alpha / rank) * (b @ a)
    folder.mkdir()
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "code-small",
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": targets,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config), "utf-8")
    numpy_format.save_file(tensors, folder / "adapter_model.safetensors")
    return merged


@pytest.fixture(scope="module")
def lora_server(start_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lora")
    loaded = safetensors.load_file(SMALL / "model.safetensors")
    base = {name: tensor.float().numpy() for name, tensor in loaded.items()}
    adapters = text = ""
    for seed, name in enumerate(ADAPTERS):
        merged = write_adapter(folder / name, base, name, seed)
        adapters += f' adapters {{ name: "{name}" path: "{folder / name}" }}'
        shutil.copytree(SMALL, folder / f"{name}-merged")
        numpy_format.save_file(base | merged, folder / f"{name}-merged" / "model.safetensors")
        path = folder / f"{name}-merged"
        text += f'models {{ name: "{name}-merged" path: "{path}" dtype: DTYPE_FP32 }}\n'
        text += f'deployments {{ name: "{name}-merged" large: "{name}-merged" }}\n'
    text += f"""
        models {{ name: "base" path: "{SMALL}" dtype: DTYPE_FP32 }}
        models {{ name: "draft" path: "{SMALL}" dtype: DTYPE_FP32 }}
        deployments {{ name: "base" large: "base" {adapters} }}
        deployments {{ name: "pair" large: "base" small: "draft" {adapters} }}
    """
    server = start_server(text, "--openai=127.0.0.1:0")
    server.url = f"http://{server.ports['openai']}"
    return server


def get(server, path):
    with urllib.request.urlopen(f"{server.url}{path}", timeout=120) as answer:
        return json.load(answer)


def post(server, path, **body):
    request = urllib.request.Request(
        f"{server.url}{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def refused(server, path, **body):
    with pytest.raises(urllib.error.HTTPError) as error:
        post(server, path, **body)
    return error.value.code, json.load(error.value)["error"]


def complete(server, model, prompt, **fields):
    fields = {"max_tokens": 40, "temperature": 0, **fields}
    answer = post(server, "/v1/completions", model=model, prompt=prompt, **fields)
    return answer["choices"][0]


def logprobs(server, model, text):
    """Of the tokens of a text, by the model."""
    choice = complete(server, model, text, max_tokens=0, echo=True, logprobs=0)
    return np.array(choice["logprobs"]["token_logprobs"][1:])


@pytest.mark.parametrize("name", ADAPTERS)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_answers_are_those_of_the_merged_weights(lora_server, name, prompt):
    base = complete(lora_server, "base", prompt)["text"]
    adapted = complete(lora_server, f"base:{name}", prompt)["text"]
    assert adapted == complete(lora_server, f"{name}-merged", prompt)["text"]
    assert adapted != base
    scores = logprobs(lora_server, f"base:{name}", prompt + adapted)
    merged = logprobs(lora_server, f"{name}-merged", prompt + adapted)
    assert np.abs(scores - merged).max() < TOLERANCE
    assert np.abs(scores - logprobs(lora_server, "base", prompt + adapted)).max() > 10 * TOLERANCE


@pytest.mark.parametrize("name", ADAPTERS)
def test_every_lossless_method_gives_the_tokens_of_autoregressive_decoding(lora_server, name):
    for prompt in PROMPTS:
        for sampling in ({"temperature": 0}, {"temperature": 0.8, "seed": 7}):
            texts = {
                method: complete(
                    lora_server,
                    f"pair:{name}",
                    prompt,
                    tandem={"method": method, "contract": "exact"},
                    **sampling,
                )["text"]
                for method in ("autoregressive", "speculative", "ngram", "auto")
            }
            assert len(set(texts.values())) == 1, texts


def test_a_batch_of_different_adapters_changes_no_answer(lora_server):
    models = ["pair", *(f"pair:{name}" for name in ADAPTERS)]
    alone = {m: complete(lora_server, m, PROMPTS[1])["text"] for m in models}
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        together = list(
            pool.map(lambda m: (m, complete(lora_server, m, PROMPTS[1])["text"]), models * 4)
        )
    for model, text in together:
        assert text == alone[model]
    assert len(set(alone.values())) == len(models)


def test_the_command_line_names_adapters(tandem, lora_server):
    def run(*flags):
        done = tandem(
            "generate", f"--prompt={PROMPTS[0]}", "--max-new-tokens=40", "--temperature=0",
            "--format=json", *flags, address=lora_server.grpc,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["text"]

    expected = complete(lora_server, "base:mlp", PROMPTS[0])["text"]
    assert run("--model=base", "--adapter=mlp") == expected
    assert run("--model=base:mlp") == expected
    assert run("--model=base") != expected
    unknown = tandem(
        "generate", "--model=base", "--adapter=mpl", "--prompt=x", address=lora_server.grpc
    )
    assert unknown.returncode != 0
    assert b'did you mean "mlp"? known: "attention", "mlp"' in unknown.stderr


# --- Names, lists and metrics, with fake models

CONFIG = """
models { name: "fake" fake {} }
models { name: "little" fake { seed: 2 } }
deployments { name: "fake" large: "fake" adapters { name: "sql" } adapters { name: "law" } }
deployments { name: "pair" large: "fake" small: "little" adapters { name: "law" } }
"""


@pytest.fixture(scope="module")
def fake_server(start_server):
    server = start_server(CONFIG, "--openai=127.0.0.1:0")
    server.url = f"http://{server.ports['openai']}"
    return server


def test_models_list_adapters_with_their_parents(fake_server):
    listed = get(fake_server, "/v1/models")["data"]
    assert [(m["id"], m["root"], m["parent"]) for m in listed] == [
        ("fake", "fake", None),
        ("sql", "fake:sql", "fake"),
        ("fake:law", "fake:law", "fake"),
        ("pair", "pair", None),
        ("pair:law", "pair:law", "pair"),
    ]
    assert {m["object"] for m in listed} == {"model"}
    assert [a["name"] for a in listed[0]["tandem"]["adapters"]] == ["sql", "law"]
    assert listed[1]["tandem"]["name"] == "sql"
    for model in listed:  # each id is a model of requests and of GET
        assert get(fake_server, f"/v1/models/{model['id']}")["parent"] == model["parent"]
        answer = post(fake_server, "/v1/completions", model=model["id"], prompt="x", max_tokens=4)
        assert answer["model"] == model["id"]


def test_unknown_adapters_are_not_found(fake_server):
    status, error = refused(fake_server, "/v1/completions", model="fake:sqk", prompt="x")
    assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert 'did you mean "fake:sql"?' in error["message"]
    status, error = refused(fake_server, "/v1/completions", model="law", prompt="x")
    assert (status, error["code"]) == (404, "model_not_found")
    assert 'known: "fake:law", "pair:law"' in error["message"]
    status, error = refused(
        fake_server, "/v1/completions", model="pair", prompt="x", tandem={"adapter": "sql"}
    )
    assert (status, error["code"], error["param"]) == (404, "adapter_not_found", "tandem.adapter")
    assert error["message"].endswith('known: "law"')


def test_embeddings_take_no_adapter(fake_server):
    status, error = refused(fake_server, "/v1/embeddings", model="fake:sql", input="x")
    assert status == 400
    assert "names an adapter" in error["message"]
    assert post(fake_server, "/tokenize", model="fake:sql", prompt="ab")["count"] == 2


def test_metrics_and_log_name_the_adapter(fake_server):
    post(fake_server, "/v1/completions", model="sql", prompt="x", max_tokens=4)
    fields = {"prompt": "x", "max_tokens": 4, "tandem": {"adapter": "law"}}
    post(fake_server, "/v1/completions", model="pair", **fields)
    metrics = fake_server.metrics()
    served = {
        (model, adapter): float(value)
        for model, adapter, value in re.findall(
            r'tandem_adapter_requests_total\{model="(\w+)",adapter="(\w+)"\} (\S+)', metrics
        )
    }
    assert set(served) == {("fake", "sql"), ("fake", "law"), ("pair", "law")}
    assert served["fake", "sql"] >= 1
    assert served["pair", "law"] >= 1
    info = (
        r'vllm:lora_requests_info\{max_lora="3",running_lora_adapters="",'
        r'waiting_lora_adapters=""\} \d'
    )
    fake_server.until(lambda: re.search(info, gateway_page(fake_server)), "no request runs")
    for line in (
        r"event=call .* model=pair .*adapter=law",
        r"event=call .* model=sql .*adapter=sql",
    ):
        fake_server.until(lambda line=line: re.search(line, fake_server.log_text()), line)


def gateway_page(server):
    with urllib.request.urlopen(f"http://{server.http}/metrics/gateway", timeout=60) as page:
        return page.read().decode()


# --- Loading while the server runs


@pytest.fixture(scope="module")
def loading_server(start_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("loading")
    loaded = safetensors.load_file(SMALL / "model.safetensors")
    base = {name: tensor.float().numpy() for name, tensor in loaded.items()}
    (folder / "adapters").mkdir()
    for seed, name in enumerate(ADAPTERS):
        write_adapter(folder / "adapters" / name, base, name, seed)
        write_adapter(folder / f"{name}-outside", base, name, seed)
    text = f"""
        models {{ name: "base" path: "{SMALL}" dtype: DTYPE_FP32 }}
        deployments {{
          name: "base" large: "base" max_adapters: 2
          adapters {{ name: "pinned" path: "{folder / "adapters" / "mlp"}" }}
        }}
    """
    flags = ("--openai=127.0.0.1:0", f"--adapter-folder={folder / 'adapters'}")
    server = start_server(text, *flags)
    server.url = f"http://{server.ports['openai']}"
    server.folder = folder
    return server


def command(server, path, **body):
    request = urllib.request.Request(
        f"{server.url}{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        return answer.read().decode()


def names(server):
    return [m["id"] for m in get(server, "/v1/models")["data"]]


def test_adapters_come_and_go(loading_server):
    server = loading_server
    loaded = command(server, "/v1/load_lora_adapter", lora_name="late", lora_path="mlp")
    assert loaded == "Success: LoRA adapter 'late' added successfully."
    assert names(server) == ["base", "pinned", "late"]
    pinned = complete(server, "pinned", PROMPTS[0])["text"]
    assert complete(server, "late", PROMPTS[0])["text"] == pinned
    replaced = {"lora_path": str(server.folder / "adapters" / "attention"), "load_inplace": True}
    command(server, "/v1/load_lora_adapter", lora_name="late", **replaced)
    assert complete(server, "late", PROMPTS[0])["text"] != pinned
    assert 'adapter="late"' in server.metrics()

    # The limit of two: the idle one makes room.
    command(server, "/v1/load_lora_adapter", lora_name="later", lora_path="attention")
    assert names(server) == ["base", "pinned", "later"]
    unloaded = command(server, "/v1/unload_lora_adapter", lora_name="later", lora_int_id=1)
    assert unloaded == "Success: LoRA adapter 'later' removed successfully."
    assert names(server) == ["base", "pinned"]
    status, error = refused(server, "/v1/completions", model="later", prompt="x")
    assert (status, error["code"]) == (404, "model_not_found")
    server.until(lambda: 'adapter="late' not in server.metrics(), "the series are gone")


def test_what_may_not_be_loaded_or_unloaded(loading_server):
    server = loading_server
    outside = {"lora_name": "x", "lora_path": str(server.folder / "mlp-outside")}
    status, error = refused(server, "/v1/load_lora_adapter", **outside)
    assert (status, error["code"]) == (403, "admin_denied")
    for path in ("../mlp-outside", "/etc", "."):
        status, _ = refused(server, "/v1/load_lora_adapter", lora_name="x", lora_path=path)
        assert status == 403, path
    status, error = refused(server, "/v1/load_lora_adapter", lora_name="x", lora_path="none")
    assert (status, error["message"]) == (404, 'lora_path: "none": no such file or folder')
    status, error = refused(server, "/v1/load_lora_adapter", lora_name="x")
    assert (status, error["param"]) == (400, "lora_path")
    status, error = refused(server, "/v1/unload_lora_adapter", lora_name="pinned")
    assert (status, error["code"]) == (400, "adapter_pinned")
    status, error = refused(server, "/v1/unload_lora_adapter", lora_name="x")
    assert (status, error["code"]) == (404, "adapter_not_loaded")
    assert names(server) == ["base", "pinned"]


def test_the_command_line_loads_and_unloads(tandem, loading_server):
    def run(*words):
        return tandem("adapters", *words, address=loading_server.grpc)

    assert run("load", "mine", "attention").returncode == 0
    assert names(loading_server) == ["base", "pinned", "mine"]
    again = run("load", "mine", "mlp")
    assert again.returncode == 1
    assert b"ALREADY_EXISTS" in again.stderr
    assert run("load", "mine", "mlp", "--replace", "--model=base").returncode == 0
    assert run("unload", "mine").returncode == 0
    assert names(loading_server) == ["base", "pinned"]
    assert run("drop", "mine").returncode == 2
    assert run("load", "mine").returncode == 2


def test_loading_is_off_by_default(fake_server):
    status, error = refused(
        fake_server, "/v1/load_lora_adapter", lora_name="x", lora_path="x", base_model_name="fake"
    )
    assert (status, error["code"]) == (404, "unknown_url")
