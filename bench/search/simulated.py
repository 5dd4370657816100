"""Machines that do not exist: a cost model, a hidden truth that differs from it, and probes.

Ten knobs of a 1.5 B full fine-tune at a fixed global batch of 32. The model prices every
configuration; the truth multiplies each component by exp(bias): one draw for each level of each
knob (cumulative along an ordinal one) and one for each pair of levels of two knobs. Probes see the
truth with noise, or run out of memory. The shape is that of the kernel in `residuals`, which
favours the calibrated sampler; the scenario `cliffs` breaks it on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.search.posterior.acquisition import Posterior
from autotune.search.posterior.costs import least
from autotune.search.posterior.measurements import History
from autotune.search.priced import MEMORY, Dimension, Part, part_of
from bench.search.hidden import ByHand, Hidden

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from autotune.cost.columns import FloatArray

# name, [dense 16-bit TFLOP/s, bandwidth GB/s, memory GB, USD/h, disk MB/s, reading rate of a host]
GPUS: dict[str, tuple[float, float, float, float, float, float]] = {
    "24gb": (71.0, 936.0, 24.0, 0.35, 300.0, 1.0),
    "24gb-ada": (165.0, 1008.0, 24.0, 0.55, 400.0, 1.2),
    "24gb-inference": (121.0, 300.0, 24.0, 0.50, 200.0, 0.9),
    "32gb": (209.0, 1792.0, 32.0, 0.85, 500.0, 1.3),
    "40gb": (312.0, 1555.0, 40.0, 1.20, 500.0, 1.1),
    "48gb": (181.0, 864.0, 48.0, 0.90, 400.0, 1.0),
    "80gb": (989.0, 3350.0, 80.0, 2.60, 800.0, 1.4),
}
KNOBS: dict[str, tuple[str, ...]] = {
    "gpu": tuple(GPUS),
    "precision": ("fp32", "tf32", "fp16", "bf16"),
    "micro_batch": ("1", "2", "4", "8", "16", "32"),
    "workers": ("0", "1", "2", "4", "8", "16"),
    "interval": ("50", "100", "200", "400", "800"),
    "compile": ("off", "on"),
    "checkpointing": ("none", "selective", "full"),
    "attention": ("eager", "sdpa", "flash"),
    "packing": ("off", "on"),
    "optimizer": ("adamw", "fused", "adamw_8bit", "paged_8bit"),
}
ORDINAL = frozenset({"micro_batch", "workers", "interval", "checkpointing"})
READS: dict[str, tuple[str, ...]] = {
    "compute": ("gpu", "precision", "micro_batch", "compile", "checkpointing", "attention",
                "packing", "optimizer"),
    "data": ("gpu", "micro_batch", "workers", "packing"),
    "save": ("gpu", "optimizer"),
    "compile": ("gpu", "compile", "checkpointing", "attention"),
    MEMORY: ("gpu", "precision", "micro_batch", "checkpointing", "attention", "packing",
             "optimizer"),
}  # fmt: skip
UPDATE_READS = ("gpu", "precision", "optimizer")
NOISE = {"compute": 0.03, "data": 0.06, "save": 0.08, "compile": 0.08, MEMORY: 0.005}
BIAS = {"compute": 1.0, "data": 1.5, "save": 1.5, "compile": 1.5, MEMORY: 0.5}
PAIR = 0.3  # of a knob's bias, for a pair of knobs
# What the model expects of itself: sd of log(true/predicted) over machines and configurations, at
# a bias of 0.10. Under a bias of 0.20 it is twice as wrong as it thinks.
SPREAD = {"compute": 0.35, "data": 0.45, "save": 0.25, "compile": 0.4, MEMORY: 0.15}
PARAMETERS, LAYERS, BATCH, LENGTH = 1.5e9, 28, 32, 512
STEPS = 3000
INTERRUPTIONS_PER_S = 1 / (6 * 3600.0)
AT_FIRST = 1000  # candidates that are put in order before the others are
CLIFFS, CLIFF_FACTORS = 8, (1.35, 1.65)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A family of machines: how many cards to choose from, how wrong the model is."""

    gpus: int
    bias: float
    cliffs: bool = False


SCENARIOS: dict[str, Scenario] = {
    "one_card_b10": Scenario(1, 0.10),
    "seven_cards_b10": Scenario(7, 0.10),
    "one_card_b20": Scenario(1, 0.20),
    "seven_cards_b20": Scenario(7, 0.20),
    "cliffs": Scenario(1, 0.10, cliffs=True),
}


