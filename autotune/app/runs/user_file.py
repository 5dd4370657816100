"""The user's own file with the pick in it: into the run folder, or in place with a backup."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.app.job.file import COMMAND
from autotune.catalog.files import write_whole
from autotune.cost.time.attention import leaves_cudnn
from autotune.domain.answer.recommendation import Decisive
from autotune.domain.errors import InputError
from autotune.domain.outcome import DiskUse
from autotune.domain.paths import near
from autotune.domain.software import WITHOUT_CUDNN
from autotune.trainers.contract import Export, Plan
from autotune.trainers.hf.adapter import OF_RELEASES, as_released, as_trained
from autotune.trainers.hf.launch import accelerate_yaml
from autotune.trainers.registry import FORMATS, TRAINERS
from autotune.trainers.versions import (
    BEFORE_RENAMED,
    OWN_FILES,
    check_installed,
    check_known,
    parse_version,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.domain.answer.recommendation import Recommendation
    from autotune.domain.config import Config
    from autotune.domain.device import Offer
    from autotune.domain.job import Beside, Job, Origin
    from autotune.trainers.own_file.patch import Patched

SAME = "same"
BOM = "\ufeff"
OWN_FOLDER = "own"  # of the run folder


def is_same(target: str) -> bool:
    """Whether an export is of the user's own file: `same`, or `same@5.10.0`."""
    return target.strip().partition("@")[0] == SAME


def check_same(target: str, job: Job) -> None:
    """Raise InputError for a job that was not read from a trainer's file, or an unknown version."""
    if job.origin is None:
        msg = "--export same gives back a trainer's file, and the job was not read from one"
        raise InputError(msg, "give your trainer's file as JOB, or --export hf or trl")
    if job.origin.objective != job.objective:
        msg = f"the file trains {job.origin.objective}, and what was priced is {job.objective}"
        raise InputError(msg, "its settings are not given back; --export hf or trl writes new ones")
    _transformers(target, job)


def check_in_place(job: Job, *, writes: bool = True) -> None:
    """Raise InputError where the user has no file to change, or nothing is to be written."""
    check_same(SAME, job)
    if not writes:
        msg = "--dry-run writes nothing, but --in-place changes your file"
        raise InputError(msg, "leave one of them out")
    if job.origin is not None and not job.origin.path:
        msg = f"{COMMAND} is not in a file, so there is none to change in place"
        raise InputError(msg, "leave --in-place out")
    if job.origin is not None and job.origin.flags:
        listed = ", ".join(job.origin.flags)
        msg = f"{listed} was stated beside {near(job.origin.path)}, which does not say it so"
        raise InputError(msg, "leave --in-place out: the file of the run holds them")


def patched(target: str, job: Job, offer: Offer, config: Config) -> Patched:
    """The user's file with `config` in it. Raises InputError as `check_same` does."""
    from autotune.app.job.trainer_file import parsed_again
    from autotune.trainers.own_file.patch import Wanted, patch

    check_same(target, job)
    assert job.origin is not None  # noqa: S101 - check_same
    parsed, values = parsed_again(job.origin)
    trl = job.software.trl if "trl" in job.stated_releases else None
    as_released(parsed, trl)
    if parsed.trainer == "trl" and trl is None:
        parsed.defaults = {k: v for k, v in parsed.defaults.items() if k not in OF_RELEASES}
    as_trained(parsed, job.software if "transformers" in job.stated_releases else None)
    rows = job.evaluation.rows_at_once(config.micro_batch_size) if job.evaluation else 0
    transformers = _spelled_for(target, job, config)
    wanted = Wanted(rows, _other_base(job), _other_facts(job), job.global_batch_size, trl)
    return patch(job.origin, values, parsed, config, transformers, offer.count, wanted)


def _spelled_for(target: str, job: Job, config: Config) -> tuple[int, ...]:
    """The version whose words the user's file gets: where nobody states one, what all take.

    Activations are offloaded by newer words alone.
    """
    version = _transformers(target, job)
    stated = "@" in target or "transformers" in job.stated_releases
    stated |= config.offload == "activations"
    return version if stated else min(version, BEFORE_RENAMED)


