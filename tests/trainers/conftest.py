from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from builders import needs

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode does not: exportcases lives here
from forked import Forking, forking

if TYPE_CHECKING:
    from collections.abc import Iterator


SPECIAL = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
WORDS = ["red", "green", "blue", "one", "two", "three"]
CHAT = (
    "{% for m in messages %}{{ m.role }} {{ m.content }} </s> {% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a user's shell may hold must not reach the classes under test."""
    for name in (
        "ACCELERATE_USE_FSDP",
        "ACCELERATE_USE_DEEPSPEED",
        "ACCELERATE_MIXED_PRECISION",
        "FSDP_CPU_RAM_EFFICIENT_LOADING",  # set by TrainingArguments itself
    ):
        monkeypatch.setenv(name, "")  # so that undoing removes what the test sets
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def model_and_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with model/ (a tiny random Llama and its tokenizer) and data.jsonl (64 rows)."""
    pytest.importorskip("torch")
    transformers, tokenizers = (
        pytest.importorskip("transformers"),
        pytest.importorskip("tokenizers"),
    )
    folder = tmp_path_factory.mktemp("smoke")
    vocabulary = {word: i for i, word in enumerate(["<pad>", "</s>", "<unk>", *WORDS])}
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))  # noqa: S106
    raw.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=raw, **SPECIAL)
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder / "model")
    shape = transformers.LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        eos_token_id=1,
        bos_token_id=1,
        pad_token_id=0,
    )
    transformers.LlamaForCausalLM(shape).save_pretrained(folder / "model")
    rows = [{"text": " ".join(WORDS[: 2 + i % 5] * (1 + i % 20))} for i in range(64)]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forking]:
    """A `python` whose processes are forked from one that has imported what training imports."""
    needs("accelerate", "datasets", "peft", "torch", "transformers", "trl")
    with forking(tmp_path_factory.mktemp("forks")) as found:
        yield found
