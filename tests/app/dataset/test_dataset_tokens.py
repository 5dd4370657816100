"""Tokens of a data set: counted as transformers does, or estimated and said to be."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
from builders import count_rows

from autotune.app.dataset.count import count_dataset
from autotune.app.dataset.lengths import from_counts
from autotune.app.dataset.report import dataset_histogram, notes_of
from autotune.app.job.load import load_job
from autotune.catalog.models.models import find_model
from autotune.cost.model import CostModel
from autotune.domain.errors import InputError
from autotune.domain.outcome import Z90
from autotune.report.payload import job_payload
from autotune.space.enumerate import enumerate_candidates
from autotune.space.file import load_space

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.app.dataset.count import Count
    from autotune.domain.job import Job

TEXTS = [
    "The harbour was quiet when the last ferry came in, and nobody had seen the keeper.",
    "How many boats are there?\n\nThere are 17 boats, and 3 of them are new.",
    "def longest(rows):\n    return max(len(row) for row in rows)\n",
    "Der Hafen war still, als die letzte Fähre anlegte.",
]
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}{{ eos_token }}"
    "{% endfor %}"
)
CONFIG: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2,
    "intermediate_size": 128, "vocab_size": 128_256, "max_position_embeddings": 4096,
}  # fmt: skip


def tokenizer_in(folder: Path, settings: dict[str, Any] | None = None) -> Path:
    """A small byte-level BPE, trained here, as a model's folder holds it."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, show_progress=False,
        special_tokens=["<s>", "</s>", "<|user|>", "<|assistant|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    made.train_from_iterator(TEXTS * 3, trainer)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", made.token_to_id("<s>"))]
    )
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    defaults = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE,
                "tokenizer_class": "PreTrainedTokenizerFast"}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps({**defaults, **(settings or {})}))
    return folder


def model_in(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def tokens_of(count: Count) -> int:
    return sum(length * rows for length, rows in count.histogram.counts.items())


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": "say"}, {"role": "assistant", "content": text}]


@pytest.mark.slow
def test_rows_count_as_transformers_tokenizes_them(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = tokenizer_in(tmp_path / "model")
    theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
    for index, text in enumerate(TEXTS):
        path = jsonl(tmp_path / f"{index}.jsonl", [{"text": text}])
        expected = len(theirs(text + theirs.eos_token)["input_ids"])
        assert dict(count_rows(path, str(folder)).counts) == {expected: 1}
        path = jsonl(tmp_path / f"{index}c.jsonl", [{"messages": chat(text)}])
        filled = theirs.apply_chat_template(chat(text), tokenize=False)
        expected = len(theirs(filled, add_special_tokens=False)["input_ids"])
        assert dict(count_rows(path, str(folder)).counts) == {expected: 1}


def test_an_answered_question_counts_in_the_chat_template_and_says_so(tmp_path: Path) -> None:
    folder = tokenizer_in(tmp_path / "model")
    pair = jsonl(tmp_path / "pair.jsonl", [{"instruction": "say", "output": TEXTS[0]}])
    same = jsonl(tmp_path / "chat.jsonl", [{"messages": chat(TEXTS[0])}])
    found = count_dataset(pair, str(folder))
    assert found.histogram.counts == count_rows(same, str(folder)).counts
    assert "chat template" in found.template
    assert "Alpaca" in found.template


def test_a_template_that_refuses_a_chat_counts_its_marks_and_says_how_many(tmp_path: Path) -> None:
    strict = "{% if messages[0].role != 'user' %}{{ raise_exception('user first') }}{% endif %}ok"
    folder = tokenizer_in(tmp_path / "model", {"chat_template": strict})
    odd = [{"role": "assistant", "content": "hello"}]
    path = jsonl(tmp_path / "a.jsonl", [{"messages": odd}, {"messages": chat("x")}])
    assert "refuses 1 of them" in count_dataset(path, str(folder)).template


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{{ messages.append(1) }}",
        "{% broken",
    ],
)
def test_a_template_gets_at_nothing_and_breaks_nothing(tmp_path: Path, template: str) -> None:
    pytest.importorskip("jinja2")
    folder = tokenizer_in(tmp_path / "model", {"chat_template": template})
    path = jsonl(tmp_path / "a.jsonl", [{"messages": chat("x")}])
    found = count_dataset(path, str(folder))
    assert found.histogram.rows == 1
    assert "refuses 1" in found.template or "no template" in found.template


