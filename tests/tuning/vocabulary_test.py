"""tuning/vocabulary.py: exact round trips, and the end-of-text token where it belongs."""

import pytest
from transformers import AutoTokenizer

from tuning import vocabulary


@pytest.mark.parametrize(
    "text",
    [
        "def f(self, _x1: int = 12345) -> str:\n    return f'{_x1!r}'\n",
        "if a:\n\tif b:\n\t\tpass\n\n\n\n# end  \n   \n",
        "naïve 日本語 🙂 e\u0301 \u200d\ufeff\x00\x7f",
        " leading and trailing   ",
        "\r\n mixed \r line \n ends",
        "",
    ],
)
def test_round_trip(tokenizer, text):
    ids = tokenizer.encode(text).ids
    assert ids[0] == tokenizer.token_to_id(vocabulary.END_OF_TEXT) == 0
    assert 0 not in ids[1:]
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode(text, add_special_tokens=False).ids == ids[1:]


def test_every_id_is_valid_and_training_repeats(tokenizer, texts):
    assert sorted(tokenizer.get_vocab().values()) == list(range(512))
    assert vocabulary.train_tokenizer(texts, size=512).to_str() == tokenizer.to_str()


def test_a_prompt_is_cut_as_the_whole_text_is(tokenizer):
    whole = tokenizer.encode("if x:\n        return self\n").tokens
    assert "Ġ" * 8 in whole
    for prompt in ("if x:", "if x:\n", "if x:\n        "):
        start = tokenizer.encode(prompt).tokens
        assert start == whole[: len(start)]


def test_too_little_text_is_refused():
    with pytest.raises(ValueError, match="too little text"):
        vocabulary.train_tokenizer(["a b"], size=4096)


def test_transformers_loads_what_is_saved(tokenizer, texts, tmp_path):
    vocabulary.save_tokenizer(tokenizer, tmp_path, max_length=64)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded(texts[0]).input_ids == tokenizer.encode(texts[0]).ids
    assert loaded.decode(loaded(texts[0]).input_ids, skip_special_tokens=True) == texts[0]
    assert loaded.bos_token_id == loaded.eos_token_id == 0
