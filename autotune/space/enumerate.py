"""Search space -> every valid candidate, as columns of codes; and why none is left, if so.

Each offer has its own grid: the product of its knobs' levels. Rules over one knob shorten an axis,
rules over several mask the grid, and what remains becomes candidates. A rule runs once for each
distinct combination of the knobs it reads, never once for each candidate. Locked values that leave
no candidate are an error before any search, with the nearest that would.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.catalog.software import INSTALLABLE, installing
from autotune.domain.candidates import CLOSED_FORM, OFFER, Candidates
from autotune.domain.config import ACCUMULATION, FLASH, KNOBS, PLAIN, KnobValue, as_typed
from autotune.domain.errors import InputError
from autotune.frozen import dataclass
from autotune.space.file import at_present
from autotune.space.requirements import host_doubts
from autotune.space.rules import RULES, Rule, host_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from autotune.domain.candidates import SearchSpace
    from autotune.domain.config import KnobValue
    from autotune.domain.device import Offer
    from autotune.domain.job import Job

    # The values of a knob that some valid candidate of a job has; none where there is no candidate.
    Valid = Callable[[Job, str], tuple[KnobValue, ...]]

AXES = tuple(name for name in KNOBS if name != ACCUMULATION)
OF_ONE = tuple((rule.reads[0], rule) for rule in RULES if len(rule.reads) == 1)
OF_SEVERAL = tuple(rule for rule in RULES if len(rule.reads) > 1)
CONTAMINATION = (
    "packing is locked on: without flash_attention_2, rows that share a sequence attend to "
    "each other"
)
MAX_CANDIDATES = 20_000_000  # about 1 GB of columns


@dataclass(frozen=True, slots=True)
class Enumeration:
    """Valid candidates, and what was left out and why.

    rejected: settings per reason, by the first rule that each one breaks.
    by_offer: the same for each offer, in the order of `job.offers`.
    opt_in_ignored: values that the space lists and the job does not allow.
    """

    candidates: Candidates
    rejected: dict[str, int]
    by_offer: tuple[dict[str, int], ...]
    space_size: int
    opt_in_ignored: dict[str, tuple[KnobValue, ...]]
    warnings: tuple[str, ...] = ()


def enumerate_candidates(job: Job, space: SearchSpace) -> Enumeration:
    """Every valid candidate of the job's offers; the user's own knobs at their present levels.

    Raises InputError when a locked value is impossible on every offer, or no split makes the global
    batch on any of them. Without candidates for other reasons the result is empty and says why.
    """
    found = _enumerate(job, space)
    if len(found.candidates) == 0:
        refuse_impossible(job, found.rejected, _valid_values(space))
    return found


def valid_candidates(job: Job, space: SearchSpace) -> Candidates:
    """The same candidates alone: none, and no reason, where locks are impossible."""
    return _enumerate(job, space).candidates


def knob_levels(job: Job, space: SearchSpace, offer: Offer, name: str) -> tuple[KnobValue, ...]:
    """Values of a knob that the job lets be tried on an offer, before any rule."""
    if name in job.lock:
        return (job.lock[name],)
    values = space.values[name]
    if name in PLAIN or KNOBS[name].closed:
        return _with_consent(job, name, values)
    if values:
        return values
    if name == "micro_batch_size":
        return _micro_batches(job, offer)
    if name == "pin_memory":
        return (offer.device.has_cuda,)
    return (CLOSED_FORM,)


def why_closed(
    job: Job, space: SearchSpace, offer: Offer, name: str, value: KnobValue
) -> tuple[Rule, ...]:
    """Rules against a value of an opt-in knob on an offer, were it opened; empty: it can run.

    A rule that reads another knob as well speaks against it where none of that knob's values will
    do; so does what leaves only those.
    """
    opened = with_open(job, name)
    alone = [rule for rule in RULES if rule.reads == (name,)]
    found = [rule for rule in alone if not rule.allows(opened, offer, value)]
    if found:
        return tuple(found)
    for rule in RULES:
        if name not in rule.reads or rule in alone:
            continue
        needed: list[Rule] = []
        options: list[tuple[KnobValue, ...]] = []
        for read in rule.reads:
            levels = (value,) if read == name else knob_levels(opened, space, offer, read)
            own = [each for each in RULES if each.reads == (read,) and read != name]
            able = tuple(v for v in levels if all(each.allows(opened, offer, v) for each in own))
            needed += [e for e in own if not all(e.allows(opened, offer, v) for v in levels)]
            options.append(able)
        if not any(rule.allows(opened, offer, *values) for values in product(*options)):
            found += [rule, *needed]
    return tuple(dict.fromkeys(found))


def with_open(job: Job, name: str) -> Job:
    """The job with one knob opened, as `--allow` does."""
    return replace(job, lock=without(job.lock, name), allow=(*job.allow, name))


def without(lock: Mapping[str, KnobValue], name: str) -> dict[str, KnobValue]:
    """Locked knobs but one."""
    return {other: value for other, value in lock.items() if other != name}


def _with_consent(job: Job, name: str, values: tuple[KnobValue, ...]) -> tuple[KnobValue, ...]:
    """Opt-in values only when the job allows the knob; then all, if the space lists just one."""
    closed = KNOBS[name].closed
    if closed:
        values = tuple(value for value in values if value not in closed)
        return (*values, *closed) if name in job.allow else values
    plain = PLAIN[name]
    if name in job.allow:
        return values if len(values) > 1 else KNOBS[name].choices
    return (plain,) if plain in values else values


def _micro_batches(job: Job, offer: Offer) -> tuple[int, ...]:
    """Every split of the global batch; an evaluation-only run accumulates nothing."""
    batch = job.global_batch_size
    if not job.steps and batch % offer.count == 0:
        return (batch // offer.count,)
    return _divisors(batch)


def _divisors(number: int) -> tuple[int, ...]:
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


@dataclass(frozen=True, slots=True)
class _Grid:
    """The valid settings of one offer: levels that remain, and a mask over their product.

    doubts: what the locks need of its host beyond what was assumed of it.
    """

    levels: dict[str, tuple[KnobValue, ...]]
    mask: NDArray[np.bool_]
    rejected: Counter[str]
    size: int
    doubts: list[str]


def _enumerate(job: Job, space: SearchSpace) -> Enumeration:
    grids = [_grid(job, space, offer) for offer in job.offers]
    rejected: Counter[str] = Counter()
    for grid in grids:
        rejected.update(grid.rejected)
    candidates = _columns(job, grids)
    warnings = [doubt for grid in grids for doubt in grid.doubts]
    if job.lock.get("packing") == "on" and job.lock.get("attention") not in FLASH:
        warnings.insert(0, CONTAMINATION)
    return Enumeration(
        rejected=dict(rejected.most_common()),
        by_offer=tuple(dict(grid.rejected) for grid in grids),
        space_size=sum(grid.size for grid in grids),
        opt_in_ignored=_ignored(job, space),
        warnings=tuple(dict.fromkeys(warnings)),
        candidates=at_present(candidates, space.extra) if space.extra else candidates,
    )


def _grid(job: Job, space: SearchSpace, offer: Offer) -> _Grid:
    levels = {name: knob_levels(job, space, offer, name) for name in AXES}
    size = left = math.prod(len(values) for values in levels.values())
    rejected: Counter[str] = Counter()
    for name, rule in OF_ONE if left else ():
        kept = tuple(value for value in levels[name] if rule.allows(job, offer, value))
        lost = left * (len(levels[name]) - len(kept)) // len(levels[name])
        if lost:
            rejected[rule.reason] += lost
            levels[name], left = kept, left - lost
        if not left:
            break
    if left > MAX_CANDIDATES:
        msg = (
            f"the search space holds {left:,} settings on {offer.label}, "
            f"and at most {MAX_CANDIDATES:,} can be priced"
        )
        raise InputError(msg, "list fewer values or lock some knobs")
    mask = np.ones([len(levels[name]) for name in AXES] if left else [0], np.bool_)
    for rule in OF_SEVERAL:
        if not left:
            break
        own = [levels[name] for name in rule.reads]
        answers = [rule.allows(job, offer, *values) for values in product(*own)]
        if all(answers):
            continue
        order = sorted(range(len(rule.reads)), key=lambda i: AXES.index(rule.reads[i]))
        shape = [len(levels[name]) if name in rule.reads else 1 for name in AXES]
        sized = np.asarray(answers, np.bool_).reshape([len(values) for values in own])
        mask &= sized.transpose(order).reshape(shape)  # to broadcast over the grid
        remaining = int(np.count_nonzero(mask))
        if remaining < left:
            rejected[rule.reason] += left - remaining
            left = remaining
    return _Grid(levels, mask, rejected, size, host_doubts(job, offer, job.lock))


def _columns(job: Job, grids: list[_Grid]) -> Candidates:
    """Codes of every grid's valid settings, one after another in the order of the offers."""
    levels: dict[str, tuple[Any, ...]] = {OFFER: job.offers}
    used = [grid for grid in grids if grid.mask.any()]
    for name in AXES:
        distinct = dict.fromkeys(value for grid in used for value in grid.levels[name])
        if KNOBS[name].kind == "count":
            levels[name] = tuple(sorted(distinct, key=int))
        else:
            levels[name] = tuple(distinct)
    splits = {
        (offer.count, micro): job.global_batch_size // (int(micro) * offer.count)
        for offer, grid in zip(job.offers, grids, strict=True)
        for micro in grid.levels["micro_batch_size"]
        if grid.mask.any()
    }
    levels[ACCUMULATION] = tuple(sorted(set(splits.values())))
    searched = [name for name in AXES if len(levels[name]) > 1]
    parts: dict[str, list[NDArray[np.int32]]] = {n: [] for n in (OFFER, *searched, ACCUMULATION)}
    for number, (offer, grid) in enumerate(zip(job.offers, grids, strict=True)):
        chosen = np.flatnonzero(grid.mask)
        if len(chosen) == 0:
            continue
        parts[OFFER].append(np.full(len(chosen), number, np.int32))
        digits = dict(zip(AXES, np.unravel_index(chosen, grid.mask.shape), strict=True))
        for name in searched:
            codes = [levels[name].index(value) for value in grid.levels[name]]
            parts[name].append(np.asarray(codes, np.int32)[digits[name]])
        made = [splits[offer.count, micro] for micro in grid.levels["micro_batch_size"]]
        codes = [levels[ACCUMULATION].index(value) for value in made]
        parts[ACCUMULATION].append(np.asarray(codes, np.int32)[digits["micro_batch_size"]])
    columns = {name: np.concatenate(own) for name, own in parts.items() if own}
    same = np.zeros(len(columns.get(OFFER, ())), np.int32)
    return Candidates(
        {name: levels[name] for name in (OFFER, *KNOBS)},
        {name: columns.get(name, same) for name in (OFFER, *KNOBS)},
    )


