"""The files for gateways and KServe fit their schemas, each other, and the server."""

import re
import subprocess

import pytest

from tests.conftest import HOME, ROOT
from tests.deploy.schemas import check

yaml = pytest.importorskip("yaml")
DEPLOY = ROOT / "deploy"
GATEWAY = DEPLOY / "gateway"
STANDALONE = GATEWAY / "standalone"


def load(*paths):
    return [item for path in paths for item in yaml.safe_load_all(path.read_text("utf-8")) if item]


def manifests():
    """Kubernetes resources of both folders: not the configurations of programs."""
    files = [*sorted(GATEWAY.glob("*.yaml")), *sorted((DEPLOY / "kserve").glob("*.yaml"))]
    return [path for path in files if path.name not in ("config.yaml", "kustomization.yaml")]


def by_kind():
    return {item["kind"]: item for item in load(*manifests())}


def base(kind, name="tandem"):
    path = DEPLOY / "kubernetes" / "base" / "tandem.yaml"
    (item,) = (i for i in load(path) if i["kind"] == kind and i["metadata"]["name"] == name)
    return item


@pytest.mark.parametrize("path", manifests(), ids=lambda p: str(p.relative_to(DEPLOY)))
def test_manifests_fit_their_schemas(path):
    items = load(path)
    assert items
    check(items)


def test_the_kustomization_lists_the_files():
    kustomization = yaml.safe_load((GATEWAY / "kustomization.yaml").read_text("utf-8"))
    files = {path.name for path in GATEWAY.glob("*.yaml")}
    # Istio only.
    assert {*kustomization["resources"], "istio.yaml", "config.yaml", "kustomization.yaml"} == files
    (generated,) = kustomization["configMapGenerator"]
    assert generated["files"] == ["config.yaml"]
    picker = by_kind_in(GATEWAY / "picker.yaml", "Deployment")
    (volume,) = picker["spec"]["template"]["spec"]["volumes"]
    assert volume["configMap"]["name"] == generated["name"]


def test_the_kustomization_renders(tool):
    run = subprocess.run(
        [tool("kustomize"), "build", GATEWAY], capture_output=True, text=True, timeout=60
    )
    assert (run.returncode, run.stderr) == (0, "")
    items = list(yaml.safe_load_all(run.stdout))
    check(items)
    (config,) = (item for item in items if item["kind"] == "ConfigMap")
    (picker,) = (item for item in items if item["kind"] == "Deployment")
    (volume,) = picker["spec"]["template"]["spec"]["volumes"]
    assert volume["configMap"]["name"] == config["metadata"]["name"]


def by_kind_in(path, kind):
    (item,) = (item for item in load(path) if item["kind"] == kind)
    return item


