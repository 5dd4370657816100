"""`autotune tune`: the main job."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from autotune.cli.option_sets import with_option_sets
from autotune.cli.options import (
    RUN,
    STORAGE,
    Changes,
    Fidelity,
    FidelityOfModel,
    Goal,
    Limits,
    Minimize,
    OneLine,
    Source,
    Space,
    Spot,
    TrustOption,
    option,
    shared_storage,
    split_names,
)
from autotune.cli.output import Format, Output, Progress, emit, print_answer
from autotune.cli.typed import asked
from autotune.domain.errors import LIMIT_MISSED, NOTHING_FEASIBLE, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.app.probing.plan import ProbeOptions
    from autotune.app.runs.folder import RecordedRun
    from autotune.app.tune.tune import Options
    from autotune.domain.answer.recommendation import Asked, Recommendation
    from autotune.domain.job import NamedJob
    from autotune.report.schema import RecommendationPayload

TRIALS = 100
EXPORT_HELP = (
    "hf, trl, axolotl, llamafactory, litgpt, unsloth, or same (your own file); and what starts"
    " it elsewhere: sky, slurm, dstack, k8s."
)


class Score(StrEnum):
    """What scores a candidate."""

    model = "model"
    probe = "probe"


class Starter(StrEnum):
    """Who starts the workers of a search."""

    local = "local"
    ray = "ray"
    slurm = "slurm"


class Sampler(StrEnum):
    """Who proposes candidates."""

    calibrated = "calibrated"
    tpe = "tpe"
    gp = "gp"
    nsga2 = "nsga2"
    random = "random"


@with_option_sets
def tune(
    *,
    context: typer.Context,
    source: Source,
    line: OneLine,
    changes: Changes,
    limits: Limits,
    spot: Spot = False,
    in_place: Annotated[
        bool,
        option("--in-place", "Also change the trainer's own file; a copy of the old one is kept."),
    ] = False,
    space: Space = None,
    minimize: Minimize = Goal.cost,
    score: Annotated[
        Score, option("--score", "Predict with the cost model, or measure with probes on a device.")
    ] = Score.model,
    fidelity: FidelityOfModel = Fidelity.auto,
    trust_remote_code: TrustOption = False,
    sampler: Annotated[
        Sampler | None,
        option("--sampler", "What proposes the next trial: calibrated, or as the run was begun."),
    ] = None,
    probes: Annotated[
        int | None, typer.Option("--probes", min=1, help="The most configurations to probe.")
    ] = None,
    probe_budget: Annotated[
        str | None, option("--probe-budget", "Start no probe after this time.", "10m")
    ] = None,
    probe_on: Annotated[
        str | None,
        option(
            "--probe-on",
            "Probe on this device of this machine, even if the job does not name it.",
            "NAME",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            min=0,
            help="How many workers probe at the same time; 0 waits for others to join.",
        ),
    ] = None,
    executor: Annotated[Starter, option("--executor", "What starts the workers.")] = Starter.local,
    ray_address: Annotated[
        str | None, option("--ray-address", "An existing Ray cluster.", "HOST:PORT")
    ] = None,
    rendezvous: Annotated[
        str | None,
        option(
            "--rendezvous",
            "Several machines probe one job together: the address of this one.",
            "HOST:PORT",
        ),
    ] = None,
    trials: Annotated[
        int, typer.Option("--trials", min=1, help="The most trials in the study.")
    ] = TRIALS,
    seed: Annotated[
        int | None,
        typer.Option("--seed", min=0, help="Random seed of the sampler: 0, or the run's."),
    ] = None,
    storage: Annotated[
        str | None,
        option("--storage", f"Where Optuna keeps the study; of workers also {STORAGE}.", "URL"),
    ] = None,
    run: Annotated[Path | None, RUN] = None,
    resume: Annotated[
        bool, option("--resume", "Continue the run in --run, or the last one.")
    ] = False,
    export: Annotated[
        list[str] | None,
        option("--export", f"Write what to run: {EXPORT_HELP} Repeatable.", "NAME[@VERSION]"),
    ] = None,
    dry_run: Annotated[bool, option("--dry-run", "Print the answer, and write nothing.")] = False,
    output: Output,
) -> None:
    """Find the best settings and machine for a job.

    For example: autotune tune job.yaml, or in one line:
    autotune tune --model Qwen/Qwen2.5-7B --rows 20k --gpu h100,2xl40s,p4d.24xlarge
    """
    if resume and source.job is None and source.from_args is None and not line.stated:
        source = replace(source, job=run)  # its folder holds what was asked
    recorded = _gone_on(source, run) if resume else None
    if recorded is not None:
        run, space, probe_on = source.job, space or recorded.space, probe_on or recorded.probed_on
        score = Score.probe if recorded.probed else score
        minimize = Goal(recorded.objective)
    probing = _probing(score, probes, probe_budget, probe_on)
    probing = _with_workers(probing, workers, executor, ray_address, rendezvous)
    meeting = _meeting(storage) if workers is not None else ()
    if storage is not None or (probing and probing.workers is not None):
        storage = shared_storage(storage)
    question = asked(context)
    with Progress(quiet=output.quiet) as progress:
        progress("reading the job")
        exports = split_names(export)
        several = source.jobs(line, changes, limits, spot=spot, any_machine=not probing)
        if in_place:
            from autotune.app.runs.user_file import check_in_place

            check_in_place(several[0].job, writes=not dry_run)
        from autotune.app.tune.tune import Options
        from autotune.app.tune.tune import tune as find
        from autotune.report.payload import recommendation_payload

        options = Options(
            space=space,
            objective=minimize.value,
            sampler=(sampler or Sampler.calibrated).value,
            trials=trials,
            seed=seed or 0,
            usual=frozenset(
                name for name, own in (("sampler", sampler), ("seed", seed)) if own is None
            ),
            run_dir=run,
            resume=resume,
            storage=storage,
            exports=exports,
            fidelity=fidelity.value,
            trust_remote_code=trust_remote_code,
            score=score.value,
            dry_run=dry_run,
            probing=replace(probing, status=progress.status) if probing else None,
            asked=replace(question, words=(*question.words, *meeting)),
        )
        told = progress.line if score is Score.probe else progress
        recommendation = find(several[0].job, options, told) if len(several) == 1 else None
    if recommendation is None:
        _table_of_variants(several, options, question, output)
    payload = recommendation_payload(recommendation)
    print_recommendation(payload, output)
    _change_user_file(recommendation, options, output, in_place=in_place)
    raise typer.Exit(exit_code(payload))


def _meeting(storage: str | None) -> tuple[str, ...]:
    """The words that say where workers meet; a URL with a password only as `URL`."""
    if storage is None:
        return ()
    from autotune.search.study.backends import url_to_type

    return "--storage", url_to_type(storage)


def _gone_on(source: Source, run: Path | None) -> RecordedRun | None:
    """What the run folder asked that is named in the place of a job. Raises InputError."""
    folder, recorded = source.job, source.recorded_job()
    if recorded is None or folder is None:
        return None
    if run is not None and run.resolve() != folder.resolve():
        msg = f"--resume goes on with {folder}, and --run names {run}"
        raise InputError(msg, "leave --run out; without --resume the job of that run is tuned anew")
    return recorded


def _change_user_file(
    recommendation: Recommendation, options: Options, output: Output, *, in_place: bool
) -> None:
    """Show what changes in the trainer's own file; with --in-place, change it."""
    from autotune.app.runs.user_file import own_changes, put_in_place

    chosen, told = output.format_, own_changes(recommendation, options.exports)
    if told and (chosen is Format.md or (chosen is Format.text and output.verbose)):
        from autotune.report.layout.report import fenced, plain_markdown

        if chosen is Format.md:
            several = "\n" in told.strip()
            language = "diff" if told.startswith("---") else "text"
            told = fenced(language, told) if several else plain_markdown(told)
        emit(f"\n{told}")
    if in_place:
        typer.echo(put_in_place(recommendation, options.exports), err=True)


