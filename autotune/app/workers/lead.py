"""Leading a search of many hands: workers are started, watched and replaced; their probes told.

The leader measures nothing and hands nothing out. It keeps the run's record, says what goes on, and
sees from the same study as the workers when it is over; killed, it is resumed while they work on.
"""

from __future__ import annotations

import shlex
import sys
import time
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING

from autotune.app.probing.figures import short
from autotune.app.probing.plan import groups_here
from autotune.app.probing.probe import PROBING_FOLDER
from autotune.app.probing.study import gather_probes, probe_candidates, probes_of_workers
from autotune.app.workers.executor import WorkerJob
from autotune.app.workers.join import as_told, reasons, tell_probes
from autotune.app.workers.terms import terms_of
from autotune.catalog.locks import take_away_dead
from autotune.domain.errors import InputError, NoLocalDevice
from autotune.domain.paths import near
from autotune.domain.units import format_seconds
from autotune.frozen import dataclass
from autotune.probe.runner import OF_PROBE, OF_SESSION
from autotune.search.measured.joining import Place, leading
from autotune.search.measured.prior import PRIOR_FILE
from autotune.search.measured.shared import SharedSearch, Task
from autotune.search.study.backends import url_to_type
from autotune.search.study.record import WORKERS_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from autotune.app.probing.plan import Ground, ProbeOptions
    from autotune.app.probing.probe import Prober
    from autotune.app.probing.study import Probed, StudySettings
    from autotune.app.workers.executor import Executor, WorkerState
    from autotune.cost.bill import Bill
    from autotune.probe.device import LocalDevice
    from autotune.search.measured.joining import Led
    from autotune.search.measured.prior import Prior
    from autotune.search.measured.study import MeasuredExploration

