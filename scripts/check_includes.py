#!/usr/bin/env python3
"""Checks the dependencies between modules: a module includes only modules that it may depend on.

  scripts/check_includes.py [ROOT]

A C++ module is a source folder, a Python module a package. Also checks that a file's includes reach
the types that it names, which a unity build hides. Prints one line per violation; the exit status
is then 1.
"""

import collections
import pathlib
import re
import sys

# In order of dependency. ALLOWED lists, for each module, the modules that it may include.
ENGINE = [
    "engine/base",
    "engine/async",
    "engine/text",
    "engine/pass",
    "engine/grammar",
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

ALLOWED = {module: set(CORE[: i + 1]) for i, module in enumerate(CORE)}
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
ALLOWED["server"] = set(ENGINE) | {CONFIG, PROTO, "server/edge", "server/openai", "server"}
ALLOWED["client"] = {"engine/base", CONFIG, PROTO, "client"}

# Headers that belong to another module than their folder: kernels of all devices share them.
OUTSIDE = {
    "engine/backend/torch/kinds.h": "engine/base",
    "engine/backend/torch/quant_format.h": "engine/base",
    "engine/sampling/row_answer.h": "engine/base",
    "engine/backend/torch/lora_view.h": "engine/base",
    "engine/backend/torch/row_move.h": "engine/backend/torch/cpu",
    "engine/backend/torch/row_view.h": "engine/backend/torch/cpu",
}

# Libraries, and the modules that may include them.
LIBRARIES = [
    (re.compile(r"(ATen|c10|torch|caffe2)/"), "LibTorch", {"engine/backend/torch"}),
    (
        re.compile(r"(cuda|cublas|cub/|cusparse|nccl)"),
        "CUDA",
        {"engine/backend/torch", "engine/backend/torch/cuda/kernels"},
    ),
    (re.compile(r"(grpc|grpcpp|grpc\+\+)/"), "gRPC", {"server", "client"}),
    (
        re.compile(r"google/protobuf/"),
        "protobuf",
        {"engine/host", "server", "server/openai", "client"},
    ),
    (re.compile(r"(prometheus/|httplib\.h)"), "the server's libraries", {"server"}),
]
# Mutations exist only where passes are stored and executed, not in their contract and the methods.
MUTATION_HEADER = "engine/base/mutation.h"
WITHOUT_MUTATIONS = {"engine/pass", "engine/decode"}
# Python packages, and the packages of this repository that they may not import.
PYTHON = {"measure": {"tuning", "bench", "tests"}, "tuning": {"bench", "tests"}, "bench": {"tests"}}
IMPORT = re.compile(r"^\s*(?:from|import) (\w+)", re.MULTILINE)
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def module_of(path):
    """The module of a source file or included header; None for other headers."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    if path.endswith(".pb.h"):
        return CONFIG if path.startswith("tandem/config/") else PROTO
    for module in sorted(ALLOWED, key=len, reverse=True):
        if path.startswith(module + "/"):
            return module
    if path.startswith(("tests/", "cmake/", "tuning/")):
        return path.split("/")[0]
    return None


def rules_for(path):
    """(module for LIBRARIES, allowed modules) of a source file."""
    if not path.startswith("tests/"):
        module = module_of(path)
        return module, ALLOWED[module]
    # A test may include what its module may, the fake backend and other tests.
    module = module_of(path.removeprefix("tests/"))
    if path.startswith("tests/cuda/"):
        module = "engine/backend/torch"
    if module is None:  # tests/reference, tests/simulation
        return "engine/backend/fake", set(CORE) | {"tests"}
    extra = {"engine/backend/fake", "tests"}
    if module in CORE:
        extra |= set(CORE)
    if module == "server":
        extra |= {"client"}
    return module, ALLOWED[module] | extra


def check_file(path, text):
    module, allowed = rules_for(path)
    found = []
    # Headers named -inl.h are included once per processor target (Highway), with a toggling guard.
    if path.endswith(".h") and not path.endswith("-inl.h") and "#pragma once" not in text:
        found.append(f"{path}:1: no #pragma once")
    for match in INCLUDE.finditer(text):
        quote, header = match.groups()
        where = f"{path}:{text.count(chr(10), 0, match.start(2)) + 1}"
        if header == "torch/torch.h":
            found.append(
                f"{where}: <torch/torch.h> takes 26 s and 1 GB to compile; include single operators"
            )
        if (
            header == MUTATION_HEADER
            and not path.startswith("tests/")
            and module in WITHOUT_MUTATIONS
        ):
            found.append(f"{where}: {module} may have no mutations ({header})")
        target = module_of(header)
        if target is not None:
            if target not in allowed:
                found.append(f"{where}: {module} may not include {target} ({header})")
            continue
        for pattern, name, modules in LIBRARIES:
            # Our own headers with such names have a module and were checked above.
            if pattern.match(header) and module not in modules:
                found.append(f"{where}: {module} may not include {name} ({header})")
        if quote == '"' and (header.startswith(".") or "/" not in header):
            found.append(f'{where}: "{header}"; allowed: paths from the repository root')
    return found


COMMENT_OR_STRING = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'""", re.DOTALL
)
# A type that a header offers: at the start of a line, and no mere declaration.
OFFERED = re.compile(
    r"^(?:enum class|enum|class|struct|using|concept)\s+(?:alignas\(\w+\)\s*)?(\w+)(?=[^;\n]*[{=:\n])",
    re.MULTILINE,
)
# A name that a file knows: of a type, of a test or in a list of names (X-macro).
KNOWN = re.compile(
    r"\b(?:enum class|enum|class|struct|union|using|concept|typename)\s+(?:\[\[[^\]]*\]\]\s*|alignas\(\w+\)\s*)?(\w+)"
    r"|\b(?:X|INSTANTIATE_TEST_SUITE_P)\((\w+)|\bTEST\w*\((\w+), (\w+)"
)
NAMED = re.compile(r"(?<![\w:.>])[A-Z]\w+")


