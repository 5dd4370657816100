"""Whether a stated speed can be: against physics, against the public record, against the bill.

    implied  = useful FLOP of a token x tokens per second that the statement needs
    ceiling  = the devices' dense peak, or the best product measured above it (boost clocks); with
               an int8 base the frozen forward at the int8 rate
    observed = the highest share of the dense peak in any shipped measurement of the method

Useful FLOP leave recomputation out, so a run with activation checkpointing needs more than implied.

Also how such a speed is written: "1.0 s/step", "0.8-1.2 s/step", "38 h", "12.8 h at 1200 tokens/s".
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Literal

from autotune.cost.constants import fitted
from autotune.cost.time import flops
from autotune.cost.time.efficiency import EMULATED
from autotune.domain.errors import InputError
from autotune.domain.units import format_count, format_seconds, parse_seconds, split_range
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from autotune.domain.device import Offer
    from autotune.domain.job import Job
    from autotune.domain.outcome import Estimated, Spread

Verdict = Literal["impossible", "beyond_observed", "plausible"]
KILO = 3.6  # hours that are kiloseconds
SAME = 0.1  # two figures of one claim agree within this
IDLE = 0.02  # share of the peak below which a device is all but idle
FAR = 2.0  # times slower than likely: something else than the device is at work
_TENTH = 0.1  # from this share on, a percentage is told without decimals


@dataclass(frozen=True, slots=True)
class Likely:
    """What the bill says instead."""

    step_time_s: float
    tokens_per_s: float
    flop_per_s: float
    duration_s: Spread


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement checked. Rates are of all devices together and of real tokens."""

    stated: str
    implied_tokens_per_s: float
    implied_flop_per_s: float
    ceiling_flop_per_s: float
    observed_flop_per_s: float
    implied_share: float  # of the dense peak
    verdict: Verdict
    possible: bool
    tokens_per_row_possible: float | None  # rows this short on average: at the ceiling
    tokens_per_row_observed: float | None  # and as fast as anything observed
    likely: Likely
    reason: str


@dataclass(frozen=True, slots=True)
class Rates:
    """What a token of a job takes, and what its devices do of it at most. All devices together."""

    flop_per_token: float
    peak_flop_per_s: float
    ceiling_flop_per_s: float
    observed_flop_per_s: float


def rates_of(job: Job, row: Estimated) -> Rates:
    """The rates of a job's tokens under a row's config and on its devices."""
    peak = _peak(row)
    ceiling = ceiling_flop_per_s(job, row.offer, peak)
    per_token = flops.useful_flop_per_row(job) / max(job.lengths.mean, 1e-9)
    return Rates(per_token, peak, ceiling, min(observed_share(job) * peak, ceiling))


def check_claim(job: Job, row: Estimated, text: str) -> Claim:
    """The verdict on a stated step time, rate or duration of `job` under the config of `row`.

    Raises InputError where the text states none, or where the job takes no steps.
    """
    figures = parse_claim(text)
    if not row.steps:
        msg = f"{text!r} cannot be checked: the job takes no training steps"
        raise InputError(msg, "a claim is about a step, a rate or a duration of training")
    tokens = [_tokens_per_s(job, row, figure) for figure in figures]
    rates = rates_of(job, row)
    per_token, peak = rates.flop_per_token, rates.peak_flop_per_s
    ceiling, observed = rates.ceiling_flop_per_s, rates.observed_flop_per_s
    implied = tokens[0] * per_token
    agree = _agree(tokens)
    verdict = _verdict(implied, observed, ceiling, agree=agree)
    likely = Likely(row.step_time_s, row.tokens_per_s, row.tokens_per_s * per_token, row.duration_s)
    by_length = figures[0].quantity != "tokens"
    return Claim(
        stated=text.strip(),
        implied_tokens_per_s=tokens[0],
        implied_flop_per_s=implied,
        ceiling_flop_per_s=ceiling,
        observed_flop_per_s=observed,
        implied_share=implied / peak,
        verdict=verdict,
        possible=verdict != "impossible",
        tokens_per_row_possible=_row_tokens(job, ceiling / implied) if by_length else None,
        tokens_per_row_observed=_row_tokens(job, observed / implied) if by_length else None,
        likely=likely,
        reason=("at its slower end, " if is_range(text) else "")
        + _reason(job, row, figures, tokens, (implied, observed, ceiling, peak)),
    )


def _peak(row: Estimated) -> float:
    """[FLOP/s] dense peak of all devices in the row's precision; emulated dtypes at their share."""
    device = row.offer.device
    own = device.peak_flop_per_s(row.config.precision) or EMULATED * device.fp32_flop_per_s
    return own * row.offer.count


