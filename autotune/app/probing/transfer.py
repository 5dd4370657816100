"""What probes on one device say about another: the components whose causes the two share.

Computing depends on the device: how far real kernels stay behind the rates carries over between
GPUs of one vendor, not between a processor and a GPU. A batch in one loader worker is work of one
host core, on any device. Saves, start-up and communication are of the disk, the network and the
links of a machine and stay the model's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from autotune.domain.candidates import OFFER
from autotune.domain.observation import Calibration

if TYPE_CHECKING:
    from autotune.app.probing.measured_bill import MeasuredRow
    from autotune.cost.bill import Bill
    from autotune.domain.device import Device, Offer

# sd of the log of an efficiency that was measured on one machine and is applied to another:
# assumptions; the least that a transfer leaves over, whatever was measured
COMPUTE_LOG_SD, DATA_LOG_SD = 0.20, 0.35
LITTLE = 0.1  # of the run


@dataclass(frozen=True, slots=True)
class Transfer:
    """Factors by component of the cost model, and in words what was and what was not carried."""

    calibration: Calibration
    note: str


def transferred(
    rows: tuple[MeasuredRow, ...], bill: Bill, offer: Offer, whole: Bill, known: Calibration
) -> Transfer:
    """What probes of `bill`'s candidates on `offer` teach about the machines of `whole`."""
    logs: dict[str, list[float]] = {"compute": [], "data": []}
    calm = tuple(item for item in rows if not item.record.disturbed)
    for item in calm or rows:  # what others disturbed teaches only where there is nothing else
        for name, value in _log_ratios(item, bill).items():
            logs[name].append(value)
    targets = whole.candidates.levels[OFFER]
    carried, left = {}, []
    if all(_alike(offer.device, target.device) for target in targets):
        carried["compute"] = COMPUTE_LOG_SD
    else:
        names = ", ".join(sorted({target.device.name for target in targets}))
        left.append(f"computing on {offer.device.name} says nothing about {names}")
    if _prepares_little(whole):
        carried["data"] = DATA_LOG_SD
    else:
        left.append("preparing the rows takes long and was not measured")
    factors, sds, words = dict(known.factors), dict(known.log_sds), []
    for name, least in carried.items():
        if logs[name]:
            factor = math.exp(fmean(logs[name]))
            factors[name] = factor * known.factors.get(name, 1.0)
            sds[name] = math.hypot(least, _sd(logs[name]) / math.sqrt(len(logs[name])))
            words.append(f"{name} took {factor:.2f} times what was predicted")
    note = (
        f"probed on {offer.label}, which is none of the job's machines: of {len(rows)} probes, "
        f"{' and '.join(words) or 'nothing'} was applied to the job's machines"
    )
    left.append("saving, start-up, communication and memory stay the model's")
    provenance = (*known.provenance, f"{len(rows)} probes on {offer.label}")
    return Transfer(Calibration(factors, sds, provenance), "; ".join([note, *left]))


def _prepares_little(whole: Bill) -> bool:
    """Whether the data component is about batches: its factor also scales preparing the rows."""
    if not len(whole):
        return False
    prepare_s = whole.tables["data"].gather("prepare_s")
    return bool(np.median(prepare_s / whole.duration_s) <= LITTLE)


def _alike(one: Device, other: Device) -> bool:
    """Whether kernels of one library compute on both."""
    return one.vendor == other.vendor and one.is_cpu == other.is_cpu


def _log_ratios(item: MeasuredRow, bill: Bill) -> dict[str, float]:
    """log(measured / predicted) of the components of one probe."""
    config, result = item.row.config, item.record.result
    accumulation = config.gradient_accumulation_steps
    measured = {
        "compute": item.record.step_s(accumulation) - item.record.data_s(accumulation),
        "data": next(
            (float(e["batch_s"]) for e in result.get("loader") or [] if e["workers"] == 0), 0.0
        ),
    }
    micro_s = bill.at("compute", "micro_step_s", item.index)
    predicted = {
        "compute": accumulation * micro_s + bill.at("compute", "optimizer_s", item.index),
        "data": bill.at("data", "batch_s", item.index),
    }
    return {
        name: math.log(value / predicted[name])
        for name, value in measured.items()
        if value > 0 and predicted[name] > 0
    }


def _sd(values: list[float]) -> float:
    """Of one value: unknown, and taken as large as a factor of two."""
    if len(values) < 2:  # noqa: PLR2004 - one value has no spread
        return math.log(2.0)
    mean = fmean(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
