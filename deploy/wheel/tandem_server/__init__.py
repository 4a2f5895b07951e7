"""Starts the programs of this package with LibTorch of the package `torch`.

The commands `tandem-server` and `tandem` call `server` and `client`. The process becomes the program, so signals and exit status
are its own. Importing this package does not import torch.
"""

import importlib.metadata
import importlib.util
import os
import sys
from pathlib import Path

from .built_with import TORCH

FOLDER = Path(__file__).resolve().parent


def torch_libraries():
    """The folder of LibTorch, or None without torch."""
    found = importlib.util.find_spec("torch")
    for folder in (found and found.submodule_search_locations) or ():
        libraries = Path(folder) / "lib"
        if (libraries / "libtorch_cpu.so").exists():
            return libraries
    return None


def torch_problem():
    """Why the server cannot use the installed torch, or None. LibTorch has no stable ABI, so its version must be equal."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return f"torch {TORCH} is required; installed: none; run: pip install torch=={TORCH}"
    if version.partition("+")[0] != TORCH:
        return f"torch {TORCH} is required; installed: {version}; run: pip install torch=={TORCH}"
    if torch_libraries() is None:
        return f"torch {version} has no lib/libtorch_cpu.so"
    return None


def environment():
    """That of a program. It names LibTorch's folder unless the server finds it from its own place."""
    libraries = torch_libraries()
    own = FOLDER.parent / "torch" / "lib"
    if libraries is None or (own.exists() and libraries.samefile(own)):
        return dict(os.environ)
    folders = [str(libraries), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(folders)}


def _become(name):
    program = FOLDER / "bin" / name
    os.execve(program, [str(program), *sys.argv[1:]], environment())


def server():
    if problem := torch_problem():
        sys.exit(f"tandem-server: {problem}")
    _become("tandem-server")


def client():
    _become("tandem")
