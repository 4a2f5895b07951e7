"""Dashboard and alert rules: valid, of metrics that the server has, and rules that fire when they should."""

import importlib.util
import json
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT

yaml = pytest.importorskip("yaml")
FOLDER = ROOT / "deploy" / "observability"
RULES = FOLDER / "alerts.yml"
TESTS = ROOT / "tests" / "deploy" / "data" / "alerts_test.yml"
OTHERS = {"up"}  # Prometheus' own

# Series that only servers with such a deployment have.
ELSEWHERE = {
    "tandem_ppd_matches_total",
    "tandem_ppd_first_matches_total",
    "tandem_ppd_rounds_total",
    "tandem_ppd_lower_seconds_total",
    "tandem_ppd_upper_seconds_total",
    "tandem_ppd_barrier_seconds_total",
    "tandem_ppd_worker_seconds_total",
    "tandem_proposed_tokens_total",
}


def panels():
    return json.loads((FOLDER / "grafana" / "dashboard.json").read_text("utf-8"))["panels"]


def queries():
    for panel in panels():
        for target in panel.get("targets", []):
            yield f"panel {panel['title']}", target["expr"], target.get("legendFormat", "")
    for group in yaml.safe_load(RULES.read_text("utf-8"))["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"], " ".join(rule["annotations"].values())


def metrics_of(expression):
    """Name and labels of what an expression selects or groups by."""
    bare = re.sub(r'"[^"]*"', '""', expression)
    names = set(re.findall(r"\b((?:tandem|process)_[a-z0-9_]+|up)\b", bare))
    labels = set(re.findall(r"([a-z_]+)(?==~|=)", bare))
    for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", bare):
        labels |= {label.strip() for label in group.split(",") if label.strip()}
    return names, labels


@pytest.fixture(scope="module")
def exported(server, binaries):
    """What a server with the usual methods says after some requests: name -> labels."""
    for method in ("autoregressive", "speculative", "bild"):
        subprocess.run(
            [binaries / "tandem", "generate", "--server", server.grpc, "--model=pair"]
            + ["--prompt=x", "--max-new-tokens=8", "--ignore-eos", f"--method={method}"],
            check=True,
            capture_output=True,
            timeout=60,
        )
    found = {}
    for name, labels in re.findall(
        r"^([a-z0-9_]+)(?:\{([^}]*)\})? ", server.metrics(), re.MULTILINE
    ):
        found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return found


def test_queries_name_what_the_server_exports(exported):
    for where, expression, _ in queries():
        names, labels = metrics_of(expression)
        assert names, where
        for name in names - OTHERS - ELSEWHERE:
            assert name in exported, f"{where}: the server has no {name}"
        known = {"instance", "job"}.union(*(exported.get(name, ()) for name in names))
        if not names & ELSEWHERE:
            assert labels <= known, f"{where}: {labels - known} in {expression}"


def test_texts_name_labels_that_their_queries_keep():
    for where, expression, text in queries():
        used = set(re.findall(r"\{\{ *(?:\$labels\.)?([a-z_]+) *\}\}", text)) - {"value"}
        kept = set()
        groups = re.findall(r"\bby \(([^)]*)\)", expression)
        for group in groups:
            kept |= {label.strip() for label in group.split(",")}
        if not groups:
            kept = {"instance", "device", "job"}  # all of a plain series
        assert used <= kept, f"{where}: {used - kept}"


def test_the_chart_has_the_same_rules():
    """Also where there is no helm, which the chart's own tests need."""
    chart = ROOT / "deploy/helm/tandem/files/alerts.yml"
    assert chart.read_text("utf-8") == (FOLDER / "alerts.yml").read_text("utf-8")


def test_the_dashboard_is_what_its_script_writes():
    run = subprocess.run(
        [sys.executable, FOLDER / "grafana" / "dashboard.py", "--check"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr


def test_the_picture_asks_and_names_as_grafana_does():
    path = FOLDER / "grafana" / "picture" / "picture.py"
    spec = importlib.util.spec_from_file_location("picture", path)
    picture = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(picture)
    labels = {"model": "code", "le": "1"}
    assert picture.legend({"legendFormat": "{{model}} p{{ le }}{{none}}"}, labels) == "code p1"
    assert picture.legend({}, labels) == '{model="code", le="1"}'
    for panel in panels():
        for target in panel.get("targets", []):
            assert "$" not in picture.asked(target["expr"]), target["expr"]


def test_figures_are_red_where_something_is_wrong():
    """Grafana's own threshold is 80, whatever a figure counts."""
    red = {}
    for panel in panels():
        if panel["type"] == "stat":
            steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
            assert steps[0] == {"color": "green", "value": None}
            red.update((panel["title"], step["value"]) for step in steps[1:])
    assert red == {"Failed requests": 0.05, "Lost devices, stuck servers": 1}


def test_panels_do_not_lie_on_each_other():
    taken = set()
    ids = set()
    for panel in panels():
        ids.add(panel["id"])
        at = panel["gridPos"]
        assert 0 <= at["x"] <= at["x"] + at["w"] <= 24
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len(ids) == len(panels())


def test_prometheus_parses_the_queries_of_the_dashboard(tool, tmp_path):
    rules = []
    for panel in panels():
        for target in panel.get("targets", []):
            expression = target["expr"].replace("$__rate_interval", "1m")
            rules.append({"record": f"query:{len(rules)}", "expr": expression})
    assert len(rules) > 60
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}), "utf-8")
    promtool(tool, "check", "rules", path)


def promtool(tool, *args):
    run = subprocess.run([tool("promtool"), *args], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr


def test_rules_fire_when_they_should(tool):
    promtool(tool, "check", "rules", RULES)
    promtool(tool, "test", "rules", TESTS)


def test_every_alert_is_tested_and_says_what_it_means():
    tested = {
        case["alertname"]
        for test in yaml.safe_load(TESTS.read_text("utf-8"))["tests"]
        for case in test["alert_rule_test"]
        if case["exp_alerts"]
    }
    for group in yaml.safe_load(RULES.read_text("utf-8"))["groups"]:
        for rule in group["rules"]:
            assert rule["alert"] in tested
            assert rule["labels"]["severity"] in ("page", "ticket")
            assert rule["annotations"]["summary"]


def test_prometheus_of_compose_reads_what_it_names(tool, tmp_path):
    """With the rules where the container has them."""
    text = (FOLDER / "prometheus.yml").read_text("utf-8")
    assert "/etc/prometheus/alerts.yml" in text
    config = tmp_path / "prometheus.yml"
    config.write_text(text.replace("/etc/prometheus/alerts.yml", str(RULES)), "utf-8")
    promtool(tool, "check", "config", config)