def _other_base(job: Job) -> str:
    """How the job's weights are loaded, where its file loads others without saying so."""
    own = job.origin.base if job.origin else ""
    return job.method.base if own and job.method.base != own else ""


def same_export(
    target: str, job: Job, offer: Offer, config: Config, risk: str = "", folder: str = ""
) -> Export:
    """The file, what was read beside it, their differences, and run.sh.

    Where nothing beside the file can start several devices, or says what the file cannot, the
    launcher's config is added. folder: where all but run.sh lies; empty or with a slash at its end.
    """
    from autotune.app.job.trainer_file import parsed_again
    from autotune.trainers.launch.user_start import (
        LAUNCHER_FILE,
        lacks_launcher,
        needs_launcher,
        own_run_sh,
        resume_notes,
        start_folder,
    )

    if offer.nodes > 1:
        msg = f"your own file starts on one machine, and this is {offer.label}"
        raise InputError(msg, "--export hf or trl writes what starts on each of several")
    found = patched(target, job, offer, config)
    assert job.origin is not None  # noqa: S101 - patched
    plan = Plan(
        job=job, offer=offer, config=config, torch=job.software.torch,
        transformers=_transformers(target, job), trl=job.software.trl, disk=DiskUse(),
        risk=risk, out_dir="output",
    )  # fmt: skip
    trainer = TRAINERS[job.origin.trainer]
    files: dict[str, str] = {}
    if leaves_cudnn(job, offer.device, config) and job.as_it_stands.software.cudnn_attention:
        told = f"run.sh sets {WITHOUT_CUDNN}=1, and so must you without it: else cuDNN plans its"
        told += " attention for every new length of a batch"
        found = replace(found, notes=(*found.notes, Decisive(told)))
    notes = [*_other_job(job, found), *found.notes, *resume_notes(plan, trainer, job.origin)]
    beside = _patched_launchers(job, offer, config)
    paths = (job.origin.path, *(each.path for each in job.origin.beside))
    for each, path in zip((found, *beside), paths, strict=True):
        files.setdefault(folder + each.name, _mark(path) + each.text)
        files.setdefault(f"{folder}{each.name}.diff", each.diff)
        notes += each.notes if each is not found else ()
    launcher = _launcher_beside(job.origin.beside, config)
    starts_itself = job.origin.syntax in {"args", "shell"} and config.sharding == "ddp"
    needs = offer.count > 1 or needs_launcher(found)
    if not launcher and needs and trainer.launched and not starts_itself:
        launcher = LAUNCHER_FILE
        files.setdefault(folder + launcher, accelerate_yaml(plan))
        lacks = lacks_launcher(job.origin, found, config, folder + launcher)
        notes += [Decisive(lacks)] if lacks else []
    start = start_folder(job.origin, parsed_again(job.origin)[1])
    files["run.sh"] = own_run_sh(plan, trainer, job.origin, found, folder, launcher, start)
    return Export(files, tuple(notes))


_ASKED = {"model": (), "method": (), "train": (), "data": ("max_length", "padding", "held_out")}


def _other_facts(job: Job) -> dict[str, Any]:
    """Keys of the job whose values are not those that the file says."""
    from autotune.app.job.trainer_file import parsed_again

    assert job.origin is not None  # noqa: S101 - of a trainer's file
    said, asked = parsed_again(job.origin)[0].values, job.stated_file
    other: dict[str, Any] = {}
    for part, keys in _ASKED.items():
        old, new = said.get(part), asked.get(part)
        if not isinstance(old, dict) or not isinstance(new, dict):
            old, new, lead = {part: old}, {part: new}, ""
        else:
            lead = f"{part}."
        named = (key for key in old if not keys or key in keys)
        other |= {
            f"{lead}{key}": new[key]
            for key in named
            if None not in (old[key], new.get(key)) and old[key] != new[key]
        }
    return other


