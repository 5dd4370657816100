"""A study that several processes work on: who is next, who is still there, what the dead leave.

Whoever wants a proposal draws a trial as a ticket and waits until every earlier ticket has its
parameters: proposals are made one after another, each knowing all that is pending, in any storage.
Optuna's own heartbeat does nothing for studies that are asked and told, so a worker counts up a
number of its trial every few seconds. A trial whose number stands still for a lease, by the clock
of whoever watches and as long as the storage answers, is given up, one that keeps others waiting
sooner; one whose process was here and has ended, at once. No clock is compared with another
machine's.

Source: Lamport, "A new solution of Dijkstra's concurrent programming problem" (1974): tickets.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from autotune.search.posterior.measurements import DROPPED, RECORD, is_dropped
from autotune.search.study.owner import OWNER, Owner
from autotune.search.study.record import TrialRecord, attributes_of
from autotune.search.study.refusals import unreadable
from autotune.search.study.storage import finished_trial

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from optuna.distributions import BaseDistribution
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

BEAT, CHOSEN, DIED = "autotune:beat", "autotune:chosen", "autotune:died"  # of a trial
PROBES = "probes"
BEAT_S, LEASE_S = 5.0, 60.0
TURN_LEASE_S = 20.0  # for whoever is to choose: all others wait, and nothing measured is lost
TURN_S, MOST_TURN_S = 0.05, 1.0  # between looks at who is before
LOOKING = 0.1  # share of the time for them
MOST_DEATHS = 3  # workers that died at one candidate: it is not tried again


def pause_s(look_s: float) -> float:
    """[s] until the next look: those who wait leave the machine to the one who chooses."""
    return min(max(TURN_S, look_s * (1.0 / LOOKING - 1.0)), MOST_TURN_S)


def _half_read(trial: FrozenTrial) -> bool:
    """Whether a trial was read as chosen and without some of the parameters chosen."""
    return len(trial.params) < int(trial.system_attrs.get(CHOSEN, 0))


class TakenAwayError(Exception):
    """The trial was given up while its worker was silent: what it measured is another's task."""


@dataclass(slots=True)
class _Watched:
    """A trial's count as it was last seen to change, by the clock of whoever watches."""

    beat: object
    since: float


