"""What past runs say of a step, for every candidate: how long it takes by what it is made of.

A run says more of steps that spend their time as its own did, and whose matrices are of its size.
So what runs teach (`evidence.learned.effects`) is a function of where a step's seconds are
(computing, moving bytes, issuing kernels, links between devices, and the optimizer) and of the
tokens that a device computes at a time.

    log(measured / modelled) = a + b' phi(shares) + c' bumps(log tokens)
    phi: products of any two shares;  bumps' bumps = exp(-(difference of log tokens)^2 / 2)
    variance = psi' S psi + own,  psi = (1, phi, bumps);  S: what past runs leave open of a, b and c

Source: derived: the best linear prediction of `evidence.learned.effects`, written by its
coefficients (Rasmussen & Williams, "Gaussian Processes for Machine Learning" (2006), section 2.1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.columns import Table
from autotune.cost.constants import constants
from autotune.cost.run_time import micro_steps
from autotune.domain.candidates import OFFER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.cost.columns import FloatArray, Outputs, Tables
    from autotune.domain.candidates import Candidates
    from autotune.domain.job import Job
    from autotune.domain.observation import MachineEffect, StepError

STEP = ("compute", "collectives")  # components that a step is made of
PARTS = 5  # of a step: computing, moving bytes, issuing, links, optimizer
_FIRST, _SECOND = np.triu_indices(PARTS)
_APART = 0.75  # [log tokens] between sizes; at less the sum is no nearer to the integral
_SIZES = np.arange(-3.0, 17.0, _APART)  # from below one token to beyond a million
_TWICE = np.where(_FIRST == _SECOND, 1.0, np.sqrt(2.0))
WIDEST = 2.0  # of the model's own spread, where a user's runs differ more than it says


def step_shares(compute: Outputs, links: Outputs, accumulation: FloatArray) -> FloatArray:
    """[rows, PARTS] shares of an optimizer step's seconds, without its wait for data.

    compute, links: outputs of the two components, [rows]. What issuing and running take of a
    micro-step that overlaps both: the derivative of its logarithm by theirs, which add up to one.
    """
    power = constants().overlap_power
    busy = compute["compute_s"] + compute["bandwidth_s"]
    device, issued = busy**power, compute["launch_s"] ** power
    micro = accumulation * compute["micro_step_s"]
    on_device = micro * device / np.maximum(device + issued, 1e-30)
    exchanged = accumulation * links["per_micro_s"] + links["per_step_s"]
    computing = on_device * compute["compute_s"] / np.maximum(busy, 1e-30)
    parts = [computing, on_device - computing, micro - on_device, exchanged, compute["optimizer_s"]]
    seconds = np.stack(parts, axis=1)
    shares: FloatArray = seconds / np.maximum(seconds.sum(axis=1, keepdims=True), 1e-30)
    return shares


def pairs_of(shares: FloatArray) -> FloatArray:
    """[rows, 15] products of any two shares: phi(f)' phi(g) = (f' g)^2."""
    products: FloatArray = shares[:, _FIRST] * shares[:, _SECOND] * _TWICE
    return products


def tokens_of(compute: Outputs, accumulation: FloatArray, count: int) -> FloatArray:
    """[rows] real tokens that each of `count` devices computes at a time."""
    tokens: FloatArray = compute["real_tokens_per_step"] / (np.maximum(accumulation, 1.0) * count)
    return tokens


def bumps_of(tokens: FloatArray) -> FloatArray:
    """[rows, bumps] how near the size of a step is to each of a row of sizes.

    Their products are the likeness of two sizes, exp(-(difference of logs)^2 / 2). Source: derived:
    the integral over u of exp(-(s - u)^2 - (t - u)^2) is sqrt(pi / 2) of that, here as a sum.
    """
    away = np.log(np.maximum(tokens, 1.0))[:, None] - _SIZES[None, :]
    found: FloatArray = np.sqrt(_APART / np.sqrt(np.pi / 2.0)) * np.exp(-(away**2))
    return found


def log_error(
    own: StepError, shares: FloatArray, tokens: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """([rows], [rows]) log factor of steps of such shares and sizes, and its variance."""
    terms = np.column_stack((np.ones(len(shares)), pairs_of(shares), bumps_of(tokens)))
    open_still = np.einsum("ri,ij,rj->r", terms, np.asarray(own.covariance), terms)
    return terms @ np.asarray(own.mean), np.maximum(open_still, 0.0) + own.variance


def unsettled(compute: Outputs) -> FloatArray:
    """[rows] log spread of the job and of its knobs that no past run settles."""
    spread: FloatArray = np.hypot(compute["knob_log_sd"], compute["job_log_sd"])
    return spread


def as_learned(
    name: str,
    tables: Tables,
    effects: Mapping[tuple[str, int], MachineEffect],
    job: Job,
    candidates: Candidates,
) -> Table:
    """A component's table with what past runs say of each machine.

    tables: of that component and, where it is one of `STEP`, the other, both as modelled.
    """
    offers = candidates.levels[OFFER]
    found = [effects.get((offer.device.name, offer.count)) for offer in offers]
    if not len(candidates) or not any(found):
        return tables[name]
    names = STEP if name in STEP else (name,)
    key = candidates.codes[OFFER].astype(np.intp)
    for each in names:
        key = np.unique(key, return_inverse=True)[1] * (tables[each].row_of.max() + 1)
        key = key + tables[each].row_of
    _, first, row_of = np.unique(key, return_index=True, return_inverse=True)
    rows = {
        each: {n: a[tables[each].row_of[first]] for n, a in tables[each].outputs.items()}
        for each in names
    }
    offer_of = candidates.codes[OFFER][first]
    accumulation = micro_steps(job, candidates.take(first))
    outputs = rows[name]
    for place, own in enumerate(found):
        here = offer_of == place
        if own is None or not here.any():
            continue
        taken = {e: {n: a[here] for n, a in rows[e].items()} for e in names}
        count = offers[place].count
        for output, array in _under(own, name, taken, accumulation[here], count).items():
            outputs[output] = outputs[output].copy()
            outputs[output][here] = array
    return Table(outputs, row_of.astype(np.intp, copy=False))


def _under(
    own: MachineEffect, name: str, rows: Mapping[str, Outputs], accumulation: FloatArray,
    count: int,
) -> Outputs:  # fmt: skip
    """What becomes of a component's outputs on a machine."""
    outputs = rows[name]
    factor: FloatArray | float = own.factor
    log_sd = outputs["log_sd"] * own.spread
    if own.step is not None:
        shares = step_shares(rows["compute"], rows["collectives"], accumulation)
        tokens = tokens_of(rows["compute"], accumulation, count)
        log, variance = log_error(own.step, shares, tokens)
        factor = np.exp(log)
        if own.here:
            log_sd = _left(name, rows, shares, variance)
    changed = {each: array * factor for each, array in outputs.items() if each.endswith("_s")}
    changed["log_sd"] = log_sd
    if own.here and own.step is not None and "slow_variance" in outputs:
        changed["slow_variance"] = np.zeros_like(log_sd)  # such runs have been seen
    if "unseen_device" in outputs and own.here:
        changed["unseen_device"] = np.ones_like(outputs["unseen_device"])
    return changed


def _left(
    name: str, rows: Mapping[str, Outputs], shares: FloatArray, variance: FloatArray
) -> FloatArray:
    """[rows] log spread of a component where past runs on the machine speak of whole steps.

    Links and the rest of a step err as one there, while the bill adds them as if apart; so each is
    as much wider as makes their sum right.
    """
    links = shares[:, 3]
    spread = np.minimum(np.sqrt(variance), WIDEST * rows["compute"]["log_sd"])
    if name == "compute":
        spread = np.hypot(spread, unsettled(rows[name]))
    return np.asarray(spread / np.sqrt(links**2 + (1.0 - links) ** 2))
