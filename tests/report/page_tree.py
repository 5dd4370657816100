"""The page as a tree, for tests that look at what it holds."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from autotune.domain.answer.recommendation import ProbedRun
from autotune.report.payload import dumps, recommendation_payload
from autotune.report.recorded import recorded_payload

if TYPE_CHECKING:
    from autotune.domain.answer.recommendation import Recommendation
    from autotune.domain.config import Config
    from autotune.report.schema import RecommendationPayload


def payload_of(answer: Recommendation) -> RecommendationPayload:
    """As a run folder keeps it: through JSON."""
    return recorded_payload(json.loads(dumps(recommendation_payload(answer))), "here")


def run(
    config: Config, predicted_s: float | None, measured_s: float | None, **facts: Any
) -> ProbedRun:
    """A probe: it ran, unless `facts` say something else."""
    own = {"status": "ok", "role": "search", "reused": False, "memory_bytes": 5e10, "wall_s": 30.0}
    return ProbedRun(
        config=config.as_record(), predicted_step_s=predicted_s, step_time_s=measured_s,
        **{**own, **facts},
    )  # fmt: skip


def tree_of(page: str) -> ET.Element:
    """The page as XML, its script and style taken out: they are checked apart."""
    content = re.sub(r"(?s)<(script|style)>.*?</\1>|<wbr/>", "", page)
    return ET.fromstring(content)  # noqa: S314


def classes(element: ET.Element) -> set[str]:
    """Its classes."""
    return set(element.get("class", "").split())


def of_class(root: ET.Element, name: str) -> list[ET.Element]:
    """The elements of a class, in the order of the page."""
    return [each for each in root.iter() if name in classes(each)]


def text(element: ET.Element) -> str:
    """All its text, with single spaces."""
    return " ".join(" ".join(element.itertext()).split())


def texts(root: ET.Element, name: str) -> list[str]:
    """The texts of the elements of this name."""
    return ["".join(each.itertext()) for each in root.iter(name)]


def cells(table: ET.Element) -> list[list[str]]:
    """The text of each cell, row by row."""
    return [[text(cell) for cell in line] for line in table.iter("tr")]


def number(shown: str | None) -> float:
    """The first number of a text or of an attribute in percent."""
    return float((shown or "nan").replace(",", "").split()[0].rstrip("%"))


def probed(answer: Recommendation) -> Recommendation:
    """The answer with three probes: of the pick, one out of memory, and one of an earlier study."""
    other = replace(answer.best.config, micro_batch_size=4, gradient_accumulation_steps=2)
    return replace(
        answer,
        probed=(
            run(answer.best.config, 0.16, 0.18, predicted_p10_s=0.1, predicted_p90_s=0.2),
            run(other, 0.15, None, status="oom", memory_bytes=None),
            run(other, None, 0.2, reused=True),
        ),
    )
