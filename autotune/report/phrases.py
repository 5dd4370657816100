"""Words that every report uses for the same thing: machines, prices, settings, spans, fits.

What only first screens say is in `screens/words.py`, what a tie is with in `ties.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.domain.config import CLOSED_FORMS, SPLIT, TRAINER_NAMES, is_extra
from autotune.domain.device import OLD_DAYS
from autotune.domain.outcome import FEASIBLE_PROBABILITY
from autotune.domain.typed.machine import recorded_label
from autotune.domain.units import format_age, format_bytes, format_count, format_seconds, format_usd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from autotune.domain.outcome import Spread
    from autotune.report.schema import JobPayload, Row

BASIS = {
    "modelled": "Modelled: no measurement went into it",
    "traced": "Traced: memory through the installed training code, time from formulas",
    "calibrated": "Calibrated: modelled, then corrected by earlier measurements",
    "measured": "Measured on the device",
}
LEAST_TOLD = 0.01  # relative: less between two candidates nobody can measure
BOUND = {
    "compute": "arithmetic. Matrix products take most of the step; unused memory is not a waste",
    "bandwidth": "memory bandwidth: the device waits for its memory",
    "launch": "launch overhead: the kernels are too small to keep the device busy. "
    "A larger micro-batch, or several runs on one device, use it better",
    "data": "data loading: the device waits for batches",
    "communication": "communication between the devices",
    "checkpoint": "writing checkpoints: a faster disk or fewer saves help, another GPU does not",
    "evaluation": "evaluation: fewer or smaller evaluations help, another config does not",
    "startup": "start-up (loading, compiling, preparing data). The run itself is short",
}
VERDICT = {
    "fits": "fits",
    "at_risk": "may run out of memory",
    "certain_oom": "does not fit",
}
IN_STEP = frozenset({"compute", "bandwidth", "launch", "communication"})
FAR_OFF = 2.0  # measured over modelled, each way: beyond it efficiency does not explain the gap
LITTLE_ROOM = "should fit; PyTorch's cache will take the rest of the memory"
UNLIKELY = 0.5  # a probability of fitting: below it a run is expected to fail
SHARDING = {"ddp": "DDP", "fsdp": "FSDP", "zero2": "DeepSpeed ZeRO-2", "zero3": "DeepSpeed ZeRO-3"}
KERNELS = {"liger": "Liger kernels", "chunked_loss": "a loss in chunks"}
OFFLOAD = {
    "optimizer": "optimizer states in host memory",
    "all": "weights and optimizer states in host memory",
    "activations": "checkpointed activations in host memory",
}
ATTENTION = {
    "flash_attention_2": "FlashAttention-2", "flash_attention_3": "FlashAttention-3",
    "eager": "plain (eager)",
}  # fmt: skip
DISTURBED = "while other programs were using it, so the time may be far too long"
DISTURBED_STEP = "because other programs use the machine"
NO_CHANGE = "same settings"


def sentence(text: str) -> str:
    """A text with a capital in front."""
    return text[:1].upper() + text[1:]


def rests_on(row: Row, words: Mapping[str, str] = BASIS) -> str:
    """What a row's figures rest on; of a measurement that was disturbed, that it was."""
    measured = row.measured or {}
    text = words[row.basis]
    return f"{text} {DISTURBED}" if measured.get("disturbed") else text


def seconds_span(spread: Spread) -> str:
    """The median with its 80 % interval: 12.4 h (10.1 h to 15.2 h)."""
    return _span(spread, format_seconds)


def usd_span(spread: Spread) -> str:
    """The median with its 80 % interval: $31.00 ($25.30 to $38.00)."""
    return _span(spread, format_usd)


def _span(spread: Spread, show: Callable[[float], str]) -> str:
    middle, around = show(spread.p50), between(spread, show)
    return f"{middle} ({around})" if around else middle


def between(spread: Spread, show: Callable[[float], str]) -> str:
    """The 80 % interval alone: 10.1 h to 15.2 h; empty where it is a point."""
    low, high = show(spread.p10), show(spread.p90)
    return "" if low == high else f"{low} to {high}"


