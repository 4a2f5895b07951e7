"""tuning/corpus.py: which files are read, and on which side of the split they fall."""

from tuning import corpus


def write(root, path, content):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def test_reads_distinct_utf8_sources_in_order(tmp_path):
    write(tmp_path, "b.py", b"x = 1\r\ny = 2\r")
    write(tmp_path, "a/c.py", "name = 'é'\n".encode())
    write(tmp_path, "copy.py", b"x = 1\ny = 2\n")
    write(tmp_path, "latin.py", "# é\n".encode("latin-1"))
    write(tmp_path, "empty.py", b" \n")
    write(tmp_path, "notes.txt", b"no code\n")
    write(tmp_path, "site-packages/other.py", b"z = 3\n")
    write(tmp_path, "encodings/table.py", b"t = 4\n")
    documents = corpus.read_documents(tmp_path)
    assert [(d.path, d.text) for d in documents] == [
        ("a/c.py", "name = 'é'\n"),
        ("b.py", "x = 1\ny = 2\n"),
    ]


def test_split_depends_on_the_path_alone():
    paths = [f"folder/module_{i}.py" for i in range(5000)]
    held_out = [path for path in paths if corpus.is_held_out(path)]
    assert 60 < len(held_out) < 140  # 2 % of 5000
    assert held_out[:3] == ["folder/module_3.py", "folder/module_20.py", "folder/module_65.py"]
    documents = [corpus.Document(path, "text of " + path) for path in paths]
    training, rest = corpus.split(documents)
    assert [document.path for document in rest] == held_out
    assert len(training) + len(rest) == len(documents)
