"""Seconds and bytes of checkpoints, how often to save (Young/Daly), and what interruptions cost.

Covers: the Trainer's checkpoints (trained weights, optimizer states, random and scheduler state),
adapters and what trains whole for LoRA; several devices writing through one host.
Does not cover: asynchronous and sharded checkpoints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.cost import deepspeed, whole_modules
from autotune.cost.columns import Columns, Component, FloatArray, Outputs
from autotune.cost.memory.states import STATE_BYTES_8BIT
from autotune.cost.parameters import trainable_parameters
from autotune.cost.spread.uncertainty import host_spread
from autotune.domain.config import NEVER_STEPS, SHARDED
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from autotune.domain.job import Job

READS = (
    "offer.device", "offer.count", "offer.host", "offer.network", "optimizer", "adapter_dtype",
    "sharding", "precision",
)  # fmt: skip
SMALL_FILES_BYTES, WORD_BYTES = 0.5e6, 80.0  # states of trainer and random; a tokenizer's word
# What a save takes beside its bytes, measured on one core (transformers 5.23, peft 0.21): files
# and states 10 ms, a fast tokenizer 0.09 s of 128,000 words, seven adapters and their moments 2 ms
# a layer.
OPENING_S, WORD_S, LAYER_S = 0.05, 0.8e-6, 2e-3
SERIALISE_BYTES_PER_S = 1.5e9  # torch.save and safetensors on one core: assumption
STATES_8BIT = 2 * STATE_BYTES_8BIT  # both moments
DEFAULT_LIMIT = 2.0  # keep the last and the one before: a save that was cut short loses nothing
# Disks behind one name differ by factors, more so where nobody stated the speed: assumptions until
# one save is measured.
LOG_SD, ASSUMED_LOG_SD = 0.35, 0.60
# What an interruption may cost where nobody said: half an hour, and longer where saves that often
# would take more than a tenth of the time that they protect.
MAX_LOST_WORK_S, SAVING_SHARE = 1800.0, 0.1
NEVER_PER_S = 1e-12  # rarer than once in thirty thousand years
HIGHEST_LOSS = 0.95  # share of the time lost at which a run practically never ends


def price_checkpoint(job: Job, columns: Columns) -> Outputs:
    """[s] to save a checkpoint and the final model; [bytes] of both, and of the disk if stated.

    DeepSpeed saves its fp32 masters and moments, and the model a second time: once by the Trainer,
    once in its own folder. Source: transformers Trainer._save_optimizer_and_scheduler calls the
    engine's save_checkpoint; deepspeed 0.18.9 runtime/engine.py (stage 3 keeps no model there).
    With `save_only_model` neither is called (transformers 5.23 trainer.py, `_save_checkpoint`).
    """
    count = trainable_parameters(job)
    own = whole_modules.moment_bytes(job, columns, STATES_8BIT)
    masters = deepspeed.saved_state_bytes(job, columns, STATES_8BIT) * count
    with_states = not job.software.saves_model_only
    engine = deepspeed.runs(columns) & with_states  # which saves in its own folder
    state = with_states * np.where(engine, masters, own)
    weights = whole_modules.trained_bytes(job, columns)
    again = engine & columns.equals("sharding", "zero2")
    small = SMALL_FILES_BYTES + WORD_BYTES * job.model.vocab_size
    by_one = np.where(again, 2.0, 1.0) * weights + small
    total = by_one + state
    shared = np.where(engine, state, 0.0)
    beside = OPENING_S + WORD_S * job.model.vocab_size + LAYER_S * job.model.num_layers
    return {
        "save_s": beside + _write_seconds(columns, total, shared),
        "final_save_s": beside + _write_seconds(columns, weights + small, 0.0 * shared),
        "bytes": total,
        "final_bytes": weights + small,
        "stated_disk_bytes": columns.of_host(lambda host: host.stated_bytes("disk_bytes")),
        "log_sd": host_spread(
            columns, "checkpoint_write_bytes_per_s", stated=LOG_SD, assumed=ASSUMED_LOG_SD
        ),
    }


def _write_seconds(columns: Columns, size: FloatArray, shared: FloatArray) -> FloatArray:
    """[s] copy to the host, serialise and write; sharded states are first gathered on one device.

    shared: bytes of it that each device copies and serialises for itself, its share of them.
    Source: derived: the stages follow one another in `Trainer._save_checkpoint`.
    """
    own = size - shared + shared / np.maximum(columns.number("offer.count"), 1.0)
    sharded = columns.shared_by(*SHARDED)
    between = columns.of_network(lambda own: own.bytes_per_s * own.share, np.inf)
    link = np.minimum(columns.device("link_bytes_per_s"), between)
    gather = np.where(sharded, (size - shared) / link, 0.0)
    copy = own / columns.device("pcie_bytes_per_s")
    write = size / columns.host("checkpoint_write_bytes_per_s")
    return gather + copy + own / SERIALISE_BYTES_PER_S + write


COMPONENT = Component("checkpoint", READS, price_checkpoint, of_job=())


def young_daly_interval_steps(
    *,
    step_s: FloatArray,
    save_s: FloatArray,
    steps: FloatArray,
    interruptions_per_s: FloatArray,
    max_lost_work_s: float | None,
) -> FloatArray:
    """[n] whole optimizer steps between saves that cost least, within the work one may lose.

    The saves that this makes are spread evenly: as many of them, and less work at risk.
    Formula: spot sqrt(2 C M) seconds, C save seconds, M mean seconds between interruptions; on
    demand the interval is as long as the loss the user accepts (None: nobody said which). At least
    1, at most all steps.
    Source: Young, "A first order approximation to the optimum checkpoint interval" (1974).
    """
    rate = np.asarray(interruptions_per_s, np.float64)
    interrupted = rate > NEVER_PER_S
    longest_s = np.asarray(max_lost_work_s, np.float64)
    if max_lost_work_s is None:
        longest_s = np.maximum(MAX_LOST_WORK_S, save_s / SAVING_SHARE)
    best_s = np.sqrt(2.0 * save_s / np.where(interrupted, rate, 1.0))
    seconds = np.where(interrupted, np.minimum(best_s, longest_s), longest_s)
    wanted = np.floor(seconds / np.maximum(step_s, 1e-9))
    most = np.maximum(steps, 1.0)
    longest = np.clip(wanted, 1.0, most)
    even: FloatArray = np.ceil(most / np.ceil(most / longest))
    return even


def saves(steps: FloatArray | float, interval: FloatArray | float) -> FloatArray:
    """[n] checkpoints the Trainer writes: every `interval` steps, at the last step, or never.

    Source: transformers `DefaultFlowCallback`: without a `save_strategy` nothing asks for a save.
    """
    return np.where(interval < NEVER_STEPS, np.ceil(steps / np.maximum(interval, 1.0)), 0.0)


def lost_work_s(
    *,
    running_s: FloatArray,
    interval_s: FloatArray,
    interruptions_per_s: FloatArray,
    restart_s: FloatArray,
) -> FloatArray:
    """[s] expected time redone or spent starting again.

    Formula: running x / (1 - x) with x = rate (interval / 2 + restart): each interruption loses
    half an interval and a start, and the time this takes is interrupted in its turn.
    Source: derived: geometric series over interruptions at a constant rate; Daly (2006), eq. 8.
    """
    redone = np.minimum(interval_s, running_s) / 2.0 + restart_s
    share = np.minimum(np.asarray(interruptions_per_s, np.float64) * redone, HIGHEST_LOSS)
    lost: FloatArray = running_s * share / (1.0 - share)
    return lost


def interruptions_variance(
    *,
    running_s: FloatArray,
    interval_s: FloatArray,
    interruptions_per_s: FloatArray,
    restart_s: FloatArray,
) -> FloatArray:
    """[s^2] variance of the time that interruptions cost, at a rate that is known.

    Formula: rate x running x E[X^2], where one interruption costs X = U + restart with U uniform
    over the interval: E[X^2] = interval^2 / 3 + interval x restart + restart^2.
    Source: derived: a compound Poisson process.
    """
    interval = np.minimum(interval_s, running_s)
    square = interval**2 / 3.0 + interval * restart_s + restart_s**2
    found: FloatArray = np.asarray(interruptions_per_s, np.float64) * running_s * square
    return found


def resumed_s(
    *, running_s: FloatArray, session_s: float | None, save_s: FloatArray, restart_s: FloatArray
) -> FloatArray:
    """[s] of saving before each session ends and starting again, where one does not suffice.

    Formula: sessions = ceil((running - e) / (session - e)) with e = save + restart, each but the
    first costing e. A session that hardly outlasts its own start is counted as making a twentieth
    of its length.
    Source: derived: a session's useful time is what its start and its save leave of it.
    Does not cover: skipping batches already seen, waiting for the next session.
    """
    if session_s is None:
        return np.zeros_like(running_s)
    each = save_s + restart_s
    useful = np.maximum(session_s - each, (1.0 - HIGHEST_LOSS) * session_s)
    again = np.ceil(np.maximum(running_s - session_s, 0.0) / useful)
    extra: FloatArray = again * each
    return extra


@dataclass(frozen=True)
class OnDisk:
    """What lies on the disk of the results when it is fullest. Shapes [n]."""

    limit: FloatArray  # checkpoints to keep
    checkpoints: FloatArray  # that lie there at once
    final_bytes: FloatArray  # of the model at the end; 0 where it comes when there is less

    @classmethod
    def of(cls, limit: FloatArray, saves: FloatArray, final_bytes: FloatArray) -> OnDisk:
        """With so many kept of so many that are written.

        A new checkpoint is written before the oldest is deleted, so one more than the limit must
        fit, but never more than are written; where none is deleted, the final model comes beside
        all of them.
        Source: transformers `Trainer._save_checkpoint` (rotation follows saving).
        """
        rotated = saves > limit
        at_once, beside = np.where(rotated, limit + 1.0, saves), np.where(rotated, 0.0, final_bytes)
        return cls(limit, at_once, beside)

    def total(self, size_bytes: FloatArray) -> FloatArray:
        """[bytes] of it, with checkpoints of that size."""
        return self.checkpoints * size_bytes + self.final_bytes


def on_disk(
    locked_limit: FloatArray,
    size_bytes: FloatArray,
    final_bytes: FloatArray,
    stated_bytes: FloatArray,
    saves: FloatArray,
) -> OnDisk:
    """How many checkpoints to keep, and what that takes.

    locked_limit: the user's limit; 0 takes two, or one where two do not fit the stated disk. saves:
    checkpoints that the run writes in all.
    """
    locked = np.asarray(locked_limit, np.float64)
    two = OnDisk.of(np.full_like(locked, DEFAULT_LIMIT), saves, final_bytes)
    free = np.where(two.total(size_bytes) <= stated_bytes, DEFAULT_LIMIT, 1.0)
    return OnDisk.of(np.where(locked > 0, locked, free), saves, final_bytes)
