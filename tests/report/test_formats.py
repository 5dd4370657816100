from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.domain.outcome import Spread
from autotune.report.layout.csv_rows import estimate_csv, recommendation_csv, rows_csv
from autotune.report.layout.text import to_ascii
from autotune.report.payload import estimate_payload, recommendation_payload
from autotune.report.phrases import chance, step_arithmetic, token_arithmetic
from autotune.report.sections.answer import ESTIMATE_REPORT, TUNE_REPORT

if TYPE_CHECKING:
    from samples import Samples

    from autotune.domain.answer.recommendation import Recommendation

ESCAPE = "\x1b"


def _text(rec: Recommendation, width: int = 80, *, colour: bool = False) -> str:
    return TUNE_REPORT.text(recommendation_payload(rec), width=width, colour=colour)


def _flat(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def test_the_first_sentence_is_the_answer(samples: Samples) -> None:
    first = _flat(_text(samples.full).split("\n\n", maxsplit=1)[0])
    for part in ("1x h100-sxm", "micro-batch 8", "12.1 h (9.7 h to 15.1 h)", "$30.27 ($24.22 to"):
        assert part in first


def test_the_arithmetic_of_steps_is_shown(samples: Samples) -> None:
    shown = _flat(_text(samples.full))
    assert "600,000 rows / 8 a step = 75,000 steps an epoch x 3 epochs = 225,000 steps" in shown


def test_rows_that_do_not_divide_are_rounded_up_and_said_so(samples: Samples) -> None:
    job = replace(samples.full.job, rows=101, epochs=1.0, steps=13, global_batch_size=8)
    payload = recommendation_payload(replace(samples.full, job=job))["job"]
    assert step_arithmetic(payload) == "101 rows / 8 a step = 13 steps (rounded up) in 1 epoch"


def test_stated_steps_are_not_explained_by_rows(samples: Samples) -> None:
    job = replace(samples.full.job, steps=1000)
    payload = recommendation_payload(replace(samples.full, job=job))["job"]
    assert step_arithmetic(payload).endswith("1,000 steps in all, as stated")


@pytest.mark.parametrize("width", [80, 120])
def test_no_line_is_wider_than_the_terminal(samples: Samples, width: int) -> None:
    """But a command, or a path in one, which could not be copied if it were wrapped."""
    for rec in (samples.full, samples.infeasible, samples.late):
        lines = [line for line in _text(rec, width).splitlines() if len(line) > width]
        typed = ("TrainerCallback(", "autotune ", "bash ", "/")
        assert [line for line in lines if not any(word in line for word in typed)] == []


@pytest.mark.parametrize("width", [1, 20, 60, 300])
def test_any_width_prints_the_same_words(samples: Samples, width: int) -> None:
    assert "Where the memory goes" in _text(samples.full, width)


def test_without_colour_there_is_no_escape_sequence(samples: Samples) -> None:
    assert ESCAPE not in _text(samples.full)
    assert ESCAPE in _text(samples.full, colour=True)


def test_colour_changes_no_character(samples: Samples) -> None:
    stripped = re.sub(r"\x1b\[[0-9;]*m", "", _text(samples.full, colour=True))
    assert _flat(stripped) == _flat(_text(samples.full))


def test_markup_in_names_is_plain_text(samples: Samples) -> None:
    job = replace(samples.full.job, name="[red]a*b|c[/red]")
    rec = replace(samples.full, job=job)
    assert "[red]a*b|c[/red]" in _text(rec)
    assert r"\[red]a\*b\|c\[/red]" in TUNE_REPORT.markdown(recommendation_payload(rec))


def test_today_is_shown_beside_the_pick_with_the_saving(samples: Samples) -> None:
    shown = _flat(_text(samples.full))
    assert "18.2 h sooner and $45.41 cheaper" in shown
    assert "num_dataloader_workers 4 2" in shown
    assert "-18.2 h (-60%)" in shown


def test_a_config_of_today_that_the_model_rejects_is_named(samples: Samples) -> None:
    assert samples.full.today is not None
    today = replace(samples.full.today, verdict="certain_oom", usable_bytes=1e9)
    shown = _flat(_text(replace(samples.full, today=today)))
    assert "By this model today's config does not fit" in shown
    assert "By this model" not in _flat(_text(samples.full))


def test_knobs_that_share_a_reason_take_one_line(samples: Samples) -> None:
    shown = _flat(_text(samples.full))
    assert (
        "The only value that is valid here: prefetch_factor 2, pin_memory true, sharding none."
        in shown
    )


def test_another_machine_gets_its_break_even_price(samples: Samples) -> None:
    pick, other = samples.full.best, samples.full.alternatives[1]
    price = pick.cost_usd.p50 / (other.duration_s.p50 / 3600)
    assert f"4x a100-sxm4-40gb, spot below ${price:.2f}/h" in _flat(_text(samples.full))


def test_no_machine_is_cheaper_than_a_free_one(samples: Samples) -> None:
    best = samples.full.best
    free = replace(best, offer=replace(best.offer, usd_per_hour=0.0), cost_usd=Spread(0, 0, 0))
    assert "would be cheaper" not in _flat(_text(replace(samples.full, best=free)))


def test_equal_costs_are_not_called_cheaper(samples: Samples) -> None:
    best, today = samples.full.best, samples.full.today
    assert today is not None
    equal = replace(today, cost_usd=best.cost_usd)
    assert "costs the same." in _flat(_text(replace(samples.full, today=equal)))


def test_a_config_of_today_that_does_not_fit_is_no_saving(samples: Samples) -> None:
    today = samples.full.today
    assert today is not None
    lost = replace(samples.full, today=replace(today, verdict="certain_oom"))
    shown = _flat(_text(lost))
    assert "Compared with today's config" not in shown
    assert "Today's config runs out of memory, by this model." in shown


def test_words_are_not_broken_in_the_alternatives(samples: Samples) -> None:
    shown = _text(samples.full, 80).split("\nAlternatives\n")[1].split("\n\n")[0]
    assert "4x a100-sxm4-40gb, spot:" in shown


def test_an_evaluation_counts_no_training_tokens(samples: Samples) -> None:
    job = replace(samples.full.job, steps=0, epochs=0.0)
    payload = recommendation_payload(replace(samples.full, job=job))["job"]
    assert token_arithmetic(payload) == "rows of at most 1,024 tokens"


def test_nothing_feasible_names_three_misses_and_the_changes_that_fit(samples: Samples) -> None:
    shown = _flat(_text(samples.infeasible))
    assert "nothing fits" in shown.split(".")[0]
    for over in ("256.0 MiB", "1.2 GiB", "2.2 GiB"):
        assert over in shown
    assert "activation_checkpointing" in shown
    assert "These change the result" in shown


def test_candidates_that_are_not_valid_are_not_said_to_be_too_big(samples: Samples) -> None:
    record = replace(samples.infeasible.search, priced=0)
    rejected = replace(samples.infeasible.rejected, nearest=(), relaxations=())
    rec = replace(samples.infeasible, search=record, rejected=rejected)
    assert "None of 1,536 configurations is possible on these machines." in _flat(_text(rec))


def test_a_missed_limit_says_its_chances(samples: Samples) -> None:
    assert "Deadline of 10.0 h missed (13 chances in 100)" in _flat(_text(samples.late))


def test_the_command_that_starts_the_training_can_be_pasted(samples: Samples) -> None:
    files = ("hf/run.sh", "hf/train.py", "own/axolotl.yml")
    rec = replace(samples.full, run_dir="runs/my run; rm -rf x", files=files)
    shown = TUNE_REPORT.markdown(recommendation_payload(rec))
    assert "\nbash 'runs/my run; rm -rf x/hf/run.sh'  # the full run\n" in shown
    assert "\nbash " not in TUNE_REPORT.markdown(recommendation_payload(samples.full))


def test_certainty_is_never_rounded_up(samples: Samples) -> None:
    assert samples.full.best is not None
    sure = replace(samples.full.best, fits_probability=0.9999)
    shown = _text(replace(samples.full, best=sure))
    assert "over 0.99" in shown
    assert "1.00" not in shown


def test_an_estimate_that_does_not_fit_says_so(samples: Samples) -> None:
    assert samples.full.best is not None
    row = replace(samples.full.best, usable_bytes=1e9, fits_probability=0.0, verdict="certain_oom")
    shown = _flat(ESTIMATE_REPORT.text(estimate_payload(row, samples.full.job)))
    assert "Does not fit (probability of fitting under 0.01)" in shown
    assert "too much" in shown


def test_ascii_text_needs_no_other_encoding(samples: Samples) -> None:
    text = to_ascii(_text(samples.full))
    assert text.isascii()
    assert "####" in text
    assert "?" not in text


def test_markdown_tables_have_as_many_cells_as_titles(samples: Samples) -> None:
    payload = recommendation_payload(samples.full)
    table: list[int] = []
    for line in [*TUNE_REPORT.markdown(payload).splitlines(), ""]:
        if line.startswith("|"):
            table.append(len(re.findall(r"(?<!\\)\|", line)))
        elif table:
            assert len(set(table)) == 1
            table = []


def test_markdown_says_what_text_says(samples: Samples) -> None:
    payload = recommendation_payload(samples.full)
    markdown = _flat(TUNE_REPORT.markdown(payload))
    assert "12.1 h (9.7 h to 15.1 h)" in markdown
    assert "| part | amount | share |" in markdown
    assert "| training steps | 10.00 h | 83% |" in markdown
    assert samples.full.best is not None
    estimated = estimate_payload(samples.full.best, samples.full.job)
    assert "| training steps | 10.00 h | 83% |" in ESTIMATE_REPORT.markdown(estimated)


def test_csv_has_one_line_a_candidate_in_base_units(samples: Samples) -> None:
    rows = list(
        csv.DictReader(io.StringIO(recommendation_csv(recommendation_payload(samples.full))))
    )
    assert [row["role"] for row in rows] == [
        "best", "today", "alternative", "alternative", "pareto", "pareto",
    ]  # fmt: skip
    assert float(rows[0]["duration_s.p50"]) == 43_590.0
    assert rows[0]["config.micro_batch_size"] == "8"
    assert rows[0]["config.pin_memory"] == "true"


def test_csv_names_the_best_of_each_machine_and_what_does_not_fit(samples: Samples) -> None:
    rows = samples.full.alternatives
    answer = replace(samples.full, machines=rows[:1], beyond=rows[1:])
    text = recommendation_csv(recommendation_payload(answer))
    roles = [line["role"] for line in csv.DictReader(io.StringIO(text))]
    assert roles[-2:] == ["machine", "beyond"]


def test_csv_of_an_estimate_is_one_line(samples: Samples) -> None:
    assert samples.full.best is not None
    text = estimate_csv(estimate_payload(samples.full.best, samples.full.job))
    assert len(list(csv.DictReader(io.StringIO(text)))) == 1


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_a_name_that_a_sheet_would_run_is_text(start: str) -> None:
    """The leading apostrophe is what makes it text. Source: OWASP, "CSV Injection"."""
    name = f'{start}HYPERLINK("http://a","b"),c'
    row = next(csv.DictReader(io.StringIO(rows_csv([{"name": name, "change_s": -1.5}]))))
    assert row == {"name": "'" + name.replace("\r", "\n"), "change_s": "-1.5"}


@given(st.lists(st.text(st.characters(exclude_categories=("Cs",))), min_size=2, max_size=4))
def test_csv_cells_come_back_as_they_were(cells: list[str]) -> None:
    table = rows_csv([{str(i): cell for i, cell in enumerate(cells)}])
    rows = list(csv.reader(io.StringIO(table, newline="")))
    assert len(rows) == 2
    for read, cell in zip(rows[1], cells, strict=True):
        text = cell.replace("\r\n", "\n").replace("\r", "\n")  # one kind of line end
        assert read in {text, f"'{text}"}


def test_nothing_in_a_fence_of_markdown_closes_it() -> None:
    from markdown_it import MarkdownIt

    from autotune.report.layout.report import fenced

    hostile = "--- a/x\n```\n<script>alert(1)</script>\n````\n# not a title"
    tokens = MarkdownIt().parse(fenced("diff", hostile))
    assert [each.type for each in tokens] == ["fence"]
    assert tokens[0].content == hostile + "\n"


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.8996, "just under 0.90"), (0.9, "0.90"), (0.894, "0.89"), (0.996, "over 0.99")],
)
def test_a_probability_is_never_rounded_up_to_what_is_required(value: float, words: str) -> None:
    """ "The probability is 0.90, and 0.9 is required" told nobody why it is refused."""
    assert chance(value) == words
