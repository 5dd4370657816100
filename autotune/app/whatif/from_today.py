"""Today to the pick: the waterfall, options around it, and readings of what was measured.

Changes around the job that no knob makes (where data and checkpoints lie, how rows are padded) are
each credited with what the cost model says they can physically give, the others given (Shapley),
and none is applied. A change of the global batch is priced as well, and named as the user's.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.app.whatif.diagnosis import measured_gaps
from autotune.app.whatif.levers import EVALUATION_BATCH
from autotune.app.whatif.waterfall import RunEdit, State, config_edits, pricer, waterfall_between
from autotune.catalog.local import LOCAL_READ_BYTES_PER_S
from autotune.cost.time.attention import leaves_cudnn
from autotune.cost.time.data import TOKENISED_PER_CORE_S, row_bytes, tokenised_bytes
from autotune.domain.answer.waterfall import SideOption, Waterfall, WaterfallStep, WhatIf
from autotune.domain.config import SPLIT, split_of
from autotune.domain.edit import Edit
from autotune.domain.software import WITHOUT_CUDNN
from autotune.domain.units import MB, format_bytes, format_count, format_seconds
from autotune.pricing import Pricing, bills_under, on_job
from autotune.search.selection import best_index
from autotune.space.requirements import CUDA_GRAPH_MODES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.app.whatif.waterfall import PriceStates
    from autotune.domain.candidates import SearchSpace
    from autotune.domain.job import Job
    from autotune.domain.observation import Calibration
    from autotune.domain.outcome import Estimated
    from autotune.pricing import QuestionEdit

NVME_WRITE_BYTES_PER_S = LOCAL_READ_BYTES_PER_S  # assumption: a local disk writes as it reads
NOTHING = 0.005  # share of the run below which a change is worth about nothing


def side_options(
    pick: State, price: PriceStates, space: SearchSpace, calibration: Calibration
) -> tuple[SideOption, ...]:
    """What could be changed around the pick, the largest saving first."""
    if not pick.job.steps:
        return ()
    edits = list(_edits(pick))
    found: list[SideOption] = []
    if edits:
        fall = waterfall_between(pick, edits, price)
        own = {edit.label: edit for edit in edits}
        found = [
            SideOption(
                step.change, step.from_, step.to, step.duration_s, step.cost_usd,
                _worth(step.duration_s, fall.start_s) + step.note,
                own[step.change].typed if step.change in own else "",
            )
            for step in fall.steps
        ]  # fmt: skip
    other = _other_batch(pick, space, calibration, price)
    return (*found, *((other,) if other else ()))


def _worth(change_s: float, whole_s: float) -> str:
    return "worth about nothing: " if abs(change_s) < NOTHING * whole_s else ""


def _edits(pick: State) -> Iterator[RunEdit]:
    """In this order: what is copied depends on whether rows are tokenised."""
    job, host = pick.job, pick.offer.host
    if not job.pretokenized:
        yield Edit(
            _tokenised, "data.pretokenized", before="false", value="true",
            typed="tokenise once on a machine without a GPU; data.pretokenized: true",
            columns=("offer.host",), note=_tokenising_text(job),
        )  # fmt: skip
    if job.storage == "network":
        yield Edit(
            _staged, "data.storage", before="network", value="local",
            typed="copy the data set to the machine's own disk before the run",
            columns=("offer.host",), note=_staging_text(pick),
        )  # fmt: skip
    if job.padding == "max_length":
        yield Edit(
            _padded_less, "data.padding", before="max_length", value="longest",
            typed="a collator that pads to the longest row: --set data.padding=longest",
            columns=("micro_batch_size",), note="the device computes padding like any other token",
        )  # fmt: skip
    if host.checkpoint_write_bytes_per_s < NVME_WRITE_BYTES_PER_S:
        before, after = (
            f"{rate / MB:.0f} MB/s"
            for rate in (host.checkpoint_write_bytes_per_s, NVME_WRITE_BYTES_PER_S)
        )
        yield Edit(
            _faster_disk, "checkpoint disk", before=before, value=after,
            typed="output_dir on the machine's own disk, copied away between saves",
            columns=("offer.host",),
            note="an assumed local NVMe disk; what lies only there is lost with the machine",
        )  # fmt: skip


def _tokenised(state: State) -> State:
    return replace(state, job=replace(state.job, pretokenized=True))


def _padded_less(state: State) -> State:
    """Batches of changing shape: what needs one shape gives way to plain compiling."""
    config = state.config
    if config.compile in CUDA_GRAPH_MODES and config.packing == "off":
        config = config.with_knobs(compile="default")
    return replace(state, job=replace(state.job, padding="longest"), config=config)


def _staged(state: State) -> State:
    """On the local disk, after one copy at the rate of the network."""
    host = state.offer.host
    local = max(host.storage_read_bytes_per_s, float(LOCAL_READ_BYTES_PER_S))
    return replace(
        state,
        job=replace(state.job, storage="local"),
        offer=replace(state.offer, host=replace(host, storage_read_bytes_per_s=local)),
        extra_s=state.extra_s + stored_bytes(state.job) / host.storage_read_bytes_per_s,
    )


def _faster_disk(state: State) -> State:
    host = replace(state.offer.host, checkpoint_write_bytes_per_s=float(NVME_WRITE_BYTES_PER_S))
    return replace(state, offer=replace(state.offer, host=host), other_disk=True)


def stored_bytes(job: Job) -> float:
    """[bytes] of the data set as it lies on the storage: tokens where it is tokenised, else text.

    Source: derived: rows x what a row takes.
    """
    if job.pretokenized:
        return tokenised_bytes(job)
    return job.rows * row_bytes(job)


def _tokenising_text(job: Job) -> str:
    seconds = job.rows * job.lengths.mean / TOKENISED_PER_CORE_S
    return f"all rows take {format_seconds(seconds)} of one core, before the run or in it"


def _staging_text(pick: State) -> str:
    job, host = pick.job, pick.offer.host
    size, rate = stored_bytes(job), host.storage_read_bytes_per_s
    seconds = Pricing(job).of([(pick.offer, pick.config)]).duration_s[0]
    tokens = tokenised_bytes(job)
    ready = "" if job.pretokenized else f" ({format_bytes(tokens)} once tokenised)"
    needed = size * max(job.epochs, 1.0) / max(float(seconds), 1.0)
    return (
        f"the run reads {needed / MB:.2g} MB/s and the storage gives {rate / MB:.0f} MB/s; "
        f"copying {format_bytes(size)}{ready} takes {format_seconds(size / rate)}, which is counted"
    )


def _other_batch(
    pick: State, space: SearchSpace, calibration: Calibration, price: PriceStates
) -> SideOption | None:
    """The global batch that an entry of the evidence speaks of, else twice the job's."""
    batch = _seen_batch(pick.job) or 2 * pick.job.global_batch_size
    if batch > pick.job.rows:
        return None
    edit = _batch_edit(pick, batch)
    (bill,) = bills_under((pick.job, space), [edit], calibration)
    index = None if bill is None else best_index(bill, "time", bill.job.limits).index
    if bill is None or index is None:
        return None
    before_s, before_usd = price([pick])
    row = bill.estimate(index)
    return SideOption(
        edit.key, edit.before, edit.value,
        row.duration_s.p50 - float(before_s[0]), row.cost_usd.p50 - float(before_usd[0]),
        edit.note, edit.typed, yours=edit.changes_training,
    )  # fmt: skip


