"""What is said of a probe while it is fresh: one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.app.probing.plan import depths_of
from autotune.domain.units import format_bytes, format_seconds, format_usd
from autotune.probe.outcomes import BROKEN

if TYPE_CHECKING:
    from autotune.domain.config import Config
    from autotune.domain.outcome import Estimated
    from autotune.probe.record import ProbeRecord


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
    rate = predicted.offer.usd_per_hour / 3600.0
    parts.append(f"left {format_seconds(left_s)}, {format_usd(left_s * rate)}")
    return " | ".join(parts)
