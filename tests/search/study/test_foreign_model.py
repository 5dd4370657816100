"""The sampler in somebody else's study: a nightly backup, its own cost model, `study.optimize`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
import pytest

from autotune.search.priced import MEMORY, Dimension, part_of
from autotune.search.study.calibrated import CalibratedSampler

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from autotune.cost.columns import FloatArray

CODECS, LEVELS, THREADS, CHUNKS = ("lz4", "zstd", "xz"), range(1, 8), (1, 2, 4, 8), (8, 64, 512)
GIGABYTES, UPLOAD_GB_PER_S, ROOM_MB = 400.0, 0.11, 6000.0
PROBES = 10


class Backup:
    """Seconds of compressing and of sending what is left, one after the other."""

    identity = "backup"
    grows = ("threads", "chunk")

    def __init__(self) -> None:
        names = ("codec", "level", "threads", "chunk")
        levels = [
            CODECS,
            tuple(map(str, LEVELS)),
            tuple(map(str, THREADS)),
            tuple(map(str, CHUNKS)),
        ]
        self.shape = tuple(map(len, levels))
        codes = np.unravel_index(np.arange(math.prod(self.shape)), self.shape)
        self.columns = dict(zip(names, codes, strict=True))
        codec, level, threads, chunk = (
            Dimension(n, v, n != "codec") for n, v in zip(names, levels, strict=True)
        )
        rate = np.asarray([0.6, 0.3, 0.03])[codes[0]] / (1.0 + 0.35 * codes[1])
        self.parts = (
            part_of(
                "compress", (codec, level, threads), self.columns,
                GIGABYTES / rate / np.asarray(THREADS)[codes[2]], spread=0.3,
            ),
            part_of(
                "send", (codec, level), self.columns,
                GIGABYTES * self.left(codes) / UPLOAD_GB_PER_S, spread=0.15,
            ),
            part_of(
                MEMORY, (codec, threads, chunk), self.columns,
                np.asarray([1.0, 4.0, 9.0])[codes[0]] * np.asarray(CHUNKS)[codes[3]]
                * np.asarray(THREADS)[codes[2]],
                spread=0.1, noise=0.01,
            ),
        )  # fmt: skip
        self.limit = np.full(len(self), ROOM_MB)

    @staticmethod
    def left(codes: Sequence[NDArray[np.intp]]) -> FloatArray:
        """[n] share of the bytes that compression leaves."""
        share: FloatArray = np.asarray([0.62, 0.5, 0.42])[codes[0]] * 0.98 ** codes[1]
        return share

    def __len__(self) -> int:
        return math.prod(self.shape)

    def predicted(self, name: str) -> FloatArray:
        part = next(p for p in self.parts if p.name == name)
        return part.predicted[part.row_of]

    def totals(self, factors: Mapping[str, FloatArray], at: NDArray[np.intp]) -> FloatArray:
        total: FloatArray = sum(
            (self.predicted(name)[at] * factors[name] for name in ("compress", "send")),
            np.zeros(len(at)),
        )
        return total

    def params(self, index: int) -> dict[str, Any]:
        found = {name: int(codes[index]) for name, codes in self.columns.items()}
        return {**found, "codec": CODECS[found["codec"]]}

    def find(self, params: Mapping[str, Any]) -> int | None:
        codes = (CODECS.index(params["codec"]), *(params[n] for n in ("level", "threads", "chunk")))
        return int(np.ravel_multi_index(codes, self.shape))

    def order(self) -> Iterator[int]:
        ones = {"compress": np.ones(len(self)), "send": np.ones(len(self))}
        cost = self.totals(ones, np.arange(len(self)))
        cost[self.predicted(MEMORY) > ROOM_MB] = np.inf
        yield from map(int, np.argsort(cost, kind="stable"))

    def neighbours(self, index: int) -> list[int]:
        every = np.stack(list(self.columns.values()), axis=1)
        return [int(i) for i in np.flatnonzero((every != every[index]).sum(axis=1) == 1)]

    def plainness(self, indices: Sequence[int]) -> list[tuple[float, ...]]:
        return [(float(self.predicted(MEMORY)[i]),) for i in indices]


class Truth:
    """This machine: eight threads are little quicker than two, the data suit
    lz4 better than thought, memory needs more."""

    def __init__(self, model: Backup) -> None:
        codes = model.columns
        slow = np.asarray([1.0, 1.15, 1.5, 4.0])[codes["threads"]]
        self.compress = (
            model.predicted("compress") * slow * np.asarray([1.1, 0.7, 0.9])[codes["codec"]]
        )
        self.send = model.predicted("send") * np.asarray([0.8, 1.2, 0.95])[codes["codec"]]
        self.memory = model.predicted(MEMORY) * 1.2
        self.fits = self.memory <= ROOM_MB

    def seconds(self, index: int) -> float:
        return float(self.compress[index] + self.send[index])

    def regret(self, index: int) -> float:
        total = np.where(self.fits, self.compress + self.send, np.inf)
        return float(total[index] / total.min() - 1.0)


def space() -> dict[str, Any]:
    return {
        "codec": optuna.distributions.CategoricalDistribution(CODECS),
        **{
            name: optuna.distributions.IntDistribution(0, len(values) - 1)
            for name, values in (("level", LEVELS), ("threads", THREADS), ("chunk", CHUNKS))
        },
    }


def objective(model: Backup, truth: Truth, trial: optuna.Trial) -> float:
    """What a user writes: parameters by suggest, what was measured as attributes."""
    params = {
        "codec": trial.suggest_categorical("codec", CODECS),
        "level": trial.suggest_int("level", 0, len(LEVELS) - 1),
        "threads": trial.suggest_int("threads", 0, len(THREADS) - 1),
        "chunk": trial.suggest_int("chunk", 0, len(CHUNKS) - 1),
    }
    index = model.find(params)
    assert index is not None
    if not truth.fits[index]:
        trial.set_user_attr("oom", True)
        raise optuna.TrialPruned
    measured = {
        "compress": float(truth.compress[index]), "send": float(truth.send[index]),
        MEMORY: float(truth.memory[index]),
    }  # fmt: skip
    trial.set_user_attr("measured", measured)
    return truth.seconds(index)


@pytest.fixture(autouse=True)
def _quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def test_a_cost_model_of_something_else_is_corrected_within_ten_trials_of_an_ordinary_study() -> (
    None
):
    model = Backup()
    truth = Truth(model)
    first = next(model.order())
    assert truth.regret(first) > 0.2, "the model alone must be no answer"
    sampler = CalibratedSampler(model, space())
    study = optuna.create_study(sampler=sampler)
    study.optimize(lambda trial: objective(model, truth, trial), n_trials=PROBES)
    posterior = sampler.posterior(study)
    pick = posterior.pick()
    assert pick is not None
    assert truth.regret(pick) <= 0.02
    assert len(posterior.history.tried) == PROBES, "none twice"
    trained = np.exp(posterior.residuals["compress"].mean)
    part = model.parts[0]
    many, one = (
        trained[[r for r in range(len(part.predicted)) if part.codes[r, 2] == level]].mean()
        for level in (3, 0)
    )
    assert many > 1.5 * one, "that threads scale badly was learned"


def test_another_sampler_with_as_many_trials_does_worse_and_its_trials_are_used() -> None:
    """Half the trials by chance, then ours in the same study."""
    model = Backup()
    truth = Truth(model)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(lambda trial: objective(model, truth, trial), n_trials=PROBES)
    by_chance = min((t.value for t in study.trials if t.value is not None), default=math.inf)
    sampler = CalibratedSampler(model, space())
    study.sampler = sampler
    study.optimize(lambda trial: objective(model, truth, trial), n_trials=4)
    pick = sampler.posterior(study).pick()
    assert pick is not None
    assert truth.seconds(pick) < by_chance
    assert truth.regret(pick) <= 0.02
