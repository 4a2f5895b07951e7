"""What lies in deploy/ can be read, renders, and does what its comments say."""

import http.server
import shutil
import subprocess
import threading

import pytest

from tests.conftest import ROOT

yaml = pytest.importorskip("yaml")
DEPLOY = ROOT / "deploy"


@pytest.mark.parametrize("path", sorted(DEPLOY.rglob("*.y*ml")), ids=lambda p: p.name)
def test_yaml_can_be_read(path):
    assert list(yaml.safe_load_all(path.read_text("utf-8")))


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


@pytest.mark.parametrize("name", ["base", "cuda", "envoy"])
def test_kustomizations_have_what_they_name(name):
    found = resources(name)
    assert ("Deployment", "tandem") in found
    pods = found["Deployment", "tandem"]["spec"]["template"]
    assert pods["spec"]["terminationGracePeriodSeconds"] >= 30 + 5
    policy = found["NetworkPolicy", "tandem"]["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= pods["metadata"]["labels"].items()


@pytest.mark.parametrize("name", ["base", "cuda", "envoy"])
def test_kustomizations_render(name):
    kubectl = shutil.which("kubectl")
    if not kubectl:
        pytest.skip("no kubectl")
    run = subprocess.run(
        [kubectl, "kustomize", DEPLOY / "kubernetes" / name], capture_output=True, timeout=60
    )
    assert run.returncode == 0, run.stderr.decode()
    assert (b"nvidia.com/gpu: 1" in run.stdout) == (name == "cuda")


def test_envoy_may_call_and_has_limits():
    pods = resources("envoy")["Deployment", "tandem-envoy"]["spec"]["template"]["metadata"]
    assert pods["labels"]["tandem-client"] == "true"
    text = (DEPLOY / "kubernetes" / "envoy" / "envoy.yaml").read_text("utf-8")
    config = yaml.safe_load(text)
    manager = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]
    limits = manager["typed_config"]
    assert limits["http2_protocol_options"]["max_concurrent_streams"] <= 1024
    assert limits["max_request_headers_kb"] <= 8
    layer = config["layered_runtime"]["layers"][0]["static_layer"]
    assert layer["overload.premature_reset_total_stream_count"] <= 500


@pytest.mark.parametrize(("status", "exit_code"), [(200, 0), (503, 1)])
def test_health_check_of_the_container(status, exit_code):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status if self.path == "/readyz" else 404)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        run = subprocess.run(
            [DEPLOY / "healthcheck"], env={"TANDEM_HTTP": address}, timeout=30, check=False
        )
    assert run.returncode == exit_code
    assert (
        subprocess.run(
            [DEPLOY / "healthcheck"], env={"TANDEM_HTTP": address}, timeout=30, capture_output=True
        ).returncode
        == 1
    ), "nobody listens"
