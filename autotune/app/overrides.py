"""What the command line changes in a job file, before it is checked: one path for both.

`--gpu` replaces the hardware, `--price` its prices, `--set` pins a knob or changes a key of the
job, `--allow` opens a knob, `--deadline` and `--budget` are limits.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from autotune.app.observed import named_machine
from autotune.app.read_jobfile import Document
from autotune.catalog.devices import find_device, load_devices
from autotune.catalog.prices import price_for
from autotune.domain.config import KNOBS
from autotune.domain.errors import InputError, unknown
from autotune.domain.jobvalues import QUALITY_WORDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Values = dict[str, Any]
_COUNTS = (1, 2, 4, 8)  # devices in one host that clouds sell

SETTABLE = {
    "method": ("kind", "rank", "alpha", "dropout", "targets", "base"),
    "data": (
        "rows", "max_length", "padding", "pretokenized", "storage", "dataset", "tokenizer",
    ),
    "data.lengths": ("p50", "p95", "max", "mean", "histogram"),
    "train": ("epochs", "steps", "global_batch_size"),
    "evaluation": ("rows", "every_steps", "generate_tokens", "batch_size"),
    "limits": ("deadline", "budget", "max_lost_work", "max_session", "vram_headroom"),
}  # fmt: skip
_TOP = ("name", "model", "software")
_ADAPTER_KEYS = ("rank", "alpha", "dropout", "targets")
_SPLIT = {"micro_batch_size", "gradient_accumulation_steps"}


@dataclass(frozen=True, slots=True)
class Overrides:
    """What was given beside the job file. Empty: nothing."""

    gpus: Sequence[str] = ()  # "NAME", "NAME:N" or "NAME:N@PRICE", commas allowed; "all", "all:N"
    price: str | None = None
    max_price: str | None = None
    set_values: Mapping[str, str] = field(default_factory=dict)
    allow: Sequence[str] = ()
    deadline: str | None = None
    budget: str | None = None
    spot: bool = False  # beside every machine without a stated kind, the same one on spot
    stated: Mapping[str, object] = field(default_factory=dict)  # what a trainer's file lacks
    beside: Sequence[str] = ()  # configs of accelerate or DeepSpeed that belong to it


def settable_keys() -> list[str]:
    """Keys of the job that `--set` changes, besides the knobs."""
    nested = (f"{section}.{key}" for section, keys in SETTABLE.items() for key in keys)
    return [*nested, *_TOP]


def overridden(document: Document, overrides: Overrides) -> Document:
    """The document with the command line's changes; lines of changed keys are forgotten."""
    values = copy.deepcopy(document.values)
    changed: set[str] = set()
    if overrides.gpus:
        _replace_hardware(values, overrides.gpus, _batch(values, overrides.set_values))
        changed.add("hardware")
    if overrides.price is not None:
        _set_prices(values, overrides.price)
        changed.add("hardware")
    if overrides.spot:
        _add_spot(values)
        changed.add("hardware")
    for key, value in overrides.set_values.items():
        set_key(values, key, value)
        changed.add(key.split(".")[0])
    if overrides.allow:
        changed.add("allow")
        names = [n.strip() for text in overrides.allow for n in text.split(",") if n.strip()]
        known = values.get("allow")
        values["allow"] = [*(known if isinstance(known, list) else []), *names]
    for key, limit in (("deadline", overrides.deadline), ("budget", overrides.budget)):
        if limit is not None:
            _section(values, "limits")[key] = limit
            changed.add("limits")
    lines = {path: line for path, line in document.lines.items() if not changed & set(path[:1])}
    return Document(values, document.name, lines)


def _section(values: Values, dotted: str) -> Values:
    """The mapping at a dotted path, made where it is absent."""
    for part in dotted.split("."):
        inner = values.get(part)
        if not isinstance(inner, dict):
            inner = {"kind": inner} if part == "method" and isinstance(inner, str) else {}
            values[part] = inner
        values = inner
    return values