def _ignored(job: Job, space: SearchSpace) -> dict[str, tuple[KnobValue, ...]]:
    ignored = {}
    for name, plain in PLAIN.items():
        others = tuple(value for value in space.values[name] if value != plain)
        listed = others and plain in space.values[name]
        if listed and name not in job.allow and name not in job.lock:
            ignored[name] = others
    for name, knob in KNOBS.items():
        shut = tuple(value for value in space.values.get(name, ()) if value in knob.closed)
        if shut and name not in job.allow and name not in job.lock:
            ignored[name] = shut
    return ignored


def _valid_values(space: SearchSpace) -> Callable[[Job, str], tuple[KnobValue, ...]]:
    """Values of a knob that some valid candidate of a job has."""

    def valid(job: Job, name: str) -> tuple[KnobValue, ...]:
        candidates = _enumerate(job, space).candidates
        levels = candidates.levels[name]
        return tuple(levels[code] for code in np.flatnonzero(np.bincount(candidates.codes[name])))

    return valid


def refuse_impossible(job: Job, rejected: Mapping[str, int], valid: Valid) -> None:
    """Raise when locked values, or the global batch, are what leaves no candidate.

    rejected: settings by the reason of the rule that rejected them.
    """
    devices = ", ".join(dict.fromkeys(offer.label for offer in job.offers))
    able = {name: valid(with_open(job, name), name) for name in job.lock}
    alone = {name: values for name, values in able.items() if values}
    if alone:
        raise _impossible(job, devices, rejected, alone, valid)
    batch_reasons = [rule.reason for rule in RULES if rule.reads == ("micro_batch_size",)]
    if rejected and set(rejected) <= set(batch_reasons):
        sizes = sorted({offer.count for offer in job.offers})
        msg = f"no split makes a global batch of {job.global_batch_size} on {devices}"
        hint = f"it must be a multiple of the devices of an offer ({', '.join(map(str, sizes))})"
        raise InputError(msg, hint)
    if job.lock and valid(replace(job, lock={}), "micro_batch_size"):
        locks = ", ".join(f"{name} {as_typed(value)}" for name, value in job.lock.items())
        msg = f"{locks}: locked together, not possible on {devices}: "
        raise InputError(msg + _reasons(rejected), "leave some of them out of lock")