def _table_of_variants(
    several: Sequence[NamedJob], options: Options, question: Asked, output: Output
) -> NoReturn:
    """Variants are the user's to choose among: one table, and no run folder. Leaves the program."""
    from autotune.app.compare.compare import CompareOptions
    from autotune.cli.commands.compare import print_comparison

    if options.score == Score.probe or options.resume or options.run_dir or options.exports:
        names = ", ".join(named.variant for named in several[:8])
        msg = f"the job file holds {len(several)} variants; a run, a probe or an export is of one"
        raise InputError(msg, f"add --variant with one of: {names}")
    what = CompareOptions(options.space, options.objective, "formula")
    print_comparison(several, what, question, output)


def _probing(
    score: Score,
    probes: int | None,
    budget: str | None,
    on: str | None,
) -> ProbeOptions | None:
    """How much may be probed. Raises InputError for options of a search without probes."""
    if score is not Score.probe:
        given = {"--probes": probes, "--probe-budget": budget, "--probe-on": on}
        named = [name for name, value in given.items() if value is not None]
        if named:
            msg = f"{', '.join(named)} without --score probe: nothing would be probed"
            raise InputError(msg, "add --score probe")
        return None
    from autotune.app.probing.plan import ProbeOptions
    from autotune.domain.units import parse_seconds

    seconds = parse_seconds(budget) if budget else None
    return ProbeOptions(probes=probes, budget_s=seconds, on=on)


def _with_workers(
    probing: ProbeOptions | None, workers: int | None, executor: Starter, address: str | None,
    rendezvous: str | None,
) -> ProbeOptions | None:  # fmt: skip
    """Who probes. Raises InputError for workers of a search without probes."""
    alone = executor is Starter.local and workers is None and address is None
    if alone and rendezvous is None:
        return probing
    if probing is None:
        msg = (
            "--workers, --executor, --ray-address or --rendezvous without --score probe: nothing "
            "is measured"
        )
        raise InputError(msg, "add --score probe")
    if rendezvous is not None and not alone:
        msg = f"--rendezvous {rendezvous} beside workers: a probe of several machines takes all"
        raise InputError(msg, "leave --workers and --executor out: one search probes on all")
    if rendezvous is not None:
        return replace(probing, rendezvous=rendezvous)
    if address is not None and executor is not Starter.ray:
        msg = f"--ray-address {address} without --executor ray: nobody would connect to it"
        raise InputError(msg, "add --executor ray")
    count = 1 if workers is None else workers
    return replace(probing, workers=count, executor=executor.value, ray_address=address)


def print_recommendation(payload: RecommendationPayload, output: Output) -> None:
    """The answer in the format asked for; for people the run folder is as it is typed here."""
    from autotune.report.screens.tune import recommendation_screen
    from autotune.report.sections.answer import TUNE_REPORT
    from autotune.report.sections.how_to_run import as_typed_here

    here = as_typed_here(payload)
    if output.is_data:
        here = replace(here, run_dir=payload.run_dir)
    print_answer(TUNE_REPORT, here, output, recommendation_screen)


def exit_code(payload: RecommendationPayload) -> int:
    """0 an answer, 3 nothing feasible, 4 feasible but a limit is missed."""
    if payload.best is None:
        return NOTHING_FEASIBLE
    return LIMIT_MISSED if payload.misses else 0
