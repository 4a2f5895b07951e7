#!/bin/sh
# Makes tandem/, messages and stubs, of the repository's protos. Needs protoc; its plugins come in the versions of go.mod.
set -eu
cd "$(dirname "$0")"
module=$(sed -n 's/^module //p' go.mod)
plugins=$(mktemp -d)
trap 'rm -rf "$plugins"' EXIT
GOBIN=$plugins go install tool
protoc -I ../../proto \
  --plugin="$plugins/protoc-gen-go" --go_out=. --go_opt="module=$module" \
  --plugin="$plugins/protoc-gen-go-grpc" --go-grpc_out=. --go-grpc_opt="module=$module" \
  tandem/v1/generation.proto tandem/v1/models.proto tandem/v1/admin.proto tandem/config/v1/deployment.proto
