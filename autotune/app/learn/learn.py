"""Past runs read, judged, kept: what `autotune learn` answers.

Every folder that a logger wrote is one finding; what two loggers wrote of one training is one run.
A run that cannot be used is counted under its reason. Nothing is executed, nothing is written
beside the runs, and what is kept is written once, at the end.

An exported row holds what ran and how fast, and nothing of where: no path, no name of a host, a
user, a run or a data set, and no model's name that is not in the catalogue. What of it was private
never became part of a past run (`described`).
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from typing import TYPE_CHECKING

from autotune.app.learn import notebook, record, torchtune, tracked, trainer_output, wandb_folder
from autotune.app.learn.described import past_run
from autotune.app.learn.walk import Unreadable, walk
from autotune.catalog.files import write_whole
from autotune.domain.errors import InputError
from autotune.evidence.cases import Refused
from autotune.evidence.learned.effects import Usable, believed, effects_on, residual_of_run
from autotune.evidence.learned.residuals import remember, residuals
from autotune.evidence.learned.run import case_of_run
from autotune.evidence.learned.store import Keeping, keep, known_runs, store_path
from autotune.evidence.record.row import COLUMNS
from autotune.frozen import dataclass
from autotune.pricing import plain_bill
from autotune.report.layout.csv_rows import rows_csv

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from autotune.app.learn.described import Machine
    from autotune.app.learn.found import Found
    from autotune.app.learn.walk import Folder, Walk
    from autotune.evidence.learned.run import PastRun

EXAMPLES = 3  # places named of each reason


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why some findings teach nothing, and where they lie."""

    reason: str
    count: int
    places: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MachineSaid:
    """What the runs of one machine say together."""

    device: str
    count: int
    runs: int
    factor: float  # of predicted seconds, as later answers use it
    measured: float  # the median of measured over predicted
    spread: float  # share of the model's own spread that is left
    save_bytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class Learned:
    """What was read, what it teaches, and what was kept. kept None: nothing is (a dry run)."""

    files: int
    folders: int
    read: int  # runs found, each once
    usable: tuple[Usable, ...]
    refusals: tuple[Refusal, ...]
    machines: tuple[MachineSaid, ...]
    kept: str | None
    new: int
    known: int  # runs kept now, of this and earlier calls
    warnings: tuple[str, ...] = ()
    not_kept: str = ""  # why the home could not be written


def learn(paths: list[Path], machine: Machine | None = None, *, dry_run: bool = False) -> Learned:
    """Read past runs below the paths, and keep what they teach.

    machine: of runs that do not name theirs. Raises InputError where a path is not there, where no
    past run is found at all.
    """
    seen = walk(paths)
    refused: list[tuple[str, str]] = []
    runs: dict[str, tuple[PastRun, Path]] = {}
    doubles = 0
    for place, finding in findings(seen):
        try:
            run = past_run(finding(), machine)
            case_of_run(run)
        except (Unreadable, Refused) as reason:
            refused.append((str(reason), str(place)))
            continue
        except InputError as reason:  # what it says of its job is none that can be priced
            refused.append((reason.message, str(place)))
            continue
        before = runs.get(run.id)
        doubles += before is not None
        if before is None or _knows(run) > _knows(before[0]):
            runs[run.id] = (run, place)
    if not runs and not refused:
        raise _nothing(paths, seen)
    usable, doubted = _priced(runs)
    refused += doubted
    kept, keeping, not_kept = _keep(usable, dry_run=dry_run)
    said = (keeping.note, *seen.unreadable[:EXAMPLES], seen.cut)
    warnings = [note for note in said if note]
    if doubles:
        what = "1 run was" if doubles == 1 else f"{doubles} runs were"
        warnings.append(f"{what} logged more than once, and counted once")
    return Learned(
        files=seen.files, folders=len(seen.folders), read=len(runs) + len(refused) - len(doubted),
        usable=tuple(usable), refusals=_counted(refused), machines=_machines(usable), kept=kept,
        new=keeping.new, known=keeping.known, warnings=tuple(warnings), not_kept=not_kept,
    )  # fmt: skip


def _nothing(paths: list[Path], seen: Walk) -> InputError:
    where = ", ".join(str(path) for path in paths[:EXAMPLES])
    msg = f"no past run below {where}: {seen.seen}"
    if all(path.is_file() for path in paths):
        msg = f"no past run in {where}"
    hint = (
        "runs are W&B folders, a Trainer's output, logs of LLaMA-Factory and torchtune, "
        "TensorBoard and MLflow logs, executed notebooks, and observations.jsonl"
    )
    return InputError(msg, hint)


def findings(seen: Walk) -> Iterator[tuple[Path, Callable[[], Found]]]:
    """Every finding and how it is read, one for each run's folder."""
    outputs: dict[Path, list[Folder]] = {}
    tracked_by_wandb: dict[Path, list[Folder]] = {}
    for folder in seen.folders:
        if wandb_folder.is_run(folder):
            tracked_by_wandb.setdefault(wandb_folder.belongs_to(folder), []).append(folder)
        elif trainer_output.is_run(folder):
            outputs.setdefault(trainer_output.belongs_to(folder), []).append(folder)
    for run, own in tracked_by_wandb.items():
        yield run, lambda run=run, own=own: wandb_folder.read(run, own)  # type: ignore[misc]
    for run, own in outputs.items():
        yield run, lambda run=run, own=own: trainer_output.read(run, own)  # type: ignore[misc]
    for folder in seen.folders:
        yield from _of_folder(folder, outputs)


