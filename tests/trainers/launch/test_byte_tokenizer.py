"""`tokenizer: bytes` in training: as many tokens as were counted, whatever the text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from builders import count_rows
from hypothesis import given
from hypothesis import strategies as st

from autotune.trainers.launch.run_inputs import byte_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

tokenizers = pytest.importorskip("tokenizers")


@given(st.text())
def test_every_byte_is_a_token_of_its_own_number(text: str) -> None:
    text = text.encode(errors="ignore").decode()
    loaded = tokenizers.Tokenizer.from_str(byte_tokenizer(260)["tokenizer/tokenizer.json"])
    found = loaded.encode(text)
    assert found.ids == list(text.encode())
    assert loaded.decode(found.ids) == text


@pytest.mark.parametrize(("vocab_size", "padding"), [(256, None), (257, 256), (50_000, 256)])
def test_the_padding_token_is_one_that_the_model_has(vocab_size: int, padding: int | None) -> None:
    loaded = tokenizers.Tokenizer.from_str(byte_tokenizer(vocab_size)["tokenizer/tokenizer.json"])
    assert loaded.token_to_id("<|padding|>") == padding
    assert loaded.get_vocab_size() <= vocab_size


@pytest.mark.slow
def test_auto_tokenizer_loads_it_and_chats_have_the_tokens_that_were_counted(
    tmp_path: Path,
) -> None:
    transformers = pytest.importorskip("transformers")
    for name, text in byte_tokenizer(260).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    loaded = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "tokenizer"))
    assert (loaded.eos_token, loaded.bos_token) == (None, None)
    chat = [{"role": "user", "content": "Grüße 🎉"}, {"role": "assistant", "content": ""}]
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"messages": chat}))
    told = loaded.apply_chat_template(chat, tokenize=False)
    assert list(count_rows(rows).counts) == [len(loaded(told)["input_ids"])]
