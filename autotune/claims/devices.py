"""Stated memory tables and device rates against the model's memory and the catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.catalog.devices import find_device
from autotune.claims.run import ALIKE, figures_text
from autotune.cost.memory.states import quantised
from autotune.domain.units import TERA, format_bytes, format_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.claims.run import Checked, PricedRun
    from autotune.domain.device import Device
    from autotune.domain.job import Job
    from autotune.domain.statement import Span

MATTERS = 0.05  # share of the total below which a part is not missed
UNLIKE = 1.5  # times more or less than the model before a part is named
FP32_BYTES = 4
_RATES = {
    "fp32_flop_per_s": "its fp32 rate, outside the tensor cores",
    "tf32_flop_per_s": "its tf32 tensor rate",
    "fp16_flop_per_s": "its fp16 tensor rate",
    "bf16_flop_per_s": "its bf16 tensor rate",
    "int8_op_per_s": "its int8 rate",
    "fp8_flop_per_s": "its fp8 rate",
}
_NEAR = 0.03  # relative: data sheets round
_NAMES = {"weights": "weights", "adapters": "adapters", "gradients": "gradients",
          "optimizer": "optimizer states", "activations": "activations",
          "logits": "logits and loss", "total": "total"}  # fmt: skip


def memory_findings(checked: Checked) -> Iterator[str]:
    """A memory table: what it leaves out, and which of its parts cannot be."""
    stated, run = checked.statement.memory_bytes, checked.run
    if not stated or run is None:
        return
    modelled = {**run.row.memory_bytes.as_dict(), "total": run.row.memory_bytes.total}
    weights = stated.get("weights")
    if weights is not None and weights * ALIKE < modelled["weights"]:
        yield _weights_text(run.job, weights, modelled["weights"])
    if "logits" not in stated and len(stated) > 1 and (
        modelled["logits"] > MATTERS * modelled["total"]
    ):  # fmt: skip
        yield _logits_text(run, modelled)
    off = [
        f"{_NAMES[name]} {format_bytes(modelled[name])}, not {format_bytes(size)}"
        for name, size in stated.items()
        if name != "weights"
        and max(size, modelled[name]) > MATTERS * modelled["total"]
        and not 1 / UNLIKE < size / max(modelled[name], 1.0) < UNLIKE
    ]
    if off:
        usable = run.row.usable_bytes
        lack = f", where {format_bytes(usable)} are usable" if modelled["total"] > usable else ""
        yield (
            f"memory on {run.machine} with micro-batch {run.config.micro_batch_size} and "
            f"activation checkpointing {run.config.activation_checkpointing} is otherwise: "
            + "; ".join(off)
            + lack
        )
    parts = sum(size for name, size in stated.items() if name != "total")
    total = stated.get("total")
    if total is not None and len(stated) > 2 and not 1 / 1.1 < parts / total < 1.1:  # noqa: PLR2004
        yield f"the parts add up to {format_bytes(parts)}, not {format_bytes(total)}"


def _weights_text(job: Job, stated: float, modelled: float) -> str:
    """Weights that are too small; a quantised base keeps its embedding in 16 bit."""
    model = job.model
    embedding = 2.0 * model.vocab_size * model.hidden_size
    why = ""
    if quantised(job):
        why = (
            f": its embedding stays in 16 bit and is {embedding / 1e9:.2f} GB alone "
            f"({format_count(model.vocab_size)} x {format_count(model.hidden_size)})"
        )
    return (
        f"weights of {model.name} with base {job.method.base} are {modelled / 1e9:.1f} GB, not "
        f"{stated / 1e9:.1f}{why}"
    )


def _logits_text(run: PricedRun, modelled: dict[str, float]) -> str:
    micro, length, vocab = (
        run.config.micro_batch_size, run.job.max_length, run.job.model.vocab_size,
    )  # fmt: skip
    alone = float(micro * length * vocab * FP32_BYTES)
    text = (
        f"the memory table leaves out the logits: {micro} x {length} x {format_count(vocab)} in "
        f"fp32 are {format_bytes(alone)}"
    )
    weights = modelled["weights"]
    more = f", more than the {format_bytes(weights)} of weights" if alone > weights else ""
    return text + more


def rate_findings(checked: Checked) -> Iterator[str]:
    """A stated rate of a device that is not the one that training uses."""
    job, stated = checked.job, checked.statement.figures.get("flop_per_s")
    if stated is None:
        return
    name = checked.statement.about.gpu or (job.today_offer or job.offers[0]).device.name
    device = find_device(name)
    used, precision = _training_rate(device)
    if used <= 0 or _is(stated, used):
        return
    comparable = f"{precision} training uses {used / TERA:.3g}"
    if _is(stated, 2.0 * used):
        yield f"{_tera(stated)} of {device.name} is with sparsity, or in 8 bit: {comparable}"
        return
    for field, words in _RATES.items():
        if _is(stated, getattr(device, field)):
            yield f"{_tera(stated)} of {device.name} is {words}: {comparable}"
            return
    yield f"{_tera(stated)} is no dense rate of {device.name}: {comparable}"


def _is(stated: Span, rate: float) -> bool:
    return rate > 0 and stated.low * (1 - _NEAR) <= rate <= stated.high * (1 + _NEAR)


def _training_rate(device: Device) -> tuple[float, str]:
    """[FLOP/s] of the 16-bit format that the device has natively."""
    if device.bf16_flop_per_s:
        return device.bf16_flop_per_s, "bf16"
    return device.fp16_flop_per_s, "fp16"


def _tera(span: Span) -> str:
    return f"{figures_text(span.scaled(1.0 / TERA))} TFLOP/s"
