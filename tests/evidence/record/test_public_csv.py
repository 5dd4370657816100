from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.catalog.models.models import find_model
from autotune.domain.errors import InputError
from autotune.evidence.cases import MeasuredCase, Skipped
from autotune.evidence.record.machine import device_named
from autotune.evidence.record.row import COLUMNS, Row
from autotune.evidence.record.table import SHIPPED_ROWS, case_of, read_cases
from autotune.evidence.record.training import model_targets

if TYPE_CHECKING:
    from pathlib import Path

PLAIN = {
    "id": "a-1", "source_repo": "someone/benchmark", "source_commit_or_date": "abc 2025-01-20",
    "model_id": "mistralai/Mistral-7B-v0.1", "task": "lora", "lora_r": "16",
    "target_modules": "q_proj v_proj", "gpu": "A100-80GB", "n_gpus": "1.0", "parallelism": "none",
    "precision": "bf16", "quant": "none", "optimizer": "adamw_torch", "seq_len": "4096.0",
    "micro_batch": "4", "grad_accum": "2", "global_batch": "8", "packing": "yes",
    "grad_ckpt": "full", "attn": "fa2", "compile": "no", "tokens_per_s_per_gpu": "3000",
    "peak_mem_gb": "26.7", "peak_mem_kind": "allocated",
}  # fmt: skip


def outcome(**changes: str) -> MeasuredCase | Skipped:
    return case_of(Row({**PLAIN, **changes}), find_model)


def used(**changes: str) -> MeasuredCase:
    found = outcome(**changes)
    assert isinstance(found, MeasuredCase), found
    return found


def test_a_packed_row_is_full_sequences_and_its_step_follows_from_tokens_per_second() -> None:
    case = used()
    assert case.job.lengths.mean == case.job.lengths.maximum == 4096
    assert case.step_time_s == pytest.approx(8 * 4096 / 3000)
    assert case.job.global_batch_size == 8
    assert case.config.gradient_accumulation_steps == 2
    assert case.config.packing == "off"
    assert (case.config.attention, case.config.activation_checkpointing) == (
        "flash_attention_2",
        "full",
    )
    assert case.peak
    assert case.peak.value == pytest.approx(26.7e9)
    assert case.job.limits.vram_headroom == 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"notes": "page says so: DOUBTFUL"}, "doubts"),
        ({"notes": "FAILED RUN, cause not stated"}, "failed"),
        ({"notes": "FORWARD PASS ONLY: 3 ms"}, "forward"),
        ({"notes": "CAPACITY BOUNDARY: largest"}, "largest context"),
        ({"model_id": "bert-large-uncased"}, "encoder"),
        ({"model_id": "google/flan-t5-xl"}, "encoder|model unknown"),
        ({"model_id": "t5-base"}, "sequence-to-sequence"),
        ({"model_id": "nobody/Unheard-9B"}, "model unknown"),
        ({"model_id": "../../etc/passwd.json"}, "model unknown"),
        ({"gpu": "Voodoo-2"}, "GPU unknown"),
        ({"gpu": "any-24GB"}, "GPU not stated"),
        ({"gpu": "A100-SXM-96GB"}, "GPU unknown"),
        ({"task": "prefix_tuning"}, "method prefix_tuning"),
        ({"task": "vera"}, "method vera"),
        ({"task": "lora (dpo)"}, "preference training"),
        ({"lora_r": ""}, "rank"),
        ({"precision": "fp8"}, "8-bit"),
        ({"precision": "nvfp4"}, "4-bit"),
        ({"precision": "", "source_repo": "somebody/else"}, "precision not stated"),
        ({"quant": "aqlm-2bit"}, "quantisation"),
        ({"quant": "awq"}, "quantisation"),
        ({"quant": "gptq-int8"}, "quantisation"),
        ({"n_gpus": "2"}, "layers split"),
        ({"n_gpus": "8", "parallelism": "tp8", "global_batch": "64"}, "tensor"),
        ({"n_gpus": "8", "parallelism": "fsdp+ep2", "global_batch": "64"}, "expert"),
        ({"n_gpus": "66", "parallelism": "fsdp", "global_batch": "264"}, "several machines"),
        ({"n_gpus": ""}, "number of GPUs"),
        ({"parallelism": "mp (device_map)"}, "layers split"),
        ({"micro_batch": "", "global_batch": ""}, "batch size not stated"),
        ({"global_batch": "10"}, "contradict"),
        ({"seq_len": ""}, "sequence length"),
        ({"seq_len": "four"}, "seq_len is not a number"),
        ({"peak_mem_gb": "-3"}, "peak_mem_gb is not a number"),
        ({"grad_ckpt": "selective"}, "selective"),
        ({"optimizer": "adafactor"}, "optimizer adafactor"),
        ({"tokens_per_s_per_gpu": "", "peak_mem_gb": ""}, "nothing measured"),
        ({"notes": "trainable 999"}, "other trainable parameters"),
    ],
)
def test_a_row_outside_the_model_is_skipped_with_a_reason(
    changes: dict[str, str], reason: str
) -> None:
    found = outcome(**changes)
    assert isinstance(found, Skipped)
    assert any(part in found.reason for part in reason.split("|")), found.reason


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("A100-80GB", "a100-sxm4-80gb"),
        ("A100-SXM-80GB", "a100-sxm4-80gb"),
        ("A100-SXM-40GB", "a100-sxm4-40gb"),
        ("A100-40GB", "a100-sxm4-40gb"),
        ("A100-PCIe-40GB", "a100-pcie-40gb"),
        ("H100-SXM-80GB", "h100-sxm"),
        ("H100-PCIe-80GB", "h100-pcie"),
        ("H200-SXM-141GB", "h200-sxm"),
        ("RTX-4090-24GB", "rtx-4090"),
        ("RTX-3090-24GB", "rtx-3090"),
        ("RTX-A6000-48GB", "rtx-a6000"),
        ("RTX-6000-Ada-48GB", "rtx-6000-ada"),
        ("L40S-48GB", "l40s"),
        ("L40-48GB", "l40"),
        ("L4-24GB", "l4"),
        ("A10-24GB", "a10"),
        ("A10G-24GB", "a10g"),
        ("T4-16GB", "t4"),
        ("V100-SXM2-16GB", "v100-sxm2-16gb"),
        ("nvidia h100", "h100-sxm"),
    ],
)
def test_spellings_of_a_gpu_find_the_device(text: str, name: str) -> None:
    device = device_named(text)
    assert device.name == name


