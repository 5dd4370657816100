"""How a job gets in: a job file, or the one-line form, with the command line's changes -> Job.

Both forms build the same `JobFile` and go through `resolve`. What a trainer's own file says is read
by `trainer_file`, where the file is one.
"""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.app.hardware.machines import name_devices
from autotune.app.hardware.offers import distinct
from autotune.app.job.file import CODE, PAGES, SHELL, Document, document_of, read_text
from autotune.app.job.resolve import resolve
from autotune.app.job.variants import Variant, checked, chosen, variants_of
from autotune.catalog.devices import find_machine
from autotune.catalog.files import MACHINES, kept_at_home
from autotune.domain.errors import InputError
from autotune.domain.job import Assumption, Job, NamedJob
from autotune.domain.typed.overrides import Overrides
from autotune.domain.typed.values import parse_offer_price
from autotune.domain.units import format_usd
from autotune.evidence.learned.store import PLACE as LEARNED
from autotune.evidence.runs_seen import FOLDER as VERIFIED
from autotune.trainers.contract import JOB_KEYS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.domain.typed.job import JobFile


def load_job(  # noqa: PLR0913 - one argument a flag of the command line
    source: Path | str,
    *,
    gpus: Sequence[str] = (),
    price: str | None = None,
    max_price: str | None = None,
    set_values: Mapping[str, str] | None = None,
    allow: Sequence[str] = (),
    deadline: str | None = None,
    budget: str | None = None,
    spot: bool = False,
    variant: str | None = None,
) -> Job:
    """The job of a YAML or JSON file, with the command line's changes.

    Args:
        source: The job file; relative paths inside it start from its folder.
        gpus: "NAME", "NAME:N" or "NAME:N@PRICE", instead of the file's hardware; "all" for every
            priced one.
        price: "2.50 USD/h" or "1.99 USD/gpu-h" for every offer.
        max_price: Offers that cost more are left out.
        set_values: Knobs to pin and keys of the job to change, by name.
        allow: Numeric knobs to open.
        deadline: Such as "24h".
        budget: Such as "60 USD".
        spot: Also every machine on spot, where a spot price is known.
        variant: The one to take of a file that holds several.

    Raises:
        InputError: The file or an argument is wrong; all problems of the file are listed.
    """
    overrides = Overrides(gpus, price, max_price, set_values or {}, allow, deadline, budget, spot)
    return only_job(load_jobs(source, overrides, variant=variant), str(source))


def only_job(found: Sequence[NamedJob], source: str) -> Job:
    """The one job of a file. Raises InputError where it holds several."""
    if len(found) > 1:
        raise several_jobs(found, source)
    return found[0].job


def several_jobs(found: Sequence[NamedJob], source: str) -> InputError:
    """The refusal of a file of several jobs, where one is needed."""
    names = ", ".join(named.variant for named in found[:8])
    return InputError(
        f"{source} holds {len(found)} variants, and one is needed here",
        f"add --variant with one of: {names}; compare takes them all",
    )


def load_jobs(
    source: Path | str, overrides: Overrides, *, variant: str | None = None, every: bool = False
) -> list[NamedJob]:
    """The jobs of a file: one, or one a variant (`variants:`, or lists of sizes).

    Of a script that launches several trainings `variant` takes one, `every` all, else the first.
    Raises InputError where the file or a change is wrong.
    """
    path = Path(source)
    names = _launches(path) if every or variant is not None else []
    if len(names) > 1 and variant is not None:
        return load_jobs(path, replace(overrides, launch=variant))
    if len(names) > 1:
        found = [(name, load_jobs(path, replace(overrides, launch=name))) for name in names]
        return [NamedJob(name, job.job) for name, jobs in found for job in jobs]
    document, overrides = _read(path, overrides)
    if document.values.get("name") is None:
        document.values["name"] = path.stem
    return _jobs(document, overrides, path.parent, variant)


