"""How a job gets in: a job file, or the one-line form, with the command line's changes -> Job.

Both forms build the same `JobFile` and go through `resolve`, which looks up every name, completes
what was not stated, and lists it in `Job.assumed`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.app.hardware.offers import distinct, offer_of
from autotune.app.hardware.this_machine import as_measured_here, as_the_driver_leaves
from autotune.app.job.defaults import (
    data_of,
    evaluation_of,
    limits_of,
    objective_of,
    refuse_packed_pairs,
    training_of,
)
from autotune.app.job.feasible_locks import (
    check_batch,
    check_locks,
    check_opened,
    locks_of,
    without_impossible,
)
from autotune.app.job.file import Document, read_text
from autotune.app.job.method import as_stated, check_variant, fp32_needed, method_of, zero_of
from autotune.app.job.overrides import Overrides, line_document, overridden
from autotune.app.job.trainer_file import command_document, read_any
from autotune.app.job.variants import Variant, checked, chosen, variants_of
from autotune.catalog.files import MACHINES, was_kept
from autotune.catalog.models.models import find_model
from autotune.catalog.software import find_software
from autotune.domain.errors import InputError
from autotune.domain.job import PAIRED, Assumption, Job
from autotune.domain.paths import whole
from autotune.domain.typed.values import parse_offer_price
from autotune.domain.units import format_usd
from autotune.evidence.learned.store import PLACE as LEARNED
from autotune.evidence.runs_seen import FOLDER as VERIFIED
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.domain.typed.job import JobFile

__all__ = [
    "NamedJob",
    "jobs_of_command",
    "jobs_of_line",
    "jobs_of_spec",
    "load_job",
    "load_jobs",
    "only_job",
    "resolve",
    "resolve_spec",
]


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
        msg = f"{source} holds {len(found)} variants, and one is needed here"
        names = ", ".join(named.variant for named in found[:8])
        raise InputError(msg, f"add --variant with one of: {names}; compare takes them all")
    return found[0].job


@dataclass(frozen=True, slots=True)
class NamedJob:
    """A job and the variant of the file that it is; empty where there is just one."""

    variant: str
    job: Job


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
    document, overrides = read_any(path, overrides)
    if document.values.get("name") is None:
        document.values["name"] = path.stem
    return _jobs(document, overrides, path.parent, variant)


def _launches(path: Path) -> list[str]:
    """The trainings that a shell script launches, by the names of their variants."""
    if path.suffix.casefold() != ".sh":
        return []
    from autotune.trainers.syntax.shell_script import MOST, launches

    names = [launch.name for launch in launches(read_text(path), str(path))]
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
    document, overrides = command_document(command, overrides)
    return _jobs(document, overrides, Path(), variant)


def _jobs(
    document: Document, overrides: Overrides, base_dir: Path, variant: str | None = None
) -> list[NamedJob]:
    variants = variants_of(overridden(document, overrides))
    if variant is not None:
        variants = [chosen(variants, variant)]
    files = [checked(each.document) for each in variants]
    return [
        NamedJob(each.name, _job(document, each, file, overrides, base_dir))
        for each, file in zip(variants, files, strict=True)
    ]


def jobs_of_line(overrides: Overrides) -> list[NamedJob]:
    """The job of the one-line form: what `overrides.stated` says of it, by the keys of a job file.

    Raises:
        InputError: An argument is wrong, or the model, the rows or the device is missing.
    """
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
    if not isinstance(spec, dict):
        msg = "the recorded job is no mapping of a job file's keys"
        raise InputError(msg, "tune again from the job file")
    return _jobs(Document(spec, name), overrides, base_dir)


def resolve_spec(spec: object, base_dir: Path) -> Job:
    """The job of a recorded `Job.spec`, resolved against today's catalogue."""
    if not isinstance(spec, dict):
        msg = "the recorded job is no mapping of a job file's keys"
        raise InputError(msg, "tune again from the job file")
    return resolve(checked(Document(spec, "recorded job")), base_dir)


