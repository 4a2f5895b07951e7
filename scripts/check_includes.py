#!/usr/bin/env python3
"""Holds the sources to the order of the rooms: a room includes only rooms above it.

Usage: scripts/check_includes.py [ROOT]
Prints one line per violation and ends with status 1 if there are any.
"""

import pathlib
import re
import sys

# Top to bottom. A room may include itself and the rooms before it that are named for it below.
ENGINE = [
    "engine/base",
    "engine/async",
    "engine/text",
    "engine/pass",
    "engine/cache",
    "engine/sampling",
    "engine/decode",
    "engine/sched",
    "engine/backend/fake",
    "engine/backend/scripted",
    "engine/backend/torch/weights",
    "engine/backend/torch/cpu",
    "engine/backend/torch/cuda/kernels",
    "engine/backend/torch/queue",
    "engine/backend/torch",
    "engine/host",
]
CORE = ENGINE[: ENGINE.index("engine/backend/torch")]  # builds without LibTorch, gRPC and protobuf
CONFIG, PROTO = "proto/config", "proto"

ALLOWED = {room: set(CORE[: i + 1]) for i, room in enumerate(CORE)}
ALLOWED["engine/backend/torch/weights"] = {"engine/base", "engine/backend/torch/weights"}
ALLOWED["engine/backend/scripted"] = ALLOWED["engine/pass"] | {
    "engine/sampling",
    "engine/backend/scripted",
}
ALLOWED["engine/backend/torch/cpu"] = {"engine/base", "engine/backend/torch/cpu"}
ALLOWED["engine/backend/torch/cuda/kernels"] = ALLOWED["engine/backend/torch/cpu"] | {
    "engine/backend/torch/cuda/kernels"
}
ALLOWED["engine/backend/torch/queue"] = {"engine/base", "engine/backend/torch/queue"}
ALLOWED["engine/backend/torch"] = set(CORE) - {
    "engine/backend/fake",
    "engine/backend/scripted",
} | {"engine/backend/torch"}
ALLOWED["engine/host"] = set(ENGINE) | {CONFIG}
ALLOWED["server/edge"] = {"engine/base", "server/edge"}
ALLOWED["server/openai"] = {"engine/base", PROTO, "server/edge", "server/openai"}
ALLOWED["rpc"] = {"rpc"}
ALLOWED["server"] = set(ENGINE) | {CONFIG, PROTO, "rpc", "server/edge", "server/openai", "server"}
ALLOWED["client"] = {"engine/base", CONFIG, PROTO, "rpc", "client"}

# Headers that lie in one room's folder and belong to another: kernels of all devices share it.
OUTSIDE = {
    "engine/backend/torch/kinds.h": "engine/base",
    "engine/backend/torch/quant_format.h": "engine/base",
    "engine/sampling/row_answer.h": "engine/base",
    "engine/backend/torch/row_move.h": "engine/backend/torch/cpu",
    "engine/backend/torch/row_view.h": "engine/backend/torch/cpu",
}

# Libraries, and the rooms that may include them.
LIBRARIES = [
    (re.compile(r"(ATen|c10|torch|caffe2)/"), "LibTorch", {"engine/backend/torch"}),
    (
        re.compile(r"(cuda|cublas|cub/|cusparse|nccl)"),
        "CUDA",
        {"engine/backend/torch", "engine/backend/torch/cuda/kernels"},
    ),
    (re.compile(r"(grpc|grpcpp|grpc\+\+)/"), "gRPC", {"rpc", "server", "client"}),
    (
        re.compile(r"google/protobuf/"),
        "protobuf",
        {"engine/host", "server", "server/openai", "client"},
    ),
    (re.compile(r"(prometheus/|httplib\.h)"), "the server's libraries", {"server"}),
]
# Mutations live where passes are stored, run and answered: the contract and the methods have none.
MUTATION_HEADER = "engine/base/mutation.h"
WITHOUT_MUTATIONS = {"engine/pass", "engine/decode"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def room_of(path):
    """The room of a source file or of an included header; None for the standard library and others."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    if path.endswith(".pb.h"):
        return CONFIG if path.startswith("tandem/config/") else PROTO
    for room in sorted(ALLOWED, key=len, reverse=True):
        if path.startswith(room + "/"):
            return room
    if path.startswith(("tests/", "cmake/", "tuning/")):
        return path.split("/")[0]
    return None


def rules_for(path):
    """(room for the table of libraries, rooms allowed) of a source file."""
    if not path.startswith("tests/"):
        room = room_of(path)
        return room, ALLOWED[room]
    # A test sees what its room sees, the fake backend and other tests.
    room = room_of(path.removeprefix("tests/"))
    if path.startswith("tests/cuda/"):
        room = "engine/backend/torch"
    if room is None:  # tests/reference, tests/simulation
        return "engine/backend/fake", set(CORE) | {"tests"}
    extra = {"engine/backend/fake", "tests"}
    if room in CORE:
        extra |= set(CORE)
    if room == "server":
        extra |= {"client"}
    return room, ALLOWED[room] | extra


def check_file(path, text):
    room, allowed = rules_for(path)
    found = []
    # Headers named -inl.h are read once per processor (Highway), by a guard that toggles.
    if path.endswith(".h") and not path.endswith("-inl.h") and "#pragma once" not in text:
        found.append(f"{path}:1: no #pragma once")
    for match in INCLUDE.finditer(text):
        quote, header = match.groups()
        where = f"{path}:{text.count(chr(10), 0, match.start(2)) + 1}"
        if header == "torch/torch.h":
            found.append(
                f"{where}: <torch/torch.h> takes 26 s and 1 GB: include operator by operator"
            )
        if (
            header == MUTATION_HEADER
            and not path.startswith("tests/")
            and room in WITHOUT_MUTATIONS
        ):
            found.append(f"{where}: {room} may have no mutations ({header})")
        target = room_of(header)
        if target is not None:
            if target not in allowed:
                found.append(f"{where}: {room} may not include {target} ({header})")
            continue
        for pattern, name, rooms in LIBRARIES:
            # CUDA's and LibTorch's wrappers in our own folders are caught above.
            if pattern.match(header) and room not in rooms:
                found.append(f"{where}: {room} may not include {name} ({header})")
        if quote == '"' and (header.startswith(".") or "/" not in header):
            found.append(f'{where}: "{header}": includes start at the repository root')
    return found


def check(root):
    """All violations below `root`, and the number of files looked at."""
    found, count = [], 0
    for folder in ("engine", "rpc", "server", "client", "tests"):
        for path in sorted((root / folder).rglob("*")):
            relative = path.relative_to(root).as_posix()
            if path.suffix not in {".h", ".cpp", ".cu", ".cuh"} or "/rust/" in relative:
                continue
            if not relative.startswith("tests/") and room_of(relative) is None:
                found.append(f"{relative}:1: belongs to no room of scripts/check_includes.py")
                continue
            count += 1
            found += check_file(relative, path.read_text(encoding="utf-8"))
    return found, count


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__).resolve()
    found, count = check(root if root.is_dir() else root.parent.parent)
    print("\n".join(found) if found else f"{count} files keep the order of the rooms")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
