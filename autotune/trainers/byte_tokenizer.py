"""`tokenizer: bytes` as files that transformers' AutoTokenizer loads: one token a UTF-8 byte.

A byte-level BPE without a single merge. It adds no marks to a text, so that rows have as many
tokens in training as were counted; a message has one mark before it and one after it.
"""

from __future__ import annotations

import json

FOLDER = "tokenizer"
BYTES = 256
PAD = "<|padding|>"  # in no row: a row that held it would be one token there
BEFORE, AFTER = "\x02", "\x03"  # ASCII's marks for the start and the end of a text
CHAT = (
    "{% for message in messages %}"
    "{% if not loop.first %}{{ '\n' }}{% endif %}"
    f"{{{{ '{BEFORE}' + message['role'] + '\n' + (message['content'] or '') + '{AFTER}' }}}}"
    "{% endfor %}"
)


def byte_tokenizer(vocab_size: int) -> dict[str, str]:
    """The texts of tokenizer.json and tokenizer_config.json, by their names in a run folder.

    vocab_size: of the model; where it has more than the bytes, the next token is for padding.
    """
    padded = vocab_size > BYTES
    token = {
        "id": BYTES, "content": PAD, "single_word": False, "lstrip": False,
        "rstrip": False, "normalized": False, "special": True,
    }  # fmt: skip
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    tokenizer: dict[str, object] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [token] if padded else [],
        "normalizer": None,
        "pre_tokenizer": level | {"use_regex": False},
        "post_processor": None,
        "decoder": level | {"use_regex": False},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "ignore_merges": False, "vocab": _vocabulary(), "merges": [],
        },
    }  # fmt: skip
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 10**9,
        "chat_template": CHAT,
        **({"pad_token": PAD} if padded else {}),
    }
    return {
        f"{FOLDER}/tokenizer.json": json.dumps(tokenizer, ensure_ascii=False, indent=1) + "\n",
        f"{FOLDER}/tokenizer_config.json": json.dumps(settings, indent=1) + "\n",
    }


def _vocabulary() -> dict[str, int]:
    """Every byte by the character that stands for it: printable ones for themselves.

    Source: bytes_to_unicode in encoder.py of openai/gpt-2, which byte-level BPE goes by.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(BYTES) if byte not in printable)
    stands = {byte: chr(byte) for byte in printable}
    stands |= {byte: chr(BYTES + n) for n, byte in enumerate(others)}
    return {stands[byte]: byte for byte in range(BYTES)}
