from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autotune.app.job.evidence import complete_config
from autotune.catalog.software import NO_FLASH, find_software
from autotune.domain.config import EIGHT_BIT, Config
from autotune.domain.job import Lengths, Method, Origin
from autotune.domain.software import NO_SDPA, SDPA_FROM, SDPA_FROM_FIRST
from autotune.space.rules import RULES, violations


def config(**knobs: Any) -> Config:
    values: dict[str, Any] = {
        "micro_batch_size": 4, "gradient_accumulation_steps": 2, "checkpoint_every_steps": 100,
        "precision": "bf16",
    }  # fmt: skip
    return Config(**{**values, **knobs})


def lora(base: Any = "16bit") -> Method:
    return Method("lora", base, 16, 16.0)


def test_a_plain_setting_is_valid(build: Any) -> None:
    job = build.job()
    assert violations(job, job.offers[0], config()) == []


def test_names_and_reasons_of_rules_are_distinct() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert len({rule.reason for rule in RULES}) == len(RULES)


@pytest.mark.parametrize(("micro", "accumulation"), [(4, 1), (3, 2), (8, 2), (16, 1), (6, 3)])
def test_splits_that_miss_the_global_batch_are_invalid(
    build: Any, micro: int, accumulation: int
) -> None:
    job = build.job()
    broken = config(micro_batch_size=micro, gradient_accumulation_steps=accumulation)
    assert violations(job, job.offers[0], broken)


@pytest.mark.parametrize(
    ("device", "precision", "base", "valid"),
    [
        ("t4", "bf16", "16bit", False),
        ("t4", "fp16", "16bit", True),
        ("t4", "tf32", "32bit", False),
        ("t4", "fp32", "32bit", True),
        ("v100", "bf16", "16bit", False),
        ("a100", "bf16", "16bit", True),
        ("a100", "fp16", "16bit", False),
        ("a100", "tf32", "32bit", True),
        ("a100", "fp32", "16bit", False),
        ("a100", "tf32", "nf4", False),
        ("a100", "bf16", "int8", True),
        ("t4", "fp16", "int8", True),
        ("v100", "fp16", "int8", False),
        ("v100", "fp16", "nf4", True),
        ("mi300x", "bf16", "nf4", False),
        ("cpu", "fp32", "32bit", True),
        ("cpu", "fp16", "16bit", False),
    ],
)
def test_precision_follows_device_and_base(
    build: Any, device: str, precision: str, base: Any, valid: bool
) -> None:
    offer = build.offer(device)
    job = build.job(offer, method=lora(base))
    pinned = device != "cpu"
    found = violations(job, offer, config(precision=precision, pin_memory=pinned))
    assert (not found) is valid


def test_fp16_may_be_locked_where_bf16_is_native(build: Any) -> None:
    job = build.job(lock={"precision": "fp16"})
    assert violations(job, job.offers[0], config(precision="fp16")) == []


def test_full_fine_tuning_in_fp16_needs_fp32_weights(build: Any) -> None:
    offer = build.offer("t4")
    for method, valid in ((Method("full", "16bit"), False), (Method("full", "32bit"), True)):
        job = build.job(offer, method=method)
        assert (not violations(job, offer, config(precision="fp16"))) is valid


@pytest.mark.parametrize(
    ("device", "fields", "attention", "valid"),
    [
        ("a100", {}, "flash_attention_2", True),
        ("t4", {}, "flash_attention_2", False),
        ("mi300x", {}, "flash_attention_2", False),
        ("a100", {"head_dim": 512}, "flash_attention_2", False),
        ("a100", {"family": "gemma2", "attention_softcap": True}, "sdpa", False),
        ("a100", {"family": "gemma2", "attention_softcap": True}, "flash_attention_2", True),
        ("a100", {"family": "gemma2", "attention_softcap": True}, "eager", True),
        ("a100", {"family": "gpt_oss"}, "flash_attention_2", False),
        ("a100", {"family": "bloom", "position": "alibi"}, "sdpa", False),
        ("a100", {"family": "falcon", "position": "alibi"}, "flash_attention_2", False),
    ],
)
def test_attention_follows_family_and_capability(
    build: Any, device: str, fields: dict[str, Any], attention: str, valid: bool
) -> None:
    offer = build.offer(device)
    job = build.job(offer, model=build.model(**fields))
    precision = "fp16" if device == "t4" else "bf16"
    found = violations(job, offer, config(attention=attention, precision=precision))
    assert (not found) is valid


