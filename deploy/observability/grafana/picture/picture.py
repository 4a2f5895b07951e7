#!/usr/bin/env python3
"""Draws dashboard.json with data of a running server: docs/dashboard.png.

    deploy/observability/grafana/picture/picture.py [--minutes 5] [--binaries build/release/bin]

`tandem bench` loads a tandem-server with the demo models. Prometheus scrapes it every 2 s and answers the queries of the
dashboard. The components of Grafana (npm package @grafana/ui, in the version of deploy/compose) draw the results in headless
Chromium, without a Grafana server. Needs node, npm, `prometheus` and `chromium` (apt-get install prometheus chromium, or
`--prometheus` and `--chromium`).
"""

import argparse
import contextlib
import json
import re
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[3]
SCRAPE = 2  # seconds
RATE = f"{4 * SCRAPE}s"  # value of $__rate_interval in Grafana
STEP = SCRAPE
# Flags of `tandem bench`: consecutive loads of equal duration.
LOADS = (
    "--concurrency 2 --method autoregressive",
    "--rate 4",
    "--rate 8 --method bild",
    "--concurrency 8 --method speculative --max-new-tokens 200",
    "--concurrency 3 --method bita",
)
ALL = {"$__rate_interval": RATE, "$__interval": f"{STEP}s", "$instance": ".*", "$model": ".*"}


@contextlib.contextmanager
def running(command, **options):
    process = subprocess.Popen(command, **options)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def wait_for(condition, process, what):
    """Raises SystemExit if the process ends first, or after 120 s."""
    end = time.monotonic() + 120
    while not condition():
        if process.poll() is not None:
            raise SystemExit(f"{what}: ended with status {process.returncode}")
        if time.monotonic() > end:
            raise SystemExit(f"{what}: not ready after two minutes")
        time.sleep(0.1)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def ready(address):
    """Whether Prometheus answers queries."""
    try:
        with urllib.request.urlopen(f"http://{address}/-/ready", timeout=10) as answer:
            return answer.status == 200
    except OSError:
        return False


def get(address, path, **parameters):
    query = urllib.parse.urlencode(parameters)
    with urllib.request.urlopen(f"http://{address}{path}?{query}", timeout=60) as answer:
        return json.loads(answer.read())


def legend(target, labels):
    """Name of a series as in Grafana: legendFormat, or its labels."""
    form = target.get("legendFormat")
    if form:
        return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda m: labels.get(m[1], ""), form)
    return "{" + ", ".join(f'{k}="{v}"' for k, v in labels.items()) + "}"


def asked(expression):
    """A query with the variables of the dashboard set to all values."""
    for name, value in ALL.items():
        expression = expression.replace(name, value)
    return expression


def answered(address, panel, begin, end):
    found = []
    for target in panel.get("targets", []):
        expression = asked(target["expr"])
        if target.get("instant"):
            answer = get(address, "/api/v1/query", query=expression, time=end)
        else:
            times = {"start": begin, "end": end, "step": STEP}
            answer = get(address, "/api/v1/query_range", query=expression, **times)
        for result in answer["data"]["result"]:
            labels = result["metric"]
            points = result.get("values") or [result["value"]]
            # Prometheus returns NaN as text. Grafana draws a gap.
            values = [None if v in ("NaN", "+Inf", "-Inf") else float(v) for _, v in points]
            by_time = {round(t * 1000): v for (t, _), v in zip(points, values, strict=True)}
            found.append(
                {
                    "name": legend(target, labels),
                    "labels": labels,
                    "times": list(by_time),
                    "values": list(by_time.values()),
                }
            )
    return {"panel": panel, "series": found}