def _other_job(job: Job, found: Patched) -> tuple[str, ...]:
    """What the file still says of the job where the answer was asked for another; empty: nothing.

    A number is written where one key says it. A model, or how the weights are held, is not.
    """
    assert job.origin is not None  # noqa: S101 - of a trainer's file
    facts = _other_facts(job)
    other = {key: str(value) for key, value in facts.items() if key not in found.written}
    if not other:
        return ()
    name, trainer = Path(job.origin.path).name or COMMAND, job.origin.trainer
    text = f"write {' and '.join(other)} into {name} yourself: {', '.join(other.values())}"
    writes = f"; or --export {trainer} writes a new file" if trainer in FORMATS else ""
    return (Decisive(text + writes),)


def left_behind(origin: Origin, orchestrators: Sequence[str]) -> tuple[str, ...]:
    """That the script which the user's command starts is not taken along; empty where none is.

    A queue starts on this machine's disks; the others take the run folder alone.
    """
    from autotune.trainers.syntax.command_line import parse_command
    from autotune.trainers.syntax.shell_script import parse_shell

    away = [name for name in orchestrators if name != "slurm"]
    if not away or origin.syntax not in {"args", "shell"}:
        return ()
    shell = origin.syntax == "shell"
    name = Path(origin.path).name
    command = parse_shell(origin.text, name, origin.launch) if shell else parse_command(origin.text)
    script = command.program[-1] if command.program else ""
    if not script.endswith(".py"):
        return ()
    told = f"{', '.join(away)}: copy {script}, and what it imports, into the run folder first"
    return (Decisive(told),)


def output_folder(job: Job, *, relative: bool = False) -> str | None:
    """Where the trainer of the user's own file writes its log; None where that is not said.

    relative: as the file says it, instead of from the folder that its paths start in.
    """
    origin = job.origin
    if origin is None or not (relative or TRAINERS[origin.trainer].logs_state):
        return None
    from autotune.app.job.trainer_file import parsed_again
    from autotune.trainers.launch.user_start import start_folder

    _, values = parsed_again(origin)
    named = values.get("output_dir")
    if not isinstance(named, str) or not named.isprintable():
        return None
    return named if relative else str(Path(start_folder(origin, values), named))


def _patched_launchers(job: Job, offer: Offer, config: Config) -> tuple[Patched, ...]:
    """The configs that were read beside the file, with the pick in them."""
    from autotune.app.job.trainer_file import values_beside
    from autotune.trainers.launch.user_start import patch_launcher

    beside = job.origin.beside if job.origin else ()
    return tuple(patch_launcher(each, values_beside(each), config, offer.count) for each in beside)


def _launcher_beside(beside: Sequence[Beside], config: Config) -> str:
    """The name of the accelerate config beside the file, if it can start the pick."""
    from autotune.app.job.trainer_file import values_beside
    from autotune.trainers.launch.config import is_deepspeed, is_settings
    from autotune.trainers.launch.user_start import takes

    for each in beside:
        values = values_beside(each)
        if not is_deepspeed(values) and not is_settings(values) and takes(values, config.sharding):
            return Path(each.path).name
    return ""


def _mark(path: str) -> str:
    """The byte order mark that the user's file begins with, if it does; it is not in its text."""
    try:
        with Path(path).open("rb") as stream:
            return BOM if stream.read(3) == BOM.encode() else ""
    except OSError:  # there is no file, or it has gone: the text is all there is
        return ""


def _transformers(target: str, job: Job) -> tuple[int, ...]:
    _, at, version = target.strip().partition("@")
    if at:
        stated = parse_version(version, target)
        check_known("transformers", stated, OWN_FILES)
        return stated
    check_installed("transformers", job.software.transformers, OWN_FILES)
    return job.software.transformers


def replace_in_place(found: Patched, path: str, before: str) -> Path:
    """Write the file over the user's, atomically, with the old bytes in a backup beside it.

    A link stays a link: the file that it points to is changed, and its backup lies beside that.

    Raises:
        InputError: There is no file, it changed since it was read, or it cannot be written.
    """
    try:
        target, content = _check_unchanged(path, before)
        mark = BOM.encode() if content.startswith(BOM.encode()) else b""
        backup = _back_up(target, content)
        write_whole(target, mark + found.text.encode())
    except (OSError, UnicodeDecodeError) as error:
        raise _not_in_place(path, error) from None
    return backup


