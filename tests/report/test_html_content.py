"""What the page holds: the words of the text, numbers that add up, drawings that say something."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from autotune.domain.answer.waterfall import WaterfallStep
from autotune.domain.outcome import TimeParts
from autotune.domain.units import format_bytes, format_seconds, format_usd
from autotune.report.layout.blocks import Bullets, Commands, Paragraph, Table
from autotune.report.page.page import recommendation_html
from autotune.report.schema import WhatIfPayload
from autotune.report.sections.answer import recommendation_sections
from autotune.report.sections.glossary import WORDS
from tests.report.page_tree import (
    cells,
    classes,
    number,
    of_class,
    payload_of,
    probed,
    text,
    texts,
    tree_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from xml.etree import ElementTree as ET

    from samples import Samples

    from autotune.domain.answer.recommendation import Recommendation
    from autotune.domain.outcome import Estimated
    from autotune.report.layout.blocks import Block


def tree(answer: Recommendation) -> ET.Element:
    return tree_of(recommendation_html(payload_of(answer)))


def at_price(row: Estimated, name: str, usd_per_hour: float, factor: float) -> Estimated:
    """The row on another machine, that many times as long."""
    device = replace(row.offer.device, name=name)
    offer = replace(row.offer, device=device, usd_per_hour=usd_per_hour, spot=False)
    parts = TimeParts(**{key: factor * each for key, each in row.time_s.as_dict().items()})
    hours = parts.total / 3600
    return replace(
        row, offer=offer, time_s=parts,
        duration_s=replace(row.duration_s, p10=0.8 * parts.total, p50=parts.total,
                           p90=1.2 * parts.total),
        cost_usd=replace(row.cost_usd, p10=0.8 * hours * usd_per_hour, p50=hours * usd_per_hour,
                         p90=1.2 * hours * usd_per_hour),
    )  # fmt: skip


@pytest.fixture
def many(samples: Samples) -> Recommendation:
    """An answer over four machines at four prices; the deadline is 24 h."""
    answer = samples.full
    assert answer.best is not None
    machines = tuple(
        at_price(answer.best, name, price, factor)
        for name, price, factor in (("slow", 0.5, 3.0), ("fast", 9.0, 0.4), ("dear", 20.0, 0.9))
    )
    return replace(answer, machines=(answer.best, *machines))


def test_the_five_questions_are_asked_in_the_order_of_a_reader(samples: Samples) -> None:
    root = tree(samples.full)
    assert [each.get("id") for each in root.iter("section")] == [
        "what", "why", "machine", "sure", "run",
    ]  # fmt: skip
    assert [heading[0] for heading in texts(root, "h2")] == list("12345")


def test_the_answer_is_the_picks_machine_duration_and_cost(samples: Samples) -> None:
    best = samples.full.best
    answer = text(of_class(tree(samples.full), "answer")[0])
    assert best.offer.device.name in answer
    assert format_seconds(best.duration_s.p50) in answer
    assert format_usd(best.cost_usd.p50) in answer


@pytest.mark.parametrize("kind", ["full", "infeasible", "late", "probed", "many"])
def test_what_the_whole_text_says_the_page_says_too(
    samples: Samples, many: Recommendation, kind: str
) -> None:
    named = {
        "full": samples.full, "infeasible": samples.infeasible, "late": samples.late,
        "probed": probed(samples.full), "many": many,
    }  # fmt: skip
    payload = payload_of(named[kind])
    page = text(tree_of(recommendation_html(payload)))
    lead, *sections = recommendation_sections(payload)
    # The first sentence is the heading; what stands in columns is told in `test_every_..`.
    said = [words for block in lead.blocks[1:] for words in words_of(block)]
    said += [words for each in sections for block in each.blocks for words in words_of(block)]
    assert len(said) > 20
    assert [words for words in said if flat(words) not in flat(page)] == []


def flat(words: str) -> str:
    """Without spaces: elements of the page stand where the text has none."""
    return re.sub(r"\s", "", words)


def words_of(block: Block) -> Iterator[str]:
    """What a block says, sentence by sentence and cell by cell."""
    if isinstance(block, Paragraph):
        yield block.text.replace("`", "")
    elif isinstance(block, Bullets):
        yield from (item.replace("`", "") for item in block.items)
    elif isinstance(block, Commands):
        yield from (part for item in block.items for part in item)
    elif isinstance(block, Table):
        yield from (cell for row in block.rows for cell in row)


def test_a_section_that_has_no_place_of_its_own_is_folded_under_how_sure(samples: Samples) -> None:
    journey = WhatIfPayload(options=(), measured=())
    told = ("28,000 steps do not fit",)
    payload = replace(payload_of(samples.full), journey=journey, contradictions=told)
    root = tree_of(recommendation_html(payload))
    sure = next(each for each in root.iter("section") if each.get("id") == "sure")
    folds = [each for each in sure.iter("details") if "28,000 steps do not fit" in text(each)]
    assert len(folds) == 1


def test_every_word_that_is_explained_is_used_and_explained_once(samples: Samples) -> None:
    root = tree(samples.full)
    words = of_class(root, "glossary")[0]
    terms = texts(words, "dt")
    page = text(root).replace(text(words), "")
    assert len(terms) == len(set(terms)) > 8
    patterns = {word: pattern for word, pattern, _ in WORDS}
    assert [term for term in terms if not re.search(patterns[term], page)] == []
    assert [word for word in patterns if re.search(patterns[word], page)] == terms


def test_the_parts_of_time_and_memory_are_those_of_the_payload(samples: Samples) -> None:
    payload = payload_of(samples.full)
    best, today = payload["best"], payload["today"]
    assert best
    assert today
    tables = of_class(tree_of(recommendation_html(payload)), "parts")
    totals = [
        [row["duration_s"]["p50"] for row in (best, today)],
        [row["memory_bytes"]["total"] for row in (best, today)],
    ]
    assert len(tables) == len(totals)
    for table, expected in zip(tables, totals, strict=True):
        for column, total in enumerate(expected, start=1):
            found = [line[column].get("data-value") for line in table.iter("tr")]
            values = [float(each) for each in found if each]
            assert len(values) > 5
            assert sum(values) == pytest.approx(total)


def test_a_bar_is_as_long_as_its_number(samples: Samples) -> None:
    checked = 0
    for table in of_class(tree(samples.full), "parts"):
        for line in table.iter("tr"):
            values = [float(cell.get("data-value", "0")) for cell in line]
            drawn = [number(bar.get("width")) for bar in line.iter("rect")]
            shown = [each for each in values if each > 0]
            if drawn:
                assert drawn == pytest.approx(
                    [each / shown[0] * drawn[0] for each in shown], abs=0.01
                )
                checked += 1
    assert checked > 10


def test_the_pick_and_today_are_in_the_same_unit(samples: Samples) -> None:
    parts = {name: value / 100 for name, value in samples.full.best.time_s.as_dict().items()}
    short = replace(samples.full.best, time_s=TimeParts(**parts))
    table = of_class(tree(replace(samples.full, best=short)), "parts")[0]
    shown = {cell for line in cells(table)[1:] for cell in line[1:] if cell not in {"0", ""}}
    assert {each.split()[-1] for each in shown} == {"h"}


def test_the_printed_parts_add_up_to_the_printed_total(samples: Samples) -> None:
    for table in of_class(tree(samples.full), "parts"):
        lines = cells(table)[1:]
        total = next(i for i, line in enumerate(lines) if line[0] == "total")
        for column in (1, 2):
            parts = sum(number(line[column]) for line in lines[:total])
            assert parts == pytest.approx(number(lines[total][column]), abs=1e-6)


def test_one_row_alone_is_not_drawn_beside_itself(samples: Samples) -> None:
    alone = replace(samples.full, today=None, alternatives=(), pareto=())
    root = tree(alone)
    assert of_class(root, "choices") == of_class(root, "parts") == of_class(root, "plot") == []
    assert len(of_class(root, "cascade")) == 2  # time and memory, each with several bars


def test_the_pick_stands_beside_today_and_what_else_runs_on_its_machine(samples: Samples) -> None:
    table = of_class(tree(samples.full), "choices")[0]
    _, *lines = cells(table)
    assert [line[0].split()[0] for line in lines] == ["the", "today", "micro-batch"]
    assert all("a100" not in line[0] for line in lines)
    assert len(table.findall(".//circle")) == len(lines)


def test_what_misses_a_limit_says_so_where_it_is_listed(samples: Samples) -> None:
    lines = cells(of_class(tree(samples.full), "choices")[0])[1:]
    late = [line[0] for line in lines if "past the deadline" in line[1]]
    assert len(late) == 1
    assert late[0].startswith("today")


def test_a_plane_is_drawn_from_three_prices_an_hour_on(
    samples: Samples, many: Recommendation
) -> None:
    assert of_class(tree(samples.full), "plot") == []  # two machines: a table says it
    plot = of_class(tree(many), "plot")[0]
    marks = [each.get("data-tip", "") for each in plot.iter() if each.get("data-tip")]
    rows = cells(of_class(tree(many), "sortable")[0])[1:]
    assert len(marks) == len(rows)
    assert all(each.get("aria-label") == each.get("data-tip") for each in plot.iter("circle"))
    assert [each.get("tabindex") for each in plot.iter() if each.get("data-tip")].count("0") == 1


def test_the_letters_of_the_plane_are_those_of_the_table_under_it(many: Recommendation) -> None:
    root = tree(many)
    machine = next(each for each in root.iter("figure") if of_class(each, "plot"))
    lettered = {
        (tip.partition(", ")[0], tip.split(": ")[1].partition(",")[0])
        for tip in (each.get("data-tip", "") for each in of_class(machine, "named"))
    }
    table = of_class(machine, "machines")[0]
    heads = [text(line[0]).split() for line in table.iter("tr")][1:]
    assert {
        (letter, f"{count} {name.rstrip(',')}") for letter, count, name, *_ in heads
    } == lettered


def test_machines_that_keep_the_limits_come_with_the_pick_from_cheap_to_dear(
    many: Recommendation,
) -> None:
    root = tree(many)
    answer = text(of_class(next(s for s in root.iter("section") if s.get("id") == "machine"),
                           "answer")[0])  # fmt: skip
    assert "1x h100-sxm is the cheapest of the" in answer
    assert "that keep the deadline" in answer
    rows = cells(of_class(root, "machines")[0])[1:]
    costs = [number(row[2].lstrip("$")) for row in rows]
    assert costs == sorted(costs)
    slow = next(row for row in rows if "slow" in row[0])
    assert "past the deadline" in slow[1]
    assert sum("the pick" in row[0] for row in rows) == 1


def test_the_pick_stays_among_the_machines_beside_a_cheaper_one_that_nobody_measured(
    many: Recommendation,
) -> None:
    best = many.best
    assert best is not None
    unmeasured = replace(at_price(best, "new", 0.9, 1.0), caution=2.5)
    tied = replace(best, config=replace(best.config, num_dataloader_workers=1),
                   cost_usd=best.cost_usd.times(0.999))  # fmt: skip
    root = tree(replace(many, machines=(*many.machines, unmeasured), pareto=(tied,)))
    machine = next(s for s in root.iter("section") if s.get("id") == "machine")
    answer = text(of_class(machine, "answer")[0])
    assert answer.startswith("1x h100-sxm leads the ")
    assert "; 1x new may be cheaper, but nobody has measured it." in answer
    rows = cells(of_class(root, "machines")[0])[1:]
    assert sum("the pick" in row[0] for row in rows) == 1


def test_every_machine_has_a_row_also_where_nothing_fits(samples: Samples) -> None:
    fitting, tight = samples.full.alternatives[1], samples.full.alternatives[0]
    small = replace(tight, usable_bytes=1e9, verdict="certain_oom")
    small = replace(small, offer=replace(small.offer, count=8))
    root = tree(replace(samples.full, machines=(fitting, small)))
    lines = cells(of_class(root, "sortable")[0])
    assert [line[0] for line in lines if line[0].startswith("8x")] == ["8x h100-sxm does not fit"]
    assert len({tuple(line) for line in lines}) == len(lines)
    assert "not on 8x h100-sxm" in text(root)


def test_where_nothing_fits_it_says_so_what_would_fit_and_draws_no_plane(samples: Samples) -> None:
    small = replace(samples.full.alternatives[0], verdict="certain_oom", usable_bytes=1e9)
    other = replace(small, offer=replace(small.offer, count=4))
    root = tree(replace(samples.infeasible, machines=(small, other)))
    assert "nothing fits" in text(of_class(root, "answer")[0])
    what = next(each for each in root.iter("section") if each.get("id") == "what")
    assert "activation_checkpointing full" in text(what)
    assert of_class(root, "plot") == []
    assert len(cells(of_class(root, "sortable")[0])) == 3


def test_a_waterfall_is_drawn_from_today_to_the_pick_and_names_what_changed_nothing(
    samples: Samples,
) -> None:
    payload = payload_of(samples.full)
    today, best = payload["today"], payload["best"]
    assert today
    assert best
    gap = best["duration_s"]["p50"] - today["duration_s"]["p50"]
    paid = best["cost_usd"]["p50"] - today["cost_usd"]["p50"]
    steps = (("compile", 1.25), ("workers", -0.25), ("save_total_limit", 0.0))
    payload = replace(
        payload,
        journey=WhatIfPayload(options=(), measured=()),
        waterfall=tuple(
            WaterfallStep(name, "a", "b", share * gap, share * paid) for name, share in steps
        ),
    )
    root = tree_of(recommendation_html(payload))
    fold = next(each for each in root.iter("details") if "change-by-change" in each.get("id", ""))
    bars = list(fold.iter("rect"))
    assert [classes(each) for each in bars] == [{"today"}, {"less"}, {"more"}, {"pick"}]
    ends = [[number(each.get(key)) for key in ("x", "width")] for each in bars]
    assert ends[0] == [0, 100]
    assert sum(ends[1]) == pytest.approx(100, abs=0.01)  # starts where today ends
    assert ends[2][0] == pytest.approx(ends[1][0], abs=0.01)
    assert ends[3][1] == pytest.approx(sum(ends[2]), abs=0.01)  # ends where the pick does
    assert "Without effect: save_total_limit a -> b." in text(fold)


def test_probes_show_predicted_with_its_interval_and_measured(samples: Samples) -> None:
    root = tree(probed(samples.full))
    part = next(each for each in root.iter() if each.get("id") == "probes")
    assert len(cells(next(part.iter("table")))) == 4
    assert len(of_class(part, "interval")) == 1
    assert len(of_class(part, "middle")) == 2
    assert len(of_class(part, "cross")) == 2


def test_the_figures_are_the_rows(samples: Samples) -> None:
    best = samples.full.best
    shown = [text(each) for each in of_class(tree(samples.full), "figure")]
    memory = format_bytes(best.memory_bytes.total)
    assert shown == [format_seconds(best.duration_s.p50), format_usd(best.cost_usd.p50), memory]


def test_drawings_are_hidden_from_readers_that_have_the_numbers(samples: Samples) -> None:
    drawn = list(tree(probed(samples.full)).iter("td"))
    drawn = [each for each in drawn if each.find(".//svg") is not None]
    assert len(drawn) > 10
    assert all(each.get("aria-hidden") == "true" for each in drawn)


def test_a_job_of_one_machine_says_that_no_other_was_compared_and_how_to(samples: Samples) -> None:
    job = replace(samples.full.job, offers=samples.full.job.offers[:1])
    alone = replace(samples.full, job=job, alternatives=(), pareto=())
    machine = next(s for s in tree(alone).iter("section") if s.get("id") == "machine")
    assert "Only 1x h100-sxm was compared" in text(machine)
    assert "--gpu all" in text(machine)
    assert "$2.50/h (job file" in text(machine)
    assert not list(machine.iter("svg"))


def test_settings_have_the_names_that_the_trainer_has_for_them(samples: Samples) -> None:
    fold = next(
        each for each in tree(samples.full).iter("details") if "every" in each.get("id", "")
    )
    names = [line[0] for line in cells(next(fold.iter("table")))]
    assert "micro_batch_size (per_device_train_batch_size)" in names
    assert "compile (torch_compile)" in names
    assert "precision" in names


def test_warnings_are_announced_with_the_answer_and_linked(samples: Samples) -> None:
    root = tree(replace(samples.full, warnings=("one thing", "--price may have changed")))
    what = next(each for each in root.iter("section") if each.get("id") == "what")
    links = {text(link): link.get("href") for link in what.iter("a")}
    assert links == {"2 warnings to read before you start": "#run"}
    run = next(each for each in root.iter("section") if each.get("id") == "run")
    assert "one thing" in text(run)
    assert "--price" in [text(each) for each in of_class(run, "option")]  # never broken


def test_lines_of_a_script_stand_together_and_under_no_empty_comment(samples: Samples) -> None:
    run = next(e for e in tree(samples.full).iter("section") if e.get("id") == "run")
    blocks = [text(each) for each in run.iter("code")]
    (own,) = [each for each in blocks if "from autotune import TrainerCallback" in each]
    assert "trainer.add_callback(" in own
    assert not any(line.strip() == "#" for each in blocks for line in each.splitlines())


def test_a_row_that_only_saves_at_other_times_says_so(samples: Samples) -> None:
    pick = samples.full.best
    rarer = replace(pick, config=replace(pick.config, checkpoint_every_steps=7))
    answer = replace(samples.full, today=rarer, alternatives=(rarer,))
    page = text(tree(answer))
    assert page.count("save_steps 7") > 1
    assert "today same settings" not in page
