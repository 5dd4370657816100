"""Rows are read for what they say: whole words, nothing denied, and no guess that is not named."""

from __future__ import annotations

import csv
import math
from typing import TYPE_CHECKING

import pytest

from autotune.catalog.models.models import find_model
from autotune.evidence.accuracy import predict, residuals
from autotune.evidence.cases import Grades, MeasuredCase, Skipped
from autotune.evidence.record.machine import device_named
from autotune.evidence.record.notes import grades_of, names, offload_of, trainable_of, version_of
from autotune.evidence.record.refusals import CELLS, help_for, is_training
from autotune.evidence.record.row import Row
from autotune.evidence.record.table import SHIPPED_ROWS, case_of, read_cases
from autotune.pricing import Pricing, plain_bill

if TYPE_CHECKING:
    from collections.abc import Iterable

PLAIN = {
    "id": "a-1", "source_repo": "somebody/runs", "source_commit_or_date": "abc 2025-01-20",
    "model_id": "mistralai/Mistral-7B-v0.1", "task": "lora", "lora_r": "16",
    "target_modules": "q_proj k_proj v_proj o_proj", "gpu": "A100-80GB", "n_gpus": "1",
    "parallelism": "none", "precision": "bf16", "quant": "none", "optimizer": "adamw_torch",
    "seq_len": "4096", "micro_batch": "4", "grad_accum": "2", "global_batch": "8",
    "packing": "yes", "grad_ckpt": "full", "attn": "fa2", "compile": "no",
    "step_time_s": "9.8", "peak_mem_gb": "26.7", "peak_mem_kind": "allocated",
}  # fmt: skip


def read(**changes: str) -> MeasuredCase | Skipped:
    return case_of(Row({**PLAIN, **changes}), find_model)


def used(**changes: str) -> MeasuredCase:
    found = read(**changes)
    assert isinstance(found, MeasuredCase), found
    return found


def shipped(*names_: str) -> Iterable[MeasuredCase]:
    cases = {case.id: case for case in read_cases(SHIPPED_ROWS).cases}
    return [cases[name] for name in names_]


@pytest.mark.parametrize(
    "notes",
    [
        "GPU utilisation 91.9 %",  # holds "lisa"
        "use_rslora=False/use_dora=False",
        "HF Trainer through DeepSpeed ZeRO-2 no offload on one card",
        "companion arms with expert offload (3.55 s, 15.4 GiB) left out",
        "act CPU offload False; HFU 0.4",
    ],
)
def test_a_part_of_a_word_or_what_is_denied_refuses_nothing(notes: str) -> None:
    case = used(notes=notes)
    assert case.config.offload == "none"
    assert case.job.method.variant == "none"


def test_what_is_stated_is_still_seen() -> None:
    assert names("rank-32 LoRA with GaLore", ("dora", "galore")) == "galore"
    assert names("use_dora=True", ("dora", "galore")) == "dora"
    found = read(notes="experiment lora/llama-lorafa")
    assert isinstance(found, Skipped)
    assert "lorafa" in found.reason


def test_activation_offload_is_not_offload_of_weights() -> None:
    assert offload_of("activation offloading to the CPU") == "activations"
    assert offload_of("optimizer states offloaded to the host") == "optimizer"
    assert offload_of("ZeRO-3 + CPU parameter offload") == "all"
    assert used(n_gpus="2", parallelism="zero3+cpu-offload", global_batch="16").config.offload == (
        "all"
    )
    assert used(grad_ckpt="full (unsloth, offloaded)").config.offload == "activations"


@pytest.mark.parametrize("word", ["full (unsloth, offloaded)", "full (framework default)", "yes"])
def test_a_remark_beside_checkpointing_does_not_switch_it_off(word: str) -> None:
    case = used(grad_ckpt=word)
    assert case.config.activation_checkpointing == "full"
    assert not case.guessed


