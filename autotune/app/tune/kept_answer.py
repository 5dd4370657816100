"""What only the end of a search knows: what to run, the way from today, and the kept answer."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.app.runs import folder as runs
from autotune.app.runs.export import default_exports, export_pick, other_formats
from autotune.app.runs.user_file import output_folder
from autotune.catalog.files import write_whole
from autotune.claims import job_contradictions
from autotune.domain.secrets import left_out_note, without_secrets

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.app.tune.priced import Options, Priced
    from autotune.domain.answer.limits import ShortRows
    from autotune.domain.answer.recommendation import Recommendation
    from autotune.domain.answer.waterfall import WhatIf
    from autotune.search.study.study import Exploration


def finish(
    answer: Recommendation, priced: Priced, options: Options, explored: Exploration,
    run_dir: Path | None, begun: float,
) -> Recommendation:  # fmt: skip
    """Export what to run, and add what only the end knows: notes, wall time, the folder."""
    notes: list[str] = []
    files: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    if answer.best is not None and run_dir is not None:
        job, best = priced.job, answer.best
        paths, notes = export_pick(job, best, options.exports, run_dir)
        files = tuple(path.relative_to(run_dir.resolve()).as_posix() for path in paths)
        others = other_formats(job, best, options.exports or default_exports(job)[0])
    search = replace(answer.search, wall_seconds=time.perf_counter() - begun)
    if explored.resumed:
        notes.append(f"{explored.resumed} finished trials were taken over from the run's record")
    notes += left_out_note(without_secrets(priced.job.spec)[1])
    journey = _journey(answer, priced)
    return replace(
        answer,
        journey=journey,
        short_rows=_on_short_rows(answer, priced),
        contradictions=job_contradictions(priced.job, priced.calibration, journey),
        search=search,
        warnings=(*answer.warnings, *notes),
        run_dir=str(run_dir) if run_dir else None,
        files=files,
        asked=options.asked,
        writes_to=output_folder(priced.job),
        other_formats=others,
    )


def _on_short_rows(answer: Recommendation, priced: Priced) -> ShortRows | None:
    """The pick on short rows, where nobody stated how long they are."""
    if answer.best is None:
        return None
    from autotune.app.whatif.unknown_lengths import on_short_rows

    return on_short_rows(priced.job, priced.calibration, [answer.best])[0]


def _journey(answer: Recommendation, priced: Priced) -> WhatIf | None:
    """From today's config to the pick, change by change."""
    if answer.today is None:
        return None
    from autotune.app.whatif.from_today import what_if_of

    return what_if_of(priced.job, priced.space, priced.calibration, answer.today, answer.best)


def persist(answer: Recommendation, run_dir: Path) -> None:
    """Keep the answer in its run folder: as JSON and as a page."""
    from autotune.domain.answer.contract import plain
    from autotune.report.page.page import recommendation_html
    from autotune.report.payload import recommendation_payload

    payload = recommendation_payload(answer)
    text = json.dumps(plain(payload), indent=1, allow_nan=False)
    write_whole(run_dir / runs.ANSWER_FILE, without_secrets(text + "\n")[0])
    write_whole(run_dir / runs.PAGE_FILE, without_secrets(recommendation_html(payload))[0])
