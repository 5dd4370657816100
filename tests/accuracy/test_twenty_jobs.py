"""The page of twenty jobs is what its command prints, and holds what its jobs must show."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from bench.twenty_jobs import PAGE, answered, entries, page

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("home")

ENTRIES = entries()


def entry(words: str) -> dict[str, Any]:
    (found,) = (each for each in ENTRIES if words in each["what"])
    return found


def test_the_page_is_what_its_command_prints() -> None:
    assert PAGE.read_text("utf-8") == page(), "python -m bench.twenty_jobs writes it"


def test_there_are_twenty_jobs_and_each_published_figure_has_its_source_and_date() -> None:
    assert len(ENTRIES) == 20
    published = [each["published"] for each in ENTRIES if "published" in each]
    assert len(published) >= 12
    for said in published:
        assert {"step_s", "run_s"} & set(said)
        assert re.search(r"\S+/\S+", said["by"])
        assert re.fullmatch(r"20\d\d(-\d\d)?", str(said["date"]))
    by = " ".join(said["by"] for said in published)
    for name in ("NeMo", "llm-foundry", "torchtitan", "QwenLM"):
        assert name in by


def test_a_published_configuration_is_priced_as_it_was_run(tmp_path: Path) -> None:
    found = answered(entry("Llama-2-70B"), tmp_path)
    config = found.priced.config.as_dict()
    assert {name: config[name] for name in found.published["config"]} == found.published["config"]
    assert found.job.max_length == 2048


@pytest.mark.parametrize(
    ("words", "sharding"),
    [("Qwen2.5-32B, all weights", {"fsdp", "zero3"}), ("LoRA, four cards", {"ddp"}),
     ("Llama-2-70B", {"fsdp"})],
)  # fmt: skip
def test_what_is_known_to_run_is_answered_with_what_runs_it(
    words: str, sharding: set[str], tmp_path: Path
) -> None:
    """32B in full on 8 H200 without a stated disk, LoRA on 4 A100, 70B QLoRA on 2 x 24 GB."""
    best = answered(entry(words), tmp_path).answer.best
    assert best.config.sharding in sharding
    assert best.fits_probability >= 0.9
