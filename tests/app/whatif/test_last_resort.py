"""Where nothing fits: the user's levers first, then what only costs time, then other machines."""

from __future__ import annotations

import shlex

import pytest

from autotune.app.compare.compare import compare
from autotune.app.job.load import jobs_of_line
from autotune.app.tune.tune import Options, tune
from autotune.domain.answer.recommendation import Decisive, Relaxation
from autotune.domain.typed.overrides import Overrides
from autotune.report.payload import recommendation_payload
from autotune.report.screens.screen import MOST_LINES, shortened
from autotune.report.screens.tune import recommendation_screen

OPTIONS = Options(dry_run=True, fidelity="formula", trials=1)
LONG = {"model": "meta-llama/Llama-3.1-8B", "data.rows": "10000", "data.max_length": "32768"}
LARGE = {"model": "meta-llama/Llama-3.1-70B", "data.rows": "10000"}


def asked(stated: dict[str, str], gpu: str, opens: str = "") -> Overrides:
    """The one-line form with the options of a relaxation."""
    words = shlex.split(opens)
    pairs = list(zip(words[::2], words[1::2], strict=True))
    named = {flag: [v for own, v in pairs if own == flag] for flag in ("--gpu", "--allow", "--set")}
    sets = dict(each.split("=", 1) for each in named["--set"])
    return Overrides(
        gpus=tuple(named["--gpu"] or gpu.split(",")), allow=tuple(named["--allow"]),
        set_values=sets, stated={**stated, "method.kind": "lora"},
    )  # fmt: skip


def first(changes: tuple[Relaxation, ...], kind: str) -> Relaxation:
    return next(change for change in changes if change.kind == kind)


def test_a_long_context_on_one_card_is_answered_with_fused_kernels_first() -> None:
    answer = tune(jobs_of_line(asked(LONG, "h100-sxm"))[0].job, OPTIONS)
    assert answer.best is None
    lever, *others = answer.rejected.relaxations
    assert lever.apply == "--allow kernels"
    assert lever.device_count == 1
    assert lever.required_bytes < 45 * 2**30
    assert not lever.quality
    assert any(each.kind == "machine" for each in others)
    screen = recommendation_screen(recommendation_payload(answer))
    assert "--allow kernels" in screen
    assert len(screen.splitlines()) <= MOST_LINES


@pytest.mark.parametrize("kind", ["setting", "machine", "quality"])
def test_the_options_of_a_relaxation_give_the_figures_that_it_names(kind: str) -> None:
    answer = tune(jobs_of_line(asked(LONG, "h100-sxm"))[0].job, OPTIONS)
    change = first(answer.rejected.relaxations, kind)
    typed = tune(jobs_of_line(asked(LONG, "h100-sxm", change.apply))[0].job, OPTIONS).best
    assert typed.duration_s.p50 == pytest.approx(change.duration_s, rel=2e-3)
    assert typed.cost_usd.p50 == pytest.approx(change.cost_usd, rel=2e-3)


def test_what_only_costs_time_is_opened_where_no_lever_of_the_users_would_do() -> None:
    answer = tune(jobs_of_line(asked(LARGE, "h100:2"))[0].job, OPTIONS)
    assert answer.best.config.offload != "none"
    told = [text for text in answer.warnings if isinstance(text, Decisive) and "offload" in text]
    assert "nothing fits without it" in told[0]
    machine = first(answer.rejected.relaxations, "machine")
    quality = first(answer.rejected.relaxations, "quality")
    assert quality.duration_s < answer.best.duration_s.p50
    does = "changes the result and fits without offload all, sooner and cheaper: "
    assert told[2].startswith(f"`{quality.apply}` {does}")
    assert told[1].startswith(f"it fits without offload all {machine.change}: ")
    assert shortened(told[1]).startswith("it fits without offload all on ")
    screen = recommendation_screen(recommendation_payload(answer))
    assert "was opened" in screen
    assert len(screen.splitlines()) <= MOST_LINES


def test_rows_are_not_cut_for_more_than_a_machine_costs_that_trains_the_same() -> None:
    stated = {
        "model": "meta-llama/Llama-3.3-70B-Instruct", "data.rows": "20000",
        "data.lengths.mean": "800",
    }  # fmt: skip
    job = jobs_of_line(asked(stated, "rtx4090:2", "--set method.base=nf4"))[0].job
    answer = tune(job, OPTIONS)
    assert answer.best.config.offload == "all"
    machine = first(answer.rejected.relaxations, "machine")
    assert machine.cost_usd < answer.best.cost_usd.p50
    cut = first(answer.rejected.relaxations, "quality")
    assert "data.max_length" in cut.apply
    told = [text for text in answer.warnings if isinstance(text, Decisive)]
    assert any(machine.change in text for text in told)
    assert (cut.cost_usd < machine.cost_usd) == any(cut.apply in text for text in told)
    assert cut.cost_usd > machine.cost_usd


def test_a_lock_forbids_that_anything_is_opened() -> None:
    job = jobs_of_line(asked(LARGE, "h100:2", "--set offload=none"))[0].job
    answer = tune(job, OPTIONS)
    assert answer.best is None
    lock = answer.rejected.relaxations[0]
    assert (lock.kind, lock.apply) == ("lock", "--set offload=all")


def test_nothing_is_opened_where_something_fits() -> None:
    answer = tune(jobs_of_line(asked(LARGE, "h100:2,b300"))[0].job, OPTIONS)
    assert answer.best.config.offload == "none"
    assert not any("was opened" in text for text in answer.warnings)


def test_each_machine_is_compared_as_if_it_were_the_only_one() -> None:
    both = compare(jobs_of_line(asked(LARGE, "h100:2,b300"))).parts[0].rows
    rows = {each.row.offer.device.name: each.row for each in both}
    assert rows["b300"].config.offload == "none"
    alone = tune(jobs_of_line(asked(LARGE, "h100:2"))[0].job, OPTIONS).best
    assert rows["h100-sxm"].config == alone.config
    assert rows["h100-sxm"].cost_usd.p50 == pytest.approx(alone.cost_usd.p50)