def _not_in_place(path: str, error: Exception) -> InputError:
    why = getattr(error, "strerror", None) or error
    msg = f"{near(path)} cannot be changed in place: {why}"
    return InputError(msg, "take the file from the run folder instead")


def _check_unchanged(path: str, before: str) -> tuple[Path, bytes]:
    """The file that a path leads to, and its bytes. Raises InputError where it was changed."""
    target = Path(path).resolve(strict=True)
    content = target.read_bytes()
    if content.decode("utf-8-sig") != before:
        msg = f"{near(path)} was changed since it was read"
        raise InputError(msg, "tune again from the file as it is now")
    return target, content


def _back_up(path: Path, content: bytes) -> Path:
    """A copy beside the file: config.yml.bak, else .bak2, ...; no earlier one is overwritten."""
    number = 1
    while True:
        backup = path.with_name(f"{path.name}.bak{number if number > 1 else ''}")
        try:
            backup.touch(exist_ok=False)  # ours from here on
        except FileExistsError:
            number += 1
            continue
        try:
            write_whole(backup, content, path.stat().st_mode & 0o777)
        except BaseException:
            backup.unlink(missing_ok=True)
            raise
        return backup


def own_changes(recommendation: Recommendation, exports: Sequence[str]) -> str:
    """The difference that the pick makes in the user's own file, or a word that there is none.

    A command that was typed is shown whole, as it is to be typed now. Empty where there is no such
    file, nothing was picked, or the file cannot be written back.
    """
    job, best = recommendation.job, recommendation.best
    if job.origin is None or best is None:
        return ""
    try:
        found = patched(_target(exports), job, best.offer, best.config)
        beside = _patched_launchers(job, best.offer, best.config)
    except InputError:  # said among the warnings, where another file was written instead
        return ""
    if not any(each.changes for each in (found, *beside)):
        name = COMMAND if job.origin.syntax == "args" else found.name
        return f"{name} already says what is recommended: nothing changes in it.\n"
    if job.origin.syntax == "args" and found.changes:
        main = f"The command with the pick in it:\n\n{found.text.strip()}\n"
        return "\n".join([main, *(each.diff for each in beside)])
    return "".join(each.diff for each in (found, *beside))


def put_in_place(recommendation: Recommendation, exports: Sequence[str]) -> str:
    """Change the user's own file, and say where the old one is kept.

    Raises:
        InputError: The job is not of a trainer's file, nothing was picked, or it cannot be written.
    """
    job, best = recommendation.job, recommendation.best
    check_same(_target(exports), job)
    if best is None or job.origin is None:
        msg = "--in-place: nothing fits, so there is nothing to write"
        raise InputError(msg, "see the smallest changes that would fit")
    found = patched(_target(exports), job, best.offer, best.config)
    beside = zip(job.origin.beside, _patched_launchers(job, best.offer, best.config), strict=True)
    files = [(found, job.origin.path, job.origin.text)]
    files += [(each, own.path, own.text) for own, each in beside]
    changed = [each for each in files if each[0].changes]
    if not changed:
        return f"{near(job.origin.path)} already says what is recommended: it was left as it is"
    _check_all(changed)
    backups = {path: replace_in_place(each, path, before) for each, path, before in changed}
    return "; ".join(
        f"{near(path)} was changed; the file as it was is {near(backup)}"
        for path, backup in backups.items()
    )


def _check_all(files: Sequence[tuple[Patched, str, str]]) -> None:
    """Raise InputError before the first file is written, if one of them cannot be."""
    for _, path, before in files:
        try:
            _check_unchanged(path, before)
        except (OSError, UnicodeDecodeError) as error:
            raise _not_in_place(path, error) from None


def _target(exports: Sequence[str]) -> str:
    return next((target for target in exports if is_same(target)), SAME)
