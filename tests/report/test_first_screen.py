from __future__ import annotations

import math
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autotune.catalog.software import install_command
from autotune.domain.answer.limits import ShortRows
from autotune.domain.answer.recommendation import Asked, Decisive, NoiseSeen
from autotune.domain.answer.waterfall import Waterfall, WaterfallStep, WhatIf
from autotune.domain.job import Assumption
from autotune.domain.outcome import Spread
from autotune.report.page.page import recommendation_html
from autotune.report.payload import recommendation_payload
from autotune.report.screens.screen import MOST_LINES, shortened
from autotune.report.screens.tune import recommendation_screen
from autotune.report.sections.answer import TUNE_REPORT
from autotune.report.sections.how_to_run import again, as_typed_here, next_steps

if TYPE_CHECKING:
    from samples import Samples

    from autotune.domain.answer.recommendation import Recommendation

OURS = ("training_args.json", "train.py", "run.sh")


def _screen(rec: Recommendation, width: int = 80, *, colour: bool = False) -> str:
    return recommendation_screen(recommendation_payload(rec), width=width, colour=colour)


def _flat(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def _kept(rec: Recommendation) -> Recommendation:
    asked = Asked(("autotune", "tune", "my job.yaml", "--gpu", "h100"), str(Path.cwd()))
    return replace(rec, files=OURS, asked=asked)


def test_the_screen_has_thirty_lines_at_most_and_no_line_over_80(samples: Samples) -> None:
    for rec in (samples.full, samples.infeasible, samples.late):
        for each in (rec, _kept(rec), replace(_kept(rec), tie=True)):
            lines = _screen(each).splitlines()
            assert len(lines) <= MOST_LINES
            assert max(map(len, lines)) <= 80


def test_long_names_do_not_lengthen_the_screen(samples: Samples) -> None:
    job = replace(samples.full.job, name="a job with a name " * 40)
    many = ("a warning that nobody cut short, with many words in it " * 20,) * 50
    rec = replace(_kept(samples.full), job=job, warnings=many, narrowest="something " * 100)
    assert len(_screen(rec).splitlines()) <= MOST_LINES


def test_the_screen_answers_first(samples: Samples) -> None:
    first = _flat(_screen(samples.full))
    assert first.startswith("h100-38h: run it on 1x h100-sxm at $2.50/h. It takes 12.1 h")
    for part in ("costs $30.27 ($24.22 to", "micro-batch 8 (per_device_train_batch_size)"):
        assert part in first


def test_today_is_set_beside_the_pick(samples: Samples) -> None:
    shown = _flat(_screen(samples.full))
    assert "Compared with today (30.3 h, $75.68): 18.2 h sooner and $45.41 cheaper" in shown


def test_a_config_that_may_run_out_is_said_to_where_the_pick_is_set_beside_it(
    samples: Samples,
) -> None:
    today = replace(samples.full.today, verdict="at_risk")
    rec = replace(samples.full, today=today)
    shown = _flat(_screen(rec))
    assert "with today (30.3 h, $75.68; it may run out of memory): 18.2 h sooner" in shown
    whole = _flat(TUNE_REPORT.markdown(recommendation_payload(rec)))
    assert "Compared with today's config, which may run out of memory, that is 18.2 h" in whole


def test_what_each_change_moves_adds_up_on_the_screen(samples: Samples) -> None:
    steps = tuple(
        WaterfallStep(name, "a", "b", moved, moved / 3600.0)
        for name, moved in (("x", 36000.0), ("y", -7200.0), ("z", -14400.0), ("u", 60.0))
    )
    journey = WhatIf(Waterfall(1.0, 1.0, 1.0, 1.0, steps))
    shown = _flat(_screen(replace(samples.full, journey=journey)))
    assert "x a -> b +10.0 h +$10.00" in shown
    listed = re.findall(r"(?:-> b|changes?) [+-][\d.]+ \w+ ([+-])\$([\d.]+)", shown)
    assert sum(float(sign + usd) for sign, usd in listed) == pytest.approx(4.0, abs=0.03)


@pytest.mark.parametrize("assumed", [True, False])
def test_what_fewer_saves_are_worth_is_marked_where_the_disk_is_assumed(
    samples: Samples, *, assumed: bool
) -> None:
    """Two thirds of "$139 cheaper" came from a disk's speed that nobody had stated."""
    steps = (WaterfallStep("checkpoint_every_steps", "500", "4688", 36000.0, 10.0),)
    rates = "checkpoint_write 238.4 MiB/s" if assumed else "disk 1.5 TiB"
    host = Assumption("hardware[0] (1x h100-sxm).host", rates, "not stated")
    rec = replace(
        samples.full, journey=WhatIf(Waterfall(1.0, 1.0, 1.0, 1.0, steps)),
        job=replace(samples.full.job, assumed=(*samples.full.job.assumed, host)),
    )  # fmt: skip
    mark = " (host.checkpoint_write assumed)" if assumed else ""
    assert f"save_steps{mark} 500 -> 4688" in _flat(_screen(rec))


def test_missed_limits_are_on_the_screen(samples: Samples) -> None:
    shown = _flat(_screen(samples.late))
    assert "Deadline of 10.0 h missed (13 chances in 100); budget of $29.00 missed" in shown
    assert "(4 chances in 10). To keep them with 8 chances in 10," in shown
    assert "they would have to be 14.0 h and $35.05." in shown


def test_a_limit_that_is_kept_is_on_the_screen_with_its_odds(samples: Samples) -> None:
    assert "Deadline of 24.0 h: kept with over 99 chances in 100." in _flat(_screen(samples.full))


def test_three_alternatives_at_most_with_what_they_cost_more(samples: Samples) -> None:
    shown = _flat(_screen(samples.full))
    assert "Next best" in shown
    assert "micro-batch 4 12.7 h $31.78 +5%" in shown
    alike = replace(samples.full, alternatives=samples.full.alternatives * 4)
    assert _screen(alike).count("micro-batch 4") <= 3


def test_unknown_row_lengths_are_said_and_how_to_state_them(samples: Samples) -> None:
    lengths = replace(samples.full.job.lengths, known=False)
    rec = replace(samples.full, job=replace(samples.full.job, lengths=lengths))
    shown = _flat(_screen(rec))
    assert "It takes at most 12.1 h ($30.27) counting every row at max_length." in shown
    assert "add `--data FILE`, or `--set data.lengths.mean=N`." in shown
    assert "figures count every row as 1,024 tokens and are upper bounds" in shown


SHORT = ShortRows(
    Spread(7200.0, 9000.0, 10800.0), Spread(5.0, 6.25, 7.5), "tatsu-lab/alpaca", 128.0, "a source",
    settled=False,
)  # fmt: skip


def test_rows_of_unknown_length_give_a_range_and_no_saving(samples: Samples) -> None:
    lengths = replace(samples.full.job.lengths, known=False)
    job = replace(samples.full.job, lengths=lengths)
    rec = replace(samples.full, job=job, short_rows=SHORT)
    payload = recommendation_payload(rec)
    assert payload["lengths_known"] is False
    assert payload["short_rows"]["duration_s"] == SHORT.duration_s
    ends = (
        "between 2.5 h ($6.25) with rows as short as in tatsu-lab/alpaca (half under 128 "
        "tokens) and 12.1 h ($30.27) with rows of 1,024 tokens"
    )
    shown = _flat(_screen(rec))
    assert f"It takes {ends}." in shown
    assert "Changed from today: micro-batch 8" in shown
    config = replace(rec.best.config, checkpoint_every_steps=30)
    saving = replace(rec, best=replace(rec.best, config=config))
    saved = re.search(
        r"Changed from today: micro-batch 8[^.]*, save_steps 30", _flat(_screen(saving))
    )
    assert saved is not None
    step = WaterfallStep("evaluation.batch_size", "8", "1", 0.0, 0.0)
    journey = WhatIf(Waterfall(1.0, 1.0, 1.0, 1.0, (step,)))
    around = _flat(_screen(replace(rec, journey=journey)))
    assert re.search(r"Changed from today: micro-batch 8[^.]*, evaluation\.batch_size 1\. ", around)
    whole = _flat(TUNE_REPORT.markdown(payload).replace("\\", "").replace("**", ""))
    page = _flat(recommendation_html(payload))
    for report in (shown, whole, page):
        assert ends in report
        assert "How much that saves depends on the row lengths" in report
        for word in (" sooner and $", "cheaper than 30", "may save", "From today"):
            assert word not in report, word
    settled = replace(rec, short_rows=replace(SHORT, settled=True))
    assert "Both figures are scaled to your measured run" in _flat(_screen(settled))


def test_published_row_lengths_are_said_with_how_to_count_ones_own(samples: Samples) -> None:
    lengths = replace(samples.full.job.lengths, basis="published", log_sd=0.12)
    rec = replace(samples.full, job=replace(samples.full.job, lengths=lengths))
    shown = _flat(_screen(rec))
    assert "Row lengths are published figures for this data set, not counted" in shown
    assert "row lengths: `--data FILE` counts your rows" in shown
    assert "data.tokenizer" not in shown


def test_estimated_row_lengths_are_said_with_their_range(samples: Samples) -> None:
    lengths = replace(samples.full.job.lengths, basis="estimated", log_sd=0.2)
    rec = replace(samples.full, job=replace(samples.full.job, lengths=lengths))
    tokens = rec.job.tokens
    shown = _flat(_screen(rec))
    low, high = (float(f"{tokens * math.exp(s * 1.2816 * 0.2):.3g}") for s in (-1, 1))
    assert (
        "estimated from bytes, because the model's tokenizer cannot be used here; the ranges cover"
        f" {low:,.0f}" in shown
    )
    assert f"to {high:,.0f} tokens" in shown
    assert "hf download meta-llama/Llama-3.1-8B tokenizer.json --local-dir TOK" in shown
    assert "--set data.tokenizer=TOK" in shown


def test_a_missing_package_that_counts_tokens_is_named(samples: Samples) -> None:
    lengths = replace(samples.full.job.lengths, basis="estimated", log_sd=0.2)
    why = Assumption("data.lengths", "estimated", "counting needs tokenizers: not installed")
    job = replace(samples.full.job, lengths=lengths, assumed=(why,))
    shown = _flat(_screen(replace(samples.full, job=job)))
    assert f"row lengths: {install_command('dataset')}, and your rows are counted" in shown
    assert "hf download" not in shown


def test_what_is_free_has_no_cost(samples: Samples) -> None:
    best = samples.full.best
    free = replace(
        best, offer=replace(best.offer, usd_per_hour=0.0), cost_usd=Spread(0.0, 0.0, 0.0)
    )
    rec = replace(samples.full, best=free, today=None, alternatives=(free,))
    assert "$" not in _screen(rec)


def test_nothing_feasible_names_the_smallest_changes(samples: Samples) -> None:
    shown = _flat(_screen(samples.infeasible))
    assert "nothing fits" in shown
    assert "activation_checkpointing full" in shown
    assert "max_length 512 instead of 1024" in shown


def test_notes_that_are_not_shown_are_counted(samples: Samples) -> None:
    three = replace(samples.full, warnings=("one", "two", "three"))
    assert "3 more notes." in _flat(_screen(three))
    assert "1 more note." in _flat(_screen(replace(samples.full, warnings=("one",))))
    assert "more note" not in _screen(replace(samples.full, warnings=()))


def test_the_commands_are_those_of_the_json_whole_and_in_order(samples: Samples) -> None:
    payload = recommendation_payload(_kept(samples.full))
    typed = [each["command"] for each in payload["next"]]
    folder = "runs/20261121-020000-h100-38h"
    assert typed[:5] == [
        "export DATA=rows.jsonl",
        f"MAX_STEPS=60 bash {folder}/run.sh",
        f"bash {folder}/run.sh",
        f"autotune verify {folder}",
        "autotune tune 'my job.yaml' --gpu h100 --score probe",
    ]
    shown = recommendation_screen(payload).splitlines()
    assert [line.strip() for line in shown if line.strip() in typed] == [*typed[4:5], *typed[:4]]


def test_folders_with_spaces_can_be_pasted_into_a_shell(samples: Samples) -> None:
    rec = replace(_kept(samples.full), run_dir="über runs/it's one")
    for step in next_steps(recommendation_payload(rec)):
        words = shlex.split(step["command"])
        assert any(word.startswith("über runs/it's one") for word in words) or (
            "über" not in step["command"]
        )


def test_a_question_asked_elsewhere_is_asked_there_again(samples: Samples, tmp_path: Path) -> None:
    asked = Asked(("autotune", "tune", "job.yaml"), str(tmp_path / "a folder"))
    payload = recommendation_payload(replace(_kept(samples.full), asked=asked))
    probes = [each["command"] for each in payload["next"] if "--score" in each["command"]]
    assert probes == [f"(cd '{tmp_path}/a folder' && autotune tune job.yaml --score probe)"]


@pytest.mark.parametrize(
    ("words", "again"),
    [
        ("JOB --score probe --probes 2", "JOB --score probe --probes 2"),
        ("../run --workers 2", "../run --workers 2 --score probe --probe-budget 90s"),
        ("../run", "../run --score probe --probe-budget 90s"),
    ],
)
def test_disturbed_probes_of_a_resumed_run_are_measured_again_as_probes(
    samples: Samples, words: str, again: str
) -> None:
    """A run folder that is named without --resume is tuned by formula, and workers refuse that."""
    noise = NoiseSeen(1.0, 2.0, 3, 3, 1, 0.0, 0.0, cannot_tell=True, why="")
    rec = _kept(samples.full)
    search = replace(rec.search, score="probe", probe_budget_s=90.0, noise=noise)
    asked = Asked(("autotune", "tune", *words.split()), str(Path.cwd()))
    payload = recommendation_payload(replace(rec, asked=asked, search=search))
    found = [each["command"] for each in payload["next"] if "measures again" in each["what"]]
    assert found == [f"autotune tune {again}"]


def test_a_run_folder_is_whole_in_what_is_kept_and_short_where_it_is_read(
    samples: Samples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    payload = recommendation_payload(replace(_kept(samples.full), run_dir=f"{tmp_path}/runs/one"))
    assert any(each["command"] == f"bash {tmp_path}/runs/one/run.sh" for each in payload["next"])
    assert f"bash {tmp_path}/runs/one/run.sh" in recommendation_html(payload)
    here = as_typed_here(payload)
    assert any(each["command"] == "bash runs/one/run.sh" for each in here["next"])
    assert str(tmp_path) not in recommendation_screen(here, width=200, colour=False)


def test_an_option_that_is_stated_anew_replaces_the_old_one() -> None:
    words = ("autotune", "tune", "--gpu", "h100", "--set", "a=1", "--set", "b=2")
    asked = Asked(words, str(Path.cwd()))
    said = again(asked, "tune", "--gpu a100:2 --set b=3")
    assert said == "autotune tune --set a=1 --gpu a100:2 --set b=3"


def test_a_knob_that_was_opened_stays_open_beside_another() -> None:
    asked = Asked(("autotune", "tune", "--allow", "offload"), str(Path.cwd()))
    said = again(asked, "tune", "--allow kernels --allow offload")
    assert said == "autotune tune --allow kernels --allow offload"
    said = again(asked, "tune", "--allow kernels")
    assert said == "autotune tune --allow offload --allow kernels"


def test_a_text_is_cut_between_words() -> None:
    assert shortened("one two three", 10) == "one two..."
    assert shortened("one  two\nthree", 20) == "one two three"
    old = "the price is old: the ranking may have changed; state yours, or refresh (vast 1x: a.csv)"
    assert shortened(old, 84) == old[: old.index(" (")] + "."
    assert shortened(old, 80) == old[: old.index(" (")] + "."
    assert shortened("a price (as asked; " * 6, 90).endswith("...")
    assert shortened("a job (of the team that asked)", 20) == "a job (of the..."


def test_colour_is_sober_and_changes_no_word(samples: Samples) -> None:
    plain, coloured = _screen(samples.full), _screen(samples.full, colour=True)
    assert "\x1b" not in plain
    assert _flat(re.sub(r"\x1b\[[0-9;]*m", "", coloured)) == _flat(plain)
    codes = set(re.findall(r"\x1b\[([0-9;]*)m", coloured))
    assert codes <= {"0", "1", "2", "1;31", "31", "32", "33", "36"}  # bold, dim, four hues


def test_relaxations_are_commands_of_what_was_asked(samples: Samples) -> None:
    rejected = samples.infeasible.rejected
    first = replace(rejected.relaxations[0], apply="--set activation_checkpointing=full")
    asked = Asked(("autotune", "tune", "my job.yaml"), str(Path.cwd()))
    rec = replace(
        samples.infeasible,
        asked=asked,
        rejected=replace(rejected, relaxations=(first, *rejected.relaxations[1:])),
    )
    command = "autotune tune 'my job.yaml' --set activation_checkpointing=full"
    payload = recommendation_payload(rec)
    assert command in _screen(rec)
    assert command in TUNE_REPORT.text(payload)


def test_everything_explains_the_words_it_uses_once(samples: Samples) -> None:
    shown = TUNE_REPORT.text(recommendation_payload(samples.full))
    head, _, words = shown.partition("\nWords\n")
    terms = re.findall(r"^  - ([^:]+):", words, re.MULTILINE)
    assert len(terms) == len(set(terms)) > 10
    for term in ("MFU", "sdpa", "numeric", "headroom", "modelled", "80 % interval"):
        assert (term in terms) == bool(re.search(rf"(?i)\b{term}", _flat(head))), term
    assert "per_device_train_batch_size" in words


def test_warnings_that_change_a_decision_are_on_the_screen(samples: Samples) -> None:
    told = "the price of h100-sxm is 200 days old; `autotune prices refresh` renews it"
    rec = replace(samples.full, warnings=("of no weight", Decisive(told)))
    shown = _flat(_screen(rec))
    assert told[1:] in shown
    assert "of no weight" not in shown
    assert "1 more note." in shown
    assert recommendation_payload(rec)["decisive"] == (told,)


@pytest.mark.parametrize(
    ("files", "writes_to", "typed"),
    [
        (("train.py", "run.sh"), None, "autotune verify runs/one"),
        (("trl/train.py", "trl/run.sh"), None, "autotune verify runs/one runs/one/trl"),
        (("own/a.yml", "run.sh"), "my out", "autotune verify runs/one 'my out'"),
        (("own/a.yml", "run.sh"), None, None),
        (("axolotl.yml",), None, None),
    ],
)
def test_a_run_is_verified_by_the_log_that_it_writes(
    samples: Samples, files: tuple[str, ...], writes_to: str | None, typed: str | None
) -> None:
    rec = replace(_kept(samples.full), files=files, writes_to=writes_to, run_dir="runs/one")
    told = [each["command"] for each in recommendation_payload(rec)["next"]]
    assert [each for each in told if each.startswith("autotune verify")] == (
        [typed] if typed else []
    )


def test_several_machines_are_told_their_place_before_anything_starts(samples: Samples) -> None:
    payload = recommendation_payload(_kept(samples.full))
    alone = [step.command for step in next_steps(payload)]
    assert payload.best is not None
    both = replace(payload, best=replace(payload.best, nodes=2))
    told = [step.command for step in next_steps(both)]
    place = told.index("export MASTER_ADDR=FIRST NODE_RANK=0")
    assert place < next(at for at, each in enumerate(told) if "run.sh" in each)
    assert not any("NODE_RANK" in each for each in alone)


def test_a_script_of_the_users_called_run_sh_is_not_started_beside_ours(
    samples: Samples,
) -> None:
    files = ("own/run.sh", "own/run.sh.diff", "run.sh")
    rec = replace(_kept(samples.full), files=files, run_dir="runs/one")
    told = [step.command for step in next_steps(recommendation_payload(rec))]
    assert [each for each in told if "bash" in each] == ["bash runs/one/run.sh"]