def test_repackaged_and_renamed_models_are_priced_as_what_they_are() -> None:
    gptq = used(model_id="TheBloke/Mistral-7B-v0.1-GPTQ", quant="gptq", precision="fp16",
                task="qlora")  # fmt: skip
    assert gptq.job.method.base == "nf4"
    assert any("GPTQ" in text for text in gptq.assumed)
    mirror = used(model_id="somebody/Mistral-7B-v0.1")
    assert mirror.job.model.hidden_size == 4096


def test_half_precision_full_training_is_16_bit_and_mixed_is_32_bit() -> None:
    full = {"task": "full", "lora_r": "", "target_modules": ""}
    assert used(**full).job.method.base == "16bit"
    mixed = used(**full, precision="mixed", notes="precision string amp_bf16")
    assert (mixed.job.method.base, mixed.config.precision) == ("32bit", "bf16")
    single = used(**full, precision="fp32/tf32")
    assert (single.job.method.base, single.config.precision) == ("32bit", "tf32")


def test_a_mean_that_counts_padding_is_taken_as_the_padded_length() -> None:
    notes = "avg tokens/sample incl. padding = 290 (tokens/s*gpus / samples/s)"
    rates = {"samples_per_s": "7.18", "tokens_per_s_per_gpu": "2084"}
    case = used(packing="no", seq_len="", notes=notes, **rates)
    assert case.job.lengths.mean == 290
    assert case.step_time_s == pytest.approx(8 / 7.18)
    assert case.peak is None
    assert case.partial == ("memory: length of the longest row not stated",)


def test_a_stated_mean_keeps_the_cap_as_the_longest_row() -> None:
    case = used(packing="no", seq_len="768", notes="padded, max 768 tokens (mean about 210 tokens)")
    assert case.job.lengths.mean == pytest.approx(210, rel=0.01)
    assert case.job.lengths.maximum == 768


def test_dropping_long_rows_leaves_a_shorter_mean_than_cutting_them() -> None:
    notes = "dataset x (token length 3234+-2547, min 91, max 19548, truncated at max_length)"
    cut = used(packing="no", seq_len="1024", notes=notes, samples_per_s="3")
    dropped = used(packing="no", seq_len="1024", notes=notes, samples_per_s="3",
                   source_repo="modelscope/ms-swift")  # fmt: skip
    assert dropped.job.lengths.mean < 0.75 * cut.job.lengths.mean
    assert dropped.job.lengths.maximum <= cut.job.lengths.maximum <= 1024


