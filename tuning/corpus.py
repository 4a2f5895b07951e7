"""The training corpus: the source of Python's own standard library.

Every Python installation has it, so the training can be repeated without a download. The split into training
and held-out files depends only on each file's path relative to the library, so it is equal on all machines.
"""

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

HELD_OUT_SHARE = 0.02

# Installed packages are not the standard library; the other two hold tables, not code.
EXCLUDED_FOLDERS = frozenset({"site-packages", "dist-packages", "encodings", "pydoc_data"})


@dataclass(frozen=True)
class Document:
    """One source file: `path` relative to the library with forward slashes, `text` decoded."""

    path: str
    text: str


def standard_library() -> Path:
    """The folder of the running interpreter's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def is_held_out(path: str, share: float = HELD_OUT_SHARE) -> bool:
    """Whether the file at this relative path belongs to the held-out `share` of all files."""
    digest = hashlib.sha256(path.encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def read_documents(root: Path) -> list[Document]:
    """All distinct, non-empty UTF-8 sources under `root`, in order of their paths.

    Line ends become "\\n". A file whose text equals an earlier one's is left out, as the same text
    on both sides of the split would make the held-out loss too good.
    """
    documents: list[Document] = []
    seen: set[str] = set()
    for file in sorted(root.rglob("*.py")):
        relative = file.relative_to(root)
        if EXCLUDED_FOLDERS.intersection(relative.parts):
            continue
        try:
            text = file.read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            continue  # the library's tests hold files in other encodings on purpose
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        if text.strip() and text not in seen:
            seen.add(text)
            documents.append(Document(relative.as_posix(), text))
    return documents


def split(documents: list[Document]) -> tuple[list[Document], list[Document]]:
    """(training, held-out) documents, each in the given order."""
    training = [document for document in documents if not is_held_out(document.path)]
    held_out = [document for document in documents if is_held_out(document.path)]
    return training, held_out
