"""A trainer's own file, read: the job it states, the config it runs, and what was not understood.

`Keys` hands out the values of a file one key at a time, checked, and remembers which were asked
for; what nobody asked for is listed to the user as left alone.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from autotune.domain.config import NO, YES
from autotune.domain.errors import InputError
from autotune.domain.job import Assumption, Beside
from autotune.domain.typed.values import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from autotune.domain.config import KnobValue
    from autotune.domain.job import Uncounted
    from autotune.domain.objective import Objective
    from autotune.trainers.versions import Version


_MOST = 10**12


@dataclass(slots=True)
class Parsed:
    """What a trainer's file says, in the words of a job file.

    `values` holds parts of a job file (model, method, data, train, evaluation); `knobs` what the
    file states; `defaults` what this trainer does where it states nothing. `kept` names knobs whose
    stated value has no counterpart here: they are never written back.
    """

    trainer: str
    values: dict[str, Any] = field(default_factory=dict)
    knobs: dict[str, KnobValue] = field(default_factory=dict)
    defaults: dict[str, KnobValue] = field(default_factory=dict)
    devices: int | None = None
    global_batch: int | None = None  # where the format states the total itself
    saves_per_epoch: float | None = None
    steps_an_epoch: int | None = None  # at most, though the rows may make more
    rows_at_most: int | None = None  # of each data set that the file names
    evaluations_per_epoch: float | None = None
    evaluated_rows: int | None = None  # at most, of those that are held out
    evaluation_rows: int = 0  # of a batch that the file does not size: its trainer's default
    loss: str = ""  # what it materialises, where the file states another than the trainer's own
    datasets: tuple[str, ...] = ()  # that the file names, by hub id or the trainer's own name
    peft_targets: bool = False  # the adapter's modules are left to PEFT, which goes by the model
    kept: set[str] = field(default_factory=set)
    told: set[str] = field(default_factory=set)  # knobs that the user states in its place
    asked: set[str] = field(default_factory=set)  # keys that decide something here
    hub_kernels: bool = False  # its attention is a kernel of the hub's, not a package's
    autocast: bool = False  # 16-bit compute on 32-bit weights, under a trainer that has both ways
    plain: bool = False  # 16-bit compute without autocast, under a trainer that has it
    steps_in_backward: bool = False  # no gradient is kept longer than its own step
    steps_by_config: bool = False  # DeepSpeed's config names an optimizer, and DeepSpeed makes it
    no_moments: bool = False  # its optimizer's states take next to nothing of the device
    fp32_products: bool = False  # 4-bit weights are multiplied in fp32
    saves_model_only: bool = False  # without states of the optimizer
    keeps_inputs: bool = False  # of checkpointed layers, under a trainer that moves them out
    loads_whole: bool = False  # onto each device, before ZeRO-3 shards it
    syncs_each_batch: bool = False  # gradients are reduced after every micro-step
    fused_adapters: bool = False  # adapters are one operation with their weights
    quantised_experts: bool = False  # those of one parameter too, with the base
    linear_experts: bool = False  # each matrix of an expert is a linear layer
    kbit_prepared: bool = False  # what a quantised base does not quantise becomes fp32
    saves_as_loaded: bool = False  # what trains whole keeps the dtype that it was loaded in
    reentrant: bool | None = None  # of activation checkpointing, where the file says
    mixed: bool = False  # the file asks for mixed precision
    base_dtype: str = ""  # bf16 or fp16, where the file says what it loads the weights in
    by_name: bool = False  # a script hands TRL the model's name, and TRL loads it
    upcasts: bool = False  # its trainer makes fp32 of every weight that is trained
    loads: bool = False  # the trainer's own words alone, model and all: it loads the weights
    silent: bool = False  # a script loads them without a word of their dtype: a release decides
    before: Version | None = None  # the last transformers that takes each argument it states
    # by package the newest release read that does not take each argument it states yet
    lacking: dict[str, str] = field(default_factory=dict)
    misspelt: dict[str, str] = field(default_factory=dict)  # unknown key -> the one it may mean
    notes: list[Assumption] = field(default_factory=list)
    beside: list[Beside] = field(default_factory=list)  # what completed it
    objective: Objective = "sft"  # what the file trains
    uncounted: list[Uncounted] = field(default_factory=list)  # of what decides time or memory

    @property
    def meaning(self) -> dict[str, KnobValue]:
        """Every knob that the file states or that its trainer has a default for."""
        return {**self.defaults, **self.knobs}

    def part(self, section: str, **stated: object) -> None:
        """Add what is stated (not None) to a section of the job."""
        found = {key: value for key, value in stated.items() if value is not None}
        if found:
            self.values.setdefault(section, {}).update(found)

    def note(self, key: str, value: object, why: str) -> None:
        """Say what was guessed, kept or left out."""
        self.notes.append(Assumption(key, str(value), why))

    def keep(self, knob: str, key: str, value: object, why: str) -> None:
        """A stated value that no knob has: it stays in the file, and is counted as `why` says."""
        self.kept.add(knob)
        self.note(key, f"{shown(value)}, left as it is", why)

    def batch_on(self, devices: int) -> int:
        """The global batch on that many devices, as the trainer forms it."""
        if self.global_batch is not None:
            return self.global_batch
        meaning = self.meaning
        split = int(meaning["micro_batch_size"]) * int(meaning["gradient_accumulation_steps"])
        return split * devices


class Keys:
    """The keys of one file; every getter takes all spellings of one setting."""

    def __init__(self, values: Mapping[str, Any], name: str) -> None:
        """Wrap a mapping; dotted names reach into the mappings inside it."""
        self.values = values
        self.name = name
        self._used: set[str] = set()

    def get(self, *names: str) -> Any:  # noqa: ANN401
        """The value of the first spelling that is stated. Raises InputError where two differ."""
        found = [(name, self.at(name)) for name in names]
        stated = [(name, value) for name, value in found if value is not None]
        self._used.update(names)
        if not stated:
            return None
        name, value = stated[0]
        for other, again in stated[1:]:
            if again != value:
                msg = f"{self.name}: {name} is {shown(value)}, but {other} is {shown(again)}"
                raise InputError(msg, "they are two spellings of one setting: keep one")
        return value

    def spelled(self, *names: str) -> str | None:
        """The spelling that the file uses, if it states the setting."""
        return next((name for name in names if self.at(name) is not None), None)

    def whole(self, *names: str, low: int = 0) -> int | None:
        """A whole number from `low` on."""
        value = self.get(*names)
        if value is None or value == "":
            return None
        number = _number(value)
        if number is None or number != int(number) or not low <= number <= _MOST:
            raise self._wrong(names, value, f"must be a whole number from {low} on")
        return int(number)

    def number(self, *names: str, low: float = 0.0) -> float | None:
        """A finite number from `low` on."""
        value = self.get(*names)
        if value is None or value == "":
            return None
        number = _number(value)
        if number is None or not low <= number <= _MOST:
            raise self._wrong(names, value, f"must be a number from {low:g} on")
        return number

    def switch(self, *names: str) -> bool | None:
        """True or false; `auto` is as if nothing were stated."""
        value = self.get(*names)
        if value is None or isinstance(value, bool):
            return value
        word = str(value).strip().casefold()
        if word in YES | NO:
            return word in YES
        if word in {"auto", ""}:
            return None
        raise self._wrong(names, value, "must be true or false")

    def word(self, *names: str) -> str | None:
        """Text; empty text is as if nothing were stated."""
        value = self.get(*names)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self._wrong(names, value, "must be text")
        return value.strip() or None

    def words(self, *names: str) -> list[str] | None:
        """A list of names, or one text with commas."""
        value = self.get(*names)
        if value is None:
            return None
        if isinstance(value, str):
            listed = re.fullmatch(r"\[(.*)\]", value.strip(), re.DOTALL)  # as Fire takes a list
            value = re.sub(r"[\"']", " ", listed[1]) if listed else value
        items = value.replace(",", " ").split() if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise self._wrong(names, value, "must be a list of names")
        return items or None

    def mapping(self, *names: str) -> dict[str, Any]:
        """A mapping; empty where nothing is stated."""
        value = self.get(*names)
        if value is None or value == "":
            return {}
        if not isinstance(value, dict):
            raise self._wrong(names, value, "must be a mapping of keys")
        return value

    def unused(self) -> list[str]:
        """Stated keys that nobody asked for; dotted, in a mapping of which others were read."""
        found = []
        for key, value in self.values.items():
            if key in self._used or value in ("", None):
                continue
            if not isinstance(value, dict) or not self._reads_inside(key):
                found.append(key)
                continue
            inner = (f"{key}.{name}" for name, held in value.items() if held not in ("", None))
            found += [n for n in inner if n not in self._used and not self._reads_inside(n)]
        return found

    @property
    def asked(self) -> set[str]:
        """Every spelling that was asked for."""
        return set(self._used)

    def _reads_inside(self, dotted: str) -> bool:
        return any(name.startswith(f"{dotted}.") for name in self._used)

    def at(self, dotted: str) -> Any:  # noqa: ANN401
        """What stands at a dotted name, asked for or not; None where nothing does."""
        return at_key(self.values, dotted)

    def _wrong(self, names: tuple[str, ...], value: object, must: str) -> InputError:
        key = self.spelled(*names) or names[0]
        hint = None
        if isinstance(value, str) and "$" in value:
            hint = "nothing is executed or computed: write the value there"
        elif isinstance(value, str) and ("<" in value or not value.strip(".")):
            hint = "it is a placeholder: write the value there"
        elif isinstance(value, list) or (isinstance(value, str) and "," in value):
            hint = "a run has one: write the one that is to be priced there"
        return InputError(f"{self.name}: {key} is {shown(value)}; it {must}", hint)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value.replace("_", "")) if isinstance(value, str) else float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


# Names that a trainer gives to a data set of the hub. Sources: torchtune 0.6.1 datasets/_alpaca.py;
# litgpt 0.5.11 data/alpaca_2k.py.
_COMPONENTS = {
    "torchtune.datasets.alpaca_dataset": "tatsu-lab/alpaca",
    "torchtune.datasets.alpaca_cleaned_dataset": "yahma/alpaca-cleaned",
    "litgpt.data.alpaca2k": "mhenrichsen/alpaca_2k_test",
}
_MOST_DATASETS = 20  # data sets of one file


def at_key(values: Mapping[str, Any], dotted: str, absent: object = None) -> Any:  # noqa: ANN401
    """What stands at a dotted key of a file; `absent` where nothing does."""
    value: Any = values
    for part in dotted.split("."):
        if not isinstance(value, dict) or part not in value:
            return absent
        value = value[part]
    return value


def named_datasets(keys: Keys) -> tuple[str, ...]:
    """Hub ids and names, in the file's order; empty where one of them is not a name.

    axolotl: `datasets: - path:`; LLaMA-Factory: `dataset: a,b`; TRL: `dataset_name:`; torchtune:
    `dataset: {source: or _component_:}`; litgpt: `data: {class_path:}`.
    """
    found = list(_stated(keys))
    usable = found and len(found) <= _MOST_DATASETS and all(isinstance(name, str) for name in found)
    return tuple(str(name).strip() for name in found) if usable else ()


def _stated(keys: Keys) -> Iterator[object]:
    several, one = keys.at("datasets"), keys.at("dataset")
    if isinstance(several, list):
        yield from (item.get("path") if isinstance(item, dict) else item for item in several)
    if isinstance(one, str):
        yield from one.split(",")
    elif isinstance(one, dict):
        component = str(one.get("_component_", "")).casefold()
        yield one.get("source") or _COMPONENTS.get(component)
    if keys.at("dataset_name") is not None:
        yield keys.at("dataset_name")
    for key in ("data", "data.class_path"):
        value = keys.at(key)
        if isinstance(value, str) and value.casefold() in _COMPONENTS:
            yield _COMPONENTS[value.casefold()]