def ceiling_flop_per_s(job: Job, offer: Offer, peak: float) -> float:
    """[FLOP/s] no step of the method can be faster than this on the devices.

    Formula: F / (F_int8 / int8 peak + (F - F_int8) / peak), F_int8 the frozen forward of an int8
    base, 2 per weight; F else at the dense peak. GeForce boards exceed their reference clocks.
    Source: derived; Dettmers et al., "LLM.int8()" (2022): the backward dequantises.
    """
    boosted = peak * max(offer.device.matmul_ceiling_fraction, 1.0)
    int8 = offer.device.int8_op_per_s * offer.count
    if not (job.method.is_lora and job.method.base == "int8" and int8 > boosted):
        return boosted
    total = flops.useful_flop_per_token(job.model, job.method)
    forward = 2.0 * flops.linear_weights(job.model, job.method)
    return total / (forward / int8 + (total - forward) / boosted)


def observed_share(job: Job) -> float:
    """Highest share of the dense peak in the shipped record of the method and base.

    A base without enough measured steps takes its method's 16-bit figure.
    """
    record = fitted().observed
    kind = job.method.kind
    own = record.get(f"{kind} {job.method.base}", record.get(f"{kind} 16bit"))
    return max(record.values()) if own is None else own


def _tokens_per_s(job: Job, row: Estimated, figure: Stated) -> float:
    """[tokens/s] real tokens that the figure needs. A duration: as if all of it were training."""
    per_step = row.tokens_per_s * row.step_time_s
    if figure.quantity == "step":
        return per_step / figure.value
    if figure.quantity == "rows":
        return figure.value * per_step / job.global_batch_size
    if figure.quantity == "duration":
        return per_step * row.steps / figure.value
    return figure.value


def _agree(tokens: list[float]) -> bool:
    return max(tokens) <= (1.0 + SAME) * min(tokens)


def _verdict(implied: float, observed: float, ceiling: float, *, agree: bool) -> Verdict:
    if implied > ceiling or not agree:
        return "impossible"
    return "beyond_observed" if implied > observed else "plausible"


def _row_tokens(job: Job, ratio: float) -> float:
    """[tokens] mean row length at which the statement needs `ratio` of the FLOP it implies.

    Formula: proportional; attention's square makes the true figure a little longer.
    """
    return job.lengths.mean * ratio


def _reason(
    job: Job,
    row: Estimated,
    figures: tuple[Stated, ...],
    tokens: list[float],
    flop_per_s: tuple[float, float, float, float],
) -> str:
    implied, observed, ceiling, peak = flop_per_s
    means = f"It means {format_count(tokens[0])} tokens/s for this job, or {_tera(implied)}"
    head = f"{means}: {_percent(implied / peak)} of the dense peak of {row.offer.label}"
    if not _agree(tokens):
        return f"{_contradiction(row, figures, tokens)}. {head}"
    if implied > ceiling:
        times = f"{implied / ceiling:.1f} times the {_tera(ceiling)} that {row.offer.label} can"
        return f"{means}: {times} reach at most{_shorter(job, figures, observed / implied)}"
    if implied > observed:
        best = f"No published run of this method exceeds {_tera(observed)}"
        return f"{head}. {best}{_shorter(job, figures, observed / implied)}"
    return head + _slow(row, figures, tokens[0], implied / peak)


def _shorter(job: Job, figures: tuple[Stated, ...], ratio: float) -> str:
    if figures[0].quantity == "tokens":
        return ". A smaller model, or padding counted as tokens, would explain it"
    tokens = _row_tokens(job, ratio)
    return (
        f". It would be as fast as the fastest run observed if rows had at most {tokens:.0f} "
        f"tokens on average, not {job.lengths.mean:.0f}"
    )


def _slow(row: Estimated, figures: tuple[Stated, ...], tokens: float, share: float) -> str:
    """What a statement far below the likely speed means; nothing where it is near."""
    if row.tokens_per_s < FAR * tokens:
        return f"; {format_count(row.tokens_per_s)} tokens/s are likely"
    times = f"{row.tokens_per_s / tokens:.0f} times slower than likely"
    idle = ": the device would be almost idle" if share < IDLE else ""
    slip = _kiloseconds(row, figures)
    return f", {times}{idle}{slip}"


def _kiloseconds(row: Estimated, figures: tuple[Stated, ...]) -> str:
    if figures[0].quantity != "duration":
        return ""
    meant = figures[0].value / KILO
    if not row.duration_s.p10 <= meant <= row.duration_s.p90:
        return ""
    return (
        f". {figures[0].value / 3600.0:.3g} kiloseconds are {format_seconds(meant)}, which is "
        "likely: seconds may have been read as hours by moving three digits"
    )


