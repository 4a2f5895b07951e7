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

# The two demo models of the image. The chart has no default for it; the tests add it to the values that lack it.
CONFIG = """\
models { name: "code-large" path: "/srv/tandem/models/code-large" }
models { name: "code-small" path: "/srv/tandem/models/code-small" }
deployments { name: "code" large: "code-large" small: "code-small" }
"""
# Sets of values that together reach every branch of the templates, and have every value of values.yaml.
PLAIN = {}
TLS = {
    "tls": {"secretName": "certificate", "clientCertificates": True},
    "tokens": {"secretName": "tokens"},
    "service": {
        "type": "LoadBalancer",
        "annotations": {"a": "b"},
        "grpcPort": 443,
        "httpPort": 9000,
    },
    "image": {
        "repository": "registry.example.com/tandem",
        "digest": "sha256:" + "0" * 64,
        "pullPolicy": "Always",
    },
    "imagePullSecrets": [{"name": "pull"}],
    "networkPolicy": {"enabled": False},
    "podDisruptionBudget": {"enabled": False},
    "preStopSeconds": 0,
    "graceSeconds": 60,
    "startupSeconds": 30,
    "maxConnectionAgeSeconds": 300,
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
        "size": "5Gi",
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "fast",
        "fetch": {"m.gguf": "https://models.example.com/m.gguf"},
        "fetchImage": "registry.example.com/curl:1",
    },
    "image": {"tag": "cuda"},
    "resources": {"limits": {"memory": "4Gi"}},
}
MONITORED = {
    "serviceMonitor": {"enabled": True, "interval": "5s", "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "dashboard": {"enabled": True, "labels": {"board": "1"}},
    "networkPolicy": {"from": [{"podSelector": {"matchLabels": {"a": "b"}}}]},
    "podDisruptionBudget": {"maxUnavailable": "50%"},
    "replicas": 3,
    "server": 'log_level: "debug"',
    "models": {"existingClaim": "mine"},
}
OPENAI = {
    "openai": {"enabled": True, "port": 80},
    "otlp": {"endpoint": "collector.tracing:4317", "sampleRatio": 0.5},
    "tls": {"secretName": "certificate"},
    "tokens": {"secretName": "tokens"},
}
KEDA = {
    "keda": {
        "enabled": True,
        "minReplicas": 2,
        "maxReplicas": 8,
        "waiting": 1.5,
        "prometheus": "http://prometheus.monitoring:9090",
        "pollingInterval": 5,
        "cooldown": 600,
    }
}
QUERY = {"keda": {**KEDA["keda"], "query": 'sum(vllm:num_requests_waiting{model_name="m"})'}}
HPA = {
    "hpa": {
        "enabled": True,
        "minReplicas": 2,
        "maxReplicas": 8,
        "waiting": 3,
        "metric": "vllm:num_requests_waiting",
        "cooldown": 60,
    }
}
SETS = {
    "plain": PLAIN,
    "tls": TLS,
    "gpu": GPU,
    "monitored": MONITORED,
    "openai": OPENAI,
    "keda": KEDA,
    "query": QUERY,
    "hpa": HPA,
}


@pytest.fixture(scope="module")
def helm(tool):
    program = tool("helm")

    def run(*args, values=None, succeeds=True):
        done = subprocess.run(
            [program, *args, "--values", "-"],
            input=json.dumps({"config": CONFIG, **(values or {})}),
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


@pytest.mark.parametrize("values", SETS.values(), ids=SETS)
def test_lint_finds_nothing(helm, values):
    assert "0 chart(s) failed" in helm("lint", "--strict", CHART, values=values)


@pytest.mark.parametrize("values", SETS.values(), ids=SETS)
def test_every_set_renders_to_valid_resources(render, values):
    assert only(render(values), "Deployment")


def paths(values, prefix=()):
    """Of the values, without those of free form."""
    found = set()
    for key, value in values.items():
        inner = paths(value, (*prefix, key)) if isinstance(value, dict) else set()
        found |= inner or {(*prefix, key)}
    return found


def test_the_sets_have_every_value():
    every = paths(yaml.safe_load((CHART / "values.yaml").read_text("utf-8")))
    given = {path for values in SETS.values() for path in paths(values)}
    # Also what lies below a value of free form, such as nodeSelector.
    reached = {path[:n] for path in given for n in range(1, len(path) + 1)}
    free = {path for path in every if path[0] == "resources" or path[:2] == ("dashboard", "labels")}
    assert every - free - reached == set()


def test_without_a_model_it_says_what_to_set(helm):
    for config in ("", "\n", "# models { }", 'deployments { name: "a" large: "b" }'):
        text = helm("template", "x", CHART, *VERSION, values={"config": config}, succeeds=False)
        assert "config: no model; allowed: a deployment file with models" in text
        assert "--set-file config=" in text


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


def test_scaling_by_waiting_requests(render):
    found = render(KEDA)
    deployment = only(found, "Deployment")
    assert "replicas" not in deployment["spec"], "an upgrade would reset it"
    scaled = only(found, "ScaledObject")["spec"]
    assert scaled["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (2, 8)
    (trigger,) = scaled["triggers"]
    assert trigger["metadata"]["threshold"] == "1.5"
    query = trigger["metadata"]["query"]
    pods = re.search(r'pod=~"([^"]+)"', query).group(1)
    assert query.startswith("sum(tandem_num_requests_waiting{")
    assert re.fullmatch(pods, "release-tandem-7c9d8b5f44-x2x4z")
    assert not re.fullmatch(pods, "release-tandem-picker-7c9d8b5f44-x2x4z")
    (trigger,) = only(render(QUERY), "ScaledObject")["spec"]["triggers"]
    assert trigger["metadata"]["query"] == QUERY["keda"]["query"]

    found = render(HPA)
    assert "replicas" not in only(found, "Deployment")["spec"]
    scaler = only(found, "HorizontalPodAutoscaler")["spec"]
    (metric,) = scaler["metrics"]
    assert metric["pods"]["metric"] == {"name": "vllm:num_requests_waiting"}
    assert metric["pods"]["target"] == {"type": "AverageValue", "averageValue": "3"}
    kinds = {kind for kind, _ in render(PLAIN)}
    assert not kinds & {"ScaledObject", "HorizontalPodAutoscaler"}
    assert only(render({"replicas": 3}), "Deployment")["spec"]["replicas"] == 3


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
        ({**KEDA, **HPA}, "keda.enabled, hpa.enabled: both are true; allowed: at most one"),
        ({"keda": {"enabled": True}}, "keda.prometheus: empty; allowed: the address"),
        ({"keda": {**KEDA["keda"], "minReplicas": 9}}, "keda.minReplicas: 9; allowed: at most"),
        ({"hpa": {**HPA["hpa"], "minReplicas": 9}}, "hpa.minReplicas: 9; allowed: at most"),
        ({"keda": {**KEDA["keda"], "minReplicas": 0}}, "minReplicas"),
        ({"hpa": {**HPA["hpa"], "waiting": 0}}, "waiting"),
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