def test_the_pool_selects_the_servers_and_names_the_picker():
    pool = by_kind()["InferencePool"]
    pods = base("Deployment")["spec"]["template"]
    assert pool["spec"]["selector"]["matchLabels"].items() <= pods["metadata"]["labels"].items()
    (server,) = pods["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in server["ports"]}
    assert pool["spec"]["targetPorts"] == [{"number": ports["openai"]}]
    service = by_kind_in(GATEWAY / "picker.yaml", "Service")
    picker = pool["spec"]["endpointPickerRef"]
    assert picker["name"] == service["metadata"]["name"]
    assert picker["port"]["number"] == service["spec"]["ports"][0]["port"]
    deployment = by_kind_in(GATEWAY / "picker.yaml", "Deployment")["spec"]["template"]
    assert service["spec"]["selector"].items() <= deployment["metadata"]["labels"].items()
    assert f"--pool-name={pool['metadata']['name']}" in deployment["spec"]["containers"][0]["args"]


def test_the_route_names_the_pool_and_its_gateway():
    found = by_kind()
    route = found["HTTPRoute"]["spec"]
    assert route["parentRefs"] == [{"name": found["Gateway"]["metadata"]["name"]}]
    (backend,) = route["rules"][0]["backendRefs"]
    pool = found["InferencePool"]
    assert backend["name"] == pool["metadata"]["name"]
    assert backend["group"] == pool["apiVersion"].split("/")[0]


def test_the_network_policy_admits_picker_and_gateway():
    admitted = base("NetworkPolicy")["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"]
    picker = by_kind_in(GATEWAY / "picker.yaml", "Deployment")["spec"]["template"]["metadata"]
    assert admitted.items() <= picker["labels"].items()
    assert admitted.items() <= by_kind()["Gateway"]["spec"]["infrastructure"]["labels"].items()


@pytest.mark.parametrize("path", [GATEWAY / "config.yaml", STANDALONE / "config.yaml"], ids=str)
def test_picker_configurations_refer_to_their_plugins(path):
    (config,) = load(path)
    assert config["kind"] == "EndpointPickerConfig"
    names = [plugin.get("name", plugin["type"]) for plugin in config["plugins"]]
    assert len(set(names)) == len(names)
    (profile,) = config["schedulingProfiles"]
    weights = {p["pluginRef"]: p.get("weight") for p in profile["plugins"]}
    assert set(weights) <= set(names)
    for scorer in ("queue-scorer", "kv-cache-utilization-scorer", "prefix-cache-scorer"):
        assert weights[scorer] > 0
    (source,) = (p for p in config["plugins"] if p["type"] == "metrics-data-source")
    assert source["parameters"]["path"] == "/metrics/gateway"


def test_standalone_picker_and_envoy_know_the_same_servers():
    (endpoints,) = load(STANDALONE / "endpoints.yaml")
    listed = {(e["address"], int(e["port"])) for e in endpoints["endpoints"]}
    (envoy,) = load(STANDALONE / "envoy.yaml")
    clusters = {c["name"]: c for c in envoy["static_resources"]["clusters"]}
    (group,) = clusters["tandem"]["load_assignment"]["endpoints"]
    places = [e["endpoint"]["address"]["socket_address"] for e in group["lb_endpoints"]]
    assert {(place["address"], place["port_value"]) for place in places} == listed
    (group,) = clusters["picker"]["load_assignment"]["endpoints"]
    place = group["lb_endpoints"][0]["endpoint"]["address"]["socket_address"]
    text = (STANDALONE / "config.yaml").read_text("utf-8")
    assert f"--grpc-port {place['port_value']}" in text
    # One connection each for open answers; the server admits 256 of a host.
    (most,) = clusters["tandem"]["circuit_breakers"]["thresholds"]
    assert most["max_requests"] < 256 * len(listed)


@pytest.mark.parametrize("kind", ["ServingRuntime", "LLMInferenceService"])
def test_the_server_understands_the_arguments_of_kserve(kind, binaries, tmp_path):
    spec = by_kind()[kind]["spec"]
    (container,) = spec.get("template", spec)["containers"]
    assert container["command"] == ["tandem-server"]
    ports = {port["containerPort"] for port in container["ports"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["port"] in ports
    assert f"--openai=[::]:{min(ports)}" in container["args"]
    args = [arg.replace("{{.Name}}", "m") for arg in container["args"]]
    run = subprocess.run(
        [binaries / "tandem-server", *args, "--check"], capture_output=True, text=True, timeout=60
    )
    # The only thing that is not there is the model.
    assert run.returncode == 1
    assert re.search(r"/mnt/models.*(exist|read)", run.stderr), run.stderr


def test_images_are_those_of_the_repository():
    for kind in ("ServingRuntime", "LLMInferenceService"):
        spec = by_kind()[kind]["spec"]
        (container,) = spec.get("template", spec)["containers"]
        assert container["image"] == "tandem:cpu"
    (version,) = re.findall(r'^PICKER="(\S+)"', (ROOT / "scripts/versions.env").read_text(), re.M)
    picker = by_kind_in(GATEWAY / "picker.yaml", "Deployment")["spec"]["template"]["spec"]
    assert picker["containers"][0]["image"].endswith(f":{version}")


def test_schemas_were_there():
    """The tests above warn only; where the schemas are, every kind of these folders has one."""
    if not (HOME / "crds").exists():
        pytest.skip("no schemas of custom resources: scripts/setup --full")
    from tests.deploy.schemas import custom_schemas

    kinds = {kind for _, kind in custom_schemas()}
    assert {
        "InferencePool", "HTTPRoute", "Gateway", "DestinationRule", "ScaledObject",
        "ServingRuntime", "InferenceService", "LLMInferenceService",
    } <= kinds  # fmt: skip
