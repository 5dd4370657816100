"""What the workers of a search agree on, kept in its study: job, space, prices, evidence, code.

A worker prices the job itself, from what the study says; nothing of another machine is executed or
unpickled. Where its autotune, its packages, its model or its device differ, that is said by name:
measurements of two kinds would be one study's nonsense.
"""

from __future__ import annotations

import hashlib
import json
import math
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from autotune.app.job.load import resolve_spec
from autotune.app.probing.plan import Ground, ProbeOptions, local_bill, without_limits
from autotune.catalog.software import DISTRIBUTION, installed_versions
from autotune.domain.candidates import SearchSpace
from autotune.domain.device import Start
from autotune.domain.errors import InputError
from autotune.domain.observation import Calibration, MachineEffect, StepError
from autotune.frozen import identity
from autotune.probe.request import Effort
from autotune.space.enumerate import enumerate_candidates

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.cost.bill import Bill
    from autotune.domain.device import Offer
    from autotune.domain.job import Job

FORMAT = 1
PACKAGE = Path(__file__).parents[2]
SAME = 1e-6  # relative difference of two machines' arithmetic


@cache
def code_version() -> str:
    """This autotune: its version, and a digest of what its files hold."""
    found = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*")):
        if path.suffix in {".py", ".toml", ".csv", ".json", ".yaml"} and path.is_file():
            found.update(path.relative_to(PACKAGE).as_posix().encode())
            found.update(path.read_bytes())
    try:
        number = version(DISTRIBUTION)
    except PackageNotFoundError:
        number = "uninstalled"
    return f"{number} (code {found.hexdigest()[:12]})"


def terms_of(
    ground: Ground, options: ProbeOptions, *, objective: str, sampler: str, seed: int,
    job_key: str, prior: str | None,
) -> dict[str, Any]:  # fmt: skip
    """The terms as the study keeps them. prior: what the search began with, as a file's text."""
    job, space = ground.job, ground.space
    return {
        "format": FORMAT, "version": code_version(), "packages": installed_versions(),
        "job_key": job_key, "name": job.name, "spec": job.spec, "base_dir": job.base_dir,
        "lock": job.lock, "allow": list(job.allow),
        "space": {"name": space.name, "values": space.values, "extra": space.extra},
        "objective": objective, "sampler": sampler, "seed": seed,
        "device": ground.offer.device.name, "offer": ground.offer.label, "exact": ground.exact,
        "here": [offer.label for offer in ground.offers],
        "offers": [_offer(offer) for offer in job.offers],
        "calibration": asdict(ground.calibration), "held_bytes": ground.held_bytes,
        "probing": {
            "probes": options.most, "budget_s": options.seconds, "timeout_s": options.timeout_s,
            "effort": asdict(options.effort), "reuse": options.reuse,
        },
        "model": job.model.fingerprint, "data": data_of(job), "figures": figures_of(ground.bill),
        "prior": prior,
    }  # fmt: skip


def together_terms(device: str) -> dict[str, Any]:
    """What the machines of one probe have in common; device: of each."""
    return {
        "format": FORMAT, "version": code_version(), "packages": installed_versions(),
        "device": device,
    }  # fmt: skip


def _offer(offer: Offer) -> dict[str, Any]:
    """Its price, and the machine around its devices: both are resolved anew elsewhere."""
    host = {k: v for k, v in asdict(offer.host).items() if k != "loader"}
    return {"label": offer.label, "usd_per_hour": offer.usd_per_hour, "host": host}


def data_of(job: Job) -> str:
    """A digest of what is trained on."""
    facts = (job.rows, job.max_length, job.row_bytes, identity(job.lengths), job.padding)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def figures_of(bill: Bill) -> dict[str, Any]:
    """What shows that two machines price the same candidates alike."""
    found = hashlib.sha256()
    for index in range(len(bill)):
        text = f"{bill.candidates.offer(index).label} {bill.candidates.config(index).key}\n"
        found.update(text.encode())
    return {
        "candidates": len(bill), "keys": found.hexdigest()[:16],
        "log_s": _mean_log(bill.duration_s), "log_usd": _mean_log(bill.cost_usd),
    }  # fmt: skip


def _mean_log(values: Any) -> float:  # noqa: ANN401 - an array
    kept = np.asarray(values, float)
    kept = kept[np.isfinite(kept) & (kept > 0)]
    return float(np.log(kept).mean()) if len(kept) else 0.0


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Read what a study says of itself. Raises InputError where nobody's autotune has said that."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        msg = f"what the study {name!r} says of its job is damaged: {type(error).__name__}: {error}"
        raise InputError(
            msg, "`autotune tune --resume` writes it anew; every finished trial is on the disk"
        ) from None


