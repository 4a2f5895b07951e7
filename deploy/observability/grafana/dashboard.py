#!/usr/bin/env python3
"""Generates dashboard.json and the chart's copy: a dashboard for Grafana 10 and newer.

deploy/observability/grafana/dashboard.py          writes both files
deploy/observability/grafana/dashboard.py --check  exit status 1 if a file is out of date
"""

import json
import sys
from pathlib import Path

FILE = Path(__file__).with_name("dashboard.json")
# A copy, as Helm reads only files of the chart, and symbolic links are lost in some copies of a repository.
CHART = Path(__file__).resolve().parents[2] / "helm/tandem/files/dashboard.json"
SOURCE = {"type": "prometheus", "uid": "${source}"}
WIDTH = 24  # columns of Grafana's grid

# Label filters of a query: by server, or by server and deployment.
FILTERS = {"@i": '{instance=~"$instance"}', "@m": '{instance=~"$instance", model=~"$model"}'}


def quantiles(metric, by="model"):
    """p50, p95 and p99 of a histogram."""
    rates = f"sum by ({by}, le) ({grown(metric + '_bucket', 'm')})"
    return [(f"histogram_quantile(0.{q}, {rates})", f"{{{{{by}}}}} p{q}") for q in (50, 95, 99)]


def grown(metric, label):
    """Growth of a counter per second."""
    return f"rate({metric}@{label}[$__rate_interval])"


def rate(metric, by, name, label="m"):
    return [(f"sum by ({by}) ({grown(metric, label)})", name)]


def ratio(top, below, by, name, label="m"):
    """Ratio of two counters."""
    return [(rate(top, by, "", label)[0][0] + " / " + rate(below, by, "", label)[0][0], name)]


def mean(metric, by, name, label="m"):
    """The mean of a histogram's values."""
    return ratio(metric + "_sum", metric + "_count", by, name, label)


def now(metric, by, name, label="m"):
    """Sum of a gauge."""
    return [(f"sum by ({by}) ({metric}@{label})", name)]


