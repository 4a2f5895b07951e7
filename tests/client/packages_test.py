"""What the packages say of themselves."""

import importlib.metadata
import json
import re
import tomllib
import xml.etree.ElementTree

from tests.client.conftest import EXAMPLES, PACKAGE
from tests.conftest import ROOT

NAMESPACE = {"m": "http://maven.apache.org/POM/4.0.0"}


def toml(path):
    return tomllib.loads(path.read_text("utf-8"))


def versions():
    """The version of every package, by file."""
    pom = xml.etree.ElementTree.parse(EXAMPLES / "java/pom.xml").getroot()
    chart = (ROOT / "deploy/helm/tandem/Chart.yaml").read_text("utf-8")
    return {
        "pyproject.toml": toml(PACKAGE / "pyproject.toml")["project"]["version"],
        "pom.xml": pom.findtext("m:version", namespaces=NAMESPACE),
        "package.json": json.loads((EXAMPLES / "node/package.json").read_text())["version"],
        "rust": toml(EXAMPLES / "rust/Cargo.toml")["package"]["version"],
        "pull": toml(ROOT / "client/pull/Cargo.toml")["package"]["version"],
        "chart": re.search(r'^appVersion: "(.*)"$', chart, re.MULTILINE).group(1),
    }


def test_all_have_the_version_of_the_server():
    build = (ROOT / "CMakeLists.txt").read_text("utf-8")
    expected = re.search(r"project\(tandem VERSION ([\d.]+)", build).group(1)
    assert set(versions().values()) == {expected}, versions()


def test_the_built_python_package_is_described(tandem_client):
    site = str(next(iter(tandem_client.__path__)).rsplit("/", 1)[0])
    (found,) = importlib.metadata.distributions(name="tandem-client", path=[site])
    about = found.metadata
    assert about["Version"] == versions()["pyproject.toml"]
    assert 20 < len(about["Summary"]) < 120
    assert about["Requires-Python"] == ">=3.11"
    assert "Typing :: Typed" in about.get_all("Classifier")
    assert about["Description-Content-Type"] == "text/markdown"
    text = about.get_payload()
    assert text.startswith("# tandem-client")
    # An index of packages shows the text without the repository.
    assert not re.findall(r"\]\((?!https?://)[^)]*\)", text)