def unreached(files):
    """Types that a file names although no header that it includes, directly or not, declares them."""
    included = {
        path: [header for _, header in INCLUDE.findall(text) if header in files]
        for path, text in files.items()
    }
    code = {path: COMMENT_OR_STRING.sub(" ", INCLUDE.sub("", text)) for path, text in files.items()}
    known = {
        path: {name for names in KNOWN.findall(text) for name in names}
        for path, text in code.items()
    }
    offered = collections.defaultdict(list)
    for path, text in code.items():
        if path.endswith(".h") and not path.startswith("tests/"):
            for name in OFFERED.findall(text):
                offered[name].append(path)
    found = []
    for path, text in code.items():
        reached, todo = {path}, [path]
        while todo:
            new = set(included[todo.pop()]) - reached
            reached |= new
            todo += new
        _, allowed = rules_for(path)
        names = set(NAMED.findall(text)) - set().union(*(known[header] for header in reached))
        for name in sorted(names & offered.keys()):
            # Headers of other modules have equal names.
            headers = [header for header in offered[name] if module_of(header) in allowed]
            if headers:
                line = re.search(rf"\b{name}\b", files[path])
                at = files[path].count("\n", 0, line.start()) + 1
                found.append(f"{path}:{at}: {name} needs {' or '.join(headers)}")
    return found


def check_python(path, text):
    package = path.split("/")[0]
    return [
        f"{path}:{text.count(chr(10), 0, match.start(1)) + 1}: {package} may not import {match[1]}"
        for match in IMPORT.finditer(text)
        if match[1] in PYTHON[package]
    ]


def check(root):
    """All violations below `root`, and the number of checked files."""
    found, count, files = [], 0, {}
    for folder in ("engine", "server", "client", "tests"):
        for path in sorted((root / folder).rglob("*")):
            relative = path.relative_to(root).as_posix()
            if path.suffix not in {".h", ".cpp", ".cu", ".cuh"} or "/rust/" in relative:
                continue
            if not relative.startswith("tests/") and module_of(relative) is None:
                found.append(f"{relative}:1: not in a module of scripts/check_includes.py")
                continue
            count += 1
            files[relative] = path.read_text(encoding="utf-8")
            found += check_file(relative, files[relative])
    found += unreached(files)
    for folder in PYTHON:
        for path in sorted((root / folder).rglob("*.py")):
            count += 1
            found += check_python(
                path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
            )
    return found, count


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__).resolve()
    found, count = check(root if root.is_dir() else root.parent.parent)
    print("\n".join(found) if found else f"{count} files include only what their modules may")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
