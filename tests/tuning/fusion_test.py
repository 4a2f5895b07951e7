"""Inputs of the small model of LLM-to-SLM: which rows, and how they are aligned with its own."""

import pytest
import torch
from tokenizers import Tokenizer, decoders, models

from tuning import fusion
from tuning.shapes import llama, new_model
from tuning.vocabulary import train_tokenizer

SHAPE = llama(hidden=16, layers=3, heads=2, key_value_heads=1, inner=24, vocabulary=40)


@torch.no_grad()
def test_rows_are_those_between_two_layers():
    model = new_model(SHAPE, seed=1).eval()
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    states = model(input_ids=ids, output_hidden_states=True).hidden_states
    for layer in (1, 2):
        assert torch.equal(fusion.hidden_rows(model, ids, layer), states[layer])


def test_prompts_alone_are_fused():
    embedded, projected = torch.ones(2, 5, 3), torch.full((2, 4, 3), 10.0)
    prompt = torch.tensor([4, 2])
    added = fusion.fused_rows(embedded, projected, prompt, "add")[:, :, 0]
    assert added.tolist() == [[11, 11, 11, 11, 1], [11, 11, 1, 1, 1]]
    replaced = fusion.fused_rows(embedded, projected, prompt, "replace")[:, :, 0]
    assert replaced.tolist() == [[10, 10, 10, 10, 1], [10, 10, 1, 1, 1]]


# The same cases as tests/engine/host/models/alignment_test.cpp: the server lays rows as they were in training.
def test_a_row_goes_to_the_tokens_that_end_in_its_token():
    def rows(text, large, small):
        cuts = ([(p.encode(), p == "<s>") for p in pieces] for pieces in (large, small))
        ends = (fusion.piece_ends(cut, text.encode()) for cut in cuts)
        return fusion.aligned_rows(*ends).tolist()

    assert rows("abcdef", ["abc", "de", "f"], ["a", "bc", "d", "e", "f"]) == [0, 0, 1, 1, 2]
    assert rows("abcdef", ["a", "bc", "d", "e", "f"], ["abc", "de", "f"]) == [1, 3, 4]
    # A blank before the text has no bytes.
    assert rows("abcd", ["ab", "cd"], [" ab", "cd"]) == [0, 1]
    assert rows("abcd", [" ab", "cd"], ["ab", "cd"]) == [0, 1]
    assert rows("abcd", [" ab", "cd"], [" ", *"abcd"]) == [0, 0, 0, 1, 1]
    assert rows(" abcd", [" ab", "cd"], [" ", "ab", "cd"]) == [0, 0, 1]
    # Special tokens have none where the text lacks them, and theirs where it spells them.
    assert rows("xyz", ["<s>", *"xyz"], "xyz") == [1, 2, 3]
    assert rows("xyz", "xyz", ["<s>", *"xyz"]) == [0, 0, 1, 2]
    chat, known = "<s>xy<s>z", ["<s>", "x", "y", "<s>", "z"]
    assert rows(chat, chat, known) == [2, 3, 4, 7, 8]
    assert rows(chat, known, chat) == [0, 0, 0, 1, 2, 3, 3, 3, 4]
    assert rows("x <s> y", ["x", "<s>", "y"], ["x", " ", "<s>", " ", "y"]) == [0, 1, 1, 2, 2]
    assert rows("wx", "wxyz", "wx") == [1, 3]  # other lengths are scaled


def test_pieces_are_bytes_as_the_server_counts_them():
    text = "naïve → 12"
    byte_level = train_tokenizer([text] * 9, 262)
    pieces = fusion.Pieces(byte_level)
    assert (
        b"".join(map(pieces.bytes_of, byte_level.encode(text, add_special_tokens=False).ids))
        == text.encode()
    )

    vocabulary = {"?": 0, "\u2581na": 1, "ï": 2, "ve": 3, "<0xE2>": 4, "<0x86>": 5, "<0x92>": 6}
    vocabulary |= {"\u2581": 7, "<s>": 8}
    sentences = Tokenizer(models.WordLevel(vocabulary, "?"))
    sentences.add_special_tokens(["<s>"])
    with pytest.raises(SystemExit, match="decoder: none; allowed .* ByteLevel"):
        fusion.Pieces(sentences)
    sentences.decoder = decoders.WordPiece()
    with pytest.raises(SystemExit, match="decoder: WordPiece; allowed"):
        fusion.Pieces(sentences)
    blank = decoders.Replace("\u2581", " ")
    sentences.decoder = decoders.Sequence([blank, decoders.ByteFallback(), decoders.Fuse()])
    ids = [8, 1, 2, 3, 7, 4, 5, 6]
    assert fusion.Pieces(sentences).ends(ids, "naïve →") == [0, 2, 4, 6, 7, 8, 9, 10]
    sentences.decoder = decoders.Metaspace()
    assert fusion.Pieces(sentences).ends(ids, "<s>naïve →") == [3, 5, 7, 9, 10, 11, 12, 13]