# Rows of panels: type, title, unit, queries with their legends, description.
ROWS = [
    (
        "Overview",
        [
            ("stat", "Requests running", "short", [("sum(tandem_requests_running@m)", "")], ""),
            ("stat", "Requests waiting", "short", [("sum(tandem_requests_waiting@m)", "")], ""),
            (
                "stat",
                "Tokens per second",
                "short",
                [("sum(rate(tandem_generated_tokens_total@m[$__rate_interval]))", "")],
                "",
            ),
            (
                "stat",
                "Time to first token, p95",
                "s",
                [
                    (
                        "histogram_quantile(0.95, sum by (le) (rate(tandem_time_to_first_token_seconds_bucket@m[$__rate_interval])))",
                        "",
                    )
                ],
                "",
            ),
            (
                "stat",
                "Failed requests",
                "percentunit",
                [
                    (
                        "sum(rate(tandem_requests_failed_total@i[$__rate_interval])) / (sum(rate(tandem_requests_failed_total@i[$__rate_interval])) + sum(rate(tandem_requests_total@i[$__rate_interval])))",
                        "",
                    )
                ],
                "Includes refused and invalid requests.",
            ),
            (
                "stat",
                "Lost devices, stuck servers",
                "short",
                [("sum(tandem_device_lost@i) + sum(tandem_stuck@i)", "")],
                "Restart the server if this is not 0.",
            ),
        ],
    ),
    (
        "Latency",
        [
            (
                "timeseries",
                "Time to first token",
                "s",
                quantiles("tandem_time_to_first_token_seconds"),
                "From arrival.",
            ),
            (
                "timeseries",
                "Time between tokens",
                "s",
                quantiles("tandem_inter_token_latency_seconds"),
                "",
            ),
            (
                "timeseries",
                "Request latency",
                "s",
                quantiles("tandem_e2e_request_latency_seconds"),
                "From arrival to the end.",
            ),
            (
                "timeseries",
                "Time by phase, mean",
                "s",
                mean("tandem_request_queue_seconds", "model", "{{model}} queue")
                + mean("tandem_request_prefill_seconds", "model", "{{model}} prefill")
                + mean("tandem_request_decode_seconds", "model", "{{model}} decode"),
                "",
            ),
        ],
    ),
    (
        "Load",
        [
            (
                "timeseries",
                "Requests running and waiting",
                "short",
                now("tandem_requests_running", "model, method", "{{model}} {{method}} running")
                + now("tandem_requests_waiting", "model, method", "{{model}} {{method}} waiting"),
                "",
            ),
            (
                "timeseries",
                "Tokens per second",
                "short",
                rate("tandem_prompt_tokens_total", "model", "{{model}} prompt")
                + rate("tandem_generated_tokens_total", "model", "{{model}} generated"),
                "",
            ),
            (
                "timeseries",
                "Completed requests",
                "reqps",
                rate(
                    "tandem_requests_total",
                    "method, finish_reason",
                    "{{method}} {{finish_reason}}",
                ),
                "",
            ),
            (
                "timeseries",
                "Failed requests by status",
                "reqps",
                rate("tandem_requests_failed_total", "status", "{{status}}", "i"),
                "By gRPC status, refused requests included.",
            ),
            (
                "timeseries",
                "Refused requests",
                "reqps",
                rate("tandem_requests_rejected_total", "reason", "{{reason}}", "i"),
                "",
            ),
            (
                "timeseries",
                "Tokenizing and paused",
                "short",
                now("tandem_requests_tokenizing", "instance", "{{instance}} tokenizing", "i")
                + now(
                    "tandem_requests_paused", "instance", "{{instance}} paused (slow reader)", "i"
                ),
                "",
            ),
            (
                "timeseries",
                "Prompt length",
                "short",
                quantiles("tandem_request_prompt_tokens"),
                "In tokens.",
            ),
            (
                "timeseries",
                "Answer length",
                "short",
                quantiles("tandem_request_generated_tokens"),
                "In tokens.",
            ),
        ],
    ),
    (
        "Drafting",
        [
            (
                "timeseries",
                "Tokens per pass of the large model",
                "short",
                mean("tandem_tokens_per_pass", "model, method", "{{model}} {{method}}"),
                "Mean over requests. 1: plain decoding.",
            ),
            (
                "timeseries",
                "Draft acceptance",
                "percentunit",
                ratio(
                    "tandem_spec_decode_num_accepted_tokens_total",
                    "tandem_spec_decode_num_draft_tokens_total",
                    "model, method",
                    "{{model}} {{method}}",
                ),
                "Share of accepted draft tokens.",
            ),
            (
                "timeseries",
                "Accept length, mean",
                "short",
                mean("tandem_accept_length", "model, method", "{{model}} {{method}}"),
                "",
            ),
            (
                "timeseries",
                "Acceptance by position",
                "percentunit",
                [
                    (
                        "sum by (position) (rate(tandem_spec_decode_num_accepted_tokens_per_pos_total@m[$__rate_interval])) / on () group_left sum(rate(tandem_spec_decode_num_drafts_total@m[$__rate_interval]))",
                        "position {{position}}",
                    )
                ],
                "",
            ),
            (
                "timeseries",
                "BiTA and PPD: tokens by proposal",
                "short",
                rate(
                    "tandem_proposed_tokens_total",
                    "model, method, index",
                    "{{model}} {{method}} {{index}}",
                ),
                "Tokens per second, by mask or rank of the candidate.",
            ),
            (
                "timeseries",
                "Passes per second",
                "short",
                rate("tandem_passes_total", "model, role", "{{model}} as {{role}}", "i"),
                "",
            ),
            (
                "timeseries",
                "BiLD: fallbacks and rollbacks",
                "short",
                rate("tandem_bild_fallbacks_total", "model", "{{model}} fallbacks")
                + rate("tandem_bild_forced_calls_total", "model", "{{model}} forced")
                + rate("tandem_bild_rollbacks_total", "model", "{{model}} rollbacks")
                + rate(
                    "tandem_bild_rolled_back_tokens_total", "model", "{{model}} rolled back tokens"
                ),
                "Per second.",
            ),
            (
                "timeseries",
                "PPD: match rate",
                "percentunit",
                ratio(
                    "tandem_ppd_matches_total",
                    "tandem_ppd_rounds_total",
                    "model",
                    "{{model}} any candidate",
                )
                + ratio(
                    "tandem_ppd_first_matches_total",
                    "tandem_ppd_rounds_total",
                    "model",
                    "{{model}} first candidate",
                ),
                "",
            ),
            (
                "timeseries",
                "PPD: time by phase",
                "short",
                rate("tandem_ppd_lower_seconds_total", "model", "{{model}} to the early layer")
                + rate("tandem_ppd_upper_seconds_total", "model", "{{model}} above it")
                + rate("tandem_ppd_barrier_seconds_total", "model", "{{model}} waiting for workers")
                + rate("tandem_ppd_worker_seconds_total", "model", "{{model}} workers, concurrent"),
                "Seconds per second, all requests.",
            ),
        ],
    ),
    (
        "Memory and batches",
        [
            (
                "timeseries",
                "KV pages in use",
                "percentunit",
                [
                    (
                        "max by (model, device) (tandem_kv_cache_usage_ratio@i)",
                        "{{model}} {{device}}",
                    )
                ],
                "",
            ),
            (
                "timeseries",
                "KV pages",
                "short",
                now("tandem_kv_cache_pages", "model, state", "{{model}} {{state}}", "i"),
                "",
            ),
            (
                "timeseries",
                "Prefix cache hit rate",
                "percentunit",
                [
                    (
                        "sum(rate(tandem_prefix_cache_hits_total@i[$__rate_interval])) / sum(rate(tandem_prefix_cache_queries_total@i[$__rate_interval]))",
                        "of looked-up prompt tokens",
                    )
                ],
                "",
            ),
            (
                "timeseries",
                "Preemptions",
                "short",
                rate("tandem_preemptions_total", "instance", "{{instance}}", "i"),
                "Requests per second that lose their KV pages and are recomputed later.",
            ),
            (
                "timeseries",
                "Rows per batch, mean",
                "short",
                mean("tandem_batch_rows", "model, device", "{{model}} {{device}}", "i"),
                "",
            ),
            (
                "timeseries",
                "Batches per second",
                "short",
                rate("tandem_batches_total", "model, device", "{{model}} {{device}}", "i"),
                "",
            ),
            (
                "timeseries",
                "Memory on devices",
                "bytes",
                now(
                    "tandem_device_memory_bytes",
                    "model, device, kind",
                    "{{model}} {{device}} {{kind}}",
                    "i",
                ),
                "",
            ),
            (
                "timeseries",
                "Copies between devices",
                "Bps",
                rate("tandem_device_copy_bytes_total", "instance", "{{instance}}", "i"),
                "",
            ),
        ],
    ),
    (
        "Process and connections",
        [
            (
                "timeseries",
                "CPU",
                "short",
                [("rate(process_cpu_seconds_total@i[$__rate_interval])", "{{instance}}")],
                "CPU seconds per second.",
            ),
            (
                "timeseries",
                "Memory",
                "bytes",
                [("process_resident_memory_bytes@i", "{{instance}} resident")],
                "",
            ),
            (
                "timeseries",
                "Files, connections, calls",
                "short",
                [
                    ("process_open_fds@i", "{{instance}} files"),
                    ("tandem_connections@i", "{{instance}} connections"),
                    ("tandem_open_calls@i", "{{instance}} calls"),
                ],
                "",
            ),
            (
                "timeseries",
                "Refused connections and calls, dropped log lines",
                "short",
                [
                    (
                        "rate(tandem_connections_refused_total@i[$__rate_interval])",
                        "{{instance}} connections",
                    ),
                    (
                        "rate(tandem_calls_refused_total@i[$__rate_interval])",
                        "{{instance}} calls",
                    ),
                    ("rate(tandem_log_dropped_total@i[$__rate_interval])", "{{instance}} log"),
                ],
                "Per second.",
            ),
            (
                "timeseries",
                "Memory of waiting requests",
                "bytes",
                now("tandem_waiting_bytes", "instance", "{{instance}}", "i"),
                "Limited by limits.max_waiting_bytes.",
            ),
            (
                "table",
                "Build",
                "short",
                [("tandem_build_info@i", "")],
                "",
            ),
        ],
    ),
]