def _impossible(
    job: Job,
    devices: str,
    rejected: Mapping[str, int],
    able: Mapping[str, tuple[KnobValue, ...]],
    valid: Valid,
) -> InputError:
    """One lock that cannot be, or several of which one must give way.

    able: locks without which there are candidates, with the values that those have.
    """
    names = [f"{name} {as_typed(job.lock[name])}" for name in able]
    what = f"{' and '.join(names)} are locked together, and" if len(able) > 1 else ""
    what = what or f"{names[0]} is locked but"
    msg = f"{what} not possible on {devices}: {_reasons(rejected, of_knobs=set(able))}"
    options = [f"{name} {', '.join(map(as_typed, values))}" for name, values in able.items()]
    rest = "with the rest" if len(able) > 1 else "here"
    hint = f"{' or '.join(options)} can run {rest}"
    own = _about(rejected, set(able))
    host = host_options(job, job.offers[0], {reason: rejected[reason] for reason in own})
    more = [host, _package(job, valid)]
    typed = " or ".join(option for option in more if option)
    if typed:
        return InputError(msg, f"{hint}; to keep what is locked: {typed}")
    return InputError(msg, f"{hint}; or change the hardware or software of the job")


def _package(job: Job, valid: Valid) -> str:
    """The missing package with which the locks can run; empty where none would do."""
    any_knob = next(iter(KNOBS))
    for package, version in INSTALLABLE.items():
        if getattr(job.software, package) is not None:
            continue
        installed = replace(job.software, **{package: version})  # type: ignore[arg-type]
        if valid(replace(job, software=installed), any_knob):
            return installing(package)
    return ""


def _reasons(rejected: Mapping[str, int], of_knobs: set[str] | None = None) -> str:
    return "; ".join(_about(rejected, of_knobs or set()))


def _about(rejected: Mapping[str, int], of_knobs: set[str]) -> list[str]:
    """The rules that rejected; those that read the knobs when there are any."""
    about = {rule.reason for rule in RULES if of_knobs & set(rule.reads)}
    return [reason for reason in rejected if reason in about] or list(rejected)
