"""The files of the playground, as the server serves them. tests/client/playground_test.py opens them in a browser."""

import gzip
import re
import urllib.error
import urllib.request

import pytest

from tests.conftest import FAKE_CONFIG
from tests.server.http.endpoints_test import call

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
LIMIT = 350 << 10  # bytes, compressed


def fetch(server, path, method="GET", **headers):
    """Status, headers and bytes."""
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(
        f"http://{server.ports['openai']}{path}", headers=headers, method=method
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


@pytest.fixture(scope="module")
def guarded(start_server, tmp_path_factory):
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.write_text("alice aaaaaaaaaaaaaaaaaaaa\n")
    config = FAKE_CONFIG + f'server {{ bearer_token_file: "{tokens}" }}'
    server = start_server(config, "--openai=127.0.0.1:0")
    if fetch(server, "/")[0] == 404:
        pytest.skip("this build has no playground: Node.js or its packages were missing")
    return server


@pytest.fixture(scope="module")
def assets(guarded):
    return re.findall(r'="\./(assets/[^"]+)"', fetch(guarded, "/")[2].decode())


def test_files_need_no_token_and_calls_do(guarded, assets):
    assert sorted(path.rsplit(".", 1)[1] for path in assets) == ["css", "js"]
    for path in ["/", *(f"/{asset}" for asset in assets)]:
        status, headers, _ = fetch(guarded, path)
        assert status == 200, path
        assert headers["Content-Security-Policy"] == POLICY
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "Set-Cookie" not in headers
    for path in ("/v1/models", "/metrics"):
        assert fetch(guarded, path)[0] == 401


def test_compressed_files_are_the_same_and_small(guarded, assets):
    total = 0
    for path in ["/", *(f"/{asset}" for asset in assets)]:
        _, plain, body = fetch(guarded, path)
        _, headers, zipped = fetch(guarded, path, Accept_Encoding="gzip, br")
        assert "Content-Encoding" not in plain and headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(zipped) == body
        assert plain["ETag"] != headers["ETag"] and headers["Vary"] == "Accept-Encoding"
        total += len(zipped)
    print(f"\nplayground: {total} bytes compressed")
    assert total <= LIMIT


def test_browsers_keep_files(guarded, assets):
    _, headers, _ = fetch(guarded, "/")
    assert headers["Cache-Control"] == "no-cache"
    status, again, body = fetch(guarded, "/", If_None_Match=headers["ETag"])
    assert (status, again["ETag"], body) == (304, headers["ETag"], b"")
    assert fetch(guarded, "/", If_None_Match='"other"')[0] == 200
    assert "immutable" in fetch(guarded, f"/{assets[0]}")[1]["Cache-Control"]
    status, headers, body = fetch(guarded, f"/{assets[0]}", method="HEAD")
    assert (status, body) == (200, b"") and int(headers["Content-Length"]) > 1000


def test_the_page_loads_nothing_from_other_hosts(guarded, assets):
    """No URL of another host in what browsers load. Names of XML namespaces are no requests."""
    page = fetch(guarded, "/")[2].decode()
    assert not re.search(r'(?:src|href)="(?!\./assets/|data:)', page)
    style = next(fetch(guarded, f"/{path}")[2].decode() for path in assets if path.endswith("css"))
    assert "url(" not in style and "@import" not in style


def test_wrong_paths_and_methods(guarded):
    for path in ("/assets", "/assets/", "/assets/none.js", "/index.html", "/assets/../v1/models"):
        assert call(guarded, path)[0] == 404, path
    status, headers, _ = fetch(guarded, "/", method="DELETE")
    assert (status, headers["Allow"]) == (405, "GET")
    assert fetch(guarded, "/v1/models", method="HEAD")[0] == 405, "unlike the files"


def test_it_can_be_switched_off(guarded, start_server, assets):
    for config, flags in ((FAKE_CONFIG, ["--no-ui"]), (FAKE_CONFIG + "server { ui: false }", [])):
        server = start_server(config, "--openai=127.0.0.1:0", *flags)
        status, _, answer = call(server, "/")
        assert status == 404 and "the playground is switched off" in answer["error"]["message"]
        assert fetch(server, f"/{assets[0]}")[0] == 404
        assert call(server, "/v1/models")[0] == 200


def test_files_are_neither_logged_nor_counted(guarded):
    before = guarded.metrics()
    for _ in range(3):
        assert fetch(guarded, "/")[0] == 200
    assert "openai/playground" not in guarded.log_text()
    count = [line for line in guarded.metrics().splitlines() if line.startswith("tandem_requests")]
    assert count == [line for line in before.splitlines() if line.startswith("tandem_requests")]
