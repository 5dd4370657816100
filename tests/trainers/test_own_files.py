from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ownfiles import FILES, origin, read

from autotune.domain.config import KNOBS, Config
from autotune.trainers.own_file.patch import Patched, patch

# What each file says, read off by eye.
SAYS: dict[str, tuple[int, int, dict[str, Any], dict[str, Any], int | None]] = {
    "training_args.json": (4, 4, {"epochs": 3.0}, {}, None),
    "sft_config.yaml": (2, 8, {"epochs": 1.0}, {"rank": 16, "alpha": 32.0}, 2048),
    "sft_script.txt": (2, 8, {"epochs": 3.0}, {"rank": 16, "alpha": 32.0, "dropout": 0.05}, 1024),
    "launch.sh": (4, 2, {"epochs": 3.0}, {"rank": 16, "alpha": 32.0}, 1024),
    "axolotl.yml": (2, 4, {"epochs": 4.0}, {"rank": 32, "alpha": 16.0, "dropout": 0.05}, 2048),
    "axolotl_2024.yml": (2, 4, {"epochs": 1.0}, {"rank": 32, "alpha": 16.0, "base": "nf4"}, 8192),
    "llamafactory.yaml": (1, 8, {"epochs": 3.0}, {"rank": 8, "alpha": 16.0}, 2048),
    "unsloth_script.txt": (2, 4, {"steps": 60}, {"rank": 16, "alpha": 16.0, "base": "nf4"}, 2048),
    "torchtune.yaml": (2, 8, {"epochs": 1.0}, {"rank": 8, "alpha": 16.0}, 1024),
    "litgpt.yaml": (1, 8, {"epochs": 2.0}, {"rank": 32, "alpha": 16.0, "dropout": 0.05}, 512),
    "swift.sh": (2, 4, {"epochs": 2.0}, {"rank": 16, "alpha": 32.0, "base": "nf4"}, 4096),
}
KNOBS_SAID: dict[str, dict[str, Any]] = {
    "training_args.json": {"precision": "fp16", "num_dataloader_workers": 2, "prefetch_factor": 4},
    "sft_config.yaml": {
        "precision": "bf16", "packing": "on", "activation_checkpointing": "full",
        "checkpoint_every_steps": 100,
    },
    "sft_script.txt": {"attention": "sdpa", "activation_checkpointing": "full"},
    "launch.sh": {"precision": "bf16", "activation_checkpointing": "full"},
    "axolotl.yml": {
        "attention": "flash_attention_2", "optimizer": "adamw_bnb_8bit", "packing": "off",
        "activation_checkpointing": "full",
    },
    "axolotl_2024.yml": {"packing": "on", "attention": "flash_attention_2"},
    "llamafactory.yaml": {"precision": "bf16", "checkpoint_every_steps": 500},
    "unsloth_script.txt": {"optimizer": "adamw_bnb_8bit"},
    "torchtune.yaml": {"precision": "bf16", "compile": "off", "packing": "off"},
    "litgpt.yaml": {"num_dataloader_workers": 4, "checkpoint_every_steps": 200},
    "swift.sh": {"attention": "flash_attention_2", "sharding": "zero2", "packing": "off"},
}  # fmt: skip


def whole_config(name: str, **changes: object) -> Config:
    made, _ = read(name)
    knobs = {"checkpoint_every_steps": 500, "precision": "bf16", **made.meaning, **changes}
    return Config(**knobs)  # type: ignore[arg-type]


def given_back(name: str, config: Config, version: tuple[int, ...] = (5, 23)) -> Patched:
    made, values = read(name)
    return patch(origin(name), values, made, config, version, 1)


def removed(diff: str) -> list[str]:
    return [line[1:].strip() for line in diff.splitlines()[2:] if line.startswith("-")]


def added(diff: str) -> list[str]:
    return [line[1:].strip().rstrip(",") for line in diff.splitlines()[2:] if line[0] == "+"]


@pytest.mark.parametrize("name", FILES)
def test_what_the_file_says_is_the_job(name: str) -> None:
    micro, accumulation, train, method, length = SAYS[name]
    made, _ = read(name)
    assert made.meaning["micro_batch_size"] == micro
    assert made.meaning["gradient_accumulation_steps"] == accumulation
    assert made.values["train"] == train
    assert {key: made.values.get("method", {}).get(key) for key in method} == method
    assert made.values.get("data", {}).get("max_length") == length
    assert {key: made.meaning[key] for key in KNOBS_SAID[name]} == KNOBS_SAID[name]