def _contradiction(row: Estimated, figures: tuple[Stated, ...], tokens: list[float]) -> str:
    ratio = max(tokens) / min(tokens)
    text = f"the two figures contradict each other by a factor of {ratio:.1f}"
    durations = [figure.value for figure in figures if figure.quantity == "duration"]
    if durations and abs(ratio / KILO - 1.0) <= SAME:
        whole = row.tokens_per_s * row.step_time_s * row.steps
        rate = max(tokens)
        text += (
            f": {format_count(whole)} tokens at {format_count(rate)} tokens/s take "
            f"{whole / rate / 1000.0:.3g} kiloseconds, which are {format_seconds(whole / rate)}; "
            "the kiloseconds were read as hours"
        )
    return text


def _percent(share: float) -> str:
    decimals = ".0f" if share >= _TENTH else ".2g"
    return f"{100.0 * share:{decimals}} %"


def _tera(flop_per_s: float) -> str:
    value = flop_per_s / 1e12
    return f"{value:,.0f} TFLOP/s" if value > 100.0 else f"{value:.3g} TFLOP/s"  # noqa: PLR2004 - display


Quantity = Literal["step", "tokens", "rows", "duration"]
HINT = 'write "1.0 s/step", "5000 tokens/s", "20 rows/s" or a duration such as "38 h"'
MOST_CHARACTERS = 200
_JOINED = re.compile(r"\s+(?:at|@)\s+")
_RATE = re.compile(
    r"\s*([0-9][0-9_,.]*(?:[eE][+-]?\d+)?)\s*(k|M)?\s*([A-Za-z]+)\s*/\s*([A-Za-z]+)\s*"
)
_SCALE = {None: 1.0, "k": 1e3, "M": 1e6}
_UNITS: dict[str, Quantity] = {
    "tokens": "tokens", "token": "tokens", "tok": "tokens", "toks": "tokens", "rows": "rows",
    "row": "rows", "samples": "rows", "sample": "rows", "examples": "rows", "steps": "step",
    "step": "step", "it": "step", "its": "step",
}  # fmt: skip
_PER = {"s": 1.0, "sec": 1.0, "second": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "hour": 3600.0}


@dataclass(frozen=True, slots=True)
class Stated:
    """One figure of a claim. A rate of steps is kept as the seconds of one."""

    quantity: Quantity
    value: float  # seconds of a step or of the run; tokens or rows per second


def parse_claim(text: str) -> tuple[Stated, ...]:
    """The figures of a claim, one or two joined by "at"; of a range its slower end.

    Raises InputError for anything else.
    """
    parts = _JOINED.split(text.strip())
    most = 2
    if not text.strip() or len(text) > MOST_CHARACTERS or len(parts) > most:
        msg = f"{text[:MOST_CHARACTERS]!r} is not a claim that can be checked"
        raise InputError(msg, HINT)
    return tuple(_figure(part, text) for part in parts)


def is_range(text: str) -> bool:
    """Whether a readable claim states a range."""
    return any(split_range(part) for part in _JOINED.split(text.strip()))


def _figure(part: str, text: str) -> Stated:
    """One figure; of a range the slower end, which is the easier one to reach."""
    ends = split_range(part)
    if ends is not None:
        low, high = (_figure(end, text) for end in ends)
        slower = max if low.quantity in {"step", "duration"} else min
        if low.quantity == high.quantity:
            return slower(low, high, key=lambda each: each.value)
    found = None if ends is not None else _per_step(part) or _rate(part) or _duration(part)
    if found is None or not math.isfinite(found.value) or found.value <= 0:
        msg = f"{text!r} is not a claim that can be checked"
        raise InputError(msg, HINT)
    return found


def _duration(part: str) -> Stated | None:
    try:
        return Stated("duration", parse_seconds(part))
    except InputError:
        return None


def _per_step(part: str) -> Stated | None:
    """Seconds of a step: "1.0 s/step", "500 ms/it"."""
    head, slash, per = part.rpartition("/")
    if not slash or per.strip().casefold() not in {"step", "it", "iteration"}:
        return None
    try:
        return Stated("step", parse_seconds(head))
    except InputError:
        return None


def _rate(part: str) -> Stated | None:
    match = _RATE.fullmatch(part)
    if match is None:
        return None
    unit, per = _UNITS.get(match[3].casefold()), _PER.get(match[4].casefold())
    if unit is None or per is None:
        return None
    try:
        number = float(match[1].replace(",", "").replace("_", "")) * _SCALE[match[2]] / per
    except ValueError:
        return None
    if unit == "step":
        return Stated("step", 1.0 / number) if number > 0 else None
    return Stated(unit, number)
