"""Predicted and actual, line by line, and what explains the difference."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.domain.answer.verification import Explained, Line
from autotune.domain.candidates import Candidate
from autotune.domain.units import format_seconds
from autotune.evidence.explanations import explanations_of
from autotune.evidence.log.run_log import best_memory, spoiled_by
from autotune.evidence.reference import reference_of
from autotune.frozen import dataclass
from autotune.pricing import Pricing

if TYPE_CHECKING:
    from autotune.domain.observation import Calibration, Observation
    from autotune.domain.outcome import Estimated
    from autotune.evidence.log.run_log import RunLog, Speed

GAP = 1.1  # a step or save off by less needs no explanation
SHOWN = 6


@dataclass(frozen=True, slots=True)
class Comparison(Candidate):
    """A log with the prediction of exactly what it ran, on the machine it ran on."""

    row: Estimated
    log: RunLog
    speed: Speed
    smoke: bool = False  # the log's run stops after another number of steps than the job's

    @property
    def steps(self) -> int:
        """Steps of the whole job."""
        return self.row.steps if self.smoke else self.own_steps

    @property
    def own_steps(self) -> int:
        """Steps of the log's own run."""
        return self.log.max_steps or self.row.steps

    @property
    def spoiled(self) -> str:
        """Why the log's times speak of a busy machine; empty: they speak of the training."""
        return spoiled_by(self.log, self.speed)

    @property
    def predicted_save_s(self) -> float:
        """[s] of a save, predicted."""
        return self.row.time_s.checkpoint / max(self.row.checkpoints, 1)

    @property
    def save_s(self) -> float:
        """[s] of a save: measured, else predicted."""
        return self.predicted_save_s if self.speed.save_s is None else self.speed.save_s

    @property
    def saves_done(self) -> int:
        """Saves up to the log's last step: those it holds, else as the interval says."""
        if self.log.saves_s:
            done = len(self.log.saves_s)
            return done if self.smoke else min(done, self.row.checkpoints)
        if self.log.steps_done >= self.steps and not self.smoke:
            return self.row.checkpoints
        return self.log.steps_done // self.config.checkpoint_every_steps

    @property
    def planned_evaluations(self) -> int:
        """Evaluations of the whole run that the prediction counts."""
        return own.times(self.steps) if (own := self.job.timed_evaluation) else 0

    @property
    def evaluates(self) -> bool:
        """Whether the run evaluates: not where some were due and its log has none."""
        return not self.log.tells_evaluations or bool(self.log.evaluations or not self._due)

    @property
    def _due(self) -> int:
        """Evaluations that the job has up to the log's last step."""
        own = self.job.timed_evaluation
        if own is None:
            return 0
        if self.log.steps_done >= self.own_steps and own.every_steps <= 0:
            return self.planned_evaluations
        every = own.every_steps
        return own.at_start + (self.log.steps_done // every if every > 0 else 0)

    @property
    def evaluations(self) -> int:
        """Evaluations of the whole run: as the job states them, else at the log's rate."""
        own = self.job.timed_evaluation
        if not self.evaluates:
            return 0
        if own is None:
            return round(len(self.log.evaluated_s) * self.steps / self.log.steps_done)
        return own.times(self.steps)

    @property
    def evaluations_done(self) -> int:
        """Evaluations that the log holds, or else would hold by its last step."""
        if self.log.evaluations:
            done = len(self.log.evaluated_s)
            return done if self.smoke else min(done, self.evaluations)
        if self.log.steps_done >= self.own_steps and self.job.timed_evaluation is None:
            return self.evaluations
        return self._due if self.evaluates else 0

    @property
    def predicted_evaluation_s(self) -> float:
        """[s] of an evaluation, predicted."""
        return self.row.time_s.evaluation / max(self.planned_evaluations, 1)

    @property
    def evaluation_s(self) -> float:
        """[s] of an evaluation: measured, else predicted."""
        seconds = self.log.evaluated_s
        return sum(seconds) / len(seconds) if seconds else self.predicted_evaluation_s

    @property
    def predicted_s(self) -> float:
        """[s] of the whole run, predicted: without evaluations where it has none."""
        return self.row.duration_s.p50 - (0.0 if self.evaluates else self.row.time_s.evaluation)

    @property
    def predicted_start_s(self) -> float:
        """[s] that pass before the training, predicted: of the same as the log's `before_s`."""
        parts = self.row.time_s
        return parts.load + (parts.prepare if self.log.prepare_s is None else 0.0)

    @property
    def timed_whole_s(self) -> float | None:
        """[s] of the whole job, where the log timed one run of it from begin to end."""
        done = self.log.steps_done >= self.steps and not self.smoke and self.log.sessions == 1
        return self.log.whole_s if done else None

    @property
    def projected_s(self) -> float:
        """[s] of a whole run: what was measured, and the rest as predicted."""
        if self.timed_whole_s is not None:
            return self.timed_whole_s
        parts, log = self.row.time_s, self.log
        rest = parts.compile + parts.final_save + parts.lost_work
        rest += parts.load if log.before_s is None else log.before_s
        if log.before_s is None or log.prepare_s is not None:
            rest += log.prepare_s or parts.prepare
        rest += self.row.checkpoints * self.save_s + self.evaluations * self.evaluation_s
        return rest + self.steps * self.speed.step_s


def lines_of(found: Comparison) -> tuple[Line, ...]:
    """Step, tokens, saves, evaluations, what the log covers, the total and peak memory."""
    row, speed = found.row, found.speed
    tokens = row.tokens_per_s * row.step_time_s
    lines = [
        Line("step_time", row.step_time_s, speed.step_s, "s", _step_note(found)),
        Line("tokens_per_s", row.tokens_per_s, tokens / speed.step_s, "tokens/s"),
        *_data_line(found),
        _checkpoints(found),
        *_evaluation(found),
        *_start(found),
        _covered(found),
        _total(found),
        *_memory(found),
    ]
    return tuple(lines)


def _step_note(found: Comparison) -> str:
    """How many steps the mean is of, and how far they scatter."""
    seen, note = found.speed.seen_sd, f"mean of {found.speed.steps:,} steps"
    if seen is None:
        return note
    return f"{note}; parts of the run scatter by {100 * seen:,.0f} %"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _data_line(found: Comparison) -> list[Line]:
    if found.log.data_wait_s is None:
        return []
    predicted = found.row.time_s.data_wait / max(found.row.steps, 1)
    return [Line("data_wait", predicted, found.log.data_wait_s, "s", "of each step")]


def _checkpoints(found: Comparison) -> Line:
    done, each = found.saves_done, found.predicted_save_s
    measured = found.speed.save_s
    if measured is None:
        note = f"{_counted(done, 'save')} so far; the log does not time them"
        return Line("checkpoints", done * each, None, "s", note)
    return Line(
        "checkpoints", done * each, done * measured, "s", f"{_counted(done, 'save')} so far"
    )


def _evaluation(found: Comparison) -> list[Line]:
    seconds = found.log.evaluated_s
    if not seconds and found.job.timed_evaluation is None:
        return []
    if not seconds:
        if not found.evaluates:
            predicted = found.row.time_s.evaluation
            return [Line("evaluation", predicted, None, "s", "the run had none")]
        predicted = found.evaluations_done * found.predicted_evaluation_s
        return [Line("evaluation", predicted, None, "s", "the log does not time evaluations")]
    note = f"{_counted(len(seconds), 'evaluation')} so far"
    if found.job.timed_evaluation is None:
        note += "; the job states none"
    predicted = len(seconds) * found.predicted_evaluation_s
    return [Line("evaluation", predicted, sum(seconds), "s", note)]


def _start(found: Comparison) -> list[Line]:
    """What passed before the training began, and before that where rows were tokenised first."""
    log, parts = found.log, found.row.time_s
    if log.before_s is None:
        return []
    both = log.prepare_s is None and parts.prepare > 0
    note = "rows that the program tokenised included" if both else ""
    lines = [Line("load", found.predicted_start_s, log.before_s, "s", note)]
    if log.prepare_s:
        lines.append(Line("prepare", parts.prepare, log.prepare_s, "s"))
    return lines


def _covered(found: Comparison) -> Line:
    """What the log times, against the same steps, saves and evaluations as predicted."""
    log, row = found.log, found.row
    saves = sum(log.saves_in(part) for part in log.stretches)
    held = sum(len(log.evaluations_in(part)) for part in log.stretches)
    predicted = log.covered_steps * row.step_time_s
    predicted += saves * found.predicted_save_s + held * found.predicted_evaluation_s
    if any(part.warm_up for part in log.stretches):
        predicted += row.time_s.compile
    begin = min(part.begin for part in log.stretches)
    end = max(part.end for part in log.stretches)
    whole = log.covered_steps == end - begin
    part = "" if whole else f"{log.covered_steps:,} of "
    note = f"{part}steps {begin + 1:,} to {end:,}, {_counted(saves, 'save')} in them"
    return Line("timed", predicted, log.covered_s, "s", note)


def _total(found: Comparison) -> Line:
    predicted = found.predicted_s
    if found.smoke:
        note = f"of the whole job, which this was not: step {found.log.steps_done:,}"
        return Line("total", predicted, None, "s", note)
    if found.log.steps_done < found.steps:
        note = f"not finished: step {found.log.steps_done:,} of {found.steps:,}"
        return Line("total", predicted, None, "s", note)
    if found.log.whole_s is not None:
        without = "" if found.evaluates else "without the evaluations, which it did not have"
        return Line("total", predicted, found.log.whole_s, "s", without)
    note = "what the log does not time (loading, the final save) is as predicted"
    return Line("total", predicted, found.projected_s, "s", note)


def _memory(found: Comparison) -> list[Line]:
    """The peak of the kind that the log holds, against the same kind."""
    best = best_memory(found.log)
    if best is None:
        return []
    kind, actual = best
    parts = found.row.memory_bytes
    predicted = {
        "allocated": parts.total - parts.context - parts.fragmentation,
        "reserved": found.row.reserved_bytes,
        "nvidia-smi": found.row.reserved_bytes + parts.context,
    }.get(kind, parts.total)
    note = kind if kind != "unknown" else "the log does not say of which kind"
    return [Line("peak_memory", predicted, actual, "bytes", note)]


def explanations(
    found: Comparison, observations: tuple[Observation, ...], before: Calibration
) -> tuple[Explained, ...]:
    """What could explain a step or a save that is off by more than a tenth.

    Alternatives that miss it by more than a third on its other side explain something else.
    """
    if found.log.waiting and found.spoiled:
        return (_busy(found),)
    told = _waits(found)
    pricing = Pricing(found.job, before)
    for observation in (*observations, *_with_saves(found, observations)):
        if observation.quantity == "evaluation_s":  # what was evaluated is stated
            continue
        predicted = {
            "step_time_s": found.row.step_time_s,
            "checkpoint_save_s": found.predicted_save_s,
        }.get(observation.quantity)
        if predicted and 1 / GAP <= observation.value / predicted <= GAP:
            continue
        reference = reference_of(found.job, observation)
        if reference is None:
            continue
        slower = predicted is None or observation.value > predicted
        told += [
            item
            for item in explanations_of(reference, pricing.price)
            if observation.quantity == "step_time_s" or item.name == "checkpoint_disk"
            if item.name not in _stated(found.log)
            if item.explains or (item.predicted_s < item.measured_s) == slower
        ][:SHOWN]
    return tuple(told)


def _stated(log: RunLog) -> set[str]:
    """Beliefs that the log itself settles."""
    known = {"attention", "activation_checkpointing", "precision"} & set(log.knobs)
    if "num_dataloader_workers" in log.knobs and log.data_wait_s is not None:
        known.add("dataloader")
    return known | ({"micro_batch"} if log.micro_batch_size else set())


def _busy(found: Comparison) -> Explained:
    """That the machine was busy: what is predicted, were so much of the time spent waiting."""
    told = found.row.step_time_s / (1.0 - min(found.log.waiting or 0.0, 0.99))
    return Explained("busy_machine", found.spoiled, told, found.speed.step_s)


def _waits(found: Comparison) -> list[Explained]:
    """That steps wait for data, where the log timed that and it is more than was predicted."""
    wait, row = found.log.data_wait_s, found.row
    excess = 0.0 if wait is None else wait - row.time_s.data_wait / max(row.steps, 1)
    if wait is None or excess <= (GAP - 1.0) * row.step_time_s:
        return []
    text = f"each step waits {format_seconds(wait)} for its data, as the log times it"
    return [Explained("data_wait", text, row.step_time_s + excess, found.speed.step_s)]


def _with_saves(found: Comparison, observations: tuple[Observation, ...]) -> list[Observation]:
    """The time that the log covers as a short run's duration, where saves could not be told apart.

    Then the disk may be what is slow, not the step.
    """
    if not found.speed.save_assumed:
        return []
    parts, log = found.row.time_s, found.log
    beside = parts.load + parts.prepare + parts.final_save
    if not any(part.warm_up for part in log.stretches):
        beside += parts.compile
    facts = {**observations[0].facts, "steps": log.covered_steps}
    value = log.covered_s + beside
    return [replace(observations[0], quantity="duration_s", value=value, facts=facts)]