@pytest.mark.parametrize(
    ("name", "gone", "new"),
    [
        ("training_args.json",
         ['"output_dir": "out", "per_device_train_batch_size": 4,',
          '"gradient_accumulation_steps": 4,'],
         ['"output_dir": "out", "per_device_train_batch_size": 8',
          '"gradient_accumulation_steps": 2']),
        ("sft_config.yaml",
         ["per_device_train_batch_size: 2", "gradient_accumulation_steps: 8"],
         ["per_device_train_batch_size: 4", "gradient_accumulation_steps: 4"]),
        ("sft_script.txt",
         ["per_device_train_batch_size=BATCH,", "gradient_accumulation_steps=8,  # 16 rows"],
         ["per_device_train_batch_size=4", "gradient_accumulation_steps=4,  # 16 rows"]),
        ("axolotl.yml",
         ["gradient_accumulation_steps: 4", "micro_batch_size: 2"],
         ["gradient_accumulation_steps: 2", "micro_batch_size: 4"]),
        ("llamafactory.yaml",
         ["per_device_train_batch_size: 1", "gradient_accumulation_steps: 8"],
         ["per_device_train_batch_size: 2", "gradient_accumulation_steps: 4"]),
        ("torchtune.yaml",
         ["batch_size: 2", "gradient_accumulation_steps: 8"],
         ["batch_size: 4", "gradient_accumulation_steps: 4"]),
        ("litgpt.yaml", ["micro_batch_size: 1"], ["micro_batch_size: 2"]),
        ("axolotl_2024.yml",
         ["micro_batch_size: 2", "gradient_accumulation_steps: 4"],
         ["micro_batch_size: 4", "gradient_accumulation_steps: 2"]),
        ("launch.sh",
         ["--per_device_train_batch_size 4 --gradient_accumulation_steps=2 \\"],
         ["--per_device_train_batch_size 8 --gradient_accumulation_steps=1 \\"]),
        ("unsloth_script.txt",
         ["per_device_train_batch_size = 2,", "gradient_accumulation_steps = 4,"],
         ["per_device_train_batch_size = 4", "gradient_accumulation_steps = 2"]),
    ],
)  # fmt: skip
def test_another_split_changes_those_lines_and_no_other(
    name: str, gone: list[str], new: list[str]
) -> None:
    made, _ = read(name)
    micro = int(made.meaning["micro_batch_size"])
    steps = int(made.meaning["gradient_accumulation_steps"])
    config = whole_config(
        name, micro_batch_size=micro * 2, gradient_accumulation_steps=steps // 2,
    )  # fmt: skip
    diff = given_back(name, config).diff
    batch = [line for line in removed(diff) if "batch" in line or "accumulation" in line]
    assert batch == gone
    assert [line for line in added(diff) if "batch" in line or "accumulation" in line] == new


SPLITS = {name: SAYS[name][0] * SAYS[name][1] for name in FILES}
CONFIGS = st.fixed_dictionaries({
    "num_dataloader_workers": st.sampled_from([0, 1, 4]),
    "prefetch_factor": st.just(2),
    "pin_memory": st.booleans(),
    "checkpoint_every_steps": st.integers(1, 5000),
    "save_total_limit": st.integers(1, 9),
    "compile": st.sampled_from(KNOBS["compile"].choices),
    "precision": st.sampled_from(["bf16", "fp16"]),
    "activation_checkpointing": st.sampled_from(["none", "full"]),
    "attention": st.sampled_from(KNOBS["attention"].choices),
    "optimizer": st.sampled_from(KNOBS["optimizer"].choices),
    "packing": st.sampled_from(["off", "on"]),
    "length_grouping": st.sampled_from(["off", "on"]),
})  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(FILES)),
    knobs=CONFIGS,
    divisor=st.integers(0, 3),
    version=st.sampled_from([(4, 57), (5, 2), (5, 20), (5, 23)]),
)
def test_in_out_in_is_the_same_job_and_the_wanted_config(
    name: str, knobs: dict[str, Any], divisor: int, version: tuple[int, ...]
) -> None:
    made, values = read(name)
    micro = 2**divisor if SPLITS[name] % 2**divisor == 0 else 1
    config = Config(
        micro_batch_size=micro, gradient_accumulation_steps=SPLITS[name] // micro, **knobs,
    )  # fmt: skip
    found = patch(origin(name), values, made, config, version, 1)
    again, _ = read(name, found.text)
    assert again.batch_on(1) == made.batch_on(1)
    for part in ("model", "method", "train", "data", "evaluation"):
        assert again.values.get(part) == made.values.get(part)
    unsaid = " ".join(found.notes)
    for knob in KNOBS:
        wanted = getattr(config, knob)
        if (
            knob in {"sharding", "adapter_dtype"}
            or f"{knob} {json.dumps(wanted)}".replace('"', "") in unsaid
        ):
            continue
        if knob == "compile" and made.trainer == "torchtune":  # it has no modes
            wanted = "off" if wanted == "off" else "default"
        if knob in again.meaning and knob not in made.kept:
            assert again.meaning[knob] == wanted, (knob, found.diff)
    twice = patch(origin(name, found.text), read(name, found.text)[1], again, config, version, 1)
    assert twice.text == found.text  # writing what is already said changes nothing