def offer_name(row: Row) -> str:
    """The machine: "2x h100-sxm, spot"."""
    return recorded_label(row, counted=True)


def global_batch(row: Row) -> int:
    """Rows of an optimizer step on all devices."""
    config = row.config
    split = int(config["micro_batch_size"]) * int(config["gradient_accumulation_steps"])
    return split * row.device_count


def price_phrase(row: Row) -> str:
    """The price with its source and date."""
    if row.usd_per_hour == 0:
        return f"free of charge ({row.price_source})"
    dated = f", {row.price_as_of}" if row.price_as_of else ""
    age = row.price_age_days
    dated += f", {format_age(age)} ago" if dated and age is not None else ""
    asked = ", a marketplace price" if "asked" in row.price_marks else ""
    return f"{format_usd(row.usd_per_hour)}/h ({row.price_source}{dated}{asked})"


def split_phrase(config: Mapping[str, object]) -> str:
    """The split of the global batch: "micro-batch 4, accumulation 2"."""
    micro, accumulation = config["micro_batch_size"], config["gradient_accumulation_steps"]
    return f"micro-batch {micro}" + (f", accumulation {accumulation}" if accumulation != 1 else "")


def knob_text(value: object) -> str:
    """A knob's value as people type it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return format_count(value) if isinstance(value, int) else str(value)


def switched(value: object) -> str:
    """A value of a knob; off or on where Trainer has a switch."""
    return {"none": "off", "full": "on"}.get(str(value), knob_text(value))


def compile_phrase(config: Mapping[str, object]) -> str:
    """torch.compile with its mode, where it is not the plain one."""
    mode = config["compile"]
    return "torch.compile" if mode == "default" else f"torch.compile {mode}"


def mode_words(config: Mapping[str, object]) -> list[str]:
    """The precision, and what of a step is not the plain way."""
    words = [str(config["precision"])]
    if config["activation_checkpointing"] != "none":
        words.append("gradient checkpointing")
    if config["compile"] != "off":
        words.append(compile_phrase(config))
    if config["attention"] != "sdpa":
        words.append(f"{ATTENTION.get(str(config['attention']), config['attention'])} attention")
    return words


def config_phrase(config: Mapping[str, object]) -> str:
    """A whole config in a few words: what moves time and memory most."""
    words = [split_phrase(config), *mode_words(config)]
    if config["sharding"] != "none":
        words.append(SHARDING.get(str(config["sharding"]), str(config["sharding"])))
    words += [f"{name} {knob_text(value)}" for name, value in config.items() if is_extra(name)]
    return ", ".join(words)


def differences(config: Mapping[str, object], pick: Mapping[str, object]) -> str:
    """What a config does otherwise than the pick, closed forms left aside."""
    words = []
    if split_phrase(config) != split_phrase(pick):
        words.append(split_phrase(config))
    words += [
        f"{name} {knob_text(value)}"
        for name, value in config.items()
        if value != pick.get(name) and name not in (*SPLIT, *CLOSED_FORMS)
    ]
    return ", ".join(words) or NO_CHANGE


def intervals(config: Mapping[str, object], pick: Mapping[str, object]) -> str:
    """How often a config saves and what it keeps, where the pick does otherwise."""
    return ", ".join(
        f"{TRAINER_NAMES.get(name, name)} {knob_text(config[name])}"
        for name in CLOSED_FORMS
        if name in config and config[name] != pick.get(name)
    )


def step_arithmetic(job: JobPayload) -> str:
    """How the number of steps comes about, as a person would check it."""
    rows, batch, steps = job.rows, job.global_batch_size, job.steps
    if steps == 0:
        return "no optimizer steps: an evaluation-only run"
    an_epoch = -(-rows // batch)
    whole = "" if rows % batch == 0 else " (rounded up)"
    text = f"{format_count(rows)} rows / {format_count(batch)} a step = {format_count(an_epoch)}"
    text += f" steps{whole}"
    if round(job.epochs * an_epoch) != steps:
        return f"{text} an epoch; {format_count(steps)} steps in all, as stated"
    if job.epochs == 1:
        return f"{text} in 1 epoch"
    return f"{text} an epoch x {job.epochs:g} epochs = {format_count(steps)} steps"


def token_arithmetic(job: JobPayload) -> str:
    """Tokens of the run, and what one row holds."""
    if not job.steps:
        return f"rows of at most {format_count(job.max_length)} tokens"
    if not job.lengths_known:
        return (
            f"{format_count(job.tokens)} tokens at most: no row lengths were stated, "
            f"so every row counts as {format_count(job.max_length)} tokens"
        )
    padded = {
        "longest": "padded to the longest row of its batch",
        "max_length": f"padded to {format_count(job.max_length)}",
    }.get(job.padding, job.padding)
    interval = job.tokens_interval
    sure = ""
    if interval:
        low, high = (format_count(round(interval[key])) for key in ("p10", "p90"))
        basis = {"estimated": "estimated from bytes", "sampled": "from a sample of the rows",
                 "published": "as published"}  # fmt: skip
        sure = f" ({basis.get(job.lengths_basis, 'estimated')}: {low} to {high})"
    return (
        f"{format_count(job.tokens)} tokens before padding{sure}; a row has "
        f"{job.mean_length:.0f} on average, {format_count(job.max_length)} at most, {padded}"
    )


def bound_words(row: Row) -> str:
    """What sets the pace, in words; for steps that the model is far off, that this is not known.

    The model says what fills a step. Where it gives the step a quite different time, it is not the
    step that it describes.
    """
    measured, bound = row.measured, row.bound_by
    predicted = (measured or {}).get("predicted_step_s")
    if not measured or not predicted or bound not in IN_STEP:
        return BOUND[bound]
    ratio = measured["step_time_s"] / predicted
    if 1.0 / FAR_OFF <= ratio <= FAR_OFF:
        return BOUND[bound]
    times = f"{ratio:.3g} times" if ratio > 1 else f"1/{1.0 / ratio:.3g} of"
    why = DISTURBED_STEP if measured.get("disturbed") else "for a reason it does not know"
    return f"the training steps: each takes {times} the time that the model expects, {why}"


def memory_phrase(row: Row) -> str:
    """Peak memory against what is usable."""
    parts = row.memory_bytes
    needs, usable = format_bytes(parts["total"]), format_bytes(parts["usable"])
    if parts["total"] > parts["usable"]:
        return f"it needs {needs} and {usable} are usable"
    return f"{needs} of {usable} usable"


def fit_phrase(row: Row) -> str:
    """The verdict with its probability; never a plain "fits" where the cache fills the memory."""
    verdict, fits = VERDICT[row.verdict], row.verdict == "fits"
    if fits and row.crowded:
        verdict = LITTLE_ROOM
    if row.verdict == "at_risk" and row.fits_probability < UNLIKELY:
        verdict = "will probably run out of memory"
    return f"{verdict} (probability {'' if fits else 'of fitting '}{probability(row)})"


def probability(row: Row) -> str:
    """The probability of fitting; never rounded up to certainty."""
    return chance(row.fits_probability)


def chance(value: float) -> str:
    """A probability with two decimals, open at both ends; never rounded up to what is required."""
    if value > 0.99:  # noqa: PLR2004 - two decimals end here
        return "over 0.99"
    if value < FEASIBLE_PROBABILITY <= round(value, 2):
        return f"just under {FEASIBLE_PROBABILITY:.2f}"
    return "under 0.01" if value < 0.01 else f"{value:.2f}"  # noqa: PLR2004 - the same below


def speed_phrase(row: Row) -> str:
    """Step time, throughput and utilisation."""
    if row.step_time_s <= 0:
        return "no training steps"
    return (
        f"{format_seconds(row.step_time_s)} a step, "
        f"{format_count(row.tokens_per_s)} tokens/s, {100 * row.mfu:.0f}% MFU"
    )


def moved_cells(before: float, after: float, show: Callable[[float], str]) -> tuple[str, str, str]:
    """A figure before and after, and by how much it changed."""
    return show(before), show(after), change_phrase(before, after, show)


def signed(change: float, show: Callable[[float], str]) -> str:
    """A change with its sign; nothing has none."""
    sign = "+" if change > 0 else "-" if change < 0 else ""
    return f"{sign}{show(abs(change))}"


def change_phrase(before: float, after: float, show: Callable[[float], str]) -> str:
    """A signed change with its percentage: "-25.6 h (-67%)"."""
    if before == after:
        return "same"
    sign = "-" if after < before else "+"
    percent = f" ({sign}{abs(100 * (after - before) / before):.0f}%)" if before else ""
    return f"{sign}{show(abs(after - before))}{percent}"


SAME = 0.005  # share of the run


def nothing_saved(today: Row, pick: Row) -> str:
    """Why nothing is saved against today's config; empty where something may be."""
    if today.verdict == "certain_oom":
        return "Today's config runs out of memory, by this model."
    same = today.config == pick.config and offer_name(today) == offer_name(pick)
    same &= today.duration_s.p50 <= pick.duration_s.p50 * (1.0 + SAME)  # else run.sh sets more
    return "This is what you run today: nothing better was found." if same else ""