def _batch_edit(pick: State, batch: int) -> QuestionEdit:
    """The question on the pick's machine with another global batch, free to be split anew."""
    before, steps = pick.job, math.ceil(pick.job.epochs * math.ceil(pick.job.rows / batch))

    def edited(job: Job) -> Job:
        made = replace(job, global_batch_size=batch, steps=steps, offers=(pick.offer,))
        return replace(made, today=None, lock={})

    return Edit(
        on_job(edited), key="train.global_batch_size", before=str(before.global_batch_size),
        value=str(batch), typed=f"--set train.global_batch_size={batch}", changes="quality",
        note=f"{format_count(steps)} steps instead of {format_count(before.steps)}: your decision, "
        "because it changes what is learned, and the learning rate with it",
    )  # fmt: skip


def _seen_batch(job: Job) -> int | None:
    """Another global batch that a stated config of the evidence makes."""
    for observation in job.evidence:
        stated = observation.facts.get("or_config")
        count = observation.facts.get("n_gpus")
        for knobs in (stated, observation.knobs):
            split = split_of(knobs) if isinstance(knobs, dict) else None
            if split is None or not isinstance(count, int):
                continue
            batch = math.prod((*split, count))
            if batch != job.global_batch_size:
                return batch
    return None


SAME_S, SAME_USD = 1e-3, 1e-5