def _job(
    document: Document, variant: Variant, jobfile: JobFile, overrides: Overrides, base_dir: Path
) -> Job:
    values = variant.document.values
    forgets_today = _states_today(document.values) and not _states_today(values)
    job = resolve(jobfile, base_dir)
    if overrides.max_price is not None:
        job = _within_price(job, jobfile, overrides.max_price, base_dir)
    if forgets_today:
        why = "the global batch was changed, so the config in use now is another job's"
        job = replace(job, assumed=(*job.assumed, Assumption("today", "left out", why)))
    if variant.dropped_evidence:
        why = "it speaks of another method than this variant's"
        job = replace(job, assumed=(*job.assumed, Assumption("evidence", "left out", why)))
    if not was_kept(VERIFIED, LEARNED):
        return job
    from autotune.app.job.evidence import with_past

    return with_past(job)


def _states_today(values: Mapping[str, Any]) -> bool:
    """Whether a job file's mapping says how the job runs now."""
    evidence = values.get("evidence")
    items = evidence if isinstance(evidence, list) else []
    return any(isinstance(item, dict) and item.get("today") is True for item in items)


def _within_price(job: Job, jobfile: JobFile, max_price: str, base_dir: Path) -> Job:
    """The job without the offers that cost more per hour."""
    limit, per_gpu = parse_offer_price(max_price)
    pairs = list(zip((own for own, _ in distinct(jobfile.hardware)), job.offers, strict=True))
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


def resolve(jobfile: JobFile, base_dir: Path | str) -> Job:
    """Look up every name of a checked job file and complete what was not stated.

    Args:
        jobfile: The checked job file.
        base_dir: The folder that its relative paths start from.

    Raises:
        InputError: A name is unknown, or what is stated cannot be.
    """
    folder = whole(base_dir)
    trainers = jobfile.origin
    assumed = list(trainers.assumed()) if trainers else []
    machines = distinct(jobfile.hardware)
    if len(machines) < len(jobfile.hardware):
        more = len(jobfile.hardware) - len(machines)
        why = "the same machine on the same terms is priced once"
        assumed.append(Assumption("hardware", f"{more} of the entries left out", why))
        jobfile = jobfile.model_copy(update={"hardware": tuple(machine for machine, _ in machines)})
    model = as_stated(jobfile.method, find_model(jobfile.model, folder), assumed)
    zero = zero_of(jobfile.deepspeed, model)
    wide = "" if jobfile.method.base else fp32_needed(jobfile, model)
    method = method_of(jobfile.method, model, assumed, zero, wide)
    data = data_of(jobfile, model, folder, assumed)
    epochs, steps, batch = training_of(jobfile, data.rows, assumed)
    terms: list[Assumption] = []  # told behind the machines
    evaluation = evaluation_of(jobfile.evaluation, data.held_out, terms)
    limits, objective = limits_of(jobfile.limits, terms), objective_of(jobfile, terms)
    software = find_software(jobfile.software)
    model = software.as_coded(model)
    if jobfile.software == "default":
        why = f"not stated; the profile of {software.as_of}"
        assumed.append(Assumption("software", software.name, why))
    named = [
        offer_of(machine, index, data.storage, assumed, device)
        for index, (machine, device) in enumerate(machines)
    ]
    offers = as_the_driver_leaves(named, assumed)
    if was_kept(MACHINES):
        offers = as_measured_here(offers, assumed)
    assumed += terms
    job = Job(
        name=jobfile.name or "job",
        model=model,
        method=method,
        rows=data.rows,
        held_out=data.held_out,
        max_length=data.max_length,
        lengths=data.lengths,
        padding=data.padding,
        pretokenized=data.pretokenized,
        storage=data.storage,
        epochs=epochs,
        steps=steps,
        global_batch_size=batch,
        evaluation=evaluation,
        limits=limits,
        zero=zero,
        objective=objective,
        software=software,
        offers=offers,
        lock=locks_of(jobfile, assumed),
        allow=jobfile.allow,
        dataset_path=data.dataset_path,
        row_bytes=data.row_bytes,
        origin=trainers.as_read(jobfile.software) if trainers else None,
        spec=json.dumps(jobfile.model_dump(mode="json", exclude_unset=True)),
        base_dir=str(folder),
    )
    if method.variant != "none":
        check_variant(job)
    if job.objective in PAIRED:
        refuse_packed_pairs(job)
    job = without_impossible(job, assumed)
    check_batch(job)
    check_locks(job)
    assumed += check_opened(job)
    if not jobfile.evidence and not jobfile.stated:
        return replace(job, assumed=tuple(assumed))
    from autotune.app.job.evidence import with_evidence

    return with_evidence(job, jobfile, assumed)
