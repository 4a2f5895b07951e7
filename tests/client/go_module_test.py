"""The Go module of client/go as its users get it: packed, fetched by `go get`, and used against a server."""

import json
import re
import subprocess
import sys
import zipfile

import pytest

from tests.client.conftest import run_go
from tests.conftest import HOME, ROOT

PROTOS = (
    "tandem/v1/generation.proto",
    "tandem/v1/models.proto",
    "tandem/v1/admin.proto",
    "tandem/config/v1/deployment.proto",
)
CONSUMER = """
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	tandemv1 "tandem.example/client/go/tandem/v1"
	configv1 "tandem.example/client/go/tandem/config/v1"
)

func main() {
	connection, err := grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	listed, err := tandemv1.NewModelsClient(connection).ListModels(ctx, &tandemv1.ListModelsRequest{})
	if err != nil {
		log.Fatal(err)
	}
	request := &tandemv1.GenerateRequest{
		Model:        "fake",
		Prompt:       &tandemv1.GenerateRequest_Text{Text: "example"},
		MaxNewTokens: proto.Int32(12),
	}
	answer, err := tandemv1.NewGenerationClient(connection).Complete(ctx, request)
	if err != nil {
		log.Fatal(err)
	}
	json.NewEncoder(os.Stdout).Encode(map[string]any{
		"models": len(listed.GetModels()),
		"text":   answer.GetChoices()[0].GetText(),
		"config": string((&configv1.Config{}).ProtoReflect().Descriptor().FullName()),
	})
}
"""


def module():
    text = (ROOT / "client/go/go.mod").read_text("utf-8")
    return re.search(r"^module (\S+)$", text, re.MULTILINE).group(1)


@pytest.mark.parametrize("proto", PROTOS)
def test_go_package_is_a_package_of_the_module(proto):
    text = (ROOT / "proto" / proto).read_text("utf-8")
    path, name = re.search(r'^option go_package = "(.+);(\w+)";$', text, re.MULTILINE).groups()
    folder = proto.rsplit("/", 1)[0]
    assert path == f"{module()}/{folder}"
    assert name == "".join(folder.split("/")[-2:])
    assert proto in (ROOT / "client/go/generate.sh").read_text("utf-8")


def test_the_first_element_of_the_path_is_a_domain():
    """`go get` takes a path without a dot there for a package of Go itself."""
    assert re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)+/[a-z/]+", module())


@pytest.fixture(scope="module")
def proxy(tmp_path_factory, go_tools):
    folder = tmp_path_factory.mktemp("proxy")
    run_go([sys.executable, ROOT / "scripts/go_module", folder], ROOT, go_tools)
    return folder


def test_the_module_is_packed_alike(proxy, tmp_path, go_tools):
    run_go([sys.executable, ROOT / "scripts/go_module", tmp_path], ROOT, go_tools)
    files = {
        path.relative_to(proxy): path.read_bytes() for path in proxy.rglob("*.*") if path.is_file()
    }
    assert files == {name: (tmp_path / name).read_bytes() for name in files}
    run_go(
        [sys.executable, ROOT / "scripts/go_module", tmp_path, "--version=v0.2.0-rc.1"],
        ROOT,
        go_tools,
    )
    (listed,) = tmp_path.rglob("list")
    assert listed.read_text().split() == ["v0.1.0", "v0.2.0-rc.1"]
    (archive,) = proxy.rglob("*.zip")
    names = zipfile.ZipFile(archive).namelist()
    assert {name.split("@")[0] for name in names} == {module()}
    assert {name.rsplit("/", 1)[1] for name in names} >= {
        "go.mod",
        "README.md",
        "generation_grpc.pb.go",
    }


def test_a_version_has_the_form_of_go(tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/go_module", tmp_path, "--version=0.1"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "--version: '0.1'; allowed: vMAJOR.MINOR.PATCH" in done.stderr
    assert not list(tmp_path.iterdir())


def test_go_get_accepts_the_path(proxy, go_tools, tmp_path, server, tandem):
    env = {
        **go_tools,
        "GOFLAGS": "-trimpath -modcacherw",
        "GOMODCACHE": str(tmp_path / "modules"),  # an empty one, so the module comes from `proxy`
        "GOPROXY": f"file://{proxy},file://{HOME}/go/cache/download",
        "GOSUMDB": "off",
    }
    folder = tmp_path / "consumer"
    folder.mkdir()
    (folder / "main.go").write_text(CONSUMER, "utf-8")
    run_go(["go", "mod", "init", "example.com/consumer"], folder, env)
    run_go(["go", "get", f"{module()}/tandem/v1@latest"], folder, env)
    assert f"{module()} v0.1.0" in (folder / "go.mod").read_text("utf-8")
    assert (tmp_path / "modules" / f"{module()}@v0.1.0/tandem/v1/generation.pb.go").is_file()
    run_go(["go", "build", "-o", "consumer", "."], folder, env)
    found = json.loads(run_go([folder / "consumer", server.grpc], folder, env))
    expected = tandem(
        "generate", "--model=fake", "--prompt=example", "--max-new-tokens=12", "--format=json"
    )
    assert found == {
        "models": 3,
        "text": json.loads(expected.stdout)["text"],
        "config": "tandem.config.v1.Config",
    }