def test_the_models_own_tokenizer_is_found_in_its_folder(tmp_path: Path) -> None:
    folder = tokenizer_in(model_in(tmp_path / "model"))
    path = jsonl(tmp_path / "a.jsonl", [{"text": text} for text in TEXTS])
    found = count_dataset(path, None, tmp_path, model=find_model(str(folder)))
    assert found.histogram.basis == "counted"
    assert found.histogram == count_rows(path, str(folder))
    assert ("data.tokenizer", str(folder / "tokenizer.json"), "not stated; the model's own") in (
        notes_of(found, stated=False)
    )


def test_the_models_own_tokenizer_is_found_in_the_hubs_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    name = "meta-llama/Llama-3.1-8B"
    snapshot = tmp_path / "hub" / f"models--{name.replace('/', '--')}" / "snapshots" / "abc"
    tokenizer_in(snapshot)
    path = jsonl(tmp_path / "a.jsonl", [{"text": text} for text in TEXTS])
    found = count_dataset(path, None, tmp_path, model=find_model("llama-3.1-8b"))
    assert found.histogram.basis == "counted"
    assert name in found.tokenizer.label
    assert count_rows(path, name).counts == found.histogram.counts


def test_without_a_tokenizer_the_tokens_are_an_estimate_with_its_reason(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", [{"text": TEXTS[0]}] * 50)
    found = count_dataset(path, None, tmp_path, model=find_model("meta-llama/Llama-3.1-8B"))
    assert found.histogram.basis == "estimated"
    assert 0.05 < found.histogram.log_sd < 0.3
    ((key, value, why),) = notes_of(found, stated=False)
    assert key == "data.lengths"
    assert value.startswith("estimated from bytes: about ")
    assert "AUTOTUNE_OFFLINE is set" in why
    low, high = (tokens_of(found) * math.exp(s * Z90 * found.histogram.log_sd) for s in (-1, 1))
    assert low < 50 * 18 < high  # what Llama 3.1's own tokenizer counts, its two marks left out


def test_an_estimate_is_never_the_number_of_bytes(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", [{"text": TEXTS[0]}])
    report = dataset_histogram(path)
    assert report.basis == "estimated"
    assert report.tokens < len(TEXTS[0]) / 3
    assert report.tokens_p10 < report.tokens < report.tokens_p90


def test_memory_is_priced_at_the_upper_end_of_an_estimate(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", [{"text": TEXTS[0] * n} for n in range(1, 20)])
    found = count_dataset(path, None, tmp_path, model=find_model("meta-llama/Llama-3.1-8B"))
    longest = found.histogram.longest
    lengths = from_counts(found.histogram, 4096)
    assert lengths.maximum == math.ceil(longest * math.exp(Z90 * found.histogram.log_sd))
    assert from_counts(found.histogram, longest).maximum == longest


def test_rows_that_are_cut_make_an_estimate_surer(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", [{"text": TEXTS[0] * 20}] * 9 + [{"text": "short"}])
    found = count_dataset(path, None, tmp_path, model=find_model("meta-llama/Llama-3.1-8B"))
    whole, cut = (from_counts(found.histogram, limit).log_sd for limit in (10_000, 100))
    assert whole == pytest.approx(found.histogram.log_sd, rel=0.02)
    assert cut < whole / 10


def test_a_vocabulary_like_none_that_was_measured_is_not_guessed_at(tmp_path: Path) -> None:
    folder = model_in(tmp_path / "model")
    (folder / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": 259}))
    path = jsonl(tmp_path / "a.jsonl", [{"text": "a"}])
    with pytest.raises(InputError, match="259 tokens") as caught:
        count_dataset(path, None, tmp_path, model=find_model(str(folder)))
    assert "name the tokenizer" in str(caught.value.hint)


def test_a_folder_with_an_older_tokenizer_says_how_to_write_the_new_one(tmp_path: Path) -> None:
    folder = model_in(tmp_path / "model")
    (folder / "tokenizer.model").write_bytes(b"sentencepiece")
    path = jsonl(tmp_path / "a.jsonl", [{"text": "a"}])
    found = count_dataset(path, None, tmp_path, model=find_model(str(folder)))
    assert found.histogram.basis == "estimated"
    assert "save_pretrained" in found.tokenizer.reason


def test_without_the_package_the_tokens_are_estimated_and_the_reason_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tokenizer_in(model_in(tmp_path / "model"))
    path = jsonl(tmp_path / "a.jsonl", [{"text": "a"}])
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    found = count_dataset(path, None, tmp_path, model=find_model(str(folder)))
    assert found.histogram.basis == "estimated"
    assert "tokenizers, which is not installed" in found.tokenizer.reason


def test_declared_tools_make_an_estimate_less_sure(tmp_path: Path) -> None:
    rows = [{"messages": chat(TEXTS[0]), "tools": [{"name": "tide", "description": TEXTS[1]}]}]
    with_tools = count_rows(jsonl(tmp_path / "a.jsonl", rows), None).log_sd
    without = count_rows(jsonl(tmp_path / "b.jsonl", [{"messages": chat(TEXTS[0])}]), None).log_sd
    assert with_tools > without + 0.2


def job_of(tmp_path: Path, rows: list[dict[str, Any]], **data: Any) -> Job:
    jsonl(tmp_path / "a.jsonl", rows)
    values = {
        "model": "meta-llama/Llama-3.1-8B", "method": "lora", "hardware": "a100-80gb",
        "data": {"dataset": "a.jsonl", **data},
    }  # fmt: skip
    (tmp_path / "job.yaml").write_text(json.dumps(values))
    return load_job(tmp_path / "job.yaml")


def test_an_estimate_widens_the_run_and_a_tokenizer_narrows_it(tmp_path: Path) -> None:
    rows = [{"text": TEXTS[i % 4] * (1 + i % 5)} for i in range(2000)]
    folder = tokenizer_in(tmp_path / "tokenizer")
    guessed = job_of(tmp_path, rows, max_length=512)
    counted = job_of(tmp_path, rows, max_length=512, tokenizer=str(folder))
    assert (guessed.lengths.basis, counted.lengths.basis) == ("estimated", "counted")
    spreads = []
    for job in (guessed, counted):
        candidates = enumerate_candidates(job, load_space(None)).candidates
        bill = CostModel(job).price(candidates)
        duration = bill.estimate(0).duration_s
        spreads.append(math.log(duration.p90 / duration.p10))
    assert spreads[0] > spreads[1] + 0.01
    assert job_payload(guessed)["lengths_basis"] == "estimated"
    interval = job_payload(guessed)["tokens_interval"]
    assert interval["p10"] < guessed.tokens < interval["p90"]
    assert job_payload(counted)["tokens_interval"] is None


def test_no_row_is_cut_because_its_length_was_an_estimate(tmp_path: Path) -> None:
    job = job_of(tmp_path, [{"text": TEXTS[0] * 9}, {"text": TEXTS[1]}])
    (note,) = (item for item in job.assumed if item.key == "data.max_length")
    assert "upper end of the estimate" in note.why
    assert job.max_length == job.lengths.maximum > max(job.lengths.quantiles)
    assert job.lengths.truncated_rows == 0
