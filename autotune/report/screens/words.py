"""Words of the first screen: for a reader who knows transformers' Trainer, and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.domain.units import format_count
from autotune.report.phrases import (
    ATTENTION,
    KERNELS,
    OFFLOAD,
    SHARDING,
    TRAINER_NAMES,
    compile_phrase,
    knob_text,
    offer_name,
    price_history,
    price_phrase,
    rests_on,
)
from autotune.report.screens.fitting import shortened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.domain.job import Assumption
    from autotune.report.schema import JobPayload, Row

BASIS = {
    "modelled": "a model of the hardware; nothing was measured for it",
    "traced": "memory from your training code, run without a GPU; time from a model",
    "calibrated": "a model of the hardware, corrected by measured runs",
    "measured": "steps measured on the device",
}
# What moves the answer most, first; only where nobody stated it.
WEIGHTY = (
    "model", "model.shape", "method.kind", "method.states", "train.steps", "train.epochs",
    "data.rows", "data.max_length", "train.global_batch_size", "method.rank", "method.base",
    "price", "data.padding", "interruptions_per_day", "today",
)  # fmt: skip
MOST_ASSUMED = 3
TOLD_DAYS = 30  # of a price, from which its age is said


def settings_phrase(config: Mapping[str, object], count: int) -> str:
    """What is set, by the names that Trainer has for it where they differ."""
    micro, accumulation = config["micro_batch_size"], config["gradient_accumulation_steps"]
    words = [
        f"micro-batch {micro} (per_device_train_batch_size)",
        f"accumulation {accumulation}",
        str(config["precision"]),
    ]
    if config["activation_checkpointing"] != "none":
        words.append("gradient checkpointing")
    if config["compile"] != "off":
        words.append(compile_phrase(config))
    if config["attention"] != "sdpa":
        words.append(f"{ATTENTION.get(str(config['attention']), config['attention'])} attention")
    if count > 1:
        words.append(SHARDING.get(str(config["sharding"]), str(config["sharding"])))
    if config.get("kernels", "none") != "none":
        words.append(KERNELS[str(config["kernels"])])
    if config.get("offload", "none") != "none":
        words.append(OFFLOAD[str(config["offload"])])
    words += [
        f"{name} on"
        for knob, name in (("packing", "packing"), ("length_grouping", "group_by_length"))
        if config.get(knob) == "on"
    ]
    return ", ".join(words)


def change_words(key: str) -> str:
    """A knob or a key of the job file, as Trainer calls it."""
    return TRAINER_NAMES.get(key, key)


def difference_words(config: Mapping[str, object], pick: Mapping[str, object], length: int) -> str:
    """What a config does otherwise than the pick, without what follows from the rest.

    In `length` characters: what does not fit is counted.
    """
    words = []
    split = ("micro_batch_size", "gradient_accumulation_steps")
    if config[split[0]] != pick[split[0]]:  # the other follows: the global batch is kept
        words.append(f"micro-batch {config[split[0]]}")
    words += [
        f"{change_words(name)} {_switch(value)}"
        for name, value in config.items()
        if value != pick.get(name) and name not in (*split, *FOLLOWS)
    ]
    shown = len(words)
    while shown > 1 and len(", ".join(words[:shown])) + (4 if shown < len(words) else 0) > length:
        shown -= 1
    more = f", +{len(words) - shown}" if shown < len(words) else ""
    return (", ".join(words[:shown]) + more) or "same settings"


FOLLOWS = ("checkpoint_every_steps", "save_total_limit", "num_dataloader_workers")


def _switch(value: object) -> str:
    return {"none": "off", "full": "on"}.get(str(value), knob_text(value))


def machine_phrase(row: Row) -> str:
    """The machine with its price: "1x h100-sxm at $2.50/h"; in full for a price nobody stated."""
    price = price_phrase(row)
    if row.usd_per_hour == 0:
        return f"{offer_name(row)} (free)"
    seen = price_history(row, TOLD_DAYS)
    return f"{offer_name(row)} at {price.partition(' (')[0]}{seen}"


def basis_phrase(row: Row, job: JobPayload) -> str:
    """What the figures rest on, and what the ranges mean; nothing of that for upper bounds."""
    ranges = "" if lengths_phrase(job) else " 8 of 10 runs should end within the ranges."
    return f"{rests_on(row, BASIS)}.{ranges}"


def lengths_phrase(job: JobPayload) -> str:
    """What unknown or estimated row lengths do to the figures; empty where they were counted."""
    if not job.steps:
        return ""
    interval = job.tokens_interval
    if interval and job.lengths_basis == "estimated":
        low, high = (format_count(float(f"{interval[key]:.3g}")) for key in ("p10", "p90"))
        return (
            "Row lengths are estimated from bytes, as no tokenizer was at hand: the ranges hold "
            f"for {low} to {high} tokens."
        )
    if interval and job.lengths_basis == "published":
        low, high = (format_count(float(f"{interval[key]:.3g}")) for key in ("p10", "p90"))
        return (
            "Row lengths are as published for this data set, not counted: the ranges hold for "
            f"{low} to {high} tokens."
        )
    if job.lengths_known:
        return ""
    return (
        f"Row lengths are unknown: figures but the first count each row as "
        f"{format_count(job.max_length)} tokens, upper bounds."
    )


def assumed_phrase(assumed: Sequence[Assumption], most: int = MOST_ASSUMED) -> str:
    """The assumptions that matter most, in one line; empty where all was stated."""
    ranked = sorted(
        (item for item in assumed if _weight(item.key) < len(WEIGHTY)),
        key=lambda item: _weight(item.key),
    )
    if not ranked or not most:
        return ""
    named = [f"{_key(item.key)} {shortened(item.value, 40)}" for item in ranked[:most]]
    rest = len(assumed) - len(named)
    more = f", and {rest} more" if rest else ""
    return f"Assumed, not stated: {'; '.join(named)}{more}."


def _weight(key: str) -> int:
    for rank, name in enumerate(WEIGHTY):
        if key == name or (("[" in key) and key.endswith(f".{name}")):
            return rank
    return len(WEIGHTY)


def _key(key: str) -> str:
    """hardware[0] (h100-sxm).price -> price of h100-sxm; data.rows stays."""
    if key.startswith("hardware[") and "(" in key:
        machine = key.partition("(")[2].partition(")")[0]
        return f"{key.rpartition('.')[2]} of {machine}"
    return key