@dataclass(frozen=True, slots=True)
class Grid:
    """Every combination of the knobs as columns of codes, and the model's predictions."""

    dimensions: dict[str, Dimension]
    columns: dict[str, NDArray[np.int64]]
    parts: tuple[Part, ...]
    update: Part  # of compute: the optimizer's share, whose error has its own causes
    capacity: FloatArray
    usd_per_s: FloatArray

    @classmethod
    def of(cls, gpus: int) -> Grid:
        """The grid of the first `gpus` cards."""
        knobs = {**KNOBS, "gpu": tuple(GPUS)[:gpus]}
        dimensions = {k: Dimension(k, v, k in ORDINAL) for k, v in knobs.items()}
        shape = tuple(len(v) for v in knobs.values())
        total = int(np.prod(shape))
        codes = np.unravel_index(np.arange(total), shape)
        columns = {k: np.asarray(c, np.int64) for k, c in zip(knobs, codes, strict=True)}
        facts = np.asarray(list(GPUS.values()), np.float64)
        predicted = _predictions(columns, facts)
        update = part_of(
            "update", [dimensions[k] for k in UPDATE_READS], columns, predicted["update"]
        )
        predicted["compute"] = predicted["step"] + predicted["update"]
        parts = tuple(
            part_of(
                name, [dimensions[k] for k in reads], columns, predicted[name],
                spread=SPREAD[name], noise=NOISE[name],
                terms={k: predicted[k] for k in ("step", "update")} if name == "compute" else None,
            )
            for name, reads in READS.items()
        )  # fmt: skip
        return cls(
            dimensions, columns, parts, update, facts[columns["gpu"], 2] * 0.95e9,
            facts[columns["gpu"], 3] / 3600.0,
        )  # fmt: skip


def _numbers(name: str, columns: Mapping[str, NDArray[np.int64]]) -> FloatArray:
    values: FloatArray = np.asarray([float(v) for v in KNOBS[name]])[columns[name]]
    return values


def _predictions(columns: dict[str, NDArray[np.int64]], facts: FloatArray) -> dict[str, FloatArray]:
    """[n] seconds and bytes by component. Plain roofline arithmetic with round constants."""

    def pick(name: str, *values: float) -> FloatArray:
        return np.asarray(values, np.float64)[columns[name]]

    gpu = facts[columns["gpu"]]
    micro, workers = _numbers("micro_batch", columns), _numbers("workers", columns)
    fill = pick("packing", 0.5, 1.0)  # share of a padded row that is text
    tokens = BATCH * LENGTH * 0.5 / fill
    flop = 6.0 * PARAMETERS * tokens * pick("checkpointing", 1.0, 1.18, 1.4)
    peak = gpu[:, 0] * 1e12 * pick("precision", 0.1, 0.4, 0.93, 1.0)
    efficiency = 0.55 * micro / (micro + 2.0) * pick("compile", 1.0, 1.25)
    attention = pick("attention", 1.6, 1.15, 1.0)
    half = pick("precision", 4.0, 4.0, 2.0, 2.0)
    traffic = (BATCH / micro) * PARAMETERS * half * 3.0 / (gpu[:, 1] * 1e9 * 0.8)
    state = pick("optimizer", 8.0, 8.0, 2.1, 2.1)
    update = PARAMETERS * (half + state) * 2.0 / (gpu[:, 1] * 1e9 * 0.6)
    update = update * pick("optimizer", 2.5, 1.0, 2.0, 6.0)
    launch = (BATCH / micro) * LAYERS * 0.004 * pick("compile", 1.0, 0.55)
    step = flop * attention / (peak * efficiency) + traffic + launch
    batch = BATCH * 0.12 / gpu[:, 5] * pick("packing", 1.0, 1.35) * (1.0 + 0.6 / micro)
    data = batch / np.maximum(workers, 1.0) ** 0.9 * (1.0 + 0.02 * np.maximum(workers - 8, 0))
    file_bytes = PARAMETERS * (2.0 + state)
    save = 2.0 + file_bytes / (gpu[:, 4] * 0.5e6)
    compiling = pick("compile", 0.0, 150.0) * pick("checkpointing", 1.0, 1.15, 1.3)
    compiling = compiling * pick("attention", 1.1, 1.0, 0.95)
    rows = micro * LENGTH * 2.0
    layer_bytes = rows * 1536.0 * half * pick("checkpointing", 34.0, 14.0, 2.0)
    scores = micro * 12.0 * LENGTH**2 * half * pick("attention", 2.5, 0.0, 0.0)
    logits = rows * 151936.0 * (half + 4.0)
    keep = pick("checkpointing", 1.0, 0.5, 1.0 / LAYERS)
    memory = PARAMETERS * (2.0 * half + state * pick("optimizer", 1.0, 1.0, 1.0, 0.55))
    memory = memory + LAYERS * (layer_bytes + scores * keep) + logits + 1.2e9
    return {
        "step": step,
        "update": update,
        "data": data,
        "save": save,
        "compile": compiling,
        MEMORY: memory,
    }


