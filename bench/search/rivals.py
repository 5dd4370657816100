"""What people would do instead: rivals of the calibrated sampler that know the cost model too.

topk         the model's distinct best, twins removed, one after the other; the best measured
hill         from the model's best, one knob at a time, in the order that the model prefers
random_fits  any candidate that the model says fits
plain_gp     one Gaussian process over log(measured/predicted) of the bill and one over memory, on
             all knobs at once; expected improvement x probability of fitting, from the model's best
ladder       raise the micro-batch until it does not fit, then one knob at a time
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.search.posterior.improvement import expected_improvement, normal_cdf
from autotune.search.priced import MEMORY

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from numpy.typing import NDArray

    from autotune.cost.columns import FloatArray
    from autotune.search.priced import Priced
    from bench.search.hidden import Hidden, Params

    Asked = Generator[int, dict[str, float] | None, None]

LENGTHS = (0.7, 1.2, 2.0, 3.5)  # of the plain process: knobs over which it forgets
SDS = (0.1, 0.2, 0.4, 0.8)
FIRST = 3  # measurements of the model's best before the plain process begins
MOST_LISTED = 4000  # candidates that the plain process looks at, by predicted cost


def topk(machine: Hidden, seed: int) -> Asked:  # noqa: ARG001 - as every rival
    """The model's distinct best."""
    yield from distinct(machine)


def distinct(priced: Priced, order: Iterable[int] | None = None) -> Iterator[int]:
    """An order, the model's by default, without twins: equals in all that any part reads."""
    seen: set[tuple[int, ...]] = set()
    for index in priced.order() if order is None else order:
        signature = tuple(int(part.row_of[index]) for part in priced.parts)
        if signature not in seen:
            seen.add(signature)
            yield index


def random_fits(machine: Hidden, seed: int) -> Asked:
    """Any that should fit."""
    at = np.flatnonzero(machine.predicted_memory <= machine.limit)
    for index in np.random.default_rng([seed, 5]).permutation(at):
        yield int(index)


def hill(machine: Hidden, seed: int) -> Asked:  # noqa: ARG001 - as every rival
    """To the first neighbour that is better, the model's favourite first."""
    tried: set[int] = set()
    starts = machine.order()
    predicted, fits = machine.predicted_cost, machine.predicted_memory <= machine.limit
    for start in starts:
        if start in tried:
            continue
        now, best = start, float("inf")
        tried.add(start)
        measured = yield start
        if measured is not None:
            best = machine.measured_cost(start, measured)
        while True:
            near = [i for i in machine.neighbours(now) if i not in tried]
            near.sort(key=lambda i: (not fits[i], predicted[i]))
            for index in near:
                tried.add(index)
                measured = yield index
                if measured is not None and machine.measured_cost(index, measured) < best:
                    now, best = index, machine.measured_cost(index, measured)
                    break
            else:
                break


def plain_gp(machine: Hidden, seed: int) -> Asked:  # noqa: ARG001 - as every rival
    """One process for the bill, one for memory."""
    first = topk(machine, 0)
    at = np.argsort(
        machine.predicted_cost
        + np.where(machine.predicted_memory <= 1.5 * machine.limit, 0.0, np.inf),
        kind="stable",
    )
    at = at[:MOST_LISTED].astype(np.intp)
    asked: list[int] = []
    costs: list[tuple[int, float]] = []
    sizes: list[tuple[int, float]] = []
    knobs = _knobs(machine)
    for number in count():
        if number < FIRST or not costs:
            index = next(first)
        else:
            index = _next(machine, knobs, at, asked, costs, sizes)
        measured = yield index
        asked.append(index)
        if measured is None:
            sizes.append((index, float(np.log(1.05 * machine.limit[index]))))
        else:
            costs.append((index, float(np.log(machine.measured_cost(index, measured)))))
            sizes.append((index, float(np.log(measured[MEMORY]))))


def _next(
    machine: Hidden, knobs: NDArray[np.int64], at: NDArray[np.intp], asked: list[int],
    costs: list[tuple[int, float]], sizes: list[tuple[int, float]],
) -> int:  # fmt: skip
    mean, sd = _process(knobs, at, costs, np.log(machine.predicted_cost), 0.03)
    room, spread = _process(knobs, at, sizes, np.log(machine.predicted_memory), 0.01)
    fits = normal_cdf((np.log(machine.limit[at]) - room) / np.maximum(spread, 1e-4))
    worth = expected_improvement(mean - min(value for _, value in costs), sd) * fits
    worth[np.isin(at, asked)] = -1.0
    return int(at[np.argmax(worth)])


