"""Prompts that are refused cost the server next to nothing, and others nothing at all."""

import grpc

FAT = "lorem ipsum " * (4_000_000 // 12)  # as much as one message may hold


def test_fat_prompts_are_refused_by_their_size(attack):
    target = attack()
    with target.bystander():
        clients = [target.client() for _ in range(4)]
        calls = [client.generate(text=FAT) for client in clients for _ in range(2)]
        for call in calls:
            assert call.code() == grpc.StatusCode.INVALID_ARGUMENT
    target.assert_quiet()
    target.assert_serves()
