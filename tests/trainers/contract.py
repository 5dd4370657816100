"""What every trainer has to hold: a suite that a registered trainer gets for free.

A test class that inherits from `TrainerContract`, beside a fixture `trainer`, runs it. A trainer's
own files are those of `own/`, and what it exports itself.
"""

from __future__ import annotations

import difflib
import json
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pytest
from exportcases import FULL, LORA, config, evaluation, job, offer, values_of, with_base
from fuzzing import damaged_mappings
from hypothesis import HealthCheck, given, settings
from ownfiles import FILES, FOLDER
from ruamel.yaml import YAML

from autotune.app.runs.export import export
from autotune.domain.config import KNOBS, Config
from autotune.domain.errors import InputError
from autotune.domain.job import Origin
from autotune.domain.outcome import DiskUse
from autotune.trainers.contract import GONE, Plan, Target
from autotune.trainers.own_file.patch import patch
from autotune.trainers.registry import TRAINERS, detect
from autotune.trainers.schema import schema_of
from autotune.trainers.syntax.command_line import parse_command
from autotune.trainers.syntax.python_source import parse_script
from autotune.trainers.syntax.shell_script import parse_shell
from autotune.trainers.versions import show

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.domain.job import Method
    from autotune.trainers.contract import Export, Trainer
    from autotune.trainers.own_file.patch import Patched
    from autotune.trainers.parsed import Parsed
    from autotune.trainers.schema import Schema

MLP = ("q_proj", "v_proj", "gate_proj", "up_proj", "down_proj")
METHODS = {
    "lora": replace(LORA, targets=MLP), "nf4": replace(LORA, base="nf4", targets=("q_proj",)),
    "full": FULL,
}  # fmt: skip
SYNTAX = {"json": "json", "yml": "yaml", "yaml": "yaml", "py": "python", "sh": "shell"}
QUIET = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture,
         HealthCheck.differing_executors]  # fmt: skip
PLAIN = config()
SPLIT = ("micro_batch_size", "gradient_accumulation_steps")
MODELESS = {"torchtune"}  # its torch.compile is on or off
OFFLOADS_WITH: dict[Any, dict[str, Any]] = {
    "optimizer": {"sharding": "zero2"}, "all": {"sharding": "fsdp"},
    "activations": {"activation_checkpointing": "full"},
}  # fmt: skip


@dataclass(frozen=True)
class Source:
    """A file of a trainer, as its user has it."""

    trainer: Trainer
    name: str
    syntax: str
    text: str

    def values(self, text: str | None = None) -> dict[str, Any]:
        """The mapping that it is, or that a changed text is."""
        return deepcopy(parsed(self.syntax, self.name, self.text if text is None else text))

    def read(self, text: str | None = None) -> Parsed:
        """What it means."""
        return self.trainer.read(self.values(text), self.name)

    def patched(self, wanted: Config, version: tuple[int, ...] = (5, 23)) -> Patched:
        """The file with that config in it."""
        origin = Origin(self.trainer.name, self.syntax, self.name, self.text)
        return patch(origin, self.values(), self.read(), wanted, version, 1)

    def inside(self, dotted: str) -> list[str]:
        """The keys of a mapping of the file."""
        found: Any = self.values()
        for part in dotted.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        return list(found) if isinstance(found, dict) else []

    def config(self, **changes: Any) -> Config:
        """What it means as a whole config, with changes."""
        knobs = {"checkpoint_every_steps": 500, "precision": "bf16", **self.read().meaning}
        return Config(**{**knobs, **changes})


@lru_cache(4096)
def parsed(syntax: str, name: str, text: str) -> dict[str, Any]:
    """The mapping that a text is: most tests ask for that of the same few files."""
    if syntax == "python":
        return parse_script(text, name).values
    if syntax == "shell":
        return parse_shell(text, name).values
    if syntax == "args":
        return parse_command(text).values
    found: dict[str, Any] = YAML(typ="safe", pure=True).load(text)
    return found


def exported(trainer: Trainer, **knobs: Any) -> Export:
    """A small job of LoRA, written from nothing."""
    return export(trainer.name, job(METHODS["lora"]), offer(), config(**knobs))