# Values from which a stat is red. Grafana's default is 80 for all.
LIMITS = {"Failed requests": 0.05, "Lost devices, stuck servers": 1}


def thresholds(title):
    steps = [{"color": "green", "value": None}]
    if title in LIMITS:
        steps.append({"color": "red", "value": LIMITS[title]})
    return {"mode": "absolute", "steps": steps}


def query(text):
    for name, labels in FILTERS.items():
        text = text.replace(name, labels)
    return text


def panel(number, place, kind, title, unit, queries, description):
    targets = []
    for index, (text, legend) in enumerate(queries):
        target = {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": query(text)}
        if legend:
            target["legendFormat"] = legend
        if kind == "table":
            target |= {"format": "table", "instant": True}
        targets.append(target)
    made = {
        "id": number,
        "type": kind,
        "title": title,
        "gridPos": place,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": targets,
    }
    if description:
        made["description"] = description
    if kind == "stat":
        made["fieldConfig"]["defaults"]["thresholds"] = thresholds(title)
    if kind == "timeseries":
        made["options"] = {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    return made


def variable(name, label):
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {
            "query": f"label_values(tandem_requests_running, {name})",
            "refId": name,
        },
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
        "sort": 1,
    }


def dashboard():
    panels = []
    y = 0
    for title, row in ROWS:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1},
                "panels": [],
            }
        )
        y += 1
        stats = row[0][0] == "stat"
        width, height = (WIDTH // len(row), 4) if stats else (WIDTH // 3, 8)
        for index, one in enumerate(row):
            line, column = divmod(index, WIDTH // width)
            place = {"x": column * width, "y": y + line * height, "w": width, "h": height}
            panels.append(panel(len(panels) + 1, place, *one))
        y += -(-len(row) // (WIDTH // width)) * height
    return {
        "uid": "tandem-server",
        "title": "Tandem",
        "description": "Tandem inference server.",
        "tags": ["tandem", "llm"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {
            "list": [
                {
                    "name": "source",
                    "label": "Source",
                    "type": "datasource",
                    "query": "prometheus",
                    "refresh": 1,
                },
                variable("instance", "Server"),
                variable("model", "Model"),
            ]
        },
        "panels": panels,
    }


def main(arguments):
    text = json.dumps(dashboard(), ensure_ascii=False, separators=(",", ":")) + "\n"
    if arguments == ["--check"]:
        wrong = [file for file in (FILE, CHART) if file.read_text("utf-8") != text]
        for file in wrong:
            print(f"{file} is out of date; update it with: {Path(__file__).name}", file=sys.stderr)
        return 1 if wrong else 0
    for file in (FILE, CHART):
        file.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
