"""The files for Kubernetes and compose can be read, render, and fit each other and the schemas."""

import os
import re
import shutil
import subprocess

import pytest

from tests.conftest import HOME, ROOT
from tests.deploy.schemas import check

yaml = pytest.importorskip("yaml")
DEPLOY = ROOT / "deploy"
OVERLAYS = ["base", "cuda", "envoy", "own-models"]


@pytest.mark.parametrize(
    "path",
    sorted(p for p in DEPLOY.rglob("*.y*ml") if "templates" not in p.parts),
    ids=lambda p: str(p.relative_to(DEPLOY)),
)
def test_yaml_can_be_read(path):
    assert list(yaml.safe_load_all(path.read_text("utf-8")))


def test_service_accounts_of_bindings_have_a_namespace():
    """Kubernetes refuses a binding without it."""
    subjects = [
        subject
        for path in DEPLOY.rglob("*.yaml")
        if "templates" not in path.parts
        for item in yaml.safe_load_all(path.read_text("utf-8"))
        if isinstance(item, dict) and item.get("kind") in ("RoleBinding", "ClusterRoleBinding")
        for subject in item["subjects"]
    ]
    accounts = [s for s in subjects if s["kind"] == "ServiceAccount"]
    assert accounts and all(s.get("namespace") for s in accounts), subjects


def resources(name, folder=None):
    """Of a kustomization, and of those that it names, by kind and name."""
    folder = folder or DEPLOY / "kubernetes" / name
    found = {}
    for entry in yaml.safe_load((folder / "kustomization.yaml").read_text("utf-8"))["resources"]:
        path = (folder / entry).resolve()
        if path.is_dir():
            # kustomize refuses a base that contains what includes it.
            assert path not in folder.parents, f"{folder} lies in its base"
            found.update(resources(entry, path))
            continue
        for item in yaml.safe_load_all(path.read_text("utf-8")):
            found[item["kind"], item["metadata"]["name"]] = item
    return found


@pytest.mark.parametrize("name", OVERLAYS)
def test_kustomizations_have_what_they_name(name):
    found = resources(name)
    assert ("Deployment", "tandem") in found
    pods = found["Deployment", "tandem"]["spec"]["template"]
    for kind in ("NetworkPolicy", "PodDisruptionBudget"):
        spec = found[kind, "tandem"]["spec"]
        selector = spec.get("podSelector") or spec["selector"]
        assert selector["matchLabels"].items() <= pods["metadata"]["labels"].items()


