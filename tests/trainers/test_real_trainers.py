"""Exports and given-back files in the parsers of trainers that the test environment lacks.

Skipped where a trainer cannot be imported. Its parser needs no GPU and little else, so an unpacked
wheel on PYTHONPATH will do: axolotl with pillow and addict, llamafactory with omegaconf (and
DISABLE_VERSION_CHECK=1), litgpt with lightning and jsonargparse.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from exportcases import FULL, LORA, config, job, offer, with_base
from hypothesis import given, settings
from hypothesis import strategies as st
from ownfiles import FOLDER, origin, read
from ruamel.yaml import YAML
from test_own_files import CONFIGS, SPLITS

from autotune.app.runs.export import export
from autotune.domain.config import Config
from autotune.domain.errors import InputError
from autotune.trainers.patch import patch

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow
MANY = settings(max_examples=100, deadline=None)
BASES = st.sampled_from(["16bit", "nf4", "int8", "full"])
SHARDINGS = st.sampled_from(["none", "ddp", "fsdp", "zero2", "zero3"])


def exported(target: str, base: str, sharding: str, knobs: dict[str, Any]) -> str | None:
    """The file of an export; None where the format has no words for it."""
    method = FULL if base == "full" else with_base(LORA, base)
    if target == "litgpt" and method.is_lora:
        method = replace(method, targets=("q_proj", "v_proj"))
    count = 1 if sharding == "none" else 2
    chosen = config(**{**knobs, "sharding": sharding, "gradient_accumulation_steps": 2 // count})
    try:
        files = export(target, job(method, offers=(offer(count),)), offer(count), chosen).files
    except InputError:
        return None
    return next(text for name, text in files.items() if name.startswith(target))


def given_back(name: str, knobs: dict[str, Any], version: tuple[int, ...]) -> str:
    made, values = read(name)
    micro = int(made.meaning["micro_batch_size"])
    chosen = Config(
        micro_batch_size=micro, gradient_accumulation_steps=SPLITS[name] // micro, **knobs
    )
    return patch(origin(name), values, made, chosen, version, 1).text


def loaded(text: str) -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe", pure=True).load(text)
    return {key: value for key, value in found.items() if value is not None}


def test_axolotl_validates_what_is_written_for_it() -> None:
    schema = pytest.importorskip("axolotl.utils.schemas.config").AxolotlInputConfig

    @MANY
    @given(base=BASES, sharding=SHARDINGS, knobs=CONFIGS)
    def check(base: str, sharding: str, knobs: dict[str, Any]) -> None:
        texts = [exported("axolotl", base, sharding, knobs)]
        texts.append(given_back("axolotl.yml", knobs, (5, 20, 1)))
        for text in texts:
            if text is not None:
                values = loaded(text)
                found = schema(**values)
                assert found.micro_batch_size == values["micro_batch_size"]
                known = {*schema.model_fields, "model_type"}
                assert set(values) <= known

    check()


def test_llamafactory_parses_what_is_written_for_it() -> None:
    hparams = pytest.importorskip("llamafactory.hparams")
    transformers = pytest.importorskip("transformers")
    parser = transformers.HfArgumentParser(
        [hparams.ModelArguments, hparams.DataArguments, hparams.TrainingArguments,
         hparams.FinetuningArguments, hparams.GeneratingArguments]
    )  # fmt: skip

    @MANY
    @given(base=BASES, sharding=SHARDINGS, knobs=CONFIGS)
    def check(base: str, sharding: str, knobs: dict[str, Any]) -> None:
        texts = [exported("llamafactory", base, sharding, knobs)]
        texts.append(given_back("llamafactory.yaml", knobs, (5, 6, 0)))
        for text in texts:
            if text is not None:
                values = {**loaded(text), "use_cpu": True}
                for key in ("deepspeed", "warmup_ratio"):  # a file; of its own transformers
                    values.pop(key, None)
                _, data, arguments, *_ = parser.parse_dict(values)
                packed = bool(values.get("packing"))  # a packed row keeps one token free
                assert data.cutoff_len + packed == values["cutoff_len"]
                assert arguments.save_steps == values["save_steps"]

    check()


def test_litgpt_parses_what_is_written_for_it(tmp_path: Path) -> None:
    jsonargparse = pytest.importorskip("jsonargparse")
    lora = pytest.importorskip("litgpt.finetune.lora")
    full = pytest.importorskip("litgpt.finetune.full")
    path = tmp_path / "litgpt.yaml"

    def parsed(text: str, setup: Any) -> Any:
        path.write_text(text, encoding="utf-8")
        parser = jsonargparse.ArgumentParser()
        parser.add_argument("--config", action="config")
        parser.add_function_arguments(setup)
        return parser.parse_args(["--config", str(path)])

    assert parsed((FOLDER / "litgpt.yaml").read_text(), lora.setup).lora_r == 32

    @settings(max_examples=25, deadline=None)
    @given(base=BASES, knobs=CONFIGS)
    def check(base: str, knobs: dict[str, Any]) -> None:
        text = exported("litgpt", base, "none", knobs)
        if text is not None:
            found = parsed(text, full.setup if base == "full" else lora.setup)
            assert (found.train.micro_batch_size, found.train.global_batch_size) == (4, 8)

    check()
