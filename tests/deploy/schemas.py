"""Kubernetes' own schemas (kubernetes-validate) and those of custom resources, both of scripts/setup --full."""

import copy
import functools
import warnings

from tests.conftest import HOME

# Of the Prometheus operator, whose schemas are not available.
FOREIGN = {"ServiceMonitor", "PrometheusRule"}
VERSIONS = ("1.30", "1.36")
CUSTOM = {
    "gateway.networking.k8s.io",
    "inference.networking.k8s.io",
    "keda.sh",
    "networking.istio.io",
    "serving.kserve.io",
}


def check(items):
    """Every item is valid and has no unknown field."""
    try:
        import kubernetes_validate
    except ImportError:
        warnings.warn("no kubernetes-validate: schemas are not checked", stacklevel=2)
        return
    for item in items:
        if item["kind"] in FOREIGN:
            continue
        if item["apiVersion"].split("/")[0] in CUSTOM:
            check_custom(item)
            continue
        for version in VERSIONS:
            kubernetes_validate.validate(item, version, strict=True)


def check_custom(item):
    import jsonschema

    if not (HOME / "crds").exists():
        warnings.warn("no schemas of custom resources: scripts/setup --full", stacklevel=3)
        return
    schema = custom_schemas()[item["apiVersion"], item["kind"]]()
    jsonschema.Draft7Validator(schema).validate(item)


@functools.cache
def custom_schemas():
    """By (apiVersion, kind): a function that makes the strict schema."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found = {}
    for path in sorted((HOME / "crds").glob("*.yaml")):
        for crd in yaml.load_all(path.read_bytes(), loader):
            if not crd or crd.get("kind") != "CustomResourceDefinition":
                continue
            spec = crd["spec"]
            for version in spec["versions"]:
                key = f"{spec['group']}/{version['name']}", spec["names"]["kind"]
                make = functools.partial(strict_root, version["schema"]["openAPIV3Schema"])
                found[key] = functools.cache(make)
    return found


def strict_root(schema):
    """The root of a custom resource always has these fields."""
    schema = copy.deepcopy(schema)
    for name in ("apiVersion", "kind"):
        schema["properties"].setdefault(name, {"type": "string"})
    schema["properties"].setdefault("metadata", {"type": "object"})
    return strict(schema)


def strict(schema):
    """The structural schema as JSON schema: an unknown field is an error, as with kubectl --validate=strict."""
    if not isinstance(schema, dict):
        return schema
    for name, inner in schema.get("properties", {}).items():
        schema["properties"][name] = strict(inner)
    for name in ("items", "additionalProperties"):
        if name in schema:
            schema[name] = strict(schema[name])
    open_ended = schema.get("x-kubernetes-preserve-unknown-fields")
    if "properties" in schema and "additionalProperties" not in schema and not open_ended:
        schema["additionalProperties"] = False
    if schema.get("x-kubernetes-int-or-string"):
        schema.pop("type", None)
        schema.setdefault("anyOf", [{"type": "integer"}, {"type": "string"}])
    if schema.get("nullable") and "type" in schema:
        schema["type"] = [schema["type"], "null"]
    return schema
