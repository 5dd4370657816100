"""Machines that were not drawn from the sampler's prior, on two cost models.

The model is the simulation's grid (`bench.search.simulated`) or the product's own bill of an 8 B
LoRA run on four cards. What is hidden follows no kernel:

physics   a step's rate saturates with the micro-batch elsewhere than the model says; torch.compile
          breaks on some combinations; cards throttle from some batch on; loader workers slow the
          step down, which no part declares; near the limit of memory the allocator thrashes; data
          stops gaining from workers; saves, compiling and the level of every part are off
noisy     the same, measured with 10 to 30 % noise, bimodal, with outliers
oomshift  the same with 1.2 to 1.5 times the memory and parts that are up to 4 times as dear
good      every signature within about 6 %, half of it by knob and half by nothing that shows
rugged    every signature off by 25 % for no reason that its knobs show
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from autotune.app.job.load import load_job
from autotune.cost.model import CostModel
from autotune.search.axes import ParameterSpace
from autotune.search.billed import BilledCandidates
from autotune.search.priced import MEMORY, Priced
from autotune.space.enumerate import enumerate_candidates
from autotune.space.file import load_space
from bench.search.hidden import ByHand, Hidden
from bench.search.simulated import Grid, Machine

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from autotune.cost.columns import FloatArray
    from autotune.search.priced import Part

JOB = Path(__file__).resolve().parents[2] / "jobs" / "h100_38h.yaml"
CARDS = ("rtx-4090", "a100-sxm4-40gb", "l40s", "h100-sxm")
OPENED = ("packing", "kernels", "adapter_dtype", "length_grouping", "optimizer")
THRASH = 0.92  # of the memory limit, from where the allocator begins to retry


@dataclass(frozen=True, slots=True)
class Family:
    """What is hidden. noisy: of the probes; shifted: memory and prices of parts.

    by_knob, by_signature: sd of the log of what is off, by level and by nothing that shows.
    """

    physics: bool = True
    noisy: bool = False
    shifted: bool = False
    by_knob: float = 0.0
    by_signature: float = 0.0


FAMILIES = {
    "physics": Family(by_knob=0.1),
    "noisy": Family(by_knob=0.1, noisy=True),
    "oomshift": Family(by_knob=0.1, shifted=True),
    "good": Family(physics=False, by_knob=0.025, by_signature=0.05),
    "rugged": Family(physics=False, by_signature=0.25),
}
MODELS = {"grid": tuple(FAMILIES), "billed": ("physics", "noisy", "oomshift", "good")}
STRANGE = tuple(f"{model}_{family}" for model, families in MODELS.items() for family in families)


class Known(Priced, Protocol):
    """A priced model that is pickled by nobody and shared by all its machines."""

    def order(self) -> Iterator[int]:
        """As every `Priced`."""


@dataclass(frozen=True, slots=True)
class Ground:
    """A cost model and the knobs that physics knows.

    micro, workers: [n] their numbers. compiled: [n] level of torch.compile, 0 off. columns: [n] by
    name, the codes of every knob that may matter, and of the card.
    """

    model: Known
    micro: FloatArray
    workers: FloatArray
    compiled: NDArray[np.int64]
    columns: dict[str, NDArray[np.int64]]
    levels: dict[str, int | tuple[Any, ...]]
    by_hand: ByHand


@lru_cache(maxsize=2)
def ground(model: str) -> Ground:
    """The cost model of that name."""
    return _grid() if model == "grid" else _billed()


def _grid() -> Ground:
    machine = Machine(Grid.of(1), 0, 0.0)
    columns, dimensions = machine.grid.columns, machine.grid.dimensions

    def numbers(name: str) -> FloatArray:
        found: FloatArray = np.asarray([float(v) for v in dimensions[name].levels])[columns[name]]
        return found

    return Ground(
        machine, numbers("micro_batch"), numbers("workers"), columns["compile"], columns,
        dict(machine.levels), machine.by_hand,
    )  # fmt: skip


def _billed() -> Ground:
    """An 8 B LoRA run at a global batch of 64 on one of four cards, every numeric knob open."""
    job = load_job(JOB, set_values={"train.global_batch_size": "64"}, gpus=CARDS)
    limits = replace(job.limits, deadline_s=None, budget_usd=None)
    job = replace(job, limits=limits, allow=OPENED)
    candidates = enumerate_candidates(job, load_space(None)).candidates
    space = ParameterSpace(candidates)
    model = BilledCandidates(CostModel(job).price(candidates), space, "cost")
    codes, levels = candidates.codes, candidates.levels

    def numbers(name: str) -> FloatArray:
        found: FloatArray = np.asarray([float(v) for v in levels[name]])[codes[name]]
        return found

    rank = np.asarray([0 if v == "off" else k + 1 for k, v in enumerate(levels["compile"])])
    axes: dict[str, int | tuple[Any, ...]] = {
        a.name: len(a.values) if a.ordinal else a.values for a in space.axes
    }
    start = {
        name: (0 if name == "micro_batch_size" else values // 2)
        if isinstance(values, int)
        else next((v for v in ("off", "none", "sdpa", "adamw_torch_fused", "fp32", "model")
                   if v in values), values[0])
        for name, values in axes.items()
    }  # fmt: skip
    start["compile"] = "off"
    toggles = tuple(
        (name, tuple(range(v)) if isinstance(v, int) else v)
        for name, v in sorted(axes.items(), key=lambda item: item[0] == "offer")
        if name != "micro_batch_size"
    )
    top = axes["micro_batch_size"]
    by_hand = ByHand(
        start, ({"activation_checkpointing": "full"},), toggles, "micro_batch_size",
        top - 1 if isinstance(top, int) else 0,
    )  # fmt: skip
    columns = {name: np.asarray(codes[name]) for name in axes if name != "num_dataloader_workers"}
    return Ground(
        model, numbers("micro_batch_size"), numbers("num_dataloader_workers"),
        rank[codes["compile"]], columns, axes, by_hand,
    )  # fmt: skip


class Stranger(Hidden):
    """A machine of a family. seed: of the truth and of the probes' noise."""

    def __init__(self, ground: Ground, family: Family, seed: int) -> None:
        """Draw the hidden truth."""
        self._model, self.family, self.seed = ground.model, family, seed
        self.parts, self.limit = tuple(ground.model.parts), ground.model.limit
        self.identity, self.grows = f"stranger-{seed}", ground.model.grows
        self.levels, self.by_hand = ground.levels, ground.by_hand
        draw = np.random.default_rng([seed, 77])
        logs = {part.name: _off(part, family, draw) for part in self.parts}
        if family.physics:
            _physics(ground, logs, draw)
        if family.shifted:
            _shift(ground, logs, draw)
        self._factors = {name: np.exp(found) for name, found in logs.items()}
        if family.physics:
            share = self.predicted_memory * self._factors[MEMORY] / self.limit
            full = np.clip((share - THRASH) / (1.0 - THRASH), 0.0, 1.0)
            self._factors["compute"] *= 1.0 + draw.uniform(0.0, 0.5) * full
        self._sd = float(draw.uniform(0.1, 0.3)) if family.noisy else 0.0

    def true_factor(self, name: str) -> FloatArray:
        """[n] truth over model of a part."""
        return self._factors[name]

    def noise(self, part: Part, draw: np.random.Generator) -> float:
        """Usual, or wide, with a second mode and outliers."""
        usual = float(draw.normal(0.0, part.noise))
        if not self.family.noisy or part.name == MEMORY:
            return usual
        usual += float(draw.normal(0.0, self._sd))
        if draw.random() < 0.15:  # noqa: PLR2004 - another tenant, now and then
            usual += float(np.log(draw.uniform(1.3, 1.6)))
        if draw.random() < 0.05:  # noqa: PLR2004 - something else altogether
            usual += float(np.log(draw.uniform(2.0, 3.0)))
        return usual

    def __len__(self) -> int:
        return len(self.limit)

    def totals(self, factors: Mapping[str, FloatArray], at: NDArray[np.intp]) -> FloatArray:
        """[USD] as the model adds parts up."""
        return self._model.totals(factors, at)

    def params(self, index: int) -> dict[str, Any]:
        """As the model has them."""
        return self._model.params(index)

    def find(self, params: Mapping[str, Any]) -> int | None:
        """As the model has it."""
        return self._model.find(params)

    def order(self) -> Iterator[int]:
        """As the model has it."""
        return self._model.order()

    def neighbours(self, index: int) -> Sequence[int]:
        """As the model has them."""
        return self._model.neighbours(index)

    def plainness(self, indices: Sequence[int]) -> Sequence[tuple[float, ...]]:
        """As the model has it."""
        return self._model.plainness(indices)