def test_flash_attention_needs_the_package_and_half_precision(build: Any) -> None:
    without = build.job(software=build.software(flash_attn=None))
    flash = config(attention="flash_attention_2")
    assert violations(without, without.offers[0], flash)
    single = build.job(method=lora("32bit"))
    assert violations(single, single.offers[0], flash.with_knobs(precision="tf32"))
    assert violations(single, single.offers[0], flash) == []


@pytest.mark.parametrize(
    ("base", "sharding", "valid"),
    [
        ("16bit", "none", False), ("16bit", "ddp", True), ("16bit", "zero3", True),
        ("int8", "ddp", True), ("int8", "fsdp", False), ("int8", "zero3", False),
        ("int8", "zero2", True), ("nf4", "fsdp", True), ("nf4", "zero3", False),
    ],
)  # fmt: skip
def test_sharding_of_two_devices(build: Any, base: Any, sharding: str, valid: bool) -> None:
    offer = build.offer("a100", 2)
    job = build.job(offer, method=lora(base))
    found = violations(job, offer, config(sharding=sharding, gradient_accumulation_steps=1))
    assert (not found) is valid


def test_zero3_divides_4_bit_weights_where_the_user_does_so(build: Any) -> None:
    offer = build.offer("a100", 2)
    job = build.job(offer, method=lora("nf4"))
    split = config(sharding="zero3", gradient_accumulation_steps=1)
    for own in (replace(job, lock={"sharding": "zero3"}), replace(job, today=split)):
        assert violations(own, offer, split) == []
        before = replace(own, software=replace(job.software, transformers=(4, 44, 2)))
        assert "cannot be split" in " ".join(violations(before, offer, split))


def test_one_device_is_never_sharded(build: Any) -> None:
    job = build.job()
    assert violations(job, job.offers[0], config(sharding="fsdp"))


def test_workers_stay_within_cores_and_memory(build: Any) -> None:
    few = build.offer("a100", cores=4)
    assert violations(build.job(few), few, config(num_dataloader_workers=8))
    assert violations(build.job(few), few, config(num_dataloader_workers=4)) == []
    pair = build.offer("a100", 2, cores=4)
    shared = config(gradient_accumulation_steps=1, sharding="ddp", num_dataloader_workers=4)
    assert violations(build.job(pair), pair, shared)
    batch_bytes = 4 * 512 * 24
    for spare, valid in ((0, True), (-1, False)):
        tight = build.offer("a100", shm_bytes=2 * 2 * batch_bytes + spare)
        found = violations(build.job(tight), tight, config(num_dataloader_workers=2))
        assert (not found) is valid


def test_eight_bit_optimizers_need_their_package_and_cuda(build: Any) -> None:
    eight = config(optimizer="paged_adamw_8bit")
    job = build.job()
    assert violations(job, job.offers[0], eight) == []
    without = build.job(software=build.software(bitsandbytes=None))
    assert violations(without, without.offers[0], eight)
    cpu = build.offer("cpu")
    assert violations(build.job(cpu), cpu, eight.with_knobs(pin_memory=False))


def test_packing_is_searched_only_where_rows_stay_apart(build: Any) -> None:
    job = build.job()
    packed = config(packing="on", attention="flash_attention_2")
    assert violations(job, job.offers[0], packed) == []
    assert violations(job, job.offers[0], packed.with_knobs(attention="sdpa"))
    assert violations(job, job.offers[0], packed.with_knobs(length_grouping="on"))
    locked = build.job(lock={"packing": "on"})
    assert violations(locked, locked.offers[0], packed.with_knobs(attention="sdpa")) == []
    without_numbers = build.job(model=replace(job.model, family="gptj"))
    assert violations(without_numbers, job.offers[0], packed)


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_cuda_graphs_need_one_shape(build: Any, mode: str) -> None:
    graphs = config(compile=mode)
    variable = build.job()
    assert violations(variable, variable.offers[0], graphs)
    padded = build.job(padding="max_length")
    assert violations(padded, padded.offers[0], graphs) == []
    same = build.job(lengths=Lengths((512.0, 512.0), 512.0, 512, known=True))
    assert violations(same, same.offers[0], graphs) == []
    unknown = build.job(lengths=Lengths((512.0, 512.0), 512.0, 512, known=False))
    assert violations(unknown, unknown.offers[0], graphs)
    packed = graphs.with_knobs(packing="on", attention="flash_attention_2")
    assert violations(variable, variable.offers[0], packed) == []


def test_adapter_dtype_belongs_to_lora_in_bf16(build: Any) -> None:
    half = config(adapter_dtype="bf16")
    job = build.job()
    assert violations(job, job.offers[0], half) == []
    full = build.job(method=Method("full", "16bit"))
    assert violations(full, full.offers[0], half)
    old = build.offer("t4")
    assert violations(build.job(old), old, half.with_knobs(precision="fp16"))


