"""Exports and given-back files in the parsers of trainers that the test environment lacks.

Each is a process of the Python that `make parsers` puts beside this checkout; skipped without it.
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
from autotune.trainers.own_file.patch import patch
from bench.corpus.returned import Parser, python_of

if TYPE_CHECKING:
    from collections.abc import Iterator

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


@pytest.fixture
def parser(request: pytest.FixtureRequest) -> Iterator[Parser]:
    """The process of a trainer's own parser."""
    python = python_of(request.param)
    if python is None:
        pytest.skip(f"the parser of {request.param} is not here: `make parsers` builds it")
    with Parser(request.param, python) as started:
        yield started


@pytest.mark.parametrize("parser", ["axolotl"], indirect=True)
def test_axolotl_validates_what_is_written_for_it(parser: Parser) -> None:
    @MANY
    @given(base=BASES, sharding=SHARDINGS, knobs=CONFIGS)
    def check(base: str, sharding: str, knobs: dict[str, Any]) -> None:
        texts = [exported("axolotl", base, sharding, knobs)]
        texts.append(given_back("axolotl.yml", knobs, (5, 20, 1)))
        for text in texts:
            assert text is None or parser.refusal(loaded(text)) == ""

    check()


@pytest.mark.parametrize("parser", ["llamafactory"], indirect=True)
def test_llamafactory_parses_what_is_written_for_it(parser: Parser) -> None:
    @MANY
    @given(base=BASES, sharding=SHARDINGS, knobs=CONFIGS)
    def check(base: str, sharding: str, knobs: dict[str, Any]) -> None:
        texts = [exported("llamafactory", base, sharding, knobs)]
        texts.append(given_back("llamafactory.yaml", knobs, (5, 6, 0)))
        for text in texts:
            if text is not None:
                values = loaded(text)
                values.pop("warmup_ratio", None)  # of its own transformers
                assert parser.refusal(values) == ""

    check()


@pytest.mark.parametrize("parser", ["litgpt"], indirect=True)
def test_litgpt_parses_what_is_written_for_it(parser: Parser) -> None:
    @settings(max_examples=25, deadline=None)
    @given(base=BASES, knobs=CONFIGS)
    def check(base: str, knobs: dict[str, Any]) -> None:
        text = exported("litgpt", base, "none", knobs)
        if text is not None:
            assert parser.refusal(loaded(text)) == ""

    assert parser.refusal(loaded((FOLDER / "litgpt.yaml").read_text())) == ""
    check()


@pytest.mark.parametrize("parser", ["torchtune"], indirect=True)
def test_torchtune_builds_what_is_given_back(parser: Parser) -> None:
    @settings(max_examples=25, deadline=None)
    @given(knobs=CONFIGS)
    def check(knobs: dict[str, Any]) -> None:
        assert parser.refusal(loaded(given_back("torchtune.yaml", knobs, (5, 20, 1)))) == ""

    check()


@pytest.mark.parametrize(
    "parser", ["axolotl", "llamafactory", "litgpt", "trl", "hf"], indirect=True
)
def test_a_key_with_a_slip_in_it_is_refused(parser: Parser) -> None:
    own = {"axolotl": "axolotl.yml", "llamafactory": "llamafactory.yaml", "litgpt": "litgpt.yaml"}
    name = own.get(parser.trainer)
    values = loaded((FOLDER / name).read_text()) if name else {}
    values.pop("warmup_ratio", None)
    assert parser.refusal(values) == ""
    assert "micro_bach" in parser.refusal({**values, "micro_bach": 1})
