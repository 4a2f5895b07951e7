#!/usr/bin/env python3
"""Streams a completion from a Tandem server: the whole client is about twenty lines.

    python generate.py --model code --prompt 'def fib(n):'

Stubs are generated from proto/ at start, into a temporary folder, so that there is nothing to build
and nothing to keep in step. A real project runs the same command once:

    python -m grpc_tools.protoc -I proto --python_out=. --grpc_python_out=. \
        proto/tandem/v1/generation.proto
"""

import argparse
import importlib
import os
import sys
import tempfile
from pathlib import Path

import grpc
from grpc_tools import protoc

PROTO = Path(__file__).resolve().parents[3] / "proto"


def load_stubs(folder):
    """Generates and imports (messages, services) of tandem.v1.Generation."""
    status = protoc.main(
        [
            "protoc",
            f"-I{PROTO}",
            f"--python_out={folder}",
            f"--grpc_python_out={folder}",
            str(PROTO / "tandem/v1/generation.proto"),
        ]
    )
    if status != 0:
        raise RuntimeError(f"protoc failed with status {status}")
    sys.path.insert(0, folder)
    return (
        importlib.import_module("tandem.v1.generation_pb2"),
        importlib.import_module("tandem.v1.generation_pb2_grpc"),
    )


def main():
    parser = argparse.ArgumentParser(description="Streams a completion from a Tandem server.")
    parser.add_argument("--server", default=os.environ.get("TANDEM_SERVER", "127.0.0.1:50051"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        messages, services = load_stubs(folder)
        request = messages.GenerateRequest(
            model=args.model, text=args.prompt, max_new_tokens=args.max_new_tokens
        )
        if args.temperature is not None:  # unset is not zero: unset follows the model's own default
            request.temperature = args.temperature

        with grpc.insecure_channel(args.server) as channel:
            stub = services.GenerationStub(channel)
            try:
                for response in stub.Generate(request, timeout=300):
                    event = response.WhichOneof("event")
                    if event == "chunk":
                        print(response.chunk.text, end="", flush=True)
                    elif event == "finished":
                        done = response.finished
                        reason = messages.FinishReason.Name(done.finish_reason)
                        reason = reason.removeprefix("FINISH_REASON_")
                        tokens = done.usage.completion_tokens
                        print(f"\n[{reason}: {tokens} tokens]", file=sys.stderr)
            except grpc.RpcError as error:
                print(f"{error.code().name}: {error.details()}", file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