def what_if_of(
    job: Job,
    space: SearchSpace,
    calibration: Calibration,
    today: Estimated | None,
    best: Estimated | None,
) -> WhatIf | None:
    """From today's config to the pick; None where one of them is missing."""
    if today is None or best is None:
        return None
    price = pricer(calibration)
    start, end = State(job.as_today, today.offer, today.config), State(job, best.offer, best.config)
    edits = [*batch_edit(job), *config_edits(start, end), *evaluation_edit(job, best)]
    edits += plans_edit(job, best)
    fall = waterfall_between(start, edits, price)
    if today.basis == "measured":
        fall = starting_at(
            fall, today.duration_s.p50, today.cost_usd.p50, "modelled instead of measured",
            ("measured", "the cost model"),
        )  # fmt: skip
    # Of a pick at another batch, or that was measured itself, today's time says nothing.
    readable = job.today_batch is None and best.basis != "measured"
    return WhatIf(
        waterfall=ending_at(fall, best, "measured instead of modelled"),
        options=side_options(end, price, space, calibration),
        gaps=measured_gaps(job, space, best) if readable else (),
    )


def batch_edit(job: Job) -> tuple[RunEdit, ...]:
    """The change from the global batch that today's config makes to the job's; nothing if none."""
    own = job.today_batch
    if own is None:
        return ()

    def changed(state: State) -> State:
        moved = replace(state.job, global_batch_size=job.global_batch_size, steps=job.steps)
        return replace(state, job=moved)

    before, after = str(own.global_batch_size), str(job.global_batch_size)
    edit = Edit(
        changed, "train.global_batch_size", before=before, value=after, changes="quality",
        columns=SPLIT,
    )  # fmt: skip
    return (edit,)


def plans_edit(job: Job, best: Estimated) -> tuple[RunEdit, ...]:
    """The variable that run.sh sets, and that what starts the file today does not."""
    stands = job.as_it_stands.software.cudnn_attention
    if not stands or not leaves_cudnn(job, best.offer.device, best.config):
        return ()

    def changed(state: State) -> State:
        return replace(state, job=replace(state.job, software=job.software))

    name = WITHOUT_CUDNN
    return (Edit(changed, name, name, "unset", "1", changes="numeric", columns=(name,)),)


def evaluation_edit(job: Job, best: Estimated) -> tuple[RunEdit, ...]:
    """The evaluation batch that the pick's file states, from the one that its trainer takes."""
    before, plan = job.as_it_stands.timed_evaluation, job.timed_evaluation
    if plan is None or before is None:
        return ()
    had, has = (own.rows_at_once(best.config.micro_batch_size) for own in (before, plan))
    if had == has:
        return ()

    def changed(state: State) -> State:
        return replace(state, job=replace(state.job, evaluation=plan))

    name = EVALUATION_BATCH
    return (Edit(changed, name, name, str(had), str(has), columns=("evaluation",)),)


def ending_at(fall: Waterfall, row: Estimated, why: str) -> Waterfall:
    """The waterfall with a last step to a row that another basis prices otherwise."""
    seconds = row.duration_s.p50 - fall.end_s
    dollars = row.cost_usd.p50 - fall.end_usd
    closed = replace(fall, end_s=row.duration_s.p50, end_usd=row.cost_usd.p50)
    if _tiny(seconds, dollars):
        return replace(closed, steps=_absorbed(fall.steps, seconds, dollars))
    last = WaterfallStep(why, "the cost model", row.basis, seconds, dollars)
    return replace(closed, steps=(*fall.steps, last))


def starting_at(
    fall: Waterfall, seconds: float, dollars: float, why: str,
    bases: tuple[str, str] = ("as recorded", "as answered now"),
) -> Waterfall:  # fmt: skip
    """The waterfall with a first step from what was said before, on another basis."""
    gap_s, gap_usd = fall.start_s - seconds, fall.start_usd - dollars
    opened = replace(fall, start_s=seconds, start_usd=dollars)
    if _tiny(gap_s, gap_usd):
        return replace(opened, steps=_absorbed(fall.steps, gap_s, gap_usd))
    first = WaterfallStep(why, *bases, gap_s, gap_usd)
    return replace(opened, steps=(first, *fall.steps))


def _tiny(seconds: float, dollars: float) -> bool:
    """What only the order of additions makes."""
    return abs(seconds) <= SAME_S and abs(dollars) <= SAME_USD


def _absorbed(
    steps: tuple[WaterfallStep, ...], seconds: float, dollars: float
) -> tuple[WaterfallStep, ...]:
    """The remainder in the largest step, so that the sum stays exact."""
    if not steps:
        return steps
    most = max(range(len(steps)), key=lambda i: abs(steps[i].duration_s))
    own = steps[most]
    whole = replace(own, duration_s=own.duration_s + seconds, cost_usd=own.cost_usd + dollars)
    return (*steps[:most], whole, *steps[most + 1 :])