def _batch(values: Values, set_values: Mapping[str, str]) -> int:
    """The global batch as far as it is stated in whole numbers; 0 where it is not."""
    train = values.get("train")
    stated = train.get("global_batch_size") if isinstance(train, dict) else None
    text = str(set_values.get("train.global_batch_size", stated))
    plain = text.replace(",", "").replace("_", "").strip()
    return int(plain) if plain.isdecimal() and len(plain) < 10 else 0  # noqa: PLR2004 - no batch


def _replace_hardware(values: Values, gpus: Sequence[str], batch: int) -> None:
    """New hardware; a machine that the job describes too keeps its price and host there.

    Evidence keeps speaking of the machine that the job describes: the first, where it names none.
    """
    stated = values.get("hardware")
    if isinstance(stated, str | dict):
        stated = [stated]
    entries = [_as_entry(item) for item in stated] if isinstance(stated, list) else []
    evidence = values.get("evidence")
    for item in evidence if isinstance(evidence, list) else []:
        if entries and isinstance(item, dict):
            item["hardware"] = _described(item.get("hardware"), entries)
    plan = values.get("stated")
    for item in [plan] if isinstance(plan, dict) else plan if isinstance(plan, list) else []:
        if entries and isinstance(item, dict) and item.get("hardware") is None:
            item["hardware"] = f"{entries[0].get('gpu')}:{entries[0].get('count', 1)}"
    wanted = [part.strip() for text in gpus for part in text.split(",") if part.strip()]
    values["hardware"] = [entry for text in wanted for entry in _machines(text, entries, batch)]
    if not values["hardware"]:
        msg = "--gpu names no device"
        raise InputError(msg, "`autotune devices` lists them")


def _described(seen: object, entries: Sequence[Values]) -> object:
    """The machine of a piece of evidence as the job's hardware describes it."""
    if seen is None:
        return dict(entries[0])
    if not isinstance(seen, str):
        return seen
    name, _, count = seen.rpartition(":") if ":" in seen else (seen, "", "1")
    for entry in entries:
        one = _device_name(str(entry.get("gpu"))) or entry.get("gpu")
        if (_device_name(name), count.strip()) == (one, str(entry.get("count", 1))):
            return dict(entry)
    return seen


def _as_entry(item: object) -> Values:
    if isinstance(item, str):
        name, count = named_machine(item)
        return {"gpu": name, "count": count}
    return dict(item) if isinstance(item, dict) else {}


def _machines(text: str, stated: list[Values], batch: int) -> list[Values]:
    text, at, price = text.partition("@")
    if at:
        found = [{**entry, "price": price.strip()} for entry in _machines(text, stated, batch)]
        return [{key: entry[key] for key in entry if key != "owned"} for entry in found]
    name, count = named_machine(text)
    if name.casefold() == "all":
        counts = (count,) if ":" in text else _COUNTS
        return [
            entry
            for name in priced_devices()
            for count in counts
            if count == counts[0] or batch % count == 0
            for entry in _stated_or_plain(name, count, stated)
        ]
    device = find_device(name).name
    same = [
        entry
        for entry in stated
        if isinstance(entry.get("gpu"), str)
        and _device_name(entry["gpu"]) == device
        and (":" not in text or entry.get("count", 1) == count)
    ]
    return same or [{"gpu": device, "count": count}]


def _stated_or_plain(name: str, count: int, stated: list[Values]) -> list[Values]:
    """The machine as the job describes it, where it does."""
    same = [
        entry
        for entry in stated
        if isinstance(entry.get("gpu"), str)
        and _device_name(entry["gpu"]) == name
        and entry.get("count", 1) == count
    ]
    return same or [{"gpu": name, "count": count}]


def _add_spot(values: Values) -> None:
    """Beside every machine on demand the same one on spot, where a spot price is known."""
    stated = values.get("hardware")
    items = [stated] if isinstance(stated, str | dict) else stated
    entries = [_as_entry(item) for item in items] if isinstance(items, list) else []
    more = [
        {**{k: v for k, v in entry.items() if k not in {"price", "owned"}}, "spot": True}
        for entry in entries
        if not entry.get("spot") and _has_spot_price(entry)
    ]
    values["hardware"] = entries + [entry for entry in more if entry not in entries]


def _has_spot_price(entry: Values) -> bool:
    name = _device_name(str(entry.get("gpu")))
    count = entry.get("count", 1)
    return (
        name is not None
        and isinstance(count, int)
        and count > 0
        and price_for(name, count, spot=True) is not None
    )


