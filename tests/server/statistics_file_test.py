"""`server.statistics_file` is written when the server stops, and a broken one is no obstacle."""

CONFIG = """
models { name: "large" fake { pass_seconds: 0.001 } }
models { name: "small" fake { pass_seconds: 0.0002 seed: 2 } }
deployments { name: "pair" large: "large" small: "small" }
server { statistics_file: "%s" }
"""


def test_it_is_kept_across_restarts(start_server, tandem, tmp_path):
    file = tmp_path / "learned"

    def serve():
        server = start_server(CONFIG % file)
        args = ("generate", "--model=pair", "--ignore-eos", "--max-new-tokens=24", "abcabc")
        answer = tandem(*args, address=server.grpc)
        assert answer.returncode == 0, answer.stderr
        assert server.stop() == 0
        return server.log_text()

    assert "event=statistics" not in serve(), "the first server has no file to read"
    first = file.read_text("utf-8")
    assert first.startswith("tandem-statistics 1\n")
    assert file.stat().st_mode & 0o077 == 0
    assert "event=statistics" not in serve()
    second = file.read_text("utf-8")
    assert second != first

    file.write_text(second.replace("drafts", "tfards"), "utf-8")
    log = serve()
    assert "event=statistics" in log and "the checksum does not match" in log
    assert file.read_text("utf-8").startswith("tandem-statistics 1\n")
    assert list(tmp_path.iterdir()) == [file]


def test_a_folder_that_is_missing_is_named(start_server, tmp_path):
    server = start_server(CONFIG % (tmp_path / "none" / "learned"))
    assert server.stop() == 0
    assert "none/learned.tmp: cannot create" in server.log_text()