def observe(args, folder):
    """The panels with the results of their queries after the load."""
    ports = folder / "ports"
    server = [args.binaries / "tandem-server", "--config", ROOT / "deploy/demo.textproto"]
    server += ["--listen=127.0.0.1:0", "--http=127.0.0.1:0", f"--port-file={ports}"]
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(running([*server, "--log-level=warn"]))
        wait_for(ports.exists, process, "tandem-server")
        at = dict(line.split("=", 1) for line in ports.read_text().split())
        (folder / "prometheus.yml").write_text(
            f"global: {{scrape_interval: {SCRAPE}s}}\n"
            f"scrape_configs: [{{job_name: tandem, static_configs: [{{targets: ['{at['http']}']}}]}}]\n"
        )
        address = f"127.0.0.1:{free_port()}"
        prometheus = [args.prometheus, f"--config.file={folder}/prometheus.yml"]
        prometheus += [f"--storage.tsdb.path={folder}/data", f"--web.listen-address={address}"]
        process = stack.enter_context(running([*prometheus, "--log.level=warn"]))
        wait_for(lambda: ready(address), process, "prometheus")
        begin = time.time()
        for load in LOADS:
            end = time.time() + args.minutes * 60 / len(LOADS)
            while time.time() < end:
                bench = [args.binaries / "tandem", "bench", "--server", at["grpc"], *load.split()]
                # An invalid request, for the panels of refused requests.
                wrong = [
                    args.binaries / "tandem",
                    "generate",
                    "--server",
                    at["grpc"],
                    "--model=no",
                    "x",
                ]
                subprocess.run([*bench, "--requests=40"], stdout=subprocess.DEVNULL, check=True)
                subprocess.run(wrong, capture_output=True)
        end = time.time()
        dashboard = json.loads((HERE.parent / "dashboard.json").read_text("utf-8"))
        panels = [answered(address, panel, begin, end) for panel in dashboard["panels"]]
    return {
        "title": dashboard["title"],
        "from": round(begin * 1000),
        "to": round(end * 1000),
        "note": "drawn by Grafana components from Prometheus data; "
        f"demo models, {args.minutes:g} minutes of tandem bench",
        "panels": panels,
    }


def draw(args, seen, folder):
    if not (args.packages / "node_modules").exists():
        args.packages.mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE / "package.json", args.packages)
        npm = [
            "npm",
            "install",
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
            "--legacy-peer-deps",
        ]
        subprocess.run(npm, cwd=args.packages, check=True)
    shutil.copy(HERE / "page.tsx", args.packages)
    build = ["node_modules/.bin/esbuild", "page.tsx", "--bundle", "--jsx=automatic", "--minify"]
    build += ["--define:process.env.NODE_ENV='production'", "--define:global=window"]
    build += [f"--loader:.{kind}=dataurl" for kind in ("svg", "png", "woff", "woff2", "ttf")]
    subprocess.run([*build, f"--outfile={folder}/page.js"], cwd=args.packages, check=True)
    (folder / "page.html").write_text(
        '<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="page.css"><div id="page"></div>'
        f"<script>var DASHBOARD = {json.dumps(seen)};</script>"
        '<script src="page.js"></script>'
    )
    bottom = max(p["panel"]["gridPos"]["y"] + p["panel"]["gridPos"]["h"] for p in seen["panels"])
    chromium = [args.chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    chromium += ["--allow-file-access-from-files", "--virtual-time-budget=20000"]
    chromium += [f"--window-size=1680,{bottom * 38 + 56}", f"--screenshot={args.output}"]
    # Captured, as Chromium prints warnings about a missing D-Bus.
    result = subprocess.run(
        [*chromium, f"file://{folder}/page.html"], capture_output=True, text=True
    )
    if result.returncode != 0:
        raise SystemExit(result.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--binaries", type=Path, default=ROOT / "build/release/bin")
    parser.add_argument("--prometheus", default="prometheus")
    parser.add_argument("--chromium", default="chromium")
    parser.add_argument(
        "--packages", type=Path, default=Path("/var/tmp/tandem-picture"), help="of npm"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "docs/dashboard.png")
    parser.add_argument(
        "--seen", type=Path, help="keeps what was seen; where it exists it is drawn again"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tandem-picture-") as temporary:
        if args.seen and args.seen.exists():
            seen = json.loads(args.seen.read_text())
        else:
            seen = observe(args, Path(temporary))
            if args.seen:
                args.seen.write_text(json.dumps(seen))
        draw(args, seen, Path(temporary))


if __name__ == "__main__":
    main()