def checked(terms: dict[str, Any]) -> dict[str, Any]:
    """The terms of a study that this autotune can join. Raises InputError, with what differs."""
    if terms.get("format") != FORMAT:
        _refuse("its terms are of another form", "have all workers run the same autotune")
    if terms["version"] != code_version():
        _refuse(
            f"it was started by autotune {terms['version']}, and this is {code_version()}",
            "install the same autotune here (the same commit or wheel), then join again",
        )
    here = installed_versions()
    for name, wanted in terms["packages"].items():
        if here.get(name) != wanted:
            found = here.get(name) or "none"
            _refuse(
                f"it measures with {name} {wanted}, and here is {found}",
                f"pip install {name}=={wanted}",
            )
    return terms


def ground_of(terms: dict[str, Any]) -> Ground:
    """The search as its leader has it, worked out anew. Raises InputError where it differs."""
    try:
        job = resolve_spec(json.loads(terms["spec"] or "null"), Path(terms["base_dir"]))
    except InputError as error:
        msg = f"the study's job cannot be read here: {error.message}"
        raise InputError(
            msg, "the model's and the data's files must lie here under the same paths (the job's "
            f"folder is {terms['base_dir']}): share that folder, or copy it"
        ) from None  # fmt: skip
    if job.model.fingerprint != terms["model"]:
        _refuse("its model has another shape than the one here",
                       f"copy the same config.json of {job.model.name} here")  # fmt: skip
    if data_of(job) != terms["data"]:
        _refuse("its data differ from those here (rows, lengths or bytes)",
                       "copy the same data set here")  # fmt: skip
    values = {name: tuple(found) for name, found in terms["space"]["values"].items()}
    extra = {name: tuple(found) for name, found in terms["space"]["extra"].items()}
    space = SearchSpace(terms["space"]["name"], values, extra)
    job = replace(job, lock=dict(terms["lock"]), allow=tuple(terms["allow"]))
    offers = _offers(terms, job)
    offer = offers[terms["offer"]]
    job = replace(job, offers=tuple(offers.values()))
    calibration = calibration_of(terms["calibration"])
    here = tuple(offers[label] for label in terms["here"])
    bill = local_bill(job, enumerate_candidates(job, space).candidates, space, calibration, here)
    if not terms["exact"]:
        bill = without_limits(bill)
    found = Ground(job, space, calibration, offer, here, terms["exact"], bill,
                   terms["held_bytes"])  # fmt: skip
    _check_figures(terms["figures"], figures_of(bill))
    return found


def _offers(terms: dict[str, Any], job: Job) -> dict[str, Offer]:
    """The study's offers: the machines of the job at the study's prices."""
    from autotune.app.probing.plan import lent_offer

    known = {offer.label: offer for offer in job.offers}
    found = {}
    for told in terms["offers"]:
        label = told["label"]
        offer = known.get(label) or lent_offer(job, terms["device"])
        start = told["host"].get("start")
        host = {
            **told["host"], "assumed": tuple(told["host"]["assumed"]),
            "start": Start(**start) if start else None,
        }  # fmt: skip
        found[label] = replace(
            offer, usd_per_hour=told["usd_per_hour"], host=replace(offer.host, **host)
        )
    return found


def calibration_of(told: dict[str, Any]) -> Calibration:
    """What evidence and past runs taught, as the study told it."""
    machines = tuple(
        MachineEffect(**{**effect, "step": StepError.told(**step) if step else None})
        for effect in told["machines"]
        for step in [effect.get("step")]
    )
    return Calibration(
        dict(told["factors"]), dict(told["log_sds"]), tuple(told["provenance"]), machines
    )


def probing_of(terms: dict[str, Any]) -> ProbeOptions:
    """How the study probes."""
    told = terms["probing"]
    return ProbeOptions(
        probes=told["probes"], budget_s=told["budget_s"], timeout_s=told["timeout_s"],
        effort=Effort(**told["effort"]), reuse=told["reuse"], held_bytes=terms["held_bytes"],
    )  # fmt: skip


def _check_figures(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    for name in ("candidates", "keys"):
        if theirs[name] != ours[name]:
            _refuse(
                f"it has {theirs['candidates']} candidates, and here there are other ones "
                f"({ours['candidates']})",
                "`autotune doctor` on both machines shows what differs",
            )
    if not all(math.isclose(theirs[n], ours[n], abs_tol=SAME) for n in ("log_s", "log_usd")):
        _refuse(
            "the same candidates cost something else here: measured machines or kept files of "
            "this machine differ from those where the search was begun",
            "join with an empty home (AUTOTUNE_HOME=a new folder), or with a copy of that one",
        )


def _refuse(what: str, hint: str) -> NoReturn:
    msg = f"this worker cannot join the study: {what}"
    raise InputError(msg, hint)