def stranger(scenario: str, seed: int) -> Stranger:
    """The machine of that seed of a scenario such as grid_physics."""
    model, _, family = scenario.partition("_")
    return Stranger(ground(model), FAMILIES[family], seed)


def _off(part: Part, family: Family, draw: np.random.Generator) -> FloatArray:
    """[n] log of what is off by level and by signature; memory half as much, a tenth if rugged."""
    share = (0.2 if family.by_signature > family.by_knob else 0.5) if part.name == MEMORY else 1.0
    total = np.full(len(part.predicted), draw.normal(0.0, share * family.by_knob))
    for k, dimension in enumerate(part.reads):
        effect = draw.normal(0.0, share * family.by_knob, len(dimension.levels))
        if len(dimension.levels) > 1:
            total += effect[part.codes[:, k]]
    total += draw.normal(0.0, 1.0, len(total)) * share * family.by_signature
    found: FloatArray = total[part.row_of]
    return found


def _physics(ground: Ground, logs: dict[str, FloatArray], draw: np.random.Generator) -> None:
    """Add what the parts are off by, as machines are."""
    micro, workers, compiled = ground.micro, ground.workers, ground.compiled
    knee = np.exp(draw.uniform(np.log(0.3), np.log(10.0)))  # micro-batch of half the full rate
    step = np.log((1.0 + knee / micro) / (1.0 + 2.0 / micro))
    names = [n for n in ground.columns if n in {"checkpointing", "activation_checkpointing",
             "attention", "packing", "kernels", "precision", "adapter_dtype"}]  # fmt: skip
    key = compiled.copy()
    for name in draw.choice(names, 2, replace=False):
        key = key * 8 + ground.columns[str(name)]
    cliff = np.where(draw.random(int(key.max()) + 1) < 0.3, 1.0, 0.0)  # noqa: PLR2004 - breaks
    step += np.where(compiled > 0, cliff[key] * draw.uniform(np.log(1.15), np.log(2.0)), 0.0)
    step += np.where(compiled > 0, draw.normal(0.0, 0.12), 0.0)
    card = next((ground.columns[n] for n in ("offer", "gpu") if n in ground.columns), key * 0)
    sizes = np.unique(micro)
    from_size = draw.choice(sizes[len(sizes) // 2 :], int(card.max()) + 1)[card]
    doubled = np.log2(np.maximum(micro / from_size, 1.0)) + (micro >= from_size)
    step += doubled * draw.uniform(0.02, 0.2, int(card.max()) + 1)[card]
    step += np.log1p(draw.uniform(0.0, 0.35) * (workers / workers.max()) ** 1.5)
    logs["compute"] += step + draw.normal(0.0, 0.2)
    most = float(draw.choice([2.0, 4.0, 8.0, 16.0]))  # workers beyond these bring nothing
    logs["data"] += draw.normal(0.0, 0.5) + np.log(np.maximum(workers / most, 1.0))
    for name, sd in (("save", 0.4), ("compile", 0.5), ("evaluation", 0.3)):
        if name in logs:
            logs[name] += draw.normal(0.0, sd)
    logs[MEMORY] += draw.normal(0.0, 0.05) + draw.uniform(-0.02, 0.03) * np.log2(micro)


def _shift(ground: Ground, logs: dict[str, FloatArray], draw: np.random.Generator) -> None:
    """More memory than predicted, most of all with one level of a knob; parts up to 4 x as dear."""
    logs[MEMORY] += np.log(draw.uniform(1.2, 1.5))
    names = [n for n in ("attention", "optimizer", "packing") if n in ground.columns]
    codes = ground.columns[str(draw.choice(names))]
    worst = codes == draw.choice(np.unique(codes))
    logs[MEMORY] += np.where(worst, np.log(draw.uniform(1.0, 1.6)), 0.0)
    for name in logs:
        if name not in {MEMORY, "compute"}:
            logs[name] += draw.uniform(-np.log(4.0), np.log(4.0))
