"""Who is measured again before there is an answer: in turns, never in vain."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from autotune.search.measured.finals import (
    IN_VAIN,
    MOST_AGAIN,
    MOST_AT_ONCE,
    MOST_RUNS,
    Finals,
    finals_of,
    overturned,
)
from autotune.search.study.record import TrialRecord

if TYPE_CHECKING:
    from collections.abc import Callable


def record(number: int, index: int, value: float, *, disturbed: bool = False) -> TrialRecord:
    return TrialRecord(
        number, "trial" if number < 10 else "repeat", {"at": index}, value, {}, fits=True,
        reason="fits", measured={"compute": value}, disturbed=disturbed,
    )  # fmt: skip


def candidate(found: TrialRecord) -> int:
    return int(found.params["at"])


class Contest:
    """Candidates whose measurements follow functions of how often they were measured."""

    def __init__(
        self, *measure: Callable[[int], tuple[float, bool]], modelled: tuple[float, ...] = ()
    ) -> None:
        self.measure = measure
        self.modelled = np.asarray(modelled or [1.0] * len(measure))
        self.records = [
            record(i, i, value, disturbed=disturbed)
            for i, (value, disturbed) in enumerate(own(0) for own in measure)
        ]

    def finals(self) -> Finals:
        everyone = list(range(len(self.measure)))
        plain = SimpleNamespace(plainness=lambda at: [(float(i),) for i in at])
        posterior: Any = SimpleNamespace(fitting=everyone, missed=False, incumbent=0, priced=plain)
        first = [found.value or 0.0 for found in self.records[: len(everyone)]]
        return finals_of(posterior, self.records, candidate, int(np.argmin(first)), self.modelled)

    def play(self) -> list[int]:
        """Everyone who is measured again, until nobody is any more."""
        turns: list[int] = []
        while (index := self.finals().next()) is not None:
            turns.append(index)
            value, disturbed = self.measure[index](turns.count(index))
            number = 10 + len(turns)
            self.records.append(record(number, index, value, disturbed=disturbed))
        return turns


def always(value: float, *, disturbed: bool = False) -> Callable[[int], tuple[float, bool]]:
    return lambda _nth: (value, disturbed)


def test_the_pick_is_measured_again_and_a_rival_far_behind_is_not() -> None:
    contest = Contest(always(10.0), always(15.0))
    assert contest.play() == [0]
    assert contest.finals().pick == 0
    assert contest.finals().undecided(0.0) == ""
    assert contest.finals().ties == ()


def test_a_rival_that_is_close_takes_turns_with_the_pick() -> None:
    pick, rival = (10.0, 11.3, 10.1, 11.2, 10.6), (10.1, 11.2, 10.0, 11.3, 10.6)
    turns = Contest(lambda nth: (pick[nth], False), lambda nth: (rival[nth], False)).play()
    assert len(turns) > 2
    counts = [abs(turns[:n].count(0) - turns[:n].count(1)) for n in range(len(turns) + 1)]
    assert max(counts) <= 1
    assert turns[:3] == [0, 1, 1], "A B, then B A: what drifts cancels"
    assert turns.count(0) < MOST_RUNS, "its first run counts too"


def at_once(contest: Contest) -> list[int]:
    """What idle workers begin to measure again, one after the other, until there is no more."""
    running: list[int] = []
    while (index := contest.finals().next(running)) is not None:
        running.append(index)
    return running


def test_several_workers_measure_a_few_of_one_turn_at_the_same_time_and_begin_no_other() -> None:
    contest = Contest(*(always(10.0 + i / 100.0) for i in range(MOST_AT_ONCE + 2)))
    running = at_once(contest)
    assert len(set(running)) == len(running) == MOST_AT_ONCE
    assert 0 in running, "the pick is one of them"
    contest.records.append(record(10, 0, 10.0))
    later = [index for index in running if index]
    new = contest.finals().next(later)
    assert new not in running, "the pick's next turn follows from what the others take"


def test_equals_are_a_tie_and_what_is_a_tenth_behind_is_none() -> None:
    contest = Contest(always(10.0), always(10.05), always(11.2))
    contest.play()
    assert contest.finals().ties == (1,)


def test_a_pick_that_was_too_lucky_once_gives_way() -> None:
    """Its first run was eight per cent quicker than it is; the other is better."""
    contest = Contest(lambda nth: (9.5 if nth == 0 else 10.3, False), always(9.6))
    contest.play()
    assert contest.finals().pick == 1


def test_a_measurement_that_was_too_long_unnoticed_is_found_out() -> None:
    """By the model it is the best, and it took three times as long: it is asked again."""
    slow_once = Contest(
        *(always(10.0 + i) for i in range(4)), lambda nth: (30.0 if nth == 0 else 9.0, False),
        modelled=(1.0, 1.0, 1.0, 1.0, 0.8),
    )  # fmt: skip
    trials = list(slow_once.records)
    assert 4 in slow_once.play()
    assert overturned(slow_once.records, candidate)
    assert not overturned(trials, candidate)
    assert slow_once.finals().share > 0.02
    assert slow_once.finals().pick == 4
    assert not slow_once.finals().undecided(0.0)


def test_where_others_disturb_everything_it_stops_soon_and_says_that_it_cannot_tell() -> None:
    contest = Contest(always(10.0, disturbed=True), always(11.0, disturbed=True))
    assert len(contest.play()) == IN_VAIN
    assert contest.finals().undecided(0.0) == "others disturbed each run of the pick"
    assert contest.finals().ties == ()


def test_a_pick_of_one_run_where_runs_are_too_long_unnoticed_is_not_said_to_be_disturbed() -> None:
    """Nobody saw others at it; how often runs are too long here is what makes it doubtful."""
    contest = Contest(always(10.0), always(15.0), modelled=(1.0, 1.5))
    contest.records = [replace(r, looks=4, unexplained=2) for r in contest.records]
    said = contest.finals().undecided(0.0)
    assert said == "the pick rests on one run, and 34% may be too slow without anybody noticing"
    contest.records += [replace(record(11, 0, 10.0), looks=2, unexplained=2)]
    assert contest.finals().undecided(0.0) == "", "two that agree stand"
    contest.records = [replace(r, looks=8, unexplained=8) for r in contest.records]
    said = contest.finals().undecided(0.0)
    assert said == "the pick rests on 2 runs, and with a chance of 32% all are too long"


def test_a_calm_run_is_worth_more_than_quicker_disturbed_ones() -> None:
    contest = Contest(always(10.0), always(9.0, disturbed=True))
    assert contest.finals().pick == 0
    contest.play()
    assert contest.finals().undecided(0.0), "the other may be better, and was never calm"


@pytest.mark.parametrize("spread", [0.3, 0.6])
def test_where_runs_differ_too_much_it_says_so_after_so_many(spread: float) -> None:
    """Each run is another number: whatever is picked, nobody knows."""
    chance = random.Random(3)  # noqa: S311 - noise
    contest = Contest(
        *(lambda _nth: (10.0 * (1.0 + chance.uniform(0.0, spread)), False) for _ in range(6))
    )
    assert len(contest.play()) <= MOST_AGAIN
    found = contest.finals()
    best = min(found.standing.values(), key=lambda standing: standing.mean)
    assert found.pick is not None
    assert found.standing[found.pick].mean <= best.mean + 0.011 or found.undecided(0.0)


def test_what_was_not_measured_counts_only_on_a_noisy_machine() -> None:
    quiet = Contest(always(10.0), always(15.0))
    quiet.play()
    assert quiet.finals().undecided(bound=0.5) == "", "that is the search's own doubt, said there"
    noisy = Contest(always(10.0), always(15.0), always(90.0, disturbed=True))
    noisy.play()
    assert noisy.finals().undecided(bound=0.5)