@pytest.mark.parametrize(
    ("text", "knob"),
    [
        ("torch.optim.AdamW", "adamw_torch"),
        ("AdamW (DeepSpeed)", "adamw_torch"),
        ("adamw_hf", "adamw_torch"),
        ("paged_adamw_32bit", "adamw_torch"),
        ("AdamW fused", "adamw_torch_fused"),
        ("bitsandbytes.optim.PagedAdamW8bit", "paged_adamw_8bit"),
        ("adam8bit (bnb) + optimizer_in_bwd", "adamw_bnb_8bit"),
    ],
)
def test_adamw_is_known_under_the_names_that_trainers_print(text: str, knob: str) -> None:
    assert used(optimizer=text).config.optimizer == knob


def test_thousands_and_millions_are_numbers_and_not_units() -> None:
    assert trainable_of("trainable 4.2M") == pytest.approx(4.2e6)
    assert trainable_of("trainable params 13,631,488") == pytest.approx(13_631_488)
    assert trainable_of("trainable 850K parameters") == pytest.approx(8.5e5)
    assert isinstance(read(notes="trainable 13.6M of 7.2B"), MeasuredCase)
    assert used(seq_len="4K").job.max_length == 4096


def test_versions_are_those_that_the_row_states() -> None:
    notes = (
        "HF Trainer; torch 2.4.0+cu118, transformers 4.44.2, trl 0.9.6, peft 0.13.2, "
        "accelerate 1.1.1, bitsandbytes 0.45.0, flash-attn 2.5.9.post1; host 64 cores; "
        "dataloader workers 2"
    )
    case = used(notes=notes)
    own = case.job.software
    assert (own.torch, own.transformers, own.trl) == ((2, 4, 0), (4, 44, 2), (0, 9, 6))
    assert (own.peft, own.accelerate, own.bitsandbytes) == ((0, 13, 2), (1, 1, 1), (0, 45, 0))
    assert own.flash_attn == (2, 5, 9)
    assert own.stack == "hf"
    assert case.offer.host.cores == 64
    assert case.config.num_dataloader_workers == 2
    assert version_of("transformers", "torchtune 0.4, no other version") is None


def test_a_kernel_without_a_version_is_the_release_of_its_month() -> None:
    old = used(source_commit_or_date="abc 2023-05-02", attn="flash (unspecified version)")
    new = used(source_commit_or_date="abc 2025-08-02", attn="fa2")
    assert old.job.software.flash_attn == (1, 0)
    assert new.job.software.flash_attn == (2, 8)
    assert used(attn="sdpa").job.software.flash_attn is None


@pytest.mark.parametrize(
    ("notes", "stack", "trainer"),
    [
        ("TRL SFTTrainer through a script", "hf", "trl"),
        ("Unsloth kernels on TRL SFTTrainer (Colab)", "hf", "unsloth"),
        ("axolotl train (HF Trainer), 150 steps", "hf", "axolotl"),
        ("torchtune stable single-device LoRA recipe", "torchtune", "torchtune"),
        ("own loop, torch 2.9.0", "runs", ""),
        ("", "runs", ""),
    ],
)
def test_the_trainer_is_known_by_what_a_row_says(notes: str, stack: str, trainer: str) -> None:
    own = used(notes=notes).job.software
    assert (own.stack, own.trainer) == (stack, trainer)


def test_a_loop_of_ones_own_is_a_program_of_its_own() -> None:
    theirs = used(notes="own loop and own model code, torch 2.4").job.software
    assert (theirs.stack, theirs.trainer, theirs.own_model) == ("runs", "", True)
    assert not used(notes="own loop over the classes of transformers").job.software.own_model
    peft = used(source_repo="huggingface/peft", notes="own loop, torch 2.9.0").job.software
    assert (peft.stack, peft.own_model) == ("peft", False)


def test_hybrid_sharding_is_refused_over_several_machines_only() -> None:
    one = used(parallelism="hsdp", n_gpus="8", global_batch="64")
    assert one.config.sharding == "fsdp"
    for changes in ({"parallelism": "hsdp"}, {"parallelism": "fsdp", "notes": "HYBRID_SHARD"}):
        several = read(n_gpus="16", global_batch="128", **changes)
        assert isinstance(several, Skipped)
        assert several.reason.startswith("hybrid sharding")