class Machine(Hidden):
    """One simulated machine whose truth is drawn from a prior like the sampler's."""

    grows = ("micro_batch",)

    def __init__(self, grid: Grid, seed: int, bias: float, *, cliffs: bool = False) -> None:
        """Draw the hidden truth. seed: of the truth and of the probes' noise."""
        self.grid, self.seed = grid, seed
        self.parts, self.limit = grid.parts, grid.capacity
        self.identity = f"simulated-{seed}"
        self._shape = tuple(len(d.levels) for d in grid.dimensions.values())
        self.levels = {
            k: len(d.levels) if d.ordinal else d.levels for k, d in grid.dimensions.items()
        }
        self.by_hand = _by_hand(grid)
        draw = np.random.default_rng([seed, 1])
        self.true_factors = {
            part.name: np.exp(_bias(part, draw, bias * BIAS[part.name]))
            for part in grid.parts
            if part.name != "compute"
        }
        self.true_factors["compute"] = self._compute_factor(draw, bias, cliffs=cliffs)

    def _compute_factor(
        self, draw: np.random.Generator, bias: float, *, cliffs: bool
    ) -> FloatArray:
        """[compute signatures] truth over model: forward and backward, and the update, apart."""
        part, update = self.grid.parts[0], self.grid.update
        own = [k for k, d in enumerate(part.reads) if d.name != "optimizer"]
        factor = np.exp(_bias(part, draw, bias, own))
        if cliffs:
            factor = factor * _cliffs(part, draw, own)
        first = np.zeros(len(part.predicted), np.intp)
        first[part.row_of] = update.row_of  # both parts are functions of the candidate
        late = update.predicted * np.exp(_bias(update, draw, bias))
        step = part.predicted - update.predicted[first]
        found: FloatArray = (step * factor + late[first]) / part.predicted
        return found

    def __len__(self) -> int:
        return len(self.limit)

    def totals(self, factors: Mapping[str, FloatArray], at: NDArray[np.intp]) -> FloatArray:
        """[USD] of the whole run: steps, compile, saves and work lost to interruptions."""
        value = {
            part.name: part.predicted[part.row_of[at]] * factors[part.name]
            for part in self.parts
            if part.name != MEMORY
        }
        columns = self.grid.columns
        step = np.where(
            columns["workers"][at] == 0,
            value["compute"] + value["data"],
            np.maximum(value["compute"], value["data"]),
        )
        interval = np.asarray([float(v) for v in KNOBS["interval"]])[columns["interval"][at]]
        running = STEPS * (step + value["save"] / interval) + value["compile"]
        redone = interval * step / 2.0 + 60.0 + value["compile"]
        cost: FloatArray = running * (1.0 + INTERRUPTIONS_PER_S * redone) * self.grid.usd_per_s[at]
        return cost

    def true_factor(self, name: str) -> FloatArray:
        """[n] truth over model of a part."""
        part = next(p for p in self.parts if p.name == name)
        found: FloatArray = self.true_factors[name][part.row_of]
        return found

    def params(self, index: int) -> dict[str, Any]:
        """Level texts of categorical knobs, positions of ordinal ones."""
        found: dict[str, Any] = {}
        for name, dimension in self.grid.dimensions.items():
            code = int(self.grid.columns[name][index])
            found[name] = code if dimension.ordinal else dimension.levels[code]
        return found

    def find(self, params: Mapping[str, Any]) -> int | None:
        """The index of those parameters."""
        codes = [
            params[name] if d.ordinal else d.levels.index(params[name])
            for name, d in self.grid.dimensions.items()
        ]
        return int(np.ravel_multi_index(codes, self._shape))

    def order(self) -> Iterator[int]:
        """Expected cost over the probability of fitting, as far as the model knows itself."""
        posterior = Posterior(self, History())
        costs, everyone = posterior.log_cost, np.arange(len(self))
        doubt = -np.log(np.maximum(posterior.chance(everyone), 1e-6))

        def worth(at: NDArray[np.intp]) -> FloatArray:
            return costs[at] + doubt[at]

        first = least(everyone, costs.middle(everyone) + doubt, worth, AT_FIRST)
        for at in (first, np.setdiff1d(everyone, first)):
            yield from map(int, at[np.argsort(worth(at), kind="stable")])

    def neighbours(self, index: int) -> list[int]:
        """One knob changed: any other level, or the next one of an ordinal knob."""
        codes = [int(column[index]) for column in self.grid.columns.values()]
        found = []
        for k, (dimension, size) in enumerate(
            zip(self.grid.dimensions.values(), self._shape, strict=True)
        ):
            for level in range(size):
                near = abs(level - codes[k]) == 1 if dimension.ordinal else level != codes[k]
                if near:
                    changed = [*codes[:k], level, *codes[k + 1 :]]
                    found.append(int(np.ravel_multi_index(changed, self._shape)))
        return found

    def plainness(self, indices: Sequence[int]) -> list[tuple[float, ...]]:
        """Less memory, no compile, fewer workers."""
        columns = self.grid.columns
        return [
            (round(float(self.predicted_memory[i]) / 1e9), float(columns["compile"][i]),
             float(columns["workers"][i]))
            for i in indices
        ]  # fmt: skip