def _read(path: Path, overrides: Overrides) -> tuple[Document, Overrides]:
    """The job file at `path`, or the job of a trainer's file there. Raises InputError."""
    from autotune.domain.typed.job import has_job_keys_alone

    _refuse_other(path)
    kind, text = path.suffix.casefold(), read_text(path)
    if kind in CODE:
        from autotune.app.job.trainer_file import script_document

        return script_document(path, text, overrides.everywhere())
    document = document_of(text, str(path), json=kind == ".json")
    if JOB_KEYS.isdisjoint(document.values) or not has_job_keys_alone(document.values):
        from autotune.app.job.trainer_file import own_document

        return own_document(path, text, document, overrides.everywhere())
    if overrides.stated or overrides.beside or overrides.priced_as:
        from autotune.app.job.trainer_file import refuse_flags

        refuse_flags(overrides, document.name)
    return document, overrides


_OTHER = (
    ("*.toml", "TOML"), ("makefile*", "a Makefile"), ("justfile*", "a justfile"),
    ("dockerfile*", "a Dockerfile"), ("*.dockerfile", "a Dockerfile"),
)  # fmt: skip


def _refuse_other(path: Path) -> None:
    """Raise InputError for a file of another kind, which no reader here takes for YAML."""
    kind = next((what for pattern, what in _OTHER if fnmatch(path.name.casefold(), pattern)), "")
    if kind and path.is_file():
        msg = f"{path} is {kind}, which is not read"
        hint = 'give the command that starts the training, --from-args "python train.py --...", '
        raise InputError(msg, hint + "or the file that it names")


def _launches(path: Path) -> list[str]:
    """The trainings that a shell script launches, by the names of their variants."""
    kind = path.suffix.casefold()
    if kind not in SHELL | PAGES:
        return []
    from autotune.trainers.syntax.notebook import page_of
    from autotune.trainers.syntax.shell_script import MOST, launches

    text = read_text(path)
    found = launches(page_of(text) if kind in PAGES else text, str(path))
    names = [launch.name for launch in found]
    if len(names) > MOST:
        msg = f"{path} launches {len(names)} trainings, and at most {MOST} are compared"
        raise InputError(msg, "name one with --variant, from 1 on")
    return names


def jobs_of_command(
    command: str, overrides: Overrides, *, variant: str | None = None
) -> list[NamedJob]:
    """The job of a launch command, such as "python train.py --per_device_train_batch_size 4".

    Raises:
        InputError: The command states no job, or something is missing or wrong.
    """
    from autotune.app.job.command import command_document

    document, overrides = command_document(command, overrides.everywhere())
    return _jobs(document, overrides, Path(), variant)


_ANY_MACHINE = Assumption(
    "hardware", "all that have a price", "none is named; `--gpu NAME` names one"
)


def _jobs(
    document: Document, overrides: Overrides, base_dir: Path, variant: str | None = None
) -> list[NamedJob]:
    name_devices(document.values)
    overrides = overrides if document.values.get("hardware") else overrides.everywhere()
    unnamed = overrides.any_machine and bool(overrides.gpus)
    changed = document
    if overrides.changes:
        from autotune.app.job.overrides import overridden

        changed = overridden(document, overrides)
    variants = variants_of(changed)
    if variant is not None:
        variants = [chosen(variants, variant)]
    files = [checked(each.document) for each in variants]
    kept = kept_at_home(MACHINES, VERIFIED, LEARNED)
    found = []
    for each, file in zip(variants, files, strict=True):
        job = resolve(file, base_dir, measured=MACHINES in kept)
        if unnamed:
            job = replace(job, assumed=(*job.assumed, _ANY_MACHINE))
        if overrides.max_price is not None:
            job = _within_price(job, file, overrides.max_price, base_dir)
        if each.document is not document:  # it was changed
            job = _without_another(job, document, each)
        if kept - {MACHINES}:
            from autotune.app.job.evidence import with_past

            job = with_past(job)
        found.append(NamedJob(each.name, job))
    return found