def test_a_loop_with_model_code_of_its_own_takes_the_loss_as_torch_has_it() -> None:
    own = used(notes="own loop and own model code", precision="bf16-true").job.software
    assert (own.own_model, own.loss, own.autocast) == (True, "native", False)
    assert used(notes="own loop and own model code").job.software.autocast
    assert not used(notes="own loop").job.software.own_model


@pytest.mark.parametrize(
    ("kernels", "month", "loss"),
    [
        ("unsloth", "2024-08", "inplace"),
        ("unsloth", "2025-03", "fused"),
        ("unsloth", "2025-12", "chunked"),
        ("torchtune", "2024-05", "upcast"),
        ("torchtune", "2024-10", "chunked"),
    ],
)
def test_the_loss_is_that_of_the_trainer_s_month(kernels: str, month: str, loss: str) -> None:
    changes = {"other_kernels": kernels} if kernels == "unsloth" else {"notes": kernels}
    case = used(source_commit_or_date=f"abc {month}-02", **changes)
    assert case.job.software.loss == loss


@pytest.mark.parametrize(
    ("changes", "value"),
    [
        ({"notes": "TRL SFTTrainer 0.5", "quant": "nf4", "task": "qlora"}, "full"),
        ({"notes": "TRL SFTTrainer, trl 0.26.2"}, "full"),
        ({"notes": "TRL SFTTrainer, trl 0.9.6"}, "none"),
        ({"notes": "HF Trainer"}, "none"),
        ({"source_repo": "modelscope/ms-swift"}, "full"),
    ],
)
def test_checkpointing_that_nobody_states_is_the_trainers_default_and_marked(
    changes: dict[str, str], value: str
) -> None:
    case = used(grad_ckpt="unknown", **changes)
    assert case.config.activation_checkpointing == value
    assert case.guessed
    assert not case.teaches_time
    assert any("checkpointing not stated" in text for text in case.assumed)


def test_precision_that_nobody_states_is_the_trainers_default_and_marked() -> None:
    case = used(precision="", source_repo="modelscope/ms-swift")
    assert case.config.precision == "bf16"
    assert case.guessed


def test_weights_that_were_loaded_in_fp32_are_32_bit() -> None:
    notes = "fp32-loaded weights (FSDP shards fp32, bf16 AMP)"
    assert used(task="full", notes=notes).job.method.base == "32bit"
    assert used(notes="base weights probably fp32 with bf16 autocast").job.method.base == "32bit"
    assert used(notes="adapter weights fp32 if autocast_adapter_dtype=True").job.method.base == (
        "16bit"
    )


def test_seconds_with_loading_or_compiling_inside_are_no_step() -> None:
    notes = "20 steps incl. compile/warm-up (few steps, so step time is an upper bound)"
    case = used(notes=notes)
    assert case.step is None
    assert case.partial == ("time: loading or compiling is inside the seconds",)


def test_grades_name_the_quantity_that_they_grade() -> None:
    assert grades_of("Quality A (time), B (memory). TRL") == Grades("A", "B")
    assert grades_of("Quality C (memory). Rounded") == Grades(None, "C")
    assert grades_of("Quality B. Unsloth") == Grades("B", "B")
    assert grades_of("Quality B (memory and total time). x") == Grades("B", "B")
    assert grades_of("QUALITY unknown") == Grades()


def test_a_figure_for_orientation_teaches_no_fit() -> None:
    case = used(notes="Quality C (time), A (memory). x")
    assert (case.teaches_time, case.teaches_memory) == (False, True)


SIXTEEN = {
    "task": "full", "lora_r": "", "target_modules": "", "n_gpus": "16", "parallelism": "fsdp",
    "global_batch": "128",
}  # fmt: skip


def test_a_run_on_machines_whose_network_is_stated_is_compared_and_in_no_fit() -> None:
    case = used(**SIXTEEN, notes="A100 with 1600 Gbps node-node interconnect (RoCE)")
    network = case.offer.network
    assert (network.nodes, network.bytes_per_s) == (2, 200e9)
    assert case.offer.host.cores == used(**{**SIXTEEN, "n_gpus": "8"}).offer.host.cores
    assert not case.guessed
    assert (case.teaches_time, case.teaches_memory) == (False, False)