def test_pods_end_in_time_and_are_asked_by_grpc():
    pods = resources("base")["Deployment", "tandem"]["spec"]["template"]["spec"]
    (server,) = pods["containers"]
    grace = int(field("base", "grace_seconds"))
    wait = int(server["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pods["terminationGracePeriodSeconds"] >= wait + grace + 5
    assert server["readinessProbe"]["grpc"] == server["startupProbe"]["grpc"] == {"port": 50051}
    assert server["livenessProbe"]["httpGet"]["path"] == "/healthz"


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_http_api_is_where_its_service_points(name):
    found = resources(name)
    (server,) = found["Deployment", "tandem"]["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in server["ports"]}
    (port,) = found["Service", "tandem-openai"]["spec"]["ports"]
    assert port["targetPort"] == "openai"
    source = name if (DEPLOY / "kubernetes" / name / "deployment.textproto").exists() else "base"
    for what, named in (("listen", "grpc"), ("http", "http"), ("openai", "openai")):
        assert field(source, what) == f'"[::]:{ports[named]}"'
    calls = found["NetworkPolicy", "tandem"]["spec"]["ingress"][0]
    assert calls["from"] and {port["port"] for port in calls["ports"]} == {"grpc", "openai"}


def field(name, what):
    text = (DEPLOY / "kubernetes" / name / "deployment.textproto").read_text("utf-8")
    return re.search(rf"\b{what}: ([^\s]+)", text).group(1)


@pytest.mark.parametrize("name", ["base", "cuda", "own-models"])
def test_connections_end_before_clients_miss_new_pods(name):
    assert 300 <= float(field(name, "max_connection_age_seconds")) <= 600


@pytest.fixture
def rendered(tool):
    """rendered(folder): what the pinned kustomize makes of it (scripts/setup --helm), or kubectl's own,
    which is of any version."""
    kubectl = shutil.which("kubectl")
    own = HOME / "bin" / "kustomize"
    command = (
        [kubectl, "kustomize"] if kubectl and not own.exists() else [tool("kustomize"), "build"]
    )

    def run(folder):
        done = subprocess.run([*command, folder], capture_output=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, b""), done.stderr.decode()
        return list(yaml.safe_load_all(done.stdout))

    return run


@pytest.mark.parametrize("name", OVERLAYS)
def test_kustomizations_render(name, rendered):
    items = rendered(DEPLOY / "kubernetes" / name)
    check(items)
    by_kind = {item["kind"]: item for item in items if item["metadata"]["name"] == "tandem"}
    (server,) = by_kind["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert ("nvidia.com/gpu" in server["resources"]["limits"]) == (name == "cuda")
    (config,) = (i for i in items if "deployment.textproto" in i.get("data", {}))
    text = config["data"]["deployment.textproto"]
    assert ('device: "cuda:0"' in text) == (name == "cuda")
    mounts = {mount["mountPath"] for mount in server["volumeMounts"]}
    for path in re.findall(r'path: "(/[^"]+)"', text):
        assert path.startswith("/srv/tandem/models/") or any(
            path.startswith(mount + "/") for mount in mounts
        ), f"{path} is in no volume"


def test_what_prometheus_and_grafana_take_up_renders(rendered):
    items = rendered(DEPLOY / "observability")
    check(items)
    (monitor,) = (i for i in items if i["kind"] == "ServiceMonitor")
    services = [i for (kind, _), i in resources("base").items() if kind == "Service"]
    labels = monitor["spec"]["selector"]["matchLabels"].items()
    (service,) = (s for s in services if labels <= s["metadata"]["labels"].items())
    ports = {port["name"] for port in service["spec"]["ports"]}
    assert monitor["spec"]["endpoints"][0]["port"] in ports


@pytest.mark.parametrize(
    "name",
    [
        "base",
        "cuda",
        "own-models",
        "demo",
        "docstring",
        "ppd-cpu",
        "ppd-gpus",
        "ppd-one-gpu",
        "replicas",
        "shards",
    ],
)
def test_the_server_understands_the_configurations(name, binaries, tmp_path):
    """All but where the models are, which is elsewhere in a container."""
    folder = DEPLOY / "kubernetes" / name
    path = folder / "deployment.textproto" if folder.is_dir() else DEPLOY / f"{name}.textproto"
    text = path.read_text("utf-8").replace("/srv/tandem/models/", str(ROOT / "models") + "/")
    # Models of 40 layers, and workers of fewer.
    text = re.sub(r' path: "/models/[^"]*" layers: (\d+)', r" fake { layers: \1 }", text)
    text = re.sub(r' path: "/models/[^"]*"', " fake { layers: 40 }", text)
    text = text.replace('path: "../models/', f'path: "{ROOT}/models/').replace("cuda:", "cpu:")
    (tmp_path / "deployment.textproto").write_text(text, "utf-8")
    run = subprocess.run(
        [binaries / "tandem-server", "--config", tmp_path / "deployment.textproto", "--check"],
        capture_output=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr.decode()


def test_models_are_fetched_once_and_whole(tmp_path):
    if not shutil.which("curl"):
        pytest.skip("no curl")
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    (source / "large.gguf").write_bytes(b"large")

    def fetch():
        return subprocess.run(
            ["sh", DEPLOY / "kubernetes" / "own-models" / "fetch.sh"],
            env={
                "PATH": os.environ["PATH"],
                "MODELS_URL": f"file://{source}",
                "MODELS_FOLDER": str(target),
                "HOSTNAME": "pod",
            },
            capture_output=True,
            timeout=60,
        ).returncode

    assert fetch() != 0, "a file is missing"
    assert [p.name for p in target.iterdir()] == ["large.gguf"]
    (source / "small.gguf").write_bytes(b"small")
    (source / "large.gguf").write_bytes(b"another")
    assert fetch() == 0
    assert {p.name: p.read_bytes() for p in target.iterdir()} == {
        "large.gguf": b"large",
        "small.gguf": b"small",
    }


def test_envoy_may_call_and_has_limits():
    pods = resources("envoy")["Deployment", "tandem-envoy"]["spec"]["template"]["metadata"]
    assert pods["labels"]["tandem-client"] == "true"
    text = (DEPLOY / "kubernetes" / "envoy" / "envoy.yaml").read_text("utf-8")
    config = yaml.safe_load(text)
    manager = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]
    limits = manager["typed_config"]
    routes = limits["route_config"]["virtual_hosts"][0]["routes"]
    clusters = {cluster["name"]: cluster for cluster in config["static_resources"]["clusters"]}
    assert {route["route"]["cluster"] for route in routes if "route" in route} == set(clusters)
    endpoint = clusters["tandem-openai"]["load_assignment"]["endpoints"][0]["lb_endpoints"][0]
    assert endpoint["endpoint"]["address"]["socket_address"]["port_value"] == 8000
    assert limits["http2_protocol_options"]["max_concurrent_streams"] <= 1024
    assert limits["max_request_headers_kb"] <= 8
    assert routes[0]["match"]["headers"][0]["name"] == "grpc-encoding", (
        "the first: it holds for all"
    )
    route = routes[1]["route"]
    assert "unavailable" in route["retry_policy"]["retry_on"].split(",")
    layer = config["layered_runtime"]["layers"][0]["static_layer"]
    assert layer["overload.premature_reset_total_stream_count"] <= 500


def test_compose_mounts_what_is_there_and_monitors_when_asked():
    folder = DEPLOY / "compose"
    compose = yaml.safe_load((folder / "compose.yaml").read_text("utf-8"))
    for name, service in compose["services"].items():
        for volume in service.get("volumes", []):
            source = volume["source"] if isinstance(volume, dict) else volume.split(":")[0]
            if not source.startswith("."):
                assert source in compose["volumes"]
            elif source not in ("./tls", "./tokens"):  # the user's
                assert (folder / source).exists(), volume
        monitors = name in ("prometheus", "grafana")
        assert (service.get("profiles") == ["monitoring"]) == monitors
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:") or name == "envoy", f"{name} is open to the world"
        for other in service.get("depends_on", []):
            assert other in compose["services"]


def test_compose_needs_tokens_and_limits_each_client():
    """Its port is published, so every call needs a token, and one client cannot take all places."""
    folder = DEPLOY / "compose"
    compose = yaml.safe_load((folder / "compose.yaml").read_text("utf-8"))
    tandem = compose["services"]["tandem"]
    config = (folder / "deployment.textproto").read_text("utf-8")
    (tokens,) = (v for v in tandem["volumes"] if isinstance(v, dict))
    assert tokens["bind"] == {"create_host_path": False}, "a missing file must be an error"
    assert f'bearer_token_file: "{tokens["target"]}"' in config
    envoy = yaml.safe_load((DEPLOY / "kubernetes/envoy/envoy.yaml").read_text("utf-8"))
    clusters = {cluster["name"]: cluster for cluster in envoy["static_resources"]["clusters"]}
    (threshold,) = clusters["tandem-openai"]["circuit_breakers"]["thresholds"]
    (most,) = re.findall(r"max_requests: (\d+)", config)
    assert 2 * int(most) <= threshold["max_requests"]