def saved_phrase(today: Row, pick: Row, even: str) -> str:
    """Time and money against today: "2.1 h sooner and $5 cheaper". even: at the same cost."""
    time_s = today.duration_s.p50 - pick.duration_s.p50
    usd = today.cost_usd.p50 - pick.cost_usd.p50
    time_words = f"{format_seconds(abs(time_s))} {'sooner' if time_s >= 0 else 'later'}"
    usd_words = f"{format_usd(abs(usd))} {'cheaper' if usd >= 0 else 'dearer'}"
    return f"{time_words} and {even if format_usd(abs(usd)) == format_usd(0) else usd_words}"


NAMED = frozenset({"spot"})  # said by the machine's name already
MEANING = {
    "old": f"more than {OLD_DAYS} days old",
    "scaled": "taken in proportion from a machine of another size",
    "asked": "an asking price on a marketplace",
}


def price_marks(row: Mapping[str, Any]) -> str:
    """The marks of a row's price that its machine's name does not say: "old, scaled"; or empty."""
    return ", ".join(mark for mark in row.get("price_marks", ()) if mark not in NAMED)


def marked_name(name: str, row: Mapping[str, Any]) -> str:
    """A machine with the marks of its price: "2x rtx-6000-ada (old, asked)"."""
    marks = price_marks(row)
    return f"{name} ({marks})" if marks else name


def marks_note(rows: Iterable[Mapping[str, Any]], usual: str = "") -> str:
    """What the marks of these rows mean; empty where there are none to explain.

    usual: a mark of all of them, which is told here and on no row.
    """
    found = {mark for row in rows for mark in row.get("price_marks", ())} - {usual}
    told = [f"all {MEANING[usual]}"] if usual else []
    told += [f"{mark}: {words}" for mark, words in MEANING.items() if mark in found]
    return f"Prices: {'; '.join(told)}." if told else ""


def price_history(row: Mapping[str, Any], since_days: int) -> str:
    """What to say behind a price in a sentence, with its comma: ", a price from 145 days ago"."""
    marks, age = row.get("price_marks", ()), row.get("price_age_days") or 0
    kind = "marketplace price" if "asked" in marks else "price"
    words = [f"a {kind} from {format_age(age)} ago"] if age > since_days else []
    if "asked" in marks and not words:
        words.append("a marketplace price")
    if "scaled" in marks:
        words.append(f"scaled from a machine of {row.get('price_scaled_from') or 'another size'}")
    if "owned" in marks:
        words.append("your own machine")
    return "".join(f", {each}" for each in words)
