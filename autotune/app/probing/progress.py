"""What is said of a probe while it runs and when it has ended: one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.app.probing.plan import depths_of
from autotune.domain.units import format_bytes, format_seconds, format_usd
from autotune.probe.outcomes import BROKEN

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.domain.config import Config
    from autotune.domain.outcome import Estimated
    from autotune.probe.record import ProbeRecord
    from autotune.probe.worker.contract import Phase


class ProbeProgress:
    """Names probes as a person counts them: configurations, and runs of each."""

    def __init__(self, most: int, status: Callable[[str], None] | None) -> None:
        """most: configurations that may be probed; status: hears what goes on now."""
        self.most, self._status = most, status
        self._what = self._why = ""
        self._expected_s = self._left_s = 0.0

    def begins(self, number: int, run: int, why: str, expected_s: float, left_s: float) -> None:
        """A run of configuration `number` begins. why: what is doubted of those before.

        expected_s: of this run; left_s: of the probe budget.
        """
        self._what, self._why = self.name(number, run), why
        self._expected_s, self._left_s = expected_s, left_s

    def on_phase(self, phase: Phase, since_s: float) -> None:
        """The worker does something."""
        if self._status is None:
            return
        text = f"{self._what}: {phase.name}"
        if phase.of:
            text += f", step {phase.done} of {phase.of}"
        elif phase.done:
            text += f", step {phase.done}"
        more = self._expected_s - since_s
        yet = f"{more:.0f} s more" if more >= 1.0 else "longer than expected"
        left = format_seconds(max(self._left_s - since_s, 0.0))
        parts = [text, f"{since_s:.0f} s, {yet}", f"{left} left at most", self._why]
        self._status(" | ".join(filter(None, parts)))

    def name(self, number: int, run: int) -> str:
        """A run as a person counts: of the configurations that may be probed, and which of it."""
        return f"probe {number} of {self.most}" + (f", run {run}" if run > 1 else "")


MOST_WHY = 160  # characters of why a probe broke


def short(config: Config) -> str:
    """A configuration in a few words: what a person would change."""
    words = [f"micro {config.micro_batch_size}", config.precision, config.attention]
    if config.activation_checkpointing != "none":
        words.append("checkpointing")
    if config.compile != "off":
        words.append(f"compile {config.compile}")
    words.append(f"{config.num_dataloader_workers} workers")
    words += [f"{name} {value}" for name, value in config.extra]
    return ", ".join(words)


def probe_line(
    name: str, record: ProbeRecord, predicted: Estimated, best: Estimated | None, left_s: float,
    *, offer: bool = False,
) -> str:  # fmt: skip
    """What, predicted, measured, ratio, memory, best so far, budget left; offer: and on which."""
    place = [predicted.offer.label] if offer else []
    parts = [name, *place, short(predicted.config)]
    expected = predicted.step_time_s
    if record.ok:
        step_s = record.step_s(predicted.config.gradient_accumulation_steps)
        parts.append(
            f"{format_seconds(step_s)}/step ({step_s / max(expected, 1e-12):.2f}x of "
            f"{format_seconds(expected)})"
        )
        parts.append(
            f"{format_bytes(record.needed_bytes)} (of {format_bytes(predicted.usable_bytes)})"
        )
    else:
        needed = format_bytes(predicted.memory_bytes.total)
        parts.append(f"{record.status} (predicted {format_seconds(expected)}/step, {needed})")
        why = record.message.partition("\n")[0]
        if record.status in BROKEN and why:
            parts.append(why[:MOST_WHY])
    depths = depths_of(record)
    if depths:
        parts.append(f"from {depths[0]} and {depths[1]} layers")
    if record.disturbed:
        parts.append(f"disturbed: {record.disturbed[0]}")
    if best is not None:
        parts.append(f"best {format_seconds(best.duration_s.p50)}, {format_usd(best.cost_usd.p50)}")
    rate = predicted.offer.usd_per_s
    parts.append(f"left {format_seconds(left_s)}, {format_usd(left_s * rate)}")
    return " | ".join(parts)