@dataclass
class SharedStudy:
    """One worker's view of a study.

    known: the records that are on disks which this process can read, by the trial's number: what a
    worker measured before it died is told for it, with the probes that it made.
    """

    study: Study
    owner: Owner = field(default_factory=Owner.here)
    lease_s: float = LEASE_S
    beat_s: float = BEAT_S
    known: Callable[[], Mapping[int, TrialRecord]] = dict
    made: Callable[[], list[dict[str, Any]]] = list

    def __post_init__(self) -> None:
        self._storage = self.study._storage  # noqa: SLF001 - tickets and counts are below Study
        self._study_id = self.study._study_id  # noqa: SLF001
        self._watched: dict[int, _Watched] = {}
        self._looked = self._asked = 0.0
        self._held: FrozenTrial | None = None
        self._beats = 0
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Begin to show that this worker lives, and to watch the others."""
        self.watch()
        self._thread = threading.Thread(target=self._live, daemon=True, name="autotune-lease")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        if self._thread is not None:
            self._thread.join(self.beat_s)

    def trials(self) -> list[FrozenTrial]:
        """All trials, by number."""
        return self.study.get_trials(deepcopy=False)

    def records(self) -> list[TrialRecord]:
        """What every finished trial that counts says, by number."""
        return self.look()[0]

    def pending(self) -> list[FrozenTrial]:
        """Trials that peers measure now."""
        return self.look()[1]

    def look(self) -> tuple[list[TrialRecord], list[FrozenTrial]]:
        """Both at one moment: a trial that ends between two looks would be in neither.

        A database answers table by table: what is chosen meanwhile may be seen as chosen without
        all of its parameters. They are written first: who asks for that trial again is given them.
        """
        try:
            trials = [
                self._storage.get_trial(trial._trial_id) if _half_read(trial) else trial  # noqa: SLF001
                for trial in self.trials()
            ]
            found = [
                TrialRecord.of(trial.user_attrs[RECORD])
                for trial in trials
                if trial.state.is_finished() and RECORD in trial.user_attrs
            ]
        except (TypeError, ValueError) as error:
            place = f"the storage of {self.study.study_name!r}"
            raise unreadable(place, error) from None
        found.sort(key=lambda record: record.number)
        return found, [trial for trial in self._running(trials) if CHOSEN in trial.system_attrs]

    def _running(self, trials: list[FrozenTrial] | None = None) -> list[FrozenTrial]:
        """Unfinished trials of peers; those of somebody who is no worker are not ours to judge."""
        return [
            trial
            for trial in (self.trials() if trials is None else trials)
            if not trial.state.is_finished()
            and (owner := Owner.of(trial.system_attrs.get(OWNER))) is not None
            and owner.name != self.owner.name
        ]

    def ticket(self) -> Trial:
        """A trial of our own, once it is our turn: until it is chosen or dropped, nobody asks."""
        from optuna.trial import Trial, TrialState, create_trial

        self._drop_own()
        template = create_trial(
            state=TrialState.RUNNING, system_attrs={OWNER: self.owner.as_dict(), BEAT: 0}
        )
        number_of = self._storage.create_new_trial(self._study_id, template_trial=template)
        frozen = self._storage.get_trial(number_of)
        with self._lock:
            self._held, self._beats = frozen, 0
        while self._is_before(frozen):
            self.bury()
            time.sleep(pause_s(time.monotonic() - self._asked))
        self.study._thread_local.cached_all_trials = None  # noqa: SLF001 - as `Study.ask` does
        return Trial(self.study, number_of)

    def _is_before(self, ticket: FrozenTrial) -> bool:
        """Whether anybody drew an earlier ticket and has not chosen yet."""
        self._asked = time.monotonic()
        return any(
            other.number < ticket.number and CHOSEN not in other.system_attrs
            for other in self._running()
        )

    def _drop_own(self) -> None:
        """Trials that an outage left to us: their making was answered by nobody."""
        for trial in self.trials():
            owner = Owner.of(trial.system_attrs.get(OWNER))
            if not trial.state.is_finished() and owner is not None and owner == self.owner:
                self._fail(trial)

    def choose(self, trial: Trial, distributions: Mapping[str, BaseDistribution]) -> None:
        """Let the sampler choose the ticket's parameters; the next in turn may ask then.

        Raises TakenAwayError where others have given the ticket up.
        """
        from optuna.exceptions import UpdateFinishedTrialError

        try:
            self._suggest(trial, distributions)
            self._set(trial._trial_id, CHOSEN, len(trial.params))  # noqa: SLF001
        except UpdateFinishedTrialError:
            self._release()
            raise TakenAwayError from None

    @staticmethod
    def _suggest(trial: Trial, distributions: Mapping[str, BaseDistribution]) -> None:
        from optuna.distributions import CategoricalDistribution, IntDistribution

        for name, values in distributions.items():
            if isinstance(values, IntDistribution):
                trial.suggest_int(name, values.low, values.high)
            elif isinstance(values, CategoricalDistribution):
                trial.suggest_categorical(name, values.choices)

    def drop(self, trial: Trial) -> None:
        """Give a ticket back: its candidate is as before."""
        self._fail(self._storage.get_trial(trial._trial_id))  # noqa: SLF001
        self._release()

    def check_ours(self, trial: Trial) -> None:
        """Raises TakenAwayError where others have given our trial up."""
        if self._storage.get_trial(trial._trial_id).state.is_finished():  # noqa: SLF001
            self._release()
            raise TakenAwayError

    def finish(self, trial: Trial, record: TrialRecord, probes: list[dict[str, Any]]) -> None:
        """Tell a trial's end. Raises TakenAwayError where it is another's by now."""
        from optuna.exceptions import UpdateFinishedTrialError

        found = self._storage.get_trial(trial._trial_id)  # noqa: SLF001
        try:
            self._tell(found, record, probes)
        except UpdateFinishedTrialError:
            now = self._storage.get_trial(trial._trial_id)  # noqa: SLF001
            if is_dropped(now):
                raise TakenAwayError from None
        finally:
            self._release()

    def _tell(
        self, trial: FrozenTrial, record: TrialRecord, probes: list[dict[str, Any]] | None
    ) -> None:
        """What the record says, and at last that it counts: a peer may do that last step too."""
        from optuna.trial import TrialState

        attributes = attributes_of(record) | ({PROBES: probes} if probes is not None else {})
        for name, violation in record.constraints.items():
            self._set(trial._trial_id, f"constraints:{name}", violation)  # noqa: SLF001
        for name, value in record.sampler_state.items():
            self._set(trial._trial_id, name, value)  # noqa: SLF001
        for name in sorted(attributes, key=lambda name: name == RECORD):
            self._storage.set_trial_user_attr(trial._trial_id, name, attributes[name])  # noqa: SLF001
        state = TrialState.FAIL if record.value is None else TrialState.COMPLETE
        values = None if record.value is None else [record.value]
        self._storage.set_trial_state_values(trial._trial_id, state, values)  # noqa: SLF001

    def _set(self, trial_id: int, name: str, value: Any) -> None:  # noqa: ANN401 - JSON
        self._storage.set_trial_system_attr(trial_id, name, value)

    def _release(self) -> None:
        with self._lock:
            self._held = None

    def _fail(self, trial: FrozenTrial) -> None:
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        with contextlib.suppress(UpdateFinishedTrialError):
            self._storage.set_trial_user_attr(trial._trial_id, DROPPED, True)  # noqa: FBT003, SLF001
            self._storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)  # noqa: SLF001

    def bury(self) -> list[FrozenTrial]:
        """Give up the trials of workers that have died; what they had measured is told for them."""
        from optuna.exceptions import UpdateFinishedTrialError

        dead = [trial for trial in self._running() if self._is_dead(trial)]
        if not dead:
            return []
        known = self.known()
        for trial in dead:
            told = trial.user_attrs.get(RECORD)
            record = TrialRecord.of(told) if told else known.get(trial.number)
            if record is None or record.params != trial.params:  # of an earlier study's trial
                if DROPPED not in trial.user_attrs:  # else it died while it gave the trial back
                    with contextlib.suppress(UpdateFinishedTrialError):
                        self._set(trial._trial_id, DIED, value=True)  # noqa: SLF001
                self._fail(trial)
            else:
                with contextlib.suppress(UpdateFinishedTrialError):
                    self._tell(trial, record, self.made() or None)
        return dead

    def deaths(self, params: Mapping[str, Any]) -> int:
        """Workers that died while they measured that candidate."""
        return sum(
            DIED in trial.system_attrs and is_dropped(trial) and trial.params == params
            for trial in self.trials()
        )

    def _is_dead(self, trial: FrozenTrial) -> bool:
        owner = Owner.of(trial.system_attrs.get(OWNER))
        if owner is None:
            return False
        if owner.is_dead:
            return True
        lease_s = self.lease_s if CHOSEN in trial.system_attrs else min(self.lease_s, TURN_LEASE_S)
        with self._lock:  # by the last look: we may have been stopped since, and not the other
            seen = self._watched.get(trial.number)
            return seen is not None and self._looked - seen.since > lease_s

    def watch(self) -> None:
        """Look whose counts have changed. After a gap in looking everybody has a new lease."""
        running = self._running()
        now = time.monotonic()
        with self._lock:
            fresh = now - self._looked > 3.0 * self.beat_s
            before, self._watched, self._looked = self._watched, {}, now
            for trial in running:
                beat, known = trial.system_attrs.get(BEAT), before.get(trial.number)
                same = known is not None and known.beat == beat and not fresh
                since = known.since if known is not None and same else now
                self._watched[trial.number] = _Watched(beat, since)

    def _live(self) -> None:
        while not self._ends.wait(self.beat_s):
            with contextlib.suppress(Exception):  # the one who works is told of what is wrong
                self._beat()
                self.watch()

    def _beat(self) -> None:
        with self._lock:
            held, self._beats = self._held, self._beats + 1
            count = self._beats
        if held is not None:
            self._set(held._trial_id, BEAT, count)  # noqa: SLF001

    def rebuild(
        self, records: Iterable[TrialRecord], distributions: dict[str, BaseDistribution]
    ) -> None:
        """Add the recorded trials that the study has lost, each at its number where that is free.

        A trial that is being measured is left to its worker. Others may draw numbers meanwhile: who
        was given that of a recorded trial of another candidate loses it, and draws again.
        """
        from optuna.trial import TrialState, create_trial

        count, have = len(self.trials()), {record.number for record in self.records()}
        for record in sorted(records, key=lambda record: record.number):
            if record.number in have or (
                record.number < count and self._left_to_its_worker(record)
            ):
                continue
            while count < record.number:
                empty = create_trial(state=TrialState.FAIL, user_attrs={DROPPED: True})
                count = self._add(empty) + 1
            count = self._add(finished_trial(record, distributions)) + 1
            if count > record.number + 1:
                self._left_to_its_worker(record)
            have.add(record.number)

    def _add(self, trial: FrozenTrial) -> int:
        """The number that the storage gave to a trial: others add theirs at the same time."""
        trial_id = self._storage.create_new_trial(self._study_id, template_trial=trial)
        return int(self._storage.get_trial_number_from_id(trial_id))

    def _left_to_its_worker(self, record: TrialRecord) -> bool:
        """Whether the trial of that number is the record's own and still to be told.

        One of another candidate would be told under the same number: it is given up.
        """
        trial = self.trials()[record.number]
        if trial.state.is_finished() or trial.params == record.params:
            return not trial.state.is_finished()
        self._fail(trial)
        return False