def _by_hand(grid: Grid) -> ByHand:
    start = {
        "gpu": grid.dimensions["gpu"].levels[0], "precision": "bf16", "micro_batch": 0,
        "workers": 3, "interval": 2, "compile": "off", "checkpointing": 0, "attention": "sdpa",
        "packing": "off", "optimizer": "fused",
    }  # fmt: skip
    toggles = (
        ("attention", ("flash", "eager")), ("compile", ("on",)), ("packing", ("on",)),
        ("checkpointing", (0, 1, 2)), ("optimizer", ("fused", "adamw_8bit", "paged_8bit", "adamw")),
        ("precision", ("fp16", "tf32")), ("workers", (2, 4, 5, 1, 0)), ("interval", (3, 1, 4, 0)),
        ("gpu", tuple(grid.dimensions["gpu"].levels)),
    )  # fmt: skip
    savings = ({"checkpointing": 2}, {"optimizer": "adamw_8bit"}, {"optimizer": "paged_8bit"})
    top = len(grid.dimensions["micro_batch"].levels) - 1
    return ByHand(start, savings, toggles, "micro_batch", top)


def _bias(
    part: Part, draw: np.random.Generator, sd: float, among: Sequence[int] | None = None
) -> FloatArray:
    """[signatures] log of the truth over the model, from all of its reads or some."""
    total = np.zeros(len(part.predicted))
    reads = [(k, d) for k, d in enumerate(part.reads) if among is None or k in among]
    for k, dimension in reads:
        levels = draw.normal(0.0, sd, len(dimension.levels))
        if dimension.ordinal:
            levels = np.cumsum(levels)
        total += levels[part.codes[:, k]]
    for (i, left), (j, right) in combinations(reads, 2):
        table = draw.normal(0.0, PAIR * sd, (len(left.levels), len(right.levels)))
        total += table[part.codes[:, i], part.codes[:, j]]
    return total


def _cliffs(part: Part, draw: np.random.Generator, among: Sequence[int]) -> FloatArray:
    """[signatures] factors of random pairs of levels that are far slower together."""
    factor = np.ones(len(part.predicted))
    wide = [k for k in among if len(part.reads[k].levels) > 1]
    for _ in range(CLIFFS):
        i, j = draw.choice(wide, 2, replace=False)
        left = draw.integers(len(part.reads[i].levels))
        right = draw.integers(len(part.reads[j].levels))
        hit = (part.codes[:, i] == left) & (part.codes[:, j] == right)
        factor = np.where(hit, factor * draw.choice(CLIFF_FACTORS), factor)
    return factor


def machine(scenario: str, seed: int, grids: dict[int, Grid] | None = None) -> Machine:
    """A machine of a named scenario. grids: kept between calls, since building one takes time."""
    wanted = SCENARIOS[scenario]
    known = grids if grids is not None else {}
    if wanted.gpus not in known:
        known[wanted.gpus] = Grid.of(wanted.gpus)
    return Machine(known[wanted.gpus], seed, wanted.bias, cliffs=wanted.cliffs)
