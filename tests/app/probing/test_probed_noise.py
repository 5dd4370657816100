"""A probed search among other programs: what it repeats, keeps, says, and how it is resumed."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from simulatedmachine import (
    Killed,
    Machine,
    options_of,
    search,
    search_in_pieces,
    sequence,
    step_of,
)

from autotune.app.probing.figures import ProbeProgress
from autotune.app.probing.study import StudySettings, probe_candidates
from autotune.app.tune.tune import Options, tune
from autotune.catalog.files import home_dir
from autotune.domain.answer.recommendation import Asked
from autotune.domain.units import format_seconds
from autotune.probe import device as devices
from autotune.probe.record import PROBES_FILE, ProbeRecord, read_records
from autotune.probe.worker.contract import Phase
from autotune.report.payload import recommendation_payload
from autotune.report.screens.tune import recommendation_screen
from autotune.report.sections.answer import TUNE_REPORT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from autotune.cost.bill import Bill
    from autotune.domain.job import Job

pytestmark = pytest.mark.usefixtures("home")

BUSY = "other programs used 1.7 of 2 cores"


class Noisy(Machine):
    """The formula's machine; how much longer a run takes depends on the config and which it is."""

    def __init__(
        self, folder: Path, noise: Callable[[dict[str, Any], int], tuple[float, list[str]]],
        **rest: Any,
    ) -> None:  # fmt: skip
        super().__init__(step=lambda config: 0.2 * step_of(config), **rest)
        self.folder, self.noise = folder, noise

    def run(self, request: dict[str, Any], config: dict[str, Any], **rest: Any) -> ProbeRecord:
        known = read_records(self.folder / PROBES_FILE)
        nth = sum(record.key == request["key"] for record in known)
        times, why = self.noise(config, nth)
        found = super().run(request, config, **rest)
        step = {
            **found.result["step"], "window": {"slowdown": times, "others": 1.7 if why else 0.0},
            "windows": [{"step_s": 1.0, "disturbed": why, "unexplained": False}],
        }  # fmt: skip
        for name in ("step_s", "micro_s"):
            step[name] *= times
        when = f"{len(known)}"
        return replace(found, result={**found.result, "step": step}, disturbed=why, when=when)


def calm(_config: dict[str, Any], _nth: int) -> tuple[float, list[str]]:
    return 1.0, []


def first_busy(_config: dict[str, Any], nth: int) -> tuple[float, list[str]]:
    """The first run of every configuration is disturbed."""
    return (6.0, [BUSY]) if nth == 0 else (1.0, [])


def always_busy(config: dict[str, Any], nth: int) -> tuple[float, list[str]]:
    return 2.0 + (config["micro_batch_size"] * 7 + nth * 3) % 5, [BUSY]


def hidden(config: dict[str, Any], nth: int) -> tuple[float, list[str]]:
    """Every third run takes four times as long, and nothing betrays it."""
    unlucky = (config["micro_batch_size"] + config["num_dataloader_workers"] + 2 * nth) % 3 == 0
    return (4.0, []) if unlucky else (1.0, [])


def found_by(bill: Bill, noise: Any, folder: Path, **changes: Any) -> Any:
    told: list[str] = []
    options = options_of(Noisy(folder, noise), **changes)
    study = StudySettings(folder, "job")
    found = probe_candidates(bill, devices.cpu(), options, study, told.append)
    return found, told


@dataclass(frozen=True)
class Made:
    """A search that several tests read: what it found, what it told and its folder."""

    found: Any
    told: list[str]
    folder: Path


@pytest.fixture(scope="module")
def made(bill: Bill, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Made]:
    @cache
    def once(noise: Any, **changes: Any) -> Made:
        folder = tmp_path_factory.mktemp("made")
        found, told = found_by(bill, noise, folder, **changes)
        return Made(found, told, folder)

    return once


def best_of(bill: Bill) -> float:
    return min(step_of(bill.candidates.config(i).as_dict()) for i in range(len(bill)))


def quiet_of(bill: Bill, index: int) -> float:
    return step_of(bill.candidates.config(index).as_dict())


def test_a_disturbed_probe_is_made_again_and_the_calm_one_is_the_figure(
    bill: Bill, tmp_path: Path
) -> None:
    found, told = found_by(bill, first_busy, tmp_path, probes=4)
    pick = found.rows[0]
    assert found.explored.pick == pick.index
    assert not pick.record.disturbed
    assert pick.row.step_time_s == pytest.approx(0.2 * quiet_of(bill, pick.index))
    assert not found.noise.cannot_tell
    assert found.noise.contaminated_windows == found.noise.disturbed_probes > 0
    assert any(f"disturbed: {BUSY}" in line for line in told)