def _of_folder(
    folder: Folder, outputs: dict[Path, list[Folder]]
) -> Iterator[tuple[Path, Callable[[], Found]]]:
    if tracked.is_events(folder):
        yield folder.path, lambda: tracked.read_events(folder)
    if tracked.is_mlflow(folder):
        yield folder.path, lambda: tracked.read_mlflow(folder)
    if record.is_record(folder) and folder.path not in outputs:
        yield folder.path, lambda: record.read(folder)
    if torchtune.is_run(folder):
        yield folder.path, lambda: torchtune.read(folder)
    for name in notebook.iter_notebooks(folder.files):
        path = folder.path / name
        yield path, lambda path=path: notebook.read(path)  # type: ignore[misc]


def _knows(run: PastRun) -> tuple[bool, int]:
    """How much a logger knows of a run: TensorBoard and MLflow have no adapter's settings."""
    return run.source not in {tracked.TENSORBOARD, tracked.MLFLOW}, -ord(run.grade)


def _priced(
    runs: dict[str, tuple[PastRun, Path]],
) -> tuple[list[Usable], list[tuple[str, str]]]:
    """Runs whose residual efficiency explains; and why the others are left out."""
    priced: list[Usable] = []
    refused: list[tuple[str, str]] = []
    for run, place in runs.values():
        try:
            own = residual_of_run(run, plain_bill)
        except Refused as reason:
            refused.append((str(reason), str(place)))
        else:
            priced.append(Usable(run, place, own))
    own_ids = {own.run.id for own in priced}
    earlier = residuals([run for run in known_runs().runs if run.id not in own_ids], plain_bill)
    _, doubted = believed([*(own.residual for own in priced), *earlier])
    refused += [(doubted[own.run.id], str(own.place)) for own in priced if own.run.id in doubted]
    return [own for own in priced if own.run.id not in doubted], refused


def unlearned(found: Learned) -> InputError | None:
    """What to say where nothing could be done; None where something was."""
    if found.not_kept:
        hint = "set AUTOTUNE_HOME to a folder that can be, or only look: --dry-run"
        return InputError(found.not_kept, hint)
    if found.usable:
        return None
    most = found.refusals[0]
    msg = f"the run cannot be used: {most.reason}"
    if found.read > 1:
        msg = f"none of {found.read:,} runs can be used; {most.count:,} of them: {most.reason}"
    return InputError(msg, "the reasons are listed above, with an example of each")


def _keep(usable: list[Usable], *, dry_run: bool) -> tuple[str | None, Keeping, str]:
    """Where they are kept, how many are new, how many are kept now, and why none is."""
    known = len(known_runs().runs)
    if dry_run or not usable:
        return None, Keeping(0, known), ""
    try:
        keeping = keep(own.run for own in usable)
        own_ids = {own.run.id for own in usable}
        others = [run for run in known_runs().runs if run.id not in own_ids]
        remember([*residuals(others, plain_bill), *(own.residual for own in usable)])
    except OSError as error:
        why = f"{store_path().parent} cannot be written: {error.strerror or error}"
        return None, Keeping(0, known), why
    return str(store_path()), keeping, ""


def _counted(refused: list[tuple[str, str]]) -> tuple[Refusal, ...]:
    counts = Counter(reason for reason, _ in refused)
    return tuple(
        Refusal(reason, count, tuple(p for r, p in refused if r == reason)[:EXAMPLES])
        for reason, count in counts.most_common()
    )


def _machines(usable: list[Usable]) -> tuple[MachineSaid, ...]:
    """What each machine's runs say, the one with the most runs first."""
    residuals = [own.residual for own in usable]
    counts = Counter((own.device, own.count) for own in residuals)
    said = []
    for (device, count), runs in counts.most_common():
        own = [r for r in residuals if (r.device, r.count) == (device, count)]
        first = own[0]
        effects = effects_on([(device, count)], first.stack, first.method, first.shape, residuals)
        step = next((own for own in effects if own.component == "compute"), None)
        speeds = [r.save_bytes_per_s for r in own if r.save_bytes_per_s]
        said.append(
            MachineSaid(
                device, count, runs, step.factor if step else 1.0,
                math.exp(statistics.median(r.log for r in own)), step.spread if step else 1.0,
                statistics.median(speeds) if speeds else None,
            )
        )  # fmt: skip
    return tuple(said)


def export_rows(usable: Sequence[Usable], path: Path) -> str:
    """Write the rows and give back where. Raises InputError where the file cannot be written."""
    try:
        write_whole(path, rows_csv([own.run.row.texts for own in usable], COLUMNS))
    except OSError as error:
        msg = f"{path} cannot be written: {error.strerror or error}"
        raise InputError(msg, "name a file in a folder that exists") from None
    return str(path)
