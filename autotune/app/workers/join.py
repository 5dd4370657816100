"""What one worker does: join a search, price its job, take a device, probe until it is over.

Why it left is kept in the study, and on its own disk for where that is lost: a run folder's journal
is written anew by each leader, who may be killed while it does so. A worker is believed as long as
the question is the one that it left: of a search that was asked for more since, nobody has left.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
import time
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.app.probing.plan import groups_here
from autotune.app.probing.probe import Prober
from autotune.app.probing.study import probes_of_workers, tell_held
from autotune.app.runs.folder import runs_root
from autotune.app.runs.ownership import disk_is_full
from autotune.app.workers.terms import checked, ground_of, probing_of, readable
from autotune.catalog.files import read_regular, write_whole
from autotune.domain.errors import InputError, NoLocalDevice
from autotune.domain.paths import near, whole
from autotune.probe import device as devices
from autotune.probe.lease import seated
from autotune.probe.outcomes import MAKE_ROOM
from autotune.probe.runner import Place as Probing
from autotune.probe.runner import Runner
from autotune.probe.together import MACHINES, OVER, Meeting, follow, terms_in
from autotune.search.axes import ParameterSpace
from autotune.search.billed import BilledCandidates
from autotune.search.measured.joining import (
    BEGIN_S,
    LOOK_S,
    Place,
    joining,
    terms_of,
    worker_folder,
)
from autotune.search.measured.prior import PRIOR_FILE, Prior, load_prior
from autotune.search.measured.shared import SharedSearch
from autotune.search.study.owner import Owner
from autotune.search.study.record import WORKERS_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.app.probing.plan import Ground, ProbeOptions
    from autotune.probe.device import LocalDevice
    from autotune.probe.record import ProbeRecord
    from autotune.search.selection import Objective
    from autotune.search.study.turns import SharedStudy

KNOWN_PROBES = "autotune:probes"  # of a study: those made before its leader began, or went on


def work(
    run_dir: Path | None, storage: str | None, name: str | None, tell: Callable[[str], None],
    change: Callable[[ProbeOptions], ProbeOptions] = lambda options: options,
) -> str:  # fmt: skip
    """Take part in a search until it is over; why it is.

    run_dir: of the search, where this machine has it; its name is the study's unless another is
    given. change: what is different here of how the study probes (another runner).
    Raises InputError where there is no such study or this machine's differ from it, NoLocalDevice
    where it has no such device or no room, Interrupted on Ctrl-C; what was measured is told or
    kept.
    """
    study_name = name or (run_dir.name if run_dir else "")
    try:
        return _work(run_dir, storage, study_name, tell, change)
    except OSError as error:
        full = disk_is_full(error)
        if not full:
            raise
        folder = near(run_dir or runs_root() / study_name)
        msg = full if error.filename else f"{full}: {folder}"
        raise NoLocalDevice(msg, MAKE_ROOM) from error


def _work(
    run_dir: Path | None, storage: str | None, study_name: str, tell: Callable[[str], None],
    change: Callable[[ProbeOptions], ProbeOptions],
) -> str:  # fmt: skip
    study, kept = terms_of(run_dir, storage, study_name, tell)
    with readable(study_name):
        terms = checked(kept)
        options = change(probing_of(terms))
        ground = ground_of(terms)
    groups = [(devices.cpu(),)] if terms["device"] == "cpu" else _cards(ground)
    place = Place(run_dir or runs_root() / study_name, storage, study_name, terms["job_key"])
    owner = Owner.here()
    folder = worker_folder(place.run_dir, owner.name)
    prior = _prior(ground, terms["prior"], folder, terms["objective"])
    search = SharedSearch(
        ground.bill, terms["objective"], terms["sampler"], terms["seed"], prior.observed
    )
    with (
        joining(
            search,
            study,
            place,
            owner,
            made=lambda: as_told(probes_of_workers(place.run_dir)),
        ) as (shared, log),
        seated(groups, tell, f"({place.run_dir})") as group,
    ):
        local = group[0]
        tell(f"worker {owner.name} has joined {study_name}; it probes on {local.name}")
        prober = Prober(ground.job, ground.bill, local, options, terms["objective"], folder, tell)
        tell_held(prober, local)
        with readable(study_name):
            prober.adopt(study.user_attrs.get(KNOWN_PROBES, []))
        with closing(prober.runner):
            end = search.work(shared, log, prober, len(ground.bill), tell)
        leave(shared, folder, terms, end.why)
        return end.why


def together_in(run_dir: Path, tell: Callable[[str], None]) -> dict[str, Any] | None:
    """What a search on several machines asks of this one; None where a folder holds no such search.

    One that has ended may be about to go on, and is waited for. Raises InputError where it is not.
    """
    found = terms_in(run_dir)
    over = (run_dir / MACHINES / OVER).exists() and not (run_dir / WORKERS_FOLDER).exists()
    if found is not None or not over:
        return found
    tell(f"the search in {near(run_dir)} has ended; waiting {BEGIN_S:.0f} s for it to go on")
    deadline = time.monotonic() + BEGIN_S
    while found is None and time.monotonic() < deadline:
        time.sleep(LOOK_S)
        found = terms_in(run_dir)
    if found is None:
        msg = f"the search in {near(run_dir)} on several machines has ended"
        raise InputError(msg, "to go on, type its `autotune tune` with --resume, then join again")
    return found


def take_part(run_dir: Path, kept: dict[str, Any], tell: Callable[[str], None]) -> str:
    """Be one machine of the probes of a search on several; why it is over.

    kept: what that search asks of its machines. Raises InputError where this one's packages differ,
    NoLocalDevice where it has not the devices.
    """
    terms = checked(kept)
    meeting = Meeting(str(terms["endpoint"]), int(terms["nodes"]), int(terms["per_node"]))
    here = devices.local_devices()
    found = [own for own in here if own.device and own.device.name == terms["device"]]
    if len(found) < meeting.per_node:
        names = ", ".join(sorted({local.name for local in here}))
        msg = f"each machine probes on {meeting.per_node}x {terms['device']}, and here is {names}"
        raise NoLocalDevice(msg, "join from a machine that has it")
    with tempfile.TemporaryDirectory() as own:
        runner = Runner(Probing(found[0], whole(Path(own)), meeting=meeting))
        return follow(run_dir, runner, tell)


def tell_probes(shared: SharedStudy, prober: Prober) -> None:
    """What was probed before: a study rebuilt from records has trials without their probes."""
    shared.study.set_user_attr(KNOWN_PROBES, as_told(prober.memo.records))


def as_told(probes: Sequence[ProbeRecord]) -> list[dict[str, Any]]:
    """Records of probes, as a study holds them."""
    return [asdict(record) for record in probes]


def _cards(ground: Ground) -> list[tuple[LocalDevice, ...]]:
    """The devices here of the study's kind. Raises NoLocalDevice where there are too few."""
    count = max(offer.count for offer in ground.offers)
    wanted = replace(ground.offer, count=count)
    here = devices.local_devices()
    found = devices.matching(wanted, here)
    if not found:
        names = ", ".join(sorted({local.name for local in here}))
        msg = f"the study probes on {count}x {wanted.device.name}, and here is only {names}"
        raise NoLocalDevice(msg, "join from a machine that has it")
    return groups_here(wanted, found[0], count)


