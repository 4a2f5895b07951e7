"""The chart: what it makes of its values is valid, whole, and what the values say."""

import json
import re
import subprocess

import pytest

from tests.conftest import ROOT
from tests.deploy.schemas import check

yaml = pytest.importorskip("yaml")
CHART = ROOT / "deploy" / "helm" / "tandem"
# What a helm that was built by `go install` takes for the cluster's is too old.
VERSION = ("--kube-version", "1.30.0")

# Sets of values that together reach every branch of the templates.
PLAIN = {}
TLS = {
    "tls": {"secretName": "certificate", "clientCertificates": True},
    "tokens": {"secretName": "tokens"},
    "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
    "image": {"repository": "registry.example.com/tandem", "digest": "sha256:" + "0" * 64},
    "imagePullSecrets": [{"name": "pull"}],
    "networkPolicy": {"enabled": False},
    "podDisruptionBudget": {"enabled": False},
    "preStopSeconds": 0,
}
GPU = {
    "gpus": 2,
    "nodeSelector": {"gpu": "yes"},
    "affinity": {"nodeAffinity": {}},
    "tolerations": [{"key": "spot", "operator": "Exists"}],
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
        }
    ],
    "podLabels": {"team": "a"},
    "podAnnotations": {"note": "b"},
    "config": 'models { name: "m" path: "/models/m.gguf" device: "cuda:0" }',
    "models": {
        "create": True,
        "storageClassName": "fast",
        "fetch": {"m.gguf": "https://models.example.com/m.gguf"},
    },
}
MONITORED = {
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "dashboard": {"enabled": True},
    "models": {"existingClaim": "mine"},
}
OPENAI = {
    "openai": {"enabled": True, "port": 80},
    "otlp": {"endpoint": "collector.tracing:4317", "sampleRatio": 0.5},
    "tls": {"secretName": "certificate"},
    "tokens": {"secretName": "tokens"},
}


@pytest.fixture(scope="module")
def helm(tool):
    program = tool("helm")

    def run(*args, values=None, succeeds=True):
        done = subprocess.run(
            [program, *args, "--values", "-"],
            input=json.dumps(values or {}),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode == 0) == succeeds, done.stdout + done.stderr
        return done.stdout if succeeds else done.stderr + done.stdout

    return run


@pytest.fixture(scope="module")
def render(helm):
    def run(values, name="release"):
        text = helm("template", name, CHART, *VERSION, values=values)
        items = [item for item in yaml.safe_load_all(text) if item]
        check(items)
        found = {}
        for item in items:
            assert (item["kind"], item["metadata"]["name"]) not in found
            found[item["kind"], item["metadata"]["name"]] = item
        return found

    return run


def only(found, kind):
    (item,) = (item for (k, _), item in found.items() if k == kind)
    return item


def server_of(found):
    pods = only(found, "Deployment")["spec"]["template"]
    (server,) = pods["spec"]["containers"]
    return pods, server


def config_of(found):
    (text,) = (
        item["data"]["deployment.textproto"]
        for (kind, _), item in found.items()
        if kind == "ConfigMap" and "deployment.textproto" in item["data"]
    )
    return text


@pytest.mark.parametrize(
    "values",
    [PLAIN, TLS, GPU, MONITORED, OPENAI],
    ids=["plain", "tls", "gpu", "monitored", "openai"],
)
def test_lint_finds_nothing(helm, values):
    assert "0 chart(s) failed" in helm("lint", "--strict", CHART, values=values)