def test_what_was_disturbed_reaches_no_later_search(bill: Bill, tmp_path: Path) -> None:
    found, _ = found_by(bill, always_busy, tmp_path / "run", probes=4, reuse=True)
    assert all(record.disturbed for record in found.records)
    assert read_records(home_dir() / PROBES_FILE) == []
    kept = [json.loads(p.read_text()) for p in (home_dir() / "residuals").glob("*.json")]
    timed = [o for content in kept for o in content["observed"] if o["part"] != "memory"]
    assert timed == []
    later, _ = found_by(bill, calm, tmp_path / "later", probes=4, reuse=True)
    assert not any(record.reused for record in later.records)
    assert later.rows[0].row.step_time_s < found.rows[0].row.step_time_s


def test_a_machine_that_is_never_calm_gets_a_guess_that_says_so(job: Job, tmp_path: Path) -> None:
    probing = options_of(Noisy(tmp_path / "run", always_busy), probes=4)
    asked = Asked(("autotune", "tune", "job.yaml", "--score", "probe"), str(tmp_path))
    options = Options(score="probe", run_dir=tmp_path / "run", probing=probing, asked=asked)
    answer = tune(job, options)
    assert answer.best is not None
    noise = answer.search.noise
    assert noise.cannot_tell
    assert noise.load == pytest.approx(1.7)
    assert not answer.tie
    payload = recommendation_payload(answer)
    assert payload["search"]["noise"]["cannot_tell"] is True
    assert list(payload["best"]["measured"]["disturbed"]) == [BUSY]  # type: ignore[index]
    assert any("too busy to tell" in text for text in payload["warnings"])
    assert "which one is best is not clear" in answer.search.stopped_because
    for show in (recommendation_screen, TUNE_REPORT.text):
        text = " ".join(show(payload, width=100).split())
        assert "too busy to tell which configuration is best" in text
        assert "while other programs were using it" in text
        assert "for a reason it does not know" not in text
        assert "Measured on the device;" not in text
        assert f"(cd {tmp_path} && autotune tune job.yaml --score probe)" in text
        assert "type it when nothing else runs" in text


@pytest.mark.parametrize("noise", [first_busy, hidden, always_busy])
def test_the_interval_contains_what_was_seen_of_the_step(
    made: Callable[..., Made], noise: Any
) -> None:
    found = made(noise).found
    for row in found.rows:
        runs = [r for r in found.records if r.key == row.record.key and r.ok]
        seen = [r for r in runs if not r.disturbed] or runs
        rest = row.row.duration_s.p50 - row.row.steps * row.row.step_time_s
        accumulation = row.row.config.gradient_accumulation_steps
        for record in seen:
            duration = rest + row.row.steps * record.step_s(accumulation)
            assert row.row.duration_s.p10 <= duration * 1.001
            assert row.row.duration_s.p90 >= duration * 0.999
        if all(record.disturbed for record in runs):
            quick = min(record.step_s(accumulation) / record.slowdown for record in runs)
            assert row.row.duration_s.p10 <= (rest + row.row.steps * quick) * 1.001


def test_repeats_of_a_configuration_are_compared_and_said(bill: Bill, tmp_path: Path) -> None:
    """The same one read 32 and 46 ms; undisturbed, by all that was seen."""
    alike = search(bill, Machine(), tmp_path / "alike", probes=1)
    said = "1 configuration ran more than once undisturbed: steps of the same differed by 0.0%"
    assert any(note.startswith(said) for note in alike.notes)
    steps = iter((0.046, 0.032, 0.032, 0.032, 0.032))
    apart = search(bill, Machine(lambda _: next(steps)), tmp_path / "apart", probes=1)
    told = [note for note in apart.notes if "nothing says why" in note]
    assert len(told) == 1
    assert "32 ms" in told[0]
    assert "46 ms" in told[0]
    assert "it leads by the quickest: by the slowest it would take" in told[0]


def test_runs_that_nothing_betrays_are_found_out_by_running_again(
    bill: Bill, tmp_path: Path
) -> None:
    """Whichever third is slow; a search that never met a slow run has nothing to find out."""
    met = 0
    for turn in range(3):

        def unlucky(config: dict[str, Any], nth: int, turn: int = turn) -> tuple[float, list[str]]:
            return hidden({**config, "micro_batch_size": config["micro_batch_size"] + turn}, nth)

        found, _ = found_by(bill, unlucky, tmp_path / str(turn))
        pick = found.explored.pick
        assert pick is not None
        slow = any(r.result["step"]["window"]["slowdown"] > 1 for r in found.records if r.ok)
        met += slow
        assert (found.explored.unnoticed > 0.02) is slow
        near = quiet_of(bill, pick) <= 1.1 * best_of(bill)
        assert near or found.noise.cannot_tell
    assert met >= 2


