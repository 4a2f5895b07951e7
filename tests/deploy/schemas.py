"""Kubernetes' own schemas, where `kubernetes-validate` is installed (scripts/setup --full)."""

import warnings

# Of operators, not of Kubernetes: their schemas are not in the package.
FOREIGN = {"ServiceMonitor", "PrometheusRule"}
VERSIONS = ("1.30", "1.36")


def check(items):
    """Every item is what Kubernetes knows, without a field too many."""
    try:
        import kubernetes_validate
    except ImportError:
        warnings.warn("no kubernetes-validate: schemas are not checked", stacklevel=2)
        return
    for item in items:
        if item["kind"] in FOREIGN:
            continue
        for version in VERSIONS:
            kubernetes_validate.validate(item, version, strict=True)