def test_default_values(render):
    found = render(PLAIN)
    assert {kind for kind, _ in found} == {
        "ConfigMap", "Deployment", "Service", "NetworkPolicy", "PodDisruptionBudget",
    }  # fmt: skip
    assert {name for _, name in found} == {"release-tandem"}
    pods, server = server_of(found)
    assert server["image"] == "tandem:cpu"
    assert server["readinessProbe"]["grpc"] == {"port": 50051}
    wait = int(server["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pods["spec"]["terminationGracePeriodSeconds"] >= wait + 30 + 5
    assert pods["spec"]["automountServiceAccountToken"] is False
    labels = pods["metadata"]["labels"].items()
    service = only(found, "Service")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"].items() <= labels
    for kind in ("NetworkPolicy", "PodDisruptionBudget"):
        spec = only(found, kind)["spec"]
        selector = spec.get("podSelector") or spec["selector"]
        assert selector["matchLabels"].items() <= labels
    text = config_of(found)
    assert "insecure: true" in text
    assert 300 <= int(re.search(r"max_connection_age_seconds: (\d+)", text).group(1)) <= 600


def test_a_release_is_named_once(render):
    assert {name for _, name in render(PLAIN, "tandem")} == {"tandem"}


def test_tls_tokens_and_no_policy(render):
    found = render(TLS)
    pods, server = server_of(found)
    assert server["image"] == "registry.example.com/tandem@sha256:" + "0" * 64
    assert "lifecycle" not in server
    for probe in ("startupProbe", "readinessProbe"):
        assert server[probe]["httpGet"]["path"] == "/readyz", "kubelet speaks no TLS"
    assert {kind for kind, _ in found} == {"ConfigMap", "Deployment", "Service"}
    text = config_of(found)
    assert "insecure" not in text
    mounts = {m["name"]: m["mountPath"] for m in server["volumeMounts"]}
    for path in re.findall(r'"(/etc/[^"]+)"', text):
        assert any(path.startswith(mount + "/") for mount in mounts.values()), path
    assert {v["name"] for v in pods["spec"]["volumes"]} == set(mounts)


def test_gpus_models_and_places(render):
    found = render(GPU)
    pods, server = server_of(found)
    assert server["image"] == "tandem:cuda"
    assert server["resources"]["limits"] == {"memory": "4Gi", "nvidia.com/gpu": 2}
    assert {t["key"] for t in pods["spec"]["tolerations"]} == {"spot", "nvidia.com/gpu"}
    assert only(found, "Deployment")["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 0
    claim = only(found, "PersistentVolumeClaim")
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    volumes = {v["name"]: v for v in pods["spec"]["volumes"]}
    name = volumes["models"]["persistentVolumeClaim"]["claimName"]
    assert name == claim["metadata"]["name"]
    (fetch,) = pods["spec"]["initContainers"]
    assert {"name": "models", "mountPath": "/models"} in fetch["volumeMounts"]
    script = only(found, "ConfigMap")["data"]["fetch.sh"]
    assert "fetch 'm.gguf' 'https://models.example.com/m.gguf'" in script
    subprocess.run(["sh", "-n"], input=script, text=True, check=True, timeout=60)


def test_monitoring_takes_the_rules_and_the_dashboard_unchanged(render):
    found = render(MONITORED)
    observability = ROOT / "deploy" / "observability"
    rules = only(found, "PrometheusRule")["spec"]
    assert rules == yaml.safe_load((observability / "alerts.yml").read_text("utf-8"))
    (board,) = (
        i["data"]["tandem.json"] for i in found.values() if "tandem.json" in i.get("data", {})
    )
    assert board == (observability / "grafana" / "dashboard.json").read_text("utf-8")
    monitor = only(found, "ServiceMonitor")["spec"]
    service = only(found, "Service")["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= service.items()
    pods, _ = server_of(found)
    assert "prometheus.io/scrape" not in pods["metadata"]["annotations"], "scraped twice"
    assert pods["spec"]["volumes"][1]["persistentVolumeClaim"] == {"claimName": "mine"}


def test_the_http_api_and_spans(render):
    found = render(OPENAI)
    pods, server = server_of(found)
    ports = {port["name"]: port["containerPort"] for port in server["ports"]}
    text = config_of(found)
    assert f'openai: "[::]:{ports["openai"]}"' in text
    assert "tls {" in text and "insecure" not in text, "the HTTP API has TLS too"
    assert 'otlp { endpoint: "collector.tracing:4317" sample_ratio: 0.5 }' in text
    service = found["Service", "release-tandem-openai"]
    assert service["spec"]["ports"][0] == {"name": "openai", "port": 80, "targetPort": "openai"}
    assert service["spec"]["selector"].items() <= pods["metadata"]["labels"].items()
    assert "clusterIP" not in service["spec"], "its clients do not balance by themselves"
    calls = only(found, "NetworkPolicy")["spec"]["ingress"][0]
    assert calls["from"] and {port["port"] for port in calls["ports"]} == {"grpc", "openai"}
    plain = config_of(render(PLAIN))
    assert "openai" not in plain and "otlp" not in plain


def test_a_new_configuration_starts_new_pods(render):
    def checksum(values):
        return server_of(render(values))[0]["metadata"]["annotations"]["checksum/config"]

    assert checksum(PLAIN) == checksum({"replicas": 2})
    assert checksum(PLAIN) != checksum({"graceSeconds": 60})


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"replica": 2}, "replica"),
        ({"graceSeconds": -1}, "graceSeconds"),
        ({"image": {"digest": "sha256:abc"}}, "digest"),
        ({"service": {"type": "None"}}, "type"),
        ({"models": {"create": True, "fetch": {"x": "file:///etc/passwd"}}}, "fetch"),
        ({"models": {"create": True, "fetch": {"x": "https://a/' ; id"}}}, "fetch"),
        ({"models": {"create": True, "fetch": {"../x": "https://a/b"}}}, "../x"),
        ({"models": {"fetch": {"x": "https://a/b"}}}, "models.fetch: needs a volume"),
        ({"openai": {"enabled": True, "port": 0}}, "port"),
        ({"otlp": {"endpoint": "collector"}}, "endpoint"),
    ],
)
def test_wrong_values_are_refused_by_name(helm, values, named):
    assert named in helm("template", "x", CHART, *VERSION, values=values, succeeds=False)


def test_the_server_understands_the_configuration(render, binaries, tmp_path):
    for values in (PLAIN, GPU):
        text = config_of(render(values)).replace("cuda:0", "cpu:0")
        text = text.replace("/srv/tandem/models/", f"{ROOT}/models/")
        text = re.sub(r' path: "/models/[^"]*"', " fake {}", text)
        path = tmp_path / "deployment.textproto"
        path.write_text(text, "utf-8")
        run = subprocess.run(
            [binaries / "tandem-server", "--config", path, "--check"],
            capture_output=True,
            timeout=60,
        )
        assert run.returncode == 0, run.stderr.decode()