def test_a_cap_on_lengths_bounds_what_was_measured_and_predicts_nothing() -> None:
    case = used(packing="no", tokens_per_s_per_gpu="", samples_per_s="3")
    assert case.step_time_s is None
    assert case.peak is None
    assert {seen.quantity for seen in case.bounded} == {"step_time_s", "memory_bytes"}
    assert case.partial == (
        "time: mean row length not stated",
        "memory: length of the longest row not stated",
    )


def test_a_longest_row_is_enough_for_memory_and_for_a_run_out_of_it() -> None:
    notes = "rows cut at 512 tokens, longest row 512 tokens"
    case = used(packing="no", seq_len="512", notes=notes, tokens_per_s_per_gpu="")
    assert case.peak is not None
    out = used(packing="no", seq_len="512", notes=notes, tokens_per_s_per_gpu="", oom="1")
    assert out.oom
    assert not case.partial


def test_notes_say_how_layers_are_checkpointed() -> None:
    assert used(notes="use_reentrant False").job.software.reentrant is False
    assert used(notes="use_reentrant True").job.software.reentrant is True
    assert used(notes="").job.software.reentrant is None


def test_memory_of_unknown_kind_is_never_compared() -> None:
    case = used(peak_mem_kind="unknown")
    assert case.peak is None
    assert [seen.kind for seen in case.bounded] == ["unknown"]
    assert case.partial == ("memory: kind of reading not stated",)


def test_out_of_memory_rows_are_kept_without_figures() -> None:
    case = used(oom="inferred", tokens_per_s_per_gpu="", peak_mem_gb="")
    assert case.oom
    assert [seen.quantity for seen in case.observations] == ["oom"]


def test_names_that_match_modules_win_over_roles() -> None:
    llama, fused = find_model("Mistral-7B-v0.1"), find_model("gpt_bigcode-santacoder")
    assert model_targets(llama, ("q_proj", "c_attn")) == (("q_proj",), True)
    assert model_targets(fused, ("q_proj", "k_proj", "c_attn")) == (("c_attn",), True)
    names, exact = model_targets(fused, ("query", "value"))
    assert names == ("c_attn",)
    assert not exact


def test_replicates_share_a_key_and_equal_runs_share_a_job(tmp_path: Path) -> None:
    later = {**PLAIN, "id": "a-2", "notes": "older software snapshot, repeats a later row"}
    other = {**PLAIN, "id": "a-3", "micro_batch": "8", "grad_accum": "1"}
    table = read_cases(written(tmp_path, [PLAIN, later, other]), find_model)
    first, second, third = table.cases
    assert first.replicate_key == second.replicate_key != third.replicate_key
    assert second.older
    assert first.job is second.job is third.job


def written(folder: Path, rows: list[dict[str, str]]) -> Path:
    path = folder / "rows.csv"
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_every_shipped_row_is_used_or_skipped_with_a_reason() -> None:
    table = read_cases(SHIPPED_ROWS)
    assert table.rows == 2544 + 61, "published ones, and our own"
    assert len(table.cases) > 900
    assert all(item.reason for item in table.skipped)
    assert len({item.id for item in (*table.cases, *table.skipped)}) == table.rows
    assert {item.reason for item in table.skipped if "unknown to the catalogue" in item.reason}


def test_what_a_row_measured_is_observations_with_their_source() -> None:
    found = [seen for case in read_cases(SHIPPED_ROWS).cases for seen in case.observations]
    kinds = {item.quantity for item in found}
    assert kinds == {"step_time_s", "memory_bytes", "oom"}
    assert all(item.provenance and item.value > 0 for item in found)
    assert len({item.id for item in found}) == len(found)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"a,b\n1,2\n", 'no column "id"'),
        (b"\xff\xfe\x00\x01", "UTF-8"),
    ],
)
def test_a_file_that_is_no_table_is_an_input_error(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_cases(path, find_model)


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_cases(tmp_path / "absent.csv", find_model)


CELL = st.one_of(
    st.sampled_from(
        ["", "1.0", "2", "-1", "nan", "inf", "1e9", "0", "fsdp", "none", "nf4", "yes", "no", "fp16"]
    ),
    st.text(max_size=12),
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(COLUMNS), CELL, max_size=8))
def test_no_row_stops_the_reader(cells: dict[str, str]) -> None:
    found = case_of(Row({**PLAIN, **cells}), find_model)
    assert isinstance(found, MeasuredCase | Skipped)
    if isinstance(found, MeasuredCase):
        config, job = found.config, found.job
        steps = config.micro_batch_size * config.gradient_accumulation_steps
        assert steps * found.offer.count == job.global_batch_size
    else:
        assert found.reason
