"""What could explain a measured time that the cost model does not predict.

Each alternative is an `Edit` of the run: the same question to the cost model, with one belief about
it changed. Alternatives that come equally close cannot be told apart by the measurement.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.cost.time.data import TOKENISED_PER_CORE_S, row_bytes
from autotune.domain.answer.verification import EXPLAINED, Explained
from autotune.domain.edit import Edit
from autotune.domain.units import MB, format_seconds
from autotune.evidence.reference import Reference, cut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from autotune.cost.bill import Bill
    from autotune.evidence.cases import Price

Belief = Edit[Reference]

SOLVE_STEPS = 24
LEAST_STEP = 1e-3  # of what is open, when the line between its ends is followed
STATED = 1.0  # the scale of what is stated
BEYOND = 0.02  # of the way that a price corrected the guess
CREDIBLE_LENGTHS = 4.0  # assumption: nobody's stated lengths are wrong by more, each way


def predicted_seconds(reference: Reference, bill: Bill) -> float | None:
    """[s] what the bill says of the observed quantity; throughput as the seconds of a step."""
    quantity = reference.observation.quantity
    if quantity == "duration_s":
        return float(bill.duration_s[0])
    if quantity in {"step_time_s", "tokens_per_s"}:
        return float(bill.step_s[0])
    if quantity == "checkpoint_save_s":
        return float(bill.tables["checkpoint"].gather("save_s")[0])
    if quantity == "evaluation_s":
        return float(bill.tables["evaluation"].gather("once_s")[0])
    return None


def measured_seconds(reference: Reference, bill: Bill) -> float | None:
    """[s] what was observed, in the same terms."""
    observation = reference.observation
    if observation.quantity == "tokens_per_s":
        real = float(bill.tables["compute"].gather("real_tokens_per_step")[0])
        return real / observation.value if observation.value > 0 else None
    if observation.quantity in {"duration_s", "step_time_s", "checkpoint_save_s"}:
        return observation.value
    return None


def explanations_of(
    reference: Reference, price: Price, *, saves_known: bool = False
) -> tuple[Explained, ...]:
    """Alternatives for a measured time, the nearest first; only those that move towards it.

    saves_known: the seconds of a save were measured, so the disk is no explanation.
    """
    bill = price(reference.job, reference.candidates)
    measured, expected = measured_seconds(reference, bill), predicted_seconds(reference, bill)
    if measured is None or expected is None:
        return ()
    slower = measured > expected
    found = []
    for belief in alternatives(reference, bill, price, measured):
        if saves_known and belief.key == "checkpoint_disk":
            continue
        changed = belief.apply(reference)
        seconds = predicted_seconds(changed, price(changed.job, changed.candidates))
        if seconds is None or seconds <= 0 or (seconds > expected) != slower:
            continue
        if 1 / MOVES < seconds / expected < MOVES:
            continue
        found.append(Explained(belief.key, belief.label, seconds, measured))
    return tuple(sorted(found, key=lambda e: max(e.ratio, 1 / e.ratio)))


MOVES = 1.05  # an alternative that changes less than this explains nothing


def alternatives(
    reference: Reference, bill: Bill, price: Price, measured: float, *, solve: bool = True
) -> Iterator[Belief]:
    """Every belief that may be wrong, whichever way it moves: its name is the edit's key.

    solve: also lengths and disk speeds that would give exactly the measured time.
    """
    yield from _data_alternatives(reference, price, measured, solve=solve)
    if solve:
        yield from _disk_alternative(reference, bill, price, measured)
    yield from _knob_alternatives(reference)


def _data_alternatives(
    reference: Reference, price: Price, measured: float, *, solve: bool
) -> Iterator[Belief]:
    job = reference.job
    if job.padding == "longest" and reference.config.packing == "off":
        text = f"rows are padded to max_length ({job.max_length} tokens), not to the longest row"
        yield _believed("padding", text, replace(reference, job=replace(job, padding="max_length")))
    elif job.padding == "max_length":
        yield _believed(
            "padding",
            "rows are padded to the longest of a batch, not to max_length",
            replace(reference, job=replace(job, padding="longest")),
        )

    def lengths(scale: float) -> Reference:
        return replace(reference, job=replace(job, lengths=cut(job.lengths, job.max_length, scale)))

    scaled = _solve(lengths, price, measured) if solve else None
    mean = scaled.job.lengths.mean if scaled else 0.0
    if scaled and 1 / CREDIBLE_LENGTHS <= mean / job.lengths.mean <= CREDIBLE_LENGTHS:
        text = f"rows have {mean:.0f} tokens on average, not {job.lengths.mean:.0f}"
        yield _believed("lengths", text, scaled)
    slow = replace(reference.config, num_dataloader_workers=0)
    host = replace(reference.offer.host, storage_read_bytes_per_s=SLOW_READ_BYTES_PER_S)
    yield _believed(
        "dataloader",
        f"data is loaded without workers from storage at {SLOW_READ_BYTES_PER_S / MB:.0f} MB/s"
        + _data_needs(reference, measured),
        replace(
            reference,
            job=replace(job, storage="network", pretokenized=False),
            config=slow,
            offer=replace(reference.offer, host=host),
        ),
    )


def _data_needs(reference: Reference, measured: float) -> str:
    """What a whole run asks of storage and of the processor; empty where no run was timed.

    Formula: rows x epochs x bytes of a row over the seconds; rows x tokens over a core's rate, each
    row tokenised once an epoch at most.
    """
    job = reference.job
    if reference.observation.quantity != "duration_s" or measured <= 0 or not job.steps:
        return ""
    rows = job.steps * job.global_batch_size
    rate = rows * row_bytes(job) / measured
    cores_s = rows * job.lengths.mean / TOKENISED_PER_CORE_S
    return (
        f" (all rows are {rate / MB:.2g} MB/s over the run, and {format_seconds(cores_s)} of one "
        "core to tokenise)"
    )


SLOW_READ_BYTES_PER_S = 20.0 * MB  # a busy network file system


def _disk_alternative(
    reference: Reference, bill: Bill, price: Price, measured: float
) -> Iterator[Belief]:
    if reference.observation.quantity not in {"duration_s", "checkpoint_save_s"}:
        return

    def disk(scale: float) -> Reference:
        host = reference.offer.host
        speed = host.checkpoint_write_bytes_per_s / scale
        slower = replace(host, checkpoint_write_bytes_per_s=speed)
        return replace(reference, offer=replace(reference.offer, host=slower))

    found = _solve(disk, price, measured, high=1e4)
    if found is not None:
        speed = found.offer.host.checkpoint_write_bytes_per_s
        size = float(bill.tables["checkpoint"].gather("bytes")[0])
        text = (
            f"checkpoints are written at {speed / MB:.1f} MB/s "
            f"({format_seconds(size / speed)} for {size / MB:.0f} MB)"
        )
        yield _believed("checkpoint_disk", text, found)


def _knob_alternatives(reference: Reference) -> Iterator[Belief]:
    config, job = reference.config, reference.job
    if config.attention != "eager":
        yield _believed(
            "attention",
            "attention runs eagerly, without flash or sdpa kernels",
            _knob(reference, attention="eager"),
        )
    other = "none" if config.activation_checkpointing == "full" else "full"
    yield _believed(
        "activation_checkpointing",
        f"activation checkpointing is {other}",
        _knob(reference, activation_checkpointing=other),
    )
    per_device = job.global_batch_size // reference.offer.count
    for micro in (1, config.micro_batch_size * 4, config.micro_batch_size * 16):
        if micro != config.micro_batch_size and micro <= per_device and per_device % micro == 0:
            text = f"the micro-batch is {micro}, not {config.micro_batch_size}"
            yield _believed(
                "micro_batch",
                text,
                _knob(
                    reference,
                    micro_batch_size=micro,
                    gradient_accumulation_steps=per_device // micro,
                ),
            )
    if config.precision in {"bf16", "fp16"} and reference.offer.device.fp32_flop_per_s:
        yield _believed(
            "precision",
            "matrix products run in fp32, not in 16 bit",
            _knob(reference, precision="fp32"),
        )


def _believed(name: str, text: str, run: Reference) -> Belief:
    """The edit that makes the stated run that one."""
    return Edit(lambda _: run, text, name)


def _knob(reference: Reference, **knobs: str | int) -> Reference:
    return replace(reference, config=reference.config.with_knobs(**knobs))


def _solve(
    changed: Callable[[float], Reference],
    price: Price,
    measured: float,
    low: float = 0.02,
    high: float = 50.0,
) -> Reference | None:
    """The reference whose prediction is the measured time, by bisection over a scale; or None."""

    def seconds(scale: float) -> float:
        trial = changed(scale)
        return predicted_seconds(trial, price(trial.job, trial.candidates)) or 0.0

    crossing = _Crossing(seconds, measured, low, high)
    if not crossing.low_s < measured < crossing.high_s * EXPLAINED:
        return None
    for _ in range(SOLVE_STEPS):
        middle = (low * high) ** 0.5
        if crossing.is_above(middle):
            low = middle
        else:
            high = middle
    return changed(high)


class _Crossing:
    """Between which scales a prediction that grows with them reaches what was measured.

    A bisection asks it at each step, and only what is still open is priced: where the line through
    the two nearest prices crosses, then a little beyond it, which encloses the crossing in half of
    the prices of halving alone.
    """

    def __init__(
        self, seconds: Callable[[float], float], measured: float, low: float, high: float
    ) -> None:
        """Price both ends, and what is stated: the line through it points at the crossing."""
        self.seconds, self.measured = seconds, measured
        self.low, self.high = low, high
        self.low_s, self.high_s = seconds(low), seconds(high)
        self.near = [(low, self.low_s), (high, self.high_s)]
        if self.low_s < measured < self.high_s:
            self._price(STATED)

    def is_above(self, scale: float) -> bool:
        """Whether the prediction reaches what was measured only above that scale."""
        while self.high_s >= self.measured and self.low < scale < self.high:
            width = self.high - self.low
            guess = self._guess()
            self._price(guess)
            beyond = self._guess()
            self._price(beyond + BEYOND * (beyond - guess))
            if self.high - self.low > width / 2.0:  # it is no straight line there
                self._price(scale)
        return scale < self.high if self.high_s < self.measured else scale <= self.low

    def _guess(self) -> float:
        """Where the line through the nearest prices, else through both ends, crosses."""
        (one, one_s), (other, other_s) = self.near
        if one_s != other_s:
            crossing = other + (self.measured - other_s) * (other - one) / (other_s - one_s)
            if self.low < crossing < self.high:
                return crossing
        step = (self.measured - self.low_s) / (self.high_s - self.low_s)
        return self.low + (self.high - self.low) * min(max(step, LEAST_STEP), 1.0 - LEAST_STEP)

    def _price(self, scale: float) -> None:
        """Cut off what the prediction there decides."""
        if not self.low < scale < self.high:
            return
        found = self.seconds(scale)
        priced = [*self.near, (scale, found)]
        self.near = sorted(priced, key=lambda pair: abs(pair[1] - self.measured))[:2]
        if found < self.measured:
            self.low, self.low_s = scale, found
        else:
            self.high, self.high_s = scale, found
