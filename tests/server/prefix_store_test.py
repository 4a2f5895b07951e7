"""`--prefix-store`: a server starts with the KV pages of prompts that an earlier one shared."""

import json
import urllib.request
from pathlib import Path

SMALL = Path(__file__).resolve().parents[2] / "models/code-small"
CONFIG = f"""
models {{ name: "code" path: "{SMALL}" device: "cpu:0" }}
devices {{ name: "cpu:0" threads: 1 memory_bytes: 67108864 }}
server {{ openai: "127.0.0.1:0" %s }}
"""
# More than 300 tokens, as a system prompt.
SYSTEM = "".join(f"def function_{i}(argument):\n    return argument + {i}\n\n" for i in range(24))


def complete(server, question, tokens=12):
    """The text after the system prompt and the question, and how many prompt tokens were cached."""
    body = {
        "model": "code",
        "prompt": SYSTEM + question,
        "max_tokens": tokens,
        "temperature": 0,
    }
    request = urllib.request.Request(
        f"http://{server.ports['openai']}/v1/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        result = json.load(answer)
    details = result["usage"].get("prompt_tokens_details") or {}
    return result["choices"][0]["text"], details.get("cached_tokens", 0)


def test_the_first_answer_after_a_restart_uses_saved_pages(start_server, tmp_path):
    store = tmp_path / "store"
    first = start_server(CONFIG % "", f"--prefix-store={store}")
    expected, cached = complete(first, "def first(")
    assert cached == 0
    complete(first, "def second(")
    assert first.stop() == 0
    assert "event=prefix_store saved_files=1" in first.log_text()
    (file,) = store.iterdir()
    assert file.suffix == ".prefixes"
    assert file.stat().st_mode & 0o077 == 0
    assert store.stat().st_mode & 0o077 == 0

    again = start_server(CONFIG % "", f"--prefix-store={store}")
    assert "KV pages of saved prefixes" in again.log_text()
    text, cached = complete(again, "def first(")
    assert cached >= 300
    assert text == expected
    assert again.stop() == 0
    assert "saved_files" not in again.log_text(), "nothing has changed"

    # Damaged in the middle: the pages before stay, and the file is replaced.
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    damaged = start_server(CONFIG % "", f"--prefix-store={store}")
    log = damaged.log_text()
    assert "the checksum does not match" in log and "level=warn" in log
    text, cached = complete(damaged, "def first(")
    assert 0 < cached < 300
    assert text == expected
    complete(damaged, "def first(")
    assert damaged.stop() == 0
    assert "saved_files=1" in damaged.log_text()

    # Other pages: the file is ignored.
    bf16 = (CONFIG % "").replace("path:", "kv_dtype: DTYPE_BF16 path:")
    other = start_server(bf16, f"--prefix-store={store}")
    assert complete(other, "def first(")[1] == 0
    complete(other, "def second(")
    assert other.stop() == 0
    assert len(list(store.iterdir())) == 2

    last = start_server(CONFIG % "", f"--prefix-store={store}")
    text, cached = complete(last, "def first(")
    assert cached >= 300
    assert text == expected
    assert last.stop() == 0


def test_a_running_server_saves_at_intervals(start_server, tmp_path):
    store = tmp_path / "store"
    running = start_server(CONFIG % f'prefix_store: "{store}" prefix_store_seconds: 1')
    for question in ("def first(", "def second("):
        complete(running, question)
    running.until(lambda: "saved_files=1" in running.log_text(), "a file")
    new = start_server(CONFIG % "", f"--prefix-store={store}")
    assert complete(new, "def first(")[1] >= 300
    assert new.stop() == 0
    assert running.stop() == 0


def test_a_folder_that_cannot_be_made_is_named(start_server, tmp_path):
    server = start_server(CONFIG % "", f"--prefix-store={tmp_path}/none/store")
    for question in ("def first(", "def second("):
        complete(server, question)
    assert server.stop() == 0
    log = server.log_text()
    assert "event=prefix_store" in log and "none/store: cannot create" in log