def jobs_of_line(overrides: Overrides) -> list[NamedJob]:
    """The job of the one-line form: what `overrides.stated` says of it, by the keys of a job file.

    Raises:
        InputError: An argument is wrong, or the model, the rows or the device is missing.
    """
    from autotune.app.job.overrides import line_document

    found = _jobs(line_document(overrides), overrides, Path())
    if len(found) > 1:
        msg = f"the one-line form is one job, and these options make {len(found)}"
        raise InputError(msg, "write a job file: `autotune compare JOB` takes lists and variants")
    return found


def jobs_of_spec(
    spec: object, base_dir: Path, overrides: Overrides, name: str = "recorded job"
) -> list[NamedJob]:
    """The jobs of a recorded `Job.spec` with changes, as `load_jobs` makes them of a file.

    name: what errors call it.
    """
    return _jobs(_recorded(spec, name), overrides, base_dir)


def resolve_spec(spec: object, base_dir: Path) -> Job:
    """The job of a recorded `Job.spec`, resolved against today's catalogue."""
    return resolve(checked(_recorded(spec, "recorded job")), base_dir)


def _recorded(spec: object, name: str) -> Document:
    if not isinstance(spec, dict):
        msg = "the recorded job is no mapping of a job file's keys"
        raise InputError(msg, "tune again from the job file")
    return Document(dict(spec), name)


def _without_another(job: Job, document: Document, variant: Variant) -> Job:
    """The job that says what of its file speaks of another: today's config, or measurements."""
    assumed = job.assumed
    if _states_today(document.values) and not _states_today(variant.document.values):
        why = "the global batch was changed, so the config in use now is another job's"
        assumed += (Assumption("today", "left out", why),)
    if variant.dropped_evidence:
        why = "it speaks of another method than this variant's"
        assumed += (Assumption("evidence", "left out", why),)
    return job if assumed == job.assumed else replace(job, assumed=assumed)


def _states_today(values: Mapping[str, Any]) -> bool:
    """Whether a job file's mapping says how the job runs now."""
    evidence = values.get("evidence")
    items = evidence if isinstance(evidence, list) else []
    return any(isinstance(item, dict) and item.get("today") is True for item in items)


def _within_price(job: Job, jobfile: JobFile, max_price: str, base_dir: Path) -> Job:
    """The job without the offers that cost more per hour."""
    limit, per_gpu = parse_offer_price(max_price)
    machines = [find_machine(stated.gpu, stated.per_node) for stated in jobfile.hardware]
    stated_once = (stated for stated, _ in distinct(jobfile.hardware, machines))
    pairs = list(zip(stated_once, job.offers, strict=True))
    kept = [
        machine
        for machine, offer in pairs
        if offer.usd_per_hour <= limit * (offer.count if per_gpu else 1)
    ]
    dropped = [offer for machine, offer in pairs if machine not in kept]
    if not kept:
        cheapest = min(job.offers, key=lambda offer: offer.usd_per_hour)
        msg = (
            f"no offer costs at most {max_price}; the cheapest, {cheapest.label}, is "
            f"{format_usd(cheapest.usd_per_hour)}/h"
        )
        raise InputError(msg, "raise --max-price, or name other devices with --gpu")
    if not dropped:
        return job
    first = jobfile.hardware[0]  # which evidence without a machine of its own speaks of
    evidence = tuple(
        entry if entry.hardware else entry.model_copy(update={"hardware": first})
        for entry in jobfile.evidence
    )
    fewer = jobfile.model_copy(update={"hardware": tuple(kept), "evidence": evidence})
    names = ", ".join(offer.label for offer in dropped)
    left_out = Assumption("hardware", f"without {names}", f"above --max-price {max_price}")
    found = resolve(fewer, base_dir)
    return replace(found, assumed=(*found.assumed, left_out))
