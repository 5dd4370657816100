"""The main job: every candidate priced, the finalists tried and recorded, one recommended.

job + offers + space -> candidates -> bill -> study -> recommendation -> run folder.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.app.runs.export import check_exports
from autotune.app.runs.ownership import working_in
from autotune.app.tune.answer import answer_of
from autotune.app.tune.kept_answer import finish, persist
from autotune.app.tune.priced import (
    Options,
    as_begun,
    asked_of,
    check_choices,
    price,
    run_dir_of,
)
from autotune.app.tune.tracing import choose_traced
from autotune.cost.outputs import reusing_tables
from autotune.domain.paths import whole
from autotune.search import selection
from autotune.search.study.samplers import CALIBRATED, check_sampler

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from autotune.app.tune.priced import Priced
    from autotune.domain.answer.recommendation import Recommendation
    from autotune.domain.job import Job
    from autotune.search.selection import Selection
    from autotune.search.study.study import Exploration

__all__ = ["Options", "tune"]


@reusing_tables()
def tune(
    job: Job, options: Options | None = None, progress: Callable[[str], None] = lambda _: None
) -> Recommendation:
    """The recommendation for a job, with its run folder written unless `dry_run`.

    Raises InputError for bad input; an answer without `best` is no error.
    """
    begun = time.perf_counter()
    options = _placed(options or Options())
    check_choices(objective=options.objective, fidelity=options.fidelity, score=options.score)
    if options.sampler != CALIBRATED:
        check_sampler(options.sampler)
    if options.exports:
        check_exports(job, options.exports)
    if options.score == "probe":
        from autotune.app.probing.tune import tune_by_probes

        return tune_by_probes(job, options, progress, begun)
    priced = price(job, options.space, progress, present=dict(options.present))
    if options.dry_run:
        return _tuned(priced, options, None, progress, begun)
    asked = asked_of(priced, options)
    folder = run_dir_of(asked, options)
    asked, priced, options = as_begun(asked, priced, options, folder)
    with working_in(asked, folder, resume=options.resume) as run_dir:
        answer = _tuned(priced, options, run_dir, progress, begun)
        persist(answer, run_dir)
    return answer


def _placed(options: Options) -> Options:
    """The options with whole paths: what is recorded is read again from other folders."""
    from autotune.search.study.storage import whole_url
    from autotune.space.file import whole_name

    return replace(
        options,
        run_dir=None if options.run_dir is None else whole(options.run_dir),
        space=None if options.space is None else whole_name(options.space),
        storage=None if options.storage is None else whole_url(options.storage),
    )


def _tuned(
    priced: Priced, options: Options, run_dir: Path | None, progress: Callable[[str], None],
    begun: float,
) -> Recommendation:  # fmt: skip
    explored = _explore(priced, options, run_dir, progress)
    chosen, tracing = choose_traced(
        priced.bill,
        _choose(priced, options, explored),
        options.objective,
        options.fidelity,
        None if options.sampler == CALIBRATED else explored.tried,
        progress,
        trust_remote_code=options.trust_remote_code,
    )
    answer = answer_of(priced, options, explored, chosen, tracing)
    return finish(answer, priced, options, explored, run_dir, begun)


def _explore(
    priced: Priced, options: Options, run_dir: Path | None, progress: Callable[[str], None]
) -> Exploration:
    from autotune.search.study.study import explore

    tried = 0

    def count(_: object) -> None:
        nonlocal tried
        tried += 1
        if tried % 10 == 0:
            progress(f"{tried} trials")

    return explore(
        priced.bill,
        objective=options.objective,
        sampler=options.sampler,
        trials=options.trials,
        seed=options.seed,
        run_dir=run_dir,
        storage=options.storage,
        study_name=run_dir.name if run_dir else priced.job.name,
        job_key=asked_of(priced, options).key,
        resume=options.resume,
        on_trial=count,
    )


def _choose(priced: Priced, options: Options, explored: Exploration) -> Selection:
    """The exact choice over all candidates; with a stock sampler, over what it tried."""
    limits = priced.job.limits
    if options.sampler == CALIBRATED:
        return selection.best_index(priced.bill, options.objective, limits)
    return selection.best_index(priced.bill, options.objective, limits, among=explored.tried)