def test_a_network_that_nobody_states_is_a_guess_with_a_wide_interval() -> None:
    case = used(**SIXTEEN, notes="nodes 4")
    network = case.offer.network
    assert network.nodes == 4
    assert case.guessed
    low, high = (network.bytes_per_s * math.exp(s * 1.2816 * network.log_sd) for s in (-1, 1))
    assert low == pytest.approx(100e9 / 8, rel=0.01)
    assert high == pytest.approx(3200e9 / 8, rel=0.01)
    assert used(**{**SIXTEEN, "n_gpus": "16"}, notes="one node of 16").offer.network is None


def test_shipped_runs_on_several_machines_lie_within_their_intervals() -> None:
    cases = [case for case in read_cases(SHIPPED_ROWS).cases if case.offer.network is not None]
    found = residuals(cases, predict(cases, lambda job, own: Pricing(job).bill(own)))
    for guessed in (False, True):
        steps = [r for r in found if r.kind == "time" and r.case.guessed is guessed]
        inside = [abs(math.log(r.ratio)) < 1.2816 * r.log_sd for r in steps]
        assert len(steps) > 30
        assert sum(inside) > 0.8 * len(steps)
    stated = [r.error for r in found if r.kind == "time" and not r.case.guessed]
    assert sorted(stated)[len(stated) // 2] < 0.15


SAVED = {"task": "lora+embed+head"}


def test_what_trains_whole_beside_adapters_is_read_of_the_task_and_teaches_no_fit() -> None:
    case = used(**SAVED)
    assert case.job.method.modules_to_save == ("embed_tokens", "lm_head")
    assert case.job.software.saves_as_loaded
    assert not case.teaches_time
    assert used(task="lora+head").job.method.modules_to_save == ("lm_head",)
    assert used().job.method.modules_to_save == ()


def test_shipped_runs_that_train_the_embedding_and_the_head_lie_within_their_intervals() -> None:
    """Qwen's own table, which no formula or constant was made from."""
    cases = [c for c in read_cases(SHIPPED_ROWS).cases if c.job.method.modules_to_save]
    found = residuals(cases, predict(cases, lambda job, own: Pricing(job).bill(own)))
    steps = [r for r in found if r.kind == "time"]
    assert len(steps) == 18
    assert sum(abs(math.log(r.ratio)) < 1.2816 * r.log_sd for r in steps) >= 0.8 * len(steps)
    assert sorted(r.error for r in steps)[len(steps) // 2] < 0.1


@pytest.mark.parametrize(
    ("text", "chip", "gib"),
    [
        ("RTX 3090 Ti", "rtx-3090ti", 24),
        ("H100 NVL 94 GB", "h100-nvl", 94),
        ("H100-SXM-96GB(HBM2e, 500W)", "h100-sxm", 96),
        ("H800-SXM-80GB", "h100-sxm", 80),
        ("A800-80GB", "a100-sxm4-80gb", 80),
    ],
)
def test_boards_of_a_known_chip_are_priced(text: str, chip: str, gib: int) -> None:
    device = device_named(text)
    assert device.name == chip
    assert device.memory_driver_bytes / 2**30 == pytest.approx(gib, rel=0.02)


def test_a_board_of_a_size_that_nobody_states_is_the_larger_one() -> None:
    gpt2 = [c for c in read_cases(SHIPPED_ROWS).cases if c.id.startswith("dstune-")]
    assert gpt2
    assert {case.offer.device.memory_driver_bytes / 2**30 for case in gpt2} == {32.0}


def test_cards_without_nvlink_talk_over_pcie() -> None:
    notes = "8x 'H100 80GB HBM3' in a VM, all pairs PIX over PCIe, no NVLink"
    linked = used(gpu="H100-SXM-80GB", n_gpus="2", parallelism="ddp", global_batch="16")
    apart = used(gpu="H100-SXM-80GB", n_gpus="2", parallelism="ddp", global_batch="16", notes=notes)
    assert apart.offer.device.link_bytes_per_s == apart.offer.device.pcie_bytes_per_s
    assert linked.offer.device.link_bytes_per_s > 5 * apart.offer.device.link_bytes_per_s


def test_rows_are_full_where_the_sources_own_rates_say_so() -> None:
    rates = {"tokens_per_s_per_gpu": "2048", "samples_per_s": "8", "step_time_s": "1"}
    case = used(packing="no", seq_len="256", global_batch="8", **rates)
    assert case.job.lengths.mean == 256
    assert case.step_time_s == pytest.approx(1.0)
    assert case.peak is not None


def test_the_mean_of_a_row_follows_from_tokens_and_rows_a_second() -> None:
    rates = {"tokens_per_s_per_gpu": "1946", "samples_per_s": "9.27"}
    case = used(packing="no", seq_len="768", **rates)
    assert case.job.lengths.mean == pytest.approx(210, rel=0.01)


def test_padded_rows_take_the_middle_of_a_stated_range() -> None:
    case = used(packing="no", seq_len="512", notes="about 194-198 padded tokens per row (derived)")
    assert case.job.lengths.mean == 196
    assert case.peak is None


def test_a_dataset_far_below_its_cap_does_not_reach_it() -> None:
    case = used(packing="no", seq_len="2048", notes="data yahma/alpaca-cleaned, cap 2048")
    assert case.step is not None
    assert case.peak is None
    assert [seen.quantity for seen in case.bounded] == ["memory_bytes"]


def test_notebooks_with_short_rows_are_not_called_out_of_memory() -> None:
    own = [case for case in read_cases(SHIPPED_ROWS).cases if case.id.startswith("unsl-")]
    assert len(own) > 10
    assert not [case.id for case in own if case.longest_known and case.config.packing == "off"
                and case.job.lengths.mean < case.job.max_length]  # fmt: skip


def test_layers_split_over_cards_are_not_taken_for_data_parallelism() -> None:
    found = read(n_gpus="4", parallelism="ddp2 x mp2 (device_map)", global_batch="16")
    assert isinstance(found, Skipped)
    assert found.reason.startswith("layers split")


def test_three_readings_of_one_run_are_three_observations() -> None:
    notes = "max allocated 16.96 GiB (quoted), device reserved 17.42 GiB, nvidia-smi peak 18311 MiB"
    case = used(peak_mem_gb="18.2107", notes=notes)
    assert [seen.kind for seen in case.observations if seen.kind] == [
        "allocated", "reserved", "nvidia-smi",
    ]  # fmt: skip


def test_every_refusal_of_the_record_says_what_would_make_the_row_usable() -> None:
    reasons = {item.reason for item in read_cases(SHIPPED_ROWS).skipped}
    assert not [reason for reason in reasons if help_for(reason) == CELLS]


def test_three_of_five_rows_of_decoders_trained_on_gpus_are_compared() -> None:
    table = read_cases(SHIPPED_ROWS)
    others = [item for item in table.skipped if is_training(item.reason)]
    assert len(table.cases) / (len(table.cases) + len(others)) >= 0.6


def test_logs_of_users_are_told_from_tables() -> None:
    with SHIPPED_ROWS.open(encoding="utf-8", newline="") as stream:
        logged = {row["id"] for row in csv.DictReader(stream) if row["id"].startswith("kaikai-")}
    assert all(case.logged for case in shipped(*sorted(logged)))
    assert not next(iter(shipped("fms-0033"))).logged


@pytest.mark.parametrize(
    ("changes", "loss"),
    [
        ({"other_kernels": "cut cross entropy (CCE)"}, "fused"),
        ({"other_kernels": "chunked cross entropy"}, "chunked"),
        ({"notes": "torchtune single-device recipe"}, "chunked"),
        ({"other_kernels": "liger"}, "fused"),
    ],
)
def test_a_loss_that_never_holds_all_logits_is_known_by_its_name(
    changes: dict[str, str], loss: str
) -> None:
    assert used(**changes).job.software.loss == loss


def test_compiling_block_by_block_is_not_compiling_the_model() -> None:
    found = used(compile="yes (per layer)").config
    assert (found.compile, found.compile_scope) == ("default", "regional")
    whole = used(compile="max-autotune").config
    assert (whole.compile, whole.compile_scope) == ("max-autotune", "model")
    assert used(compile="unknown").config.compile == "off"


def test_flash_attention_3_is_not_flash_attention_2() -> None:
    case = used(attn="fa3", gpu="H100-SXM-80GB")
    assert case.config.attention == "flash_attention_3"
    assert case.job.software.flash_attn_3 is not None


def test_adapters_that_axolotl_fuses_are_told_from_those_of_peft() -> None:
    fused = used(other_kernels="lora_mlp_kernel, lora_qkv_kernel, lora_o_kernel")
    assert fused.job.software.fused_adapters
    assert not used().job.software.fused_adapters


def test_an_optimizer_that_steps_in_the_backward_is_that_optimizer() -> None:
    case = used(task="full", optimizer="adamw_8bit + optimizer_in_bwd")
    assert case.config.optimizer == "adamw_bnb_8bit"
    assert case.job.software.steps_in_backward
    assert not used(task="full").job.software.steps_in_backward


@pytest.mark.parametrize(
    ("word", "compute", "base"),
    [
        ("bf16-mixed", "bf16", "32bit"),
        ("bf16 (amp)", "bf16", "32bit"),
        ("bf16-true", "bf16", "16bit"),
        ("fp16 mixed", "fp16", "32bit"),
    ],
)
def test_mixed_precision_keeps_trained_weights_in_32_bit(
    word: str, compute: str, base: str
) -> None:
    case = used(task="full", precision=word)
    assert (case.config.precision, case.job.method.base) == (compute, base)


def test_a_scaled_fp16_run_trains_weights_of_32_bit() -> None:
    assert used(task="full", precision="fp16", notes="HF Trainer").job.method.base == "32bit"
    assert used(precision="fp16", notes="HF Trainer").job.method.base == "16bit"


def test_packed_rows_that_attend_to_themselves_are_read_as_packed() -> None:
    notes = "about 1000 tokens per row, packed with a block-diagonal mask"
    theirs = used(notes=notes, seq_len="8192", step_time_s="", tokens_per_s_per_gpu="4000")
    assert theirs.config.packing == "on"
    assert theirs.job.lengths.mean == pytest.approx(1000, rel=0.05)
    assert theirs.step_time_s == pytest.approx(8 * 8192 / 4000)
    whole = used(notes="about 1000 tokens per row", seq_len="8192", step_time_s="30")
    assert whole.config.packing == "off"
    assert whole.job.lengths.mean == 8192
    assert used(notes="adapters in bf16").config.adapter_dtype == "bf16"


@pytest.mark.parametrize(
    ("parallelism", "notes", "each"),
    [
        ("fsdp2", "axolotl", True),
        ("fsdp", "axolotl, FSDP2, accelerate 1.10.1", True),
        ("fsdp2", "axolotl, accelerate 1.11.0", False),
        ("fsdp", "axolotl", False),  # the first FSDP waits for the last micro-step
        ("fsdp2", "torchtune", False),
    ],
)
def test_the_second_fsdp_reduced_at_each_micro_step_until_accelerate_1_11(
    parallelism: str, notes: str, *, each: bool
) -> None:
    found = used(n_gpus="4", global_batch="32", parallelism=parallelism, notes=notes)
    assert found.job.software.syncs_each_batch is each


def test_what_a_row_leaves_open_is_said_of_its_run() -> None:
    """So its interval is as wide as that of a user's run that leaves as much open."""
    assert used().job.unsaid == ()
    bare = used(attn="", grad_ckpt="", target_modules="")
    assert bare.job.unsaid == ("attention", "activation_checkpointing", "method.targets")
    said, open_ = (predict([each], plain_bill)["a-1"] for each in (used(), bare))
    assert open_.step_log_sd > said.step_log_sd
    assert open_.step_slow_log_sd > said.step_slow_log_sd