@lru_cache
def sources(trainer: Trainer) -> tuple[Source, ...]:
    """Files of the trainer's users, and one that it exports."""
    found = [
        Source(trainer, name, syntax, (FOLDER / name).read_text(encoding="utf-8"))
        for name, (whose, syntax) in FILES.items()
        if whose == trainer.name
    ]
    if trainer.file:
        syntax = SYNTAX[trainer.file.rpartition(".")[2]]
        found.append(Source(trainer, trainer.file, syntax, exported(trainer).files[trainer.file]))
    return tuple(found)


def flat(values: dict[str, Any], schema: Schema, above: str = "") -> Iterator[tuple[str, Any]]:
    """Every key, those inside a mapping as well where the schema lists them."""
    for key, value in values.items():
        name = above + key
        yield name, value
        if isinstance(value, dict) and any(known.startswith(f"{name}.") for known in schema.keys):
            yield from flat(value, schema, f"{name}.")


def choices(knob: str) -> tuple[Any, ...]:
    return (True, False) if knob == "pin_memory" else KNOBS[knob].choices or (1, 2, 4, 8)


def case(knob: str, value: Any) -> tuple[Config, int, Method]:
    """A config of the job with that knob, on as many devices as it needs."""
    beside = needed(knob, value)
    several = (knob == "sharding" and value != "none") or "sharding" in beside
    count = 2 if several else 1
    method = with_base(LORA, "32bit") if value in {"fp32", "tf32"} else METHODS["nf4"]
    split = {"micro_batch_size": 4, "gradient_accumulation_steps": 2 // count}
    if knob in split:
        split = {"micro_batch_size": 8 // value, "gradient_accumulation_steps": 8 // value}
        split[knob] = value
    return PLAIN.with_knobs(**{**split, **beside, knob: value}), count, method


def needed(knob: str, value: Any) -> dict[str, Any]:
    """The knobs without which that one means nothing."""
    if knob == "offload":
        return OFFLOADS_WITH.get(value, {})
    if knob in {"prefetch_factor", "pin_memory"}:
        return {"num_dataloader_workers": 2}
    return {"compile": "default"} if knob == "compile_scope" else {}


def written_beside(knob: str, value: object, rest: str) -> bool:
    """Whether a script, the launcher's file or DeepSpeed's says it."""
    if knob == "attention":
        return f'ATTENTION = "{value}"' in rest
    if knob == "adapter_dtype":
        return f'ADAPTER_DTYPE = "{"float32" if value == "fp32" else "bfloat16"}"' in rest
    if knob == "compile_scope":
        return value == "regional" and "dynamo_use_regional_compilation: true" in rest
    if knob == "offload":
        said = {
            "optimizer": ('offload_optimizer_device: "cpu"', '"offload_optimizer"'),
            "all": ("fsdp_offload_params: true",),
        }
        return any(text in rest for text in said.get(str(value), ()))
    if knob == "sharding":
        words = {
            "none": "", "ddp": "CUDA_VISIBLE_DEVICES:-0,1", "fsdp": "FSDP",
            "zero2": '"stage": 2', "zero3": '"stage": 3',
        }  # fmt: skip
        return words[str(value)] in rest or f"zero_stage: {str(value)[-1]}" in rest
    return False


def said_otherwise(knob: str, value: Any, values: dict[str, Any], said: str) -> bool:
    """Whether keys of another name say it, or a note does."""
    spoken = isinstance(value, str) and value.replace("_", " ") in said
    return (
        knob in said
        or spoken
        or (value == "fp32" and values["bf16"] is values["fp16"] is values["tf32"] is False)
        or (value == "tf32" and values["tf32"] is True)
        or (knob == "adapter_dtype" and values.get("pure_bf16") is True)
        or (knob, value) in {("compile_scope", "model"), ("attention", "sdpa")}  # each does unasked
        or (knob == "compile_scope" and "cannot say compile" in said)
    )


def only_these_lines(source: Source, found: Patched) -> bool:
    """Whether each line that differs holds a changed key, or lost its end to a new one."""
    words = {part for key in found.changes for part in key.split(".")}
    words |= {word for key in found.changes for word in source.inside(key)}
    lines = difflib.unified_diff(source.text.splitlines(), found.text.splitlines(), n=0)
    differing = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
    bare = [line[1:].rstrip(" ,\\)}") for line in differing]
    return all(
        any(word in line for word in words)
        or line.strip(" })],\\") == ""
        or sum(other.startswith(line) for other in bare) > 1
        for line in bare
    )


class TrainerContract:
    """What holds for every trainer; a fixture `trainer` says which."""

    def test_its_facts_are_stated(self, trainer: Trainer) -> None:
        assert TRAINERS[trainer.name] is trainer
        assert trainer.title
        assert trainer.known[0] <= trainer.known[1]
        schema = schema_of(trainer.name)
        assert len(schema.keys) > 30
        assert {key for key in trainer.own_keys if schema.find(key) is None} == set()
        assert set(trainer.runs_on) <= set(schema.runs_on)
        others = [each for each in TRAINERS.values() if each is not trainer]
        assert not any(trainer.own_keys & each.own_keys for each in others)

    def test_its_files_are_taken_for_its_own(self, trainer: Trainer) -> None:
        found = sources(trainer)
        assert found
        for source in found:
            if source.syntax == "python":
                assert parse_script(source.text, source.name).trainer == trainer.name
            else:
                assert detect(source.values(), source.name) is trainer, source.name

    def test_it_is_started_by_a_command_that_names_its_file(self, trainer: Trainer) -> None:
        for method in (LORA, FULL):
            for count, sharding in ((1, "none"), (2, "ddp"), (2, "fsdp")):
                knobs = config(sharding=sharding, gradient_accumulation_steps=2 // count)
                plan = Plan(
                    job=job(method), offer=offer(count), config=knobs, torch=(2, 13),
                    transformers=(5, 23), trl=(1, 16), disk=DiskUse(), risk="", out_dir="o",
                )  # fmt: skip
                *_, last = trainer.commands(plan, '"$here"/own/file')
                assert '"$here"/own/file' in last

    def test_a_file_without_export_or_an_export_that_is_complete(self, trainer: Trainer) -> None:
        if not trainer.file:
            with pytest.raises(InputError, match="read and given back, but not written"):
                exported(trainer)
            return
        made = exported(trainer)
        assert {trainer.file, "run.sh"} <= set(made.files)
        assert trainer.name not in made.files
        assert all(text.endswith("\n") for text in made.files.values())
        commands = made.files["run.sh"]
        assert trainer.file in commands
        assert any("learning" in note for note in made.notes)

    @pytest.mark.parametrize("method", METHODS)
    def test_every_key_that_it_exports_is_one_of_its_oldest_and_newest_version(
        self, trainer: Trainer, method: str
    ) -> None:
        if not trainer.file or trainer.file.endswith(".py"):  # calls are held against their classes
            return
        schema = schema_of(trainer.name)
        for version in trainer.known:
            for knobs in (
                config(length_grouping="on", compile="default", num_dataloader_workers=2),
                config(activation_checkpointing="full", optimizer="paged_adamw_8bit"),
            ):
                what = job(METHODS[method], evaluation=evaluation(), padding="max_length")
                made = export(f"{trainer.name}@{show(version)}", what, offer(), knobs)
                for key, value in flat(values_of(trainer.name, made), schema):
                    found = schema.find(key)
                    assert found is not None, key
                    assert found.admits(value), (key, value)

    @pytest.mark.parametrize("knob", KNOBS)
    def test_each_value_of_each_knob_is_exported_or_its_absence_said(
        self, trainer: Trainer, knob: str
    ) -> None:
        """What is read back is the value, or a note names the knob or the value."""
        for value in choices(knob) if trainer.file else ():
            knobs, count, method = case(knob, value)
            what = job(method, offers=(offer(count),))
            try:
                made = export(trainer.name, what, offer(count), knobs)
            except InputError:
                continue  # refused with a reason
            values = values_of(trainer.name, made)
            meaning = trainer.read(values, trainer.name).meaning
            rest = " ".join(text for name, text in made.files.items() if name != trainer.file)
            assert (
                meaning.get(knob) == value
                or written_beside(knob, value, rest)
                or said_otherwise(knob, value, values, " ".join(made.notes).casefold())
            ), (value, made.notes)

    @pytest.mark.parametrize("knob", KNOBS)
    def test_a_knob_is_spelled_in_its_keys_or_the_reason_said(
        self, trainer: Trainer, knob: str
    ) -> None:
        schema = schema_of(trainer.name)
        for source in sources(trainer):
            for value in choices(knob):
                target = Target(source.values(), case(knob, value)[0], (5, 20), source.syntax, 1)
                spelled = trainer.spell(knob, value, target)
                if isinstance(spelled, str):
                    assert len(spelled.split()) > 2
                    continue
                for key, written in spelled.items():
                    found = schema.find(key)
                    known = found is not None or key == "attn_implementation"  # of from_pretrained
                    assert known or target.has(key), key
                    listed = schema.keys.get(key)
                    if listed is not None and not (written is GONE or isinstance(written, str)):
                        assert listed.admits(written), (key, written)

    def test_a_file_that_says_it_already_comes_back_byte_for_byte(self, trainer: Trainer) -> None:
        for source in sources(trainer):
            wanted = source.config()
            stated = {k: v for k, v in source.read().meaning.items() if k in KNOBS}
            found = source.patched(wanted.with_knobs(**stated))
            kept = {"bf16", "save_total_limit", "save_strategy", "save_steps", "dtype"}
            kept |= {"num_processes", "multi_gpu"}  # it is started on one device here
            assert {key.split(".")[-1] for key in found.changes} <= kept
            if not found.changes:
                assert (found.text, found.diff) == (source.text, "")

    @pytest.mark.parametrize("knob", KNOBS)
    def test_a_changed_knob_is_read_back_and_every_other_byte_stays(
        self, trainer: Trainer, knob: str
    ) -> None:
        for source in sources(trainer):
            made, split = source.read(), source.read().batch_on(1)
            for value in choices(knob):
                knobs: dict[str, Any] = {**needed(knob, value), knob: value}
                if knob in SPLIT and split % value:
                    continue
                if knob in SPLIT:
                    knobs = {**dict.fromkeys(SPLIT, split // value), knob: value}
                found = source.patched(source.config(**knobs))
                assert only_these_lines(source, found), found.diff
                told = " ".join(found.notes)
                unsaid = f"{knob} {json.dumps(value)}".replace('"', "") in told
                if not found.changes or unsaid or knob in made.kept:
                    continue
                again = source.read(found.text).meaning.get(knob, value)
                if trainer.name in MODELESS and knob == "compile":
                    again, value = again != "off", value != "off"  # noqa: PLW2901
                assert again == value, found.diff

    def test_an_unknown_key_is_named_and_a_misspelt_one_with_what_it_means(
        self, trainer: Trainer
    ) -> None:
        schema = schema_of(trainer.name)
        typo = next(key[:-2] + key[-1] for key in schema.keys if "." not in key and len(key) > 12)
        values = {**sources(trainer)[-1].values(), "no_such_word_anywhere": 1, typo: 1}
        parsed = trainer.read(values, "file.yaml")
        said = {note.key: note.value for note in parsed.notes}
        first = {each.key for each in parsed.uncounted}  # of a program of people's own
        assert "file.yaml: no_such_word_anywhere" in said or "no_such_word_anywhere" in first
        assert said[f"file.yaml: {typo}"].endswith("?")

    def test_a_hostile_value_is_read_or_refused_by_name(self, trainer: Trainer) -> None:
        for source in sources(trainer):

            @settings(max_examples=100, deadline=None, suppress_health_check=QUIET)
            @given(values=damaged_mappings(source.values()))
            def check(values: dict[str, Any]) -> None:
                refused = ""
                try:
                    trainer.read(values, "file.yaml")
                except InputError as error:
                    refused = error.message
                assert not refused or "file.yaml" in refused

            check()
