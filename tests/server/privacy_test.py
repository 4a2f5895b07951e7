"""What people ask and what they are answered stays out of logs and metrics, errors included."""

import json

CANARY = "canaryQ7x"


def test_neither_prompts_nor_outputs_are_logged(start_server, tandem):
    server = start_server(None, "--log-level=debug")

    def generate(*args):
        return tandem("generate", "--model=fake", "--ignore-eos", *args, address=server.grpc)

    fine = generate(f"--prompt={CANARY}", "--max-new-tokens=24", "--format=json")
    assert fine.returncode == 0
    answer = json.loads(fine.stdout)["text"]
    assert len(answer) == 24
    # Refused, and refused because of the very text.
    assert generate(f"--prompt={CANARY}", "--temperature=NaN").returncode == 1
    assert generate("--prompt=" + CANARY * 1000).returncode == 1
    assert generate("--prompt=x", f"--stop-sequences={CANARY}" + "y" * 2000).returncode == 1
    tokens = tandem("tokenize", "--model=fake", f"--prompt={CANARY}", address=server.grpc)
    assert tokens.returncode == 0

    metrics = server.metrics()
    assert server.stop() == 0
    log = server.log_text()
    assert "event=call" in log  # it does log
    for secret in (CANARY, answer):
        assert secret not in log
        assert secret not in metrics