def _knobs(machine: Hidden) -> NDArray[np.int64]:
    """[n, dimensions] every column that any part reads."""
    columns = {}
    for part in machine.parts:
        for k, dimension in enumerate(part.reads):
            if len(dimension.levels) > 1:
                columns[dimension.name] = part.codes[part.row_of, k]
    return np.stack(list(columns.values()), axis=1)


def _process(
    knobs: NDArray[np.int64], at: NDArray[np.intp], seen: list[tuple[int, float]],
    prior: FloatArray, noise: float,
) -> tuple[FloatArray, FloatArray]:  # fmt: skip
    """Mean and sd at candidates, length and sd of the highest likelihood of a small grid."""
    own = np.asarray([index for index, _ in seen], np.intp)
    values = np.asarray([value for _, value in seen]) - prior[own]
    level = float(np.median(values))
    near = (knobs[own][:, None, :] != knobs[own][None, :, :]).sum(axis=2)
    best, chosen = -np.inf, (LENGTHS[0], SDS[0])
    for length in LENGTHS:
        for sd in SDS:
            kernel = sd**2 * np.exp(-near / length) + noise**2 * np.eye(len(own))
            factor = np.linalg.cholesky(kernel)
            white = np.linalg.solve(factor, values - level)
            score = -0.5 * white @ white - np.log(np.diag(factor)).sum()
            if score > best:
                best, chosen = float(score), (length, sd)
    length, sd = chosen
    kernel = sd**2 * np.exp(-near / length) + noise**2 * np.eye(len(own))
    far = (knobs[at][:, None, :] != knobs[own][None, :, :]).sum(axis=2)
    cross = sd**2 * np.exp(-far / length)
    solved = np.linalg.solve(kernel, cross.T)
    mean: FloatArray = prior[at] + level + cross @ np.linalg.solve(kernel, values - level)
    variance = np.maximum(sd**2 - np.einsum("ij,ji->i", cross, solved), 1e-12)
    return mean, np.sqrt(variance)


def ladder_asked(machine: Hidden, seed: int) -> Asked:  # noqa: ARG001 - as every rival
    """The ladder's configurations that are candidates."""
    steps = ladder(machine)
    params = next(steps)
    while True:
        index = machine.find(params)
        cost = None
        if index is not None:
            measured = yield index
            cost = None if measured is None else machine.measured_cost(index, measured)
        try:
            params = steps.send(cost)
        except StopIteration:
            return


def ladder(machine: Hidden) -> Generator[Params, float | None, None]:
    """What people do: raise the micro-batch until it does not fit, then one knob at a time.

    Save memory first when not even one row fits. Each knob keeps its best value before the next is
    tried; cards come last. Sends back the cost of each configuration, None for out of memory.
    """
    hand = machine.by_hand
    now: Params = dict(hand.start)
    cost = yield now
    for saving in hand.savings:
        if cost is not None:
            break
        now = {**now, **saving}
        cost = yield now
    best = float("inf") if cost is None else cost
    now, best = yield from _raise(machine, now, best)
    while True:
        before = best
        for knob, values in hand.toggles:
            start = now
            for value in values:
                if value != start[knob]:
                    cost = yield {**start, knob: value}
                    if cost is not None and cost < best:
                        now, best = {**start, knob: value}, cost
        now, best = yield from _raise(machine, now, best)
        if best == before:
            return


def _raise(
    machine: Hidden, now: Params, best: float
) -> Generator[Params, float | None, tuple[Params, float]]:
    """Double the micro-batch until it does not fit or gets no better."""
    knob: Any = machine.by_hand.grows
    while now[knob] < machine.by_hand.top:
        larger = {**now, knob: now[knob] + 1}
        cost = yield larger
        if cost is None or cost >= best:
            break
        now, best = larger, cost
    return now, best


RIVALS = {
    "topk": topk, "hill": hill, "random_fits": random_fits, "plain_gp": plain_gp,
    "ladder": ladder_asked,
}  # fmt: skip
