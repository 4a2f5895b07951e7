#!/bin/sh
# Makes proto/, messages and stubs, of the repository's protos. Needs protoc; its plugins come in the versions of go.mod.
set -eu
cd "$(dirname "$0")"
plugins=$(mktemp -d)
trap 'rm -rf "$plugins"' EXIT
GOBIN=$plugins go install tool
protoc -I ../../../proto \
  --plugin="$plugins/protoc-gen-go" --go_out=. --go_opt=module=tandem \
  --plugin="$plugins/protoc-gen-go-grpc" --go-grpc_out=. --go-grpc_opt=module=tandem \
  tandem/v1/generation.proto tandem/v1/models.proto