def test_grouping_needs_padding_to_the_longest(build: Any) -> None:
    job = build.job(padding="max_length")
    assert violations(job, job.offers[0], config(length_grouping="on"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    ["llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "phi", "phi3",
     "gpt2", "gpt_neo", "gpt_neox", "gptj", "falcon", "bloom", "mpt", "opt", "codegen", "olmo2",
     "starcoder2", "gpt_oss", "xglm", "stablelm", "cohere", "granite"],
)  # fmt: skip
def test_kernel_tables_agree_with_the_installed_classes(family: str) -> None:
    pytest.importorskip("transformers")
    import importlib
    import inspect

    from transformers import PreTrainedModel

    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    classes: list[Any] = [
        found
        for _, found in inspect.getmembers(module, inspect.isclass)
        if issubclass(found, PreTrainedModel) and found.__module__ == module.__name__
    ]
    assert classes
    assert all(found._supports_sdpa is (family not in NO_SDPA) for found in classes)
    if family != "gpt_oss":  # its own attribute is set, but only for other kernels
        assert all(found._supports_flash_attn is (family not in NO_FLASH) for found in classes)


def origin(trainer: str) -> Origin:
    return Origin(trainer, "yaml", "", "")


@pytest.mark.parametrize(
    ("fields", "device", "knobs", "valid"),
    [
        ({}, "a100", {"kernels": "liger"}, True),
        ({}, "a100", {"kernels": "chunked_loss"}, True),
        ({}, "mi300x", {"kernels": "liger"}, True),
        ({}, "v100", {"kernels": "liger", "precision": "fp16"}, True),
        ({"software": {"liger_kernel": None}}, "a100", {"kernels": "liger"}, False),
        ({"software": {"trl": (1, 8, 0)}}, "a100", {"kernels": "chunked_loss"}, False),
        ({"software": {"trl": None}}, "a100", {"kernels": "chunked_loss"}, False),
        ({"software": {"kernels": "unsloth"}}, "a100", {"kernels": "liger"}, False),
        ({"model": {"family": "gpt2"}}, "a100", {"kernels": "liger"}, False),
        ({"model": {"family": "gpt2"}}, "a100", {"kernels": "chunked_loss"}, True),
        ({}, "a100", {"kernels": "liger", "compile": "default"}, False),
        ({"origin": "axolotl"}, "a100", {"kernels": "chunked_loss"}, True),
        ({"origin": "axolotl"}, "a100", {"kernels": "liger"}, True),
        ({"origin": "hf"}, "a100", {"kernels": "chunked_loss"}, False),
        ({"origin": "llamafactory"}, "a100", {"kernels": "liger"}, True),
        ({"origin": "llamafactory"}, "a100", {"kernels": "chunked_loss"}, False),
        ({"origin": "litgpt"}, "a100", {"kernels": "liger"}, False),
        ({"origin": "torchtune"}, "a100", {"kernels": "liger"}, False),
        ({"origin": "trl", "software": {"loss": "chunked"}}, "a100", {"kernels": "chunked_loss"},
         False),
    ],
)  # fmt: skip
def test_fused_kernels_need_a_trainer_a_family_a_device_and_an_eager_run(
    build: Any, fields: dict[str, Any], device: str, knobs: dict[str, Any], valid: bool
) -> None:
    liger: dict[str, Any] = {"liger_kernel": (0, 8, 5), "loss": "upcast"}
    job = build.job(
        build.offer(device),
        software=build.software(**{**liger, **fields.get("software", {})}),
        model=build.model(**fields.get("model", {})),
        origin=origin(fields["origin"]) if "origin" in fields else None,
    )
    assert (violations(job, job.offers[0], config(**knobs)) == []) == valid


def test_no_fused_kernels_run_on_a_processor(build: Any) -> None:
    software = build.software(liger_kernel=(0, 8, 5))
    job = build.job(build.offer("cpu"), software=software)
    plain = config(pin_memory=False)
    assert violations(job, job.offers[0], plain) == []
    for value in ("liger", "chunked_loss"):
        assert violations(job, job.offers[0], plain.with_knobs(kernels=value))


@pytest.mark.parametrize(
    ("count", "knobs", "fields", "valid"),
    [
        (1, {"offload": "optimizer", "sharding": "zero2"}, {}, True),
        (1, {"offload": "optimizer"}, {}, False),
        (1, {"offload": "none", "sharding": "zero2"}, {}, False),
        (1, {"offload": "all", "sharding": "fsdp"}, {}, False),
        (2, {"offload": "optimizer", "sharding": "zero3"}, {}, True),
        (2, {"offload": "optimizer", "sharding": "ddp"}, {}, False),
        (2, {"offload": "all", "sharding": "fsdp"}, {}, True),
        (2, {"offload": "all", "sharding": "zero3"}, {}, False),
        (1, {"offload": "activations", "activation_checkpointing": "full"}, {}, True),
        (1, {"offload": "activations"}, {}, False),
        (1, {"offload": "activations", "activation_checkpointing": "full", "compile": "default"},
         {}, False),
        (2, {"offload": "all", "sharding": "fsdp", "optimizer": "adamw_bnb_8bit"}, {}, False),
        (2, {"offload": "all", "sharding": "fsdp"}, {"origin": "litgpt"}, False),
        (2, {"offload": "all", "sharding": "fsdp"}, {"origin": "axolotl"}, True),
        (1, {"offload": "activations", "activation_checkpointing": "full"},
         {"software": {"transformers": (4, 57, 0), "trl": None}}, False),
        (1, {"offload": "activations", "activation_checkpointing": "full"},
         {"software": {"transformers": (4, 57, 0), "trl": (1, 0, 0)}}, True),
        (1, {"offload": "activations", "activation_checkpointing": "full"},
         {"origin": "llamafactory"}, False),
    ],
)  # fmt: skip
def test_offloading_needs_its_sharding_a_trainer_and_no_states_on_the_gpu(
    build: Any, count: int, knobs: dict[str, Any], fields: dict[str, Any], valid: bool
) -> None:
    job = build.job(
        build.offer("a100", count),
        software=build.software(**fields.get("software", {})),
        origin=origin(fields["origin"]) if "origin" in fields else None,
        lock={"offload": knobs["offload"]},
    )
    own = config(gradient_accumulation_steps=2 // count, **knobs)
    assert (violations(job, job.offers[0], own) == []) == valid


@pytest.mark.parametrize("optimizer", sorted(EIGHT_BIT))
def test_8_bit_states_are_not_stepped_on_shards_of_fsdp_unless_todays_run_does(
    build: Any, optimizer: str
) -> None:
    own = config(gradient_accumulation_steps=1, sharding="fsdp", optimizer=optimizer)
    job = build.job(build.offer("a100", 2))
    assert "crash on the shards of FSDP2" in " ".join(violations(job, job.offers[0], own))
    for other in ({"sharding": "zero3"}, {"optimizer": "adamw_torch_fused"}):
        assert not violations(job, job.offers[0], own.with_knobs(**other))
    assert not violations(replace(job, today=own), job.offers[0], own)


def test_one_device_stays_unsharded_while_nothing_is_offloaded(build: Any) -> None:
    from autotune.space.enumerate import enumerate_candidates
    from autotune.space.file import load_space

    space = load_space("default")
    plain = enumerate_candidates(build.job(build.offer("a100")), space)
    opened = enumerate_candidates(build.job(build.offer("a100"), allow=("offload",)), space)
    assert set(plain.candidates.levels["sharding"]) == {"none"}
    pairs = {
        (c.offload, c.sharding)
        for c in map(opened.candidates.config, range(len(opened.candidates)))
    }
    assert pairs == {("none", "none"), ("optimizer", "zero2"), ("activations", "none")}


@pytest.mark.parametrize(
    ("count", "knobs", "fields", "valid"),
    [
        (1, {"compile": "default"}, {}, True),
        (2, {"compile": "default", "sharding": "ddp"}, {}, True),
        (2, {"compile": "default", "sharding": "fsdp"}, {}, False),
        (1, {}, {}, False),
        (1, {"compile": "default"}, {"method": Method("lora", "16bit", 16, 16.0)}, False),
        (1, {"compile": "default"}, {"method": Method("full", "32bit")}, False),
        (1, {"compile": "default"}, {"software": {"torchao": None}}, False),
        (1, {"compile": "default"}, {"origin": "litgpt"}, False),
        (1, {"compile": "default"}, {"origin": "axolotl"}, True),
        (1, {"compile": "default"}, {"origin": "llamafactory"}, False),
    ],
)
def test_fp8_needs_full_fine_tuning_torchao_a_compiled_step_and_whole_weights(
    build: Any, count: int, knobs: dict[str, Any], fields: dict[str, Any], valid: bool
) -> None:
    device = build.device("h100", fp8_flop_per_s=1979e12)
    software = {"torchao": (0, 18, 0), **fields.get("software", {})}
    job = build.job(
        replace(build.offer("h100", count), device=device),
        method=fields.get("method", Method("full", "16bit")),
        software=build.software(**software),
        origin=origin(fields["origin"]) if "origin" in fields else None,
    )
    own = config(gradient_accumulation_steps=2 // count, precision="fp8", **knobs)
    assert (violations(job, job.offers[0], own) == []) == valid


def test_fp8_is_tried_only_where_the_job_opens_the_precision(build: Any) -> None:
    from autotune.space.enumerate import knob_levels
    from autotune.space.file import load_space

    space, offered = load_space("default"), build.offer("h100")
    plain, opened = build.job(offered), build.job(offered, allow=("precision",))
    assert "fp8" not in knob_levels(plain, space, offered, "precision")
    assert knob_levels(opened, space, offered, "precision")[-1] == "fp8"
    assert knob_levels(
        build.job(offered, lock={"precision": "fp8"}), space, offered, "precision"
    ) == ("fp8",)


@pytest.mark.parametrize(
    ("device", "software", "valid"),
    [
        ("h100", {"flash_attn_3": (3, 0, 0)}, True),
        ("h100", {}, False),
        ("h100", {"flash_attn": None, "flash_attn_3": (3, 0, 0)}, True),
        ("a100", {"flash_attn_3": (3, 0, 0)}, False),
    ],
)
def test_flash_attention_3_needs_its_package_and_a_hopper_gpu(
    build: Any, device: str, software: dict[str, Any], valid: bool
) -> None:
    job = build.job(build.offer(device), software=build.software(**software))
    own = config(attention="flash_attention_3", packing="on")
    assert (violations(job, job.offers[0], own) == []) == valid


@pytest.mark.parametrize(
    ("software", "attention"),
    [
        ({"transformers": "4.35.2"}, "eager"),
        ({"transformers": "4.36.0"}, "sdpa"),
        ({"transformers": "4.40.0", "torch": "2.0.1"}, "eager"),
        ({"transformers": "4.40.0", "torch": "2.1.2"}, "sdpa"),
        ({"transformers": "4.35.2", "kernels": "unsloth"}, "sdpa"),
        ({"transformers": "4.35.2", "trainer": "litgpt"}, "sdpa"),
        (None, "sdpa"),
    ],
)
def test_torchs_attention_came_to_a_class_with_a_release(
    build: Any, software: Any, attention: str
) -> None:
    job = replace(build.job(), software=find_software(software))
    assert job.model.family == "llama"
    stated = {"micro_batch_size": 4, "gradient_accumulation_steps": 2}
    assert complete_config(stated, job, job.offers[0]).attention == attention
    found = violations(job, job.offers[0], config(attention="sdpa"))
    assert bool(found) is (attention == "eager")


@pytest.mark.parametrize(
    ("software", "optimizer"),
    [
        ({"transformers": "4.31.0", "torch": "2.0.1"}, "adamw_torch_fused"),  # its own loop
        ({"transformers": "4.32.1", "torch": "2.0.1"}, "adamw_torch"),
        ({"transformers": "4.53.3", "torch": "2.8.0"}, "adamw_torch"),
        ({"transformers": "4.54.0", "torch": "2.8.0"}, "adamw_torch_fused"),
        ({"transformers": "5.2.0", "torch": "2.7.1"}, "adamw_torch"),
        ({"transformers": "4.41.0", "trainer": "litgpt"}, "adamw_torch_fused"),
        (None, "adamw_torch_fused"),
    ],
)
def test_the_trainers_optimizer_is_that_of_its_release(
    build: Any, software: Any, optimizer: str
) -> None:
    job = replace(build.job(), software=find_software(software))
    stated = {"micro_batch_size": 4, "gradient_accumulation_steps": 2}
    assert complete_config(stated, job, job.offers[0]).optimizer == optimizer


def test_classes_that_never_had_torchs_attention_are_listed_once() -> None:
    assert not NO_SDPA & SDPA_FROM.keys()
    assert not SDPA_FROM_FIRST & (NO_SDPA | SDPA_FROM.keys())


@pytest.mark.parametrize(
    ("device", "precision", "compiled"),
    [("p100", "fp16", False), ("v100", "fp16", True), ("t4", "fp16", True), ("cpu", "fp32", True)],
)
def test_compiling_needs_a_device_that_triton_compiles_for(
    build: Any, device: str, precision: str, *, compiled: bool
) -> None:
    offer = build.sold(device)
    base: Any = "32bit" if device == "cpu" else "nf4"
    job = build.job(offer, method=lora(base))
    own = config(precision=precision, compile="default", pin_memory=device != "cpu")
    found = [reason for reason in violations(job, offer, own) if "torch.compile needs" in reason]
    assert (not found) == compiled
