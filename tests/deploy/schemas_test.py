"""The check of schemas finds what it must find."""

import copy

import pytest

from tests.conftest import HOME
from tests.deploy.schemas import check

pytest.importorskip("yaml")
jsonschema = pytest.importorskip("jsonschema")
pytest.importorskip("kubernetes_validate")

POOL = {
    "apiVersion": "inference.networking.k8s.io/v1",
    "kind": "InferencePool",
    "metadata": {"name": "pool"},
    "spec": {
        "selector": {"matchLabels": {"app": "a"}},
        "targetPorts": [{"number": 8000}],
        "endpointPickerRef": {"name": "picker", "port": {"number": 9002}},
    },
}


def changed(path, value):
    item = copy.deepcopy(POOL)
    place = item
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return item


@pytest.fixture(autouse=True)
def crds():
    if not (HOME / "crds").exists():
        pytest.skip("no schemas of custom resources: scripts/setup --full")


def test_a_valid_resource_passes():
    check([POOL])


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["spec", "targetPort"], 8000),  # unknown
        (["spec", "selector", "matchLabel"], {}),  # unknown, deeper
        (["spec", "targetPorts", 0, "number"], "8000"),  # of another type
        (["spec", "targetPorts", 0, "number"], 70000),  # out of range
        (["spec", "endpointPickerRef", "failureMode"], "Open"),  # not a member
        (["spec", "endpointPickerRef"], None),  # required
    ],
)
def test_a_wrong_field_is_found(path, value):
    with pytest.raises(jsonschema.ValidationError):
        check([changed(path, value)])


def test_an_unknown_version_is_found():
    with pytest.raises(KeyError):
        check([{**POOL, "apiVersion": "inference.networking.k8s.io/v9"}])
