"""Changes of a question or of a run are one noun, and two of them one after the other are one."""

from __future__ import annotations

from autotune.domain.edit import Edit, most_of


def test_two_changes_are_one_that_says_both_and_counts_as_the_stronger() -> None:
    longer = Edit(
        lambda n: n + 1, "one more", "rows", before="1", value="2", typed="--set rows=2",
        changes="quality", columns=("rows",), note="learns more",
    )  # fmt: skip
    opened: Edit[int] = Edit(
        lambda n: n * 10, "ten times", "packing", value="on", typed="--allow packing",
        changes="numeric", of="lock", columns=("packing", "rows"), note="other batches",
    )  # fmt: skip
    both = longer.then(opened)
    assert both.apply(1) == 20
    assert opened.then(longer).apply(1) == 11
    assert (both.label, both.key) == ("one more and ten times", "rows")
    assert (both.before, both.value) == ("1", "2, on")
    assert both.typed == "--set rows=2 --allow packing"
    assert both.columns == ("rows", "packing")
    assert both.note == "learns more; other batches"
    assert (both.changes, both.sort) == ("quality", "quality")
    assert both.changes_training


def test_what_keeps_the_training_stays_of_the_sort_that_is_changed() -> None:
    lock: Edit[int] = Edit(lambda n: n, of="lock", changes="numeric")
    machine: Edit[int] = Edit(lambda n: n, of="machine")
    assert (lock.sort, machine.sort) == ("lock", "machine")
    assert (lock.then(machine).sort, lock.then(machine).changes) == ("lock", "numeric")
    assert not lock.changes_training


def test_of_no_change_the_training_is_the_same() -> None:
    assert most_of() == "neutral"
    assert most_of("neutral", "numeric") == "numeric"
    assert most_of("quality", "numeric") == "quality"