def test_comments_and_order_of_everything_else_stay() -> None:
    text = origin("axolotl.yml").text
    config = whole_config("axolotl.yml", optimizer="adamw_torch_fused", compile="default")
    found = given_back("axolotl.yml", config.with_knobs(attention="sdpa"))
    gone = set(removed(found.diff))
    kept = [line for line in text.splitlines() if line.strip() not in gone]
    assert [line for line in found.text.splitlines() if line in kept] == kept


def test_checkpointing_takes_the_name_of_the_version_that_will_run() -> None:
    config = whole_config("training_args.json", activation_checkpointing="full")
    old = given_back("training_args.json", config, (5, 20))
    new = given_back("training_args.json", config, (5, 23))
    assert old.changes["gradient_checkpointing"] is True
    assert new.changes["activation_checkpointing"] is True


def test_length_grouping_takes_the_name_of_the_version_that_will_run() -> None:
    config = whole_config("training_args.json", length_grouping="on")
    assert given_back("training_args.json", config, (4, 57)).changes["group_by_length"] is True
    found = given_back("training_args.json", config, (5, 2)).changes
    assert found["train_sampling_strategy"] == "group_by_length"


def test_no_workers_take_the_prefetch_factor_out() -> None:
    config = whole_config("training_args.json", num_dataloader_workers=0)
    diff = given_back("training_args.json", config).diff
    assert "dataloader_prefetch_factor" not in "".join(added(diff))


def test_what_the_format_cannot_say_is_said() -> None:
    config = whole_config("litgpt.yaml", attention="flash_attention_2", packing="on")
    notes = " ".join(given_back("litgpt.yaml", config).notes)
    assert "cannot say attention flash_attention_2" in notes
    assert "cannot say packing on" in notes


def test_a_key_takes_the_place_of_the_one_that_it_replaces() -> None:
    config = whole_config("axolotl.yml", checkpoint_every_steps=250, attention="sdpa")
    lines = given_back("axolotl.yml", config).text.splitlines()
    before = origin("axolotl.yml").text.splitlines()
    assert lines.index("save_steps: 250") == before.index("saves_per_epoch: 1")
    assert lines.index("attn_implementation: sdpa") == before.index("flash_attention: true")


def test_quotes_capitals_comments_and_indents_stay_as_the_user_typed_them() -> None:
    text = origin("axolotl.yml").text
    text = text.replace("optimizer: adamw_bnb_8bit", "optimizer: 'adamw_bnb_8bit'   # small")
    text = text.replace("gradient_checkpointing: true", "gradient_checkpointing:   True")
    made, values = read("axolotl.yml", text)
    config = whole_config(
        "axolotl.yml", optimizer="adamw_torch_fused", activation_checkpointing="none"
    )
    found = patch(origin("axolotl.yml", text), values, made, config, (5, 23), 1)
    assert "\noptimizer: 'adamw_torch_fused'   # small\n" in found.text
    assert "\ngradient_checkpointing:   False\n" in found.text


def test_lines_that_end_as_on_windows_still_do() -> None:
    text = origin("axolotl.yml").text.replace("\n", "\r\n")
    made, values = read("axolotl.yml", text)
    config = whole_config("axolotl.yml", compile="default")
    found = patch(origin("axolotl.yml", text), values, made, config, (5, 23), 1)
    assert found.text.count("\n") == found.text.count("\r\n") > text.count("\n")
    assert "\r" not in found.diff
    plain = given_back("axolotl.yml", config)
    assert found.text == plain.text.replace("\n", "\r\n")