def _prior(ground: Ground, text: str | None, folder: Path, objective: str) -> Prior:
    """What the search began with, as its leader found it."""
    if text is None:
        return Prior({})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PRIOR_FILE).write_text(text, encoding="utf-8")
    goal: Objective = "cost" if objective == "cost" else "time"
    space = ParameterSpace(ground.bill.candidates)
    return load_prior(BilledCandidates(ground.bill, space, goal), folder)


LEFT = "autotune:left"  # of a study: why each worker has gone
LEFT_FILE = "left.json"
DECIDING = ("probing", "objective")  # the terms that say when a search is over
MOST_BYTES = 100_000


def leave(shared: SharedStudy, folder: Path, terms: dict[str, Any], why: str) -> None:
    """A worker whose folder that is goes, because the search is over."""
    said = {"why": why, "question": _question(terms)}
    with contextlib.suppress(OSError):  # the study has it too
        write_whole(folder / LEFT_FILE, json.dumps(said))
    shared.study.set_user_attr(f"{LEFT}:{folder.name}", said)


def reasons(shared: SharedStudy, run_dir: Path, terms: dict[str, Any]) -> list[str]:
    """Why each worker that found this search to be over has gone."""
    said: dict[str, Any] = {}
    for path in sorted(run_dir.glob(f"{WORKERS_FOLDER}/*/{LEFT_FILE}")):
        with contextlib.suppress(OSError, ValueError):
            said[path.parent.name] = json.loads(read_regular(path, MOST_BYTES))
    for name, found in shared.study.user_attrs.items():
        if name.startswith(LEFT):
            said[name.removeprefix(f"{LEFT}:")] = found
    asked = _question(terms)
    return [
        str(found["why"])
        for found in said.values()
        if isinstance(found, dict) and found.get("question") == asked and found.get("why")
    ]


def _question(terms: dict[str, Any]) -> str:
    """A digest of when the search is over, the same before and after it was kept as JSON."""
    asked = json.dumps([terms[name] for name in DECIDING], sort_keys=True)
    return hashlib.sha256(asked.encode()).hexdigest()[:16]