WAITING_S = 60.0  # that nobody probes, before that is said; then twice as long
LOOK_S = 0.1
LEAVE_S = 20.0  # for workers to see by themselves that it is over
EXECUTORS = ("local", "ray", "slurm")
STARTS_EACH = 4  # of a worker, counting those that were killed


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a leader looks.

    quiet_s: without a trial that begins or ends, after which who has left is believed.
    """

    poll_s: float = 0.5
    quiet_s: float = 5.0


def executor_of(options: ProbeOptions) -> Executor:
    """Who starts the workers. Raises InputError for an unknown one."""
    if options.executor == "local":
        from autotune.app.workers.executor import LocalExecutor

        return LocalExecutor()
    if options.executor == "ray":
        from autotune.app.workers.ray_cluster import RayExecutor

        return RayExecutor(options.ray_address)
    if options.executor == "slurm":
        from autotune.app.workers.slurm import SlurmExecutor

        return SlurmExecutor()
    msg = f"--executor {options.executor} is not one of {', '.join(EXECUTORS)}"
    raise InputError(msg, "take local, or start `autotune worker` yourself beside --workers 0")


def probe_by_workers(
    ground: Ground, local: LocalDevice, options: ProbeOptions, study: StudySettings,
    announce: Callable[[str], None], executor: Executor | None = None, pace: Pace | None = None,
) -> Probed:  # fmt: skip
    """Probe the candidates of a bill by several workers."""
    lead = partial(_lead, ground, study, local, executor or executor_of(options), pace or Pace())
    return probe_candidates(ground.bill, local, options, study, announce, lead)


def _lead(
    ground: Ground, study: StudySettings, local: LocalDevice, executor: Executor, pace: Pace,
    prober: Prober, prior: Prior,
) -> MeasuredExploration:  # fmt: skip
    """What the workers find, and this process tells."""
    run_dir, options, announce = study.run_dir, prober.options, prober.announce
    prober.leads = True
    kept = run_dir / PRIOR_FILE
    terms = terms_of(
        ground, options, objective=study.objective, sampler=study.sampler, seed=study.seed,
        job_key=study.job_key, prior=kept.read_text(encoding="utf-8") if kept.exists() else None,
    )  # fmt: skip
    search = SharedSearch(ground.bill, study.objective, study.sampler, study.seed, prior.observed)
    place = Place(run_dir, study.storage, run_dir.name, study.job_key)
    with leading(
        search, place, terms, resume=study.resume,
        made=lambda: as_told(probes_of_workers(run_dir)), tell=announce,
    ) as led:  # fmt: skip
        sweep_dead(run_dir)
        job = worker_job(ground, place)
        crew = Crew(executor, job, options.workers or 0, announce)
        gather_probes(prober, run_dir)
        tell_probes(led.shared, prober)
        try:
            crew.start()
            _say_turns(ground, local, options, announce)
            news = News(announce, " ".join(joined_by(place)), waits=not crew.count)
            left = partial(reasons, led.shared, run_dir, terms)
            end = _followed(led, search, prober, crew, news, pace, left)
            crew.let_leave()
        finally:
            crew.executor.stop()
            sweep_dead(run_dir)
        led.gather()
        search.hear(led.shared, prober)
        gather_probes(prober, run_dir)
        return search.explored(led.shared, led.resumed, end)


def sweep_dead(run_dir: Path) -> None:
    """Take away what the probes of killed workers left on this disk: it may be gigabytes."""
    for folder in run_dir.glob(f"{WORKERS_FOLDER}/*/{PROBING_FOLDER}"):
        take_away_dead(folder, OF_PROBE, OF_SESSION)


def _say_turns(
    ground: Ground, local: LocalDevice, options: ProbeOptions, announce: Callable[[str], None]
) -> None:
    """More workers than devices are no mistake, and no faster either."""
    asked = options.workers or 0
    count = max(offer.count for offer in ground.offers)
    here = len(groups_here(ground.offer, local, count))
    if options.executor == "local" and asked > here:
        what = f"{count}x {local.name}" if count > 1 else local.name
        announce(f"{asked} workers, and {here} {what} here: probes take turns")


def joined_by(place: Place) -> list[str]:
    """The command by which a worker joins; a URL with a password belongs into the environment."""
    if place.storage is None:
        return ["autotune", "worker", near(place.run_dir)]
    words, url = ["autotune", "worker", "--study", place.name], url_to_type(place.storage)
    if url != place.storage:
        return [f"AUTOTUNE_STORAGE={url}", *words]
    return [*words, "--storage", shlex.quote(url)]


def worker_job(ground: Ground, place: Place) -> WorkerJob:
    """One worker as an executor starts it; the storage's URL may hold a password."""
    words = [sys.executable, "-m", "autotune", "worker", str(place.run_dir), "--study", place.name]
    count = max(offer.count for offer in ground.offers)
    secret = {"AUTOTUNE_STORAGE": place.storage} if place.storage else {}
    return WorkerJob(tuple(words), place.run_dir, ground.offer.device.name, count, secret)


@dataclass()
class Crew:
    """The workers that this leader has started."""

    executor: Executor
    job: WorkerJob
    count: int
    announce: Callable[[str], None]
    started: int = 0
    gone: set[str] = field(default_factory=set)
    unheard: bool = False

    def start(self) -> None:
        """The first of them."""
        for _ in range(self.count):
            self._start_one()

    def _start_one(self) -> None:
        self.started += 1
        self.executor.start(self.job, f"{int(time.time())}-{self.started}")

    def watch(self) -> list[WorkerState]:
        """Those that are still there. One that was killed is replaced, a few times."""
        states = self.executor.states()
        self._say_whether_heard(states)
        for state in states:
            if state.state == "ended" and state.name not in self.gone:
                self.gone.add(state.name)
                if state.code != 0:
                    why = state.why or f"exit code {state.code}"
                    said = why.removeprefix("error: ").replace(" hint: ", "; ")
                    self.announce(f"worker {state.name} has ended: {said}")
                    sweep_dead(self.job.folder)
                if not state.is_final and self.started < STARTS_EACH * self.count:
                    self._start_one()
                    states = self.executor.states()
        return [state for state in states if state.state != "ended"]

    def _say_whether_heard(self, states: Sequence[WorkerState]) -> None:
        """That who runs the workers does not answer, and that it does again; each once."""
        why = next((state.why for state in states if state.unheard), "")
        if why and not self.unheard:
            self.announce(f"{why}; the workers are taken to run on")
        elif self.unheard and not why:
            self.announce("it is known again how the workers are")
        self.unheard = bool(why)

    def let_leave(self) -> None:
        """Workers see by themselves that it is over."""
        deadline = time.monotonic() + LEAVE_S
        while time.monotonic() < deadline and any(
            state.state != "ended" for state in self.executor.states()
        ):
            time.sleep(LOOK_S)

    def why_all_ended(self, measured: int) -> str:
        """What the last of them said; raises what it was about where nothing is measured."""
        states = self.executor.states()
        codes = {state.code for state in states}
        why = next((s.why for s in reversed(states) if s.code != 0), "")
        if not measured and codes and codes <= {InputError.exit_code, NoLocalDevice.exit_code}:
            kind = NoLocalDevice if NoLocalDevice.exit_code in codes else InputError
            msg = f"no worker could probe: {why.removeprefix('error: ')}"
            raise kind(msg, f"what they said is kept in {near(self.job.log('').parent)}")
        return f"all workers have ended: {why}" if why else ""