def _device_name(text: str) -> str | None:
    try:
        return find_device(text).name
    except InputError:
        return None


def priced_devices() -> list[str]:
    """Every NVIDIA device with an on-demand price for one, by name."""
    return sorted(
        name
        for name, device in load_devices().items()
        if device.vendor == "nvidia" and price_for(name) is not None
    )


def _set_prices(values: Values, price: str) -> None:
    stated = values.get("hardware")
    if isinstance(stated, str | dict):
        stated = [stated]
    entries = [_as_entry(item) for item in stated] if isinstance(stated, list) else []
    for entry in entries:
        entry.pop("owned", None)
        entry["price"] = price
    values["hardware"] = entries


def set_key(values: Values, key: str, value: str) -> None:
    """Pin a knob or change a key of the job, as `--set` does. Raises InputError."""
    if key in KNOBS:
        lock = values.get("lock")
        values["lock"] = {**(lock if isinstance(lock, dict) else {}), key: value}
        return
    section, _, name = key.rpartition(".")
    if not (name in SETTABLE.get(section, ()) if section else key in _TOP):
        known = [*KNOBS, *settable_keys()]
        hint = f"knobs: {', '.join(KNOBS)}; keys of the job: {', '.join(settable_keys())}"
        if QUALITY_WORDS.get(key):
            hint = f"write {QUALITY_WORDS[key]}={value[:60]}"
        kind = "knob or key"
        raise unknown(kind, key[:80], known, hint, "--set")
    if not section:
        values[key] = value
        return
    mapping = _section(values, section)
    if key == "train.global_batch_size":
        _at_the_old_batch(values, mapping)
    mapping[name] = value
    _drop_rivals(values, key, value)


def _drop_rivals(values: Values, key: str, value: str) -> None:
    """Keys that would contradict the one just set and that the user has thereby taken back."""
    if key in {"train.steps", "train.epochs"}:
        _section(values, "train").pop("epochs" if key.endswith("steps") else "steps", None)
    if key == "method.kind":
        gone = _ADAPTER_KEYS if value == "full" else ("base",) if value == "qlora" else ()
        for name in gone:
            _section(values, "method").pop(name, None)
    if key == "data.dataset":
        _section(values, "data").pop("lengths", None)
    if key == "data.max_length":
        _shorten(_section(values, "data"), value)


def _at_the_old_batch(values: Values, train: Values) -> None:
    """What was seen was seen at the batch (and steps) that the file states, and keeps saying so.

    Where the file states none, today's config is dropped: its split would be the new batch's.
    """
    evidence = values.get("evidence")
    items = evidence if isinstance(evidence, list) else []
    entries = [item for item in items if isinstance(item, dict)]
    old = train.get("global_batch_size")
    for item in entries:
        if old is None:
            item["today"] = False
        elif item.get("today") is True or not _states_split(item.get("config")):
            item.setdefault("global_batch_size", old)
            if train.get("steps") is not None:
                item.setdefault("steps", train["steps"])
    if old is None and items:
        values["evidence"] = [item for item in entries if "measured" in item]


def _states_split(config: object) -> bool:
    return isinstance(config, dict) and set(config) >= _SPLIT


def states_today(values: Values) -> bool:
    """Whether a job file's mapping says how the job runs now."""
    evidence = values.get("evidence")
    items = evidence if isinstance(evidence, list) else []
    return any(isinstance(item, dict) and item.get("today") is True for item in items)


def _shorten(data: Values, value: str) -> None:
    """Stated lengths are those after truncation: a smaller max_length truncates them further."""
    lengths = data.get("lengths")
    limit = value.replace(",", "").replace("_", "").strip()
    if not isinstance(lengths, dict) or not limit.isdecimal() or len(limit) > 9:  # noqa: PLR2004
        return
    shortened = {
        name: min(length, int(limit))
        if name in {"p50", "p95", "max"} and isinstance(length, int | float)
        else length
        for name, length in lengths.items()
    }
    if shortened != lengths:
        shortened.pop("mean", None)
    data["lengths"] = shortened