@pytest.mark.parametrize("noise", [calm, first_busy, hidden])
def test_the_best_so_far_is_what_the_answer_says(made: Callable[..., Made], noise: Any) -> None:
    """The last line's best, and the pick: one per cent apart at most, where a plainer one ties."""
    found, told = made(noise).found, made(noise).told
    pick = found.rows[0]
    others = [row.row.duration_s.p50 for row in found.rows if not row.record.disturbed]
    assert pick.row.duration_s.p50 <= 1.01 * min(others)
    said = re.findall(r"best ([^,]*),", told[-1])[0]
    assert said in {format_seconds(row.row.duration_s.p50) for row in found.rows[:3]}


@pytest.mark.parametrize("noise", [calm, first_busy, hidden, always_busy])
def test_the_counter_never_passes_what_was_allowed_and_repeats_are_said_as_such(
    made: Callable[..., Made], noise: Any
) -> None:
    found, told = made(noise, probes=5).found, made(noise, probes=5).told
    numbers = [re.match(r"probe (\d+) of 5(, run (\d+))? \|", line) for line in told]
    assert all(numbers)
    counted = [int(match[1]) for match in numbers if match]
    assert max(counted) <= 5
    runs = [int(match[3] or 1) for match in numbers if match]
    assert max(runs) > 1
    assert len(set(zip(counted, runs, strict=True))) == len(told), "each run once"
    assert len({r.key for r in found.records}) <= 5


def test_the_pick_and_a_rival_that_is_close_take_turns(bill: Bill, tmp_path: Path) -> None:
    """Every measurement differs by up to eight per cent: one run each cannot tell."""

    def uneven(config: dict[str, Any], nth: int) -> tuple[float, list[str]]:
        return 1.0 + ((config["micro_batch_size"] * 5 + nth * 3) % 7) / 80.0, []

    found, _ = found_by(bill, uneven, tmp_path)
    again = [r.key for r in found.records if r.role == "confirm"]
    assert len(set(again)) >= 2
    counts = [sum(k == key for k in again[:n]) for n in range(1, len(again) + 1) for key in
              set(again[:2])]  # fmt: skip
    pairs = list(zip(counts[::2], counts[1::2], strict=True))
    assert all(abs(a - b) <= 1 for a, b in pairs[: 2 * len(set(again))])


@pytest.mark.parametrize("noise", [first_busy, hidden, always_busy])
def test_killed_at_every_probe_among_noise_it_goes_on_with_the_same_probes(
    bill: Bill, tmp_path: Path, noise: Any, made: Callable[..., Made]
) -> None:
    """By turns before a probe and after it, when nothing of it is kept yet."""
    straight = sequence(made(noise, probes=5).folder)
    assert len(straight) > 5
    folder = tmp_path / "pieces"

    def machine(kills: int) -> Noisy:
        def dies(number: int, moment: str) -> None:
            if moment == ("before", "after")[kills % 2] and number >= 1:
                raise Killed

        return Noisy(folder, noise, dies=dies)

    assert search_in_pieces(bill, folder, machine, probes=5) >= len(straight) - 1
    assert sequence(folder) == straight


def test_while_a_probe_runs_its_phase_and_how_long_yet_are_said() -> None:
    told: list[str] = []
    progress = ProbeProgress(8, told.append)
    assert progress.name(9, 1) == "probe 9", "it is not one of eight"
    progress.begins(3, 1, "", 13.5, 240.0)
    progress.on_phase(Phase("loading the model"), 4.0)
    progress.on_phase(Phase("measuring", 12, 26), 12.0)
    progress.begins(3, 2, BUSY, 13.5, 200.0)
    progress.on_phase(Phase("saving"), 20.0)
    assert told == [
        "probe 3 of 8: loading the model | 4 s, 10 s more | 3.9 min left at most",
        "probe 3 of 8: measuring, step 12 of 26 | 12 s, 2 s more | 3.8 min left at most",
        f"probe 3 of 8, run 2: saving | 20 s, longer than expected | 3.0 min left at most | {BUSY}",
    ]


def test_a_pick_whose_own_probes_contradict_each_other_says_why_it_leads(
    job: Job, tmp_path: Path
) -> None:
    def twofold(_config: dict[str, Any], nth: int) -> tuple[float, list[str]]:
        """The first run of each takes one and a half times as long, and nothing betrays it."""
        return (1.5 if nth == 0 else 1.0), []

    def said(noise: Any, name: str) -> list[float]:
        probing = options_of(Noisy(tmp_path / name, noise), probes=4)
        answer = tune(job, Options(score="probe", run_dir=tmp_path / name, probing=probing))
        payload = recommendation_payload(answer)
        text = " ".join(recommendation_screen(payload, width=100).split())
        found = re.findall(r"Undisturbed probes of the pick read (.+?) a step, and it leads", text)
        return [float(value) for each in found for value in re.findall(r"[\d.]+", each)]

    assert said(calm, "calm") == []
    quick, slow = said(twofold, "twofold")
    assert slow / quick == pytest.approx(1.5, rel=0.01)