@dataclass()
class News:
    """What people hear while others probe: who begins with what, and that nobody is there.

    joined_by: the command by which a worker joins. waits: for workers that others bring.
    """

    announce: Callable[[str], None]
    joined_by: str
    waits: bool
    begun: set[int] = field(default_factory=set)
    silent_s: float = WAITING_S
    since: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if self.waits:
            self.announce(f"it waits for workers; one joins it with: {self.joined_by}")
        else:
            self.announce(f"others join it with: {self.joined_by}")

    def hear(
        self, at_work: Sequence[tuple[int, str, int]], bill: Bill, crew: Sequence[WorkerState] = ()
    ) -> None:
        """What is probed now: the number of each trial, its worker and its candidate.

        crew: those of the leader's own workers that have not ended.
        """
        for number, name, index in at_work:
            if number not in self.begun:
                self.announce(f"worker {name} probes {short(bill.candidates.config(index))}")
            self.begun.add(number)
        queued = [state for state in crew if state.state == "queued"]
        if at_work:
            self.since, self.silent_s = time.monotonic(), WAITING_S
        elif (
            self.waits or (queued and len(queued) == len(crew))
        ) and time.monotonic() - self.since >= self.silent_s:
            told = format_seconds(self.silent_s)
            self.announce(f"nobody has probed for {told}; {self._what_for(queued)}")
            self.silent_s *= 2.0

    def _what_for(self, queued: Sequence[WorkerState]) -> str:
        """What would change that nobody probes."""
        if not queued:
            return f"a worker joins it with: {self.joined_by}"
        whys = ", ".join(dict.fromkeys(state.why for state in queued if state.why))
        count = f"{len(queued)} workers are" if len(queued) > 1 else "its worker is"
        return f"{count} queued or starting" + (f" ({whys})" if whys else "")


def _followed(
    led: Led, search: SharedSearch, prober: Prober, crew: Crew, news: News, pace: Pace,
    left: Callable[[], list[str]],
) -> Task:  # fmt: skip
    """Wait until it is over, or nobody is left to work on it; how it ended.

    Where others bring the workers, one that left because it was over is believed, also where what
    this process knows of the probes would let it go on: nobody else may come. It may have left
    before this leader came. left: why each of them has gone.
    """
    known: object = None
    task = Task("search")
    living: Sequence[WorkerState] = ()
    quiet_since = time.monotonic()
    while True:
        led.shared.bury()
        led.gather()
        records, pending = led.shared.look()
        news.hear(search.at_work(pending), prober.bill, living)
        state = (len(records), [trial.number for trial in pending])
        if state != known:  # otherwise nothing else follows from it
            known, task = state, search.decide(led.shared, prober, len(prober.bill))
            quiet_since = time.monotonic()
        if task.kind == "end":
            return task
        living = crew.watch()
        if crew.count and not living and not led.shared.pending():
            led.gather()  # the last one may have ended the search since we looked
            ended = search.decide(led.shared, prober, len(prober.bill))
            if ended.kind == "end":
                return ended
            why = crew.why_all_ended(len(records)) or next(reversed(left()), "")
            return Task("end", why or "all workers have ended")
        quiet = not pending and time.monotonic() - quiet_since > pace.quiet_s
        if not crew.count and quiet and (said := left()):
            return Task("end", said[-1])
        time.sleep(pace.poll_s)
