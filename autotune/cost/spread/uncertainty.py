"""How far a predicted step may be off, by what is uncertain.

Variances of log(step) add: what the fit leaves of its constants, what groups left out of the fit
scattered by, and what nobody knows of this job or device. `variance` names the largest.

How the micro-step answers to each constant of the fit stands in `gradient`.

Source: derived: independent errors to first order. Sizes: `calibration.toml` where they are fitted,
assumptions with their reason below where no measured step speaks of them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.batches import unchanging_lengths
from autotune.cost.constants import fitted
from autotune.cost.spread.gradient import TINY, host_share, parameter_variance
from autotune.cost.spread.unsaid import total, unsaid
from autotune.cost.time.attention import takes_cudnn
from autotune.cost.time.efficiency import distinct_devices
from autotune.cost.time.launch import HOSTS
from autotune.domain.config import FLASH
from autotune.domain.outcome import Z90

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.cost.columns import BoolArray, Columns, FloatArray
    from autotune.cost.constants import Fitted, Spreads
    from autotune.cost.time.step_terms import StepTerms
    from autotune.domain.device import Device
    from autotune.domain.job import Job

# A processor that no measured step speaks of; other devices of which none does have a spread of the
# record, of devices left out whole (`Spreads.device`). Sources that measure a device take it away
# one after the other (`device_variances`).
PROCESSOR = 0.60
# Of devices without a measured step, boards in a PCIe slot (GeForce, T4, L4, A10) reach a factor 2
# on the slow side: they sit in hosts of any kind, under limits of power and cooling that no data
# sheet states. Assumption. Published runs that are in no fit mostly took 1.4 to 2.1 times the
# model's time on an A10G, A10, T4 and RTX 5090 (docs/accuracy.md, docs/decisions.md).
NEVER_MEASURED_BOARD = math.log(2.0) / Z90
# The processor beside a board in a slot is anyone's, from clouds' old Xeons to desktops: seconds to
# issue a kernel reach a factor 2 each way. Assumption; published runs that wait for it took 0.36
# (H100 PCIe) to 1.7 times the model's time (RTX 5090), on A100 servers 1.0 to 1.2.
SLOT_HOST = math.log(2.0) / Z90
# Hosts that come with Hopper and Blackwell boards are fast (`time.launch.HOSTS`) where nobody else
# is on them. In virtual machines, as most are rented, steps that wait for the host took 1.0 to 2.3
# times what was said (runs/recorded/h100-sxm), and Soup's 1.3 times. On the slow side.
VIRTUAL_HOST = math.log(1.6) / Z90
# LLM.int8 reaches a factor 2 on the slow side: runs of four sources in no fit took 0.8 to 2.4 times
# the model's time, three of them 1.8 and more (A10, RTX 6000 Ada, A100; not an RTX 3090).
INT8_SLOW = math.log(2.0) / Z90
# Between sources, several GPUs on the slow side: links, waiting for the slowest and other tenants
# are in no job file. An assumption for programs that the fit knows; a new one has as much. Outside
# the record (34 sources, docs/accuracy.md) 65 % of runs on several GPUs were inside without it, 73
# with it; of pages that state their run 77 and 86. The middle is right: 1.03 in the median.
SEVERAL_GPUS = math.log(1.7) / Z90
# Rows said to come from an L40 lie within 7 % of what an L40S would take, at twice an L40's rate,
# and their file is called l40_40gb, which neither board is: the label may be wrong.
LABEL_IN_DOUBT = {"l40": 0.15}
# A device whose products, kernels and host were measured (`time.measured_rates`), not its steps:
# attention, the trainer's own work and how they overlap remain. Assumptions; on a processor four
# configurations of a tiny model came within 7 % of the processor seconds of their steps.
MEASURED_DEVICE, MEASURED_PROCESSOR = 0.22, 0.30
OTHER_KERNELS = 0.10  # kernels without measured steps: the prior that the measured ones have
# What torch.compile removes is a prior from first principles, between nothing and twice as much as
# assumed. No public pair of runs with and without it is of the Trainer; of other trainers there is
# one that is like with like: torchtitan, Llama 3.1 8B in full on 8 H100, blocks compiled, 5,762 ->
# 6,667 tokens/s (16 % faster; benchmarks/llama3_h100_202412_torchtitan.md).
COMPILED = 0.30
# DoRA's step over LoRA's, public pairs: 1.25 predicted and 1.26 measured (peft's MetaMathQA, L40S,
# queries and values), "around 20 %" of its authors and 1.67 to 2.04 of a user (huggingface/peft
# #1474, 7B and 1.8B), 1.7 (modelscope/ms-swift#3033), 1.9 (huggingface/peft#3341, a FLUX model).
DORA = 0.20
FP8, FLASH_3 = 0.20, 0.05
# Models whose layers differ in shape, have latent attention or xIELU: no measured step of any is
# in the record, and no kernel of theirs was timed at the width of their heads. Of Gemma 4 31B in
# full on eight H100 at 4,096 tokens one public run exists. Assumption: a factor 1.6 on each side,
# for nine runs in ten.
MIXED_LAYERS = math.log(1.6) / Z90
# Gated delta nets, and Mamba layers like them: no step of such a model was fitted. One published
# run took 1.22 s a step without their kernels and 0.70 s with them (huggingface/transformers issue
# 48718); which of them run is said of few machines. Half of that ratio, and as much again for what
# is not measured: assumption.
DELTA_NETS = 0.40


def residual_features(job: Job, columns: Columns, issuing: FloatArray) -> dict[str, FloatArray]:
    """[rows] what each fitted spread is multiplied by. issuing: share of issuing kernels."""
    ones = np.ones(columns.rows)
    several = np.where(columns.several, 1.0, 0.0)
    quantised = job.method.is_lora and job.method.is_quantised
    return {
        "residual": ones,
        "issuing": issuing,
        "quantised": ones * quantised,
        "mixture": ones * job.model.is_moe,
        "ragged": np.where(unchanging_lengths(job, columns), 0.0, 1.0),
        "sharded": several,
        "source": several,
        "alone_fast": 1.0 - several,
    }


def issuing_share(terms: StepTerms, model: Fitted) -> FloatArray:
    """[rows] seconds to issue kernels over all seconds of a micro-step, overlapped or not."""
    seconds = terms.seconds(model.constants)
    together = seconds["launch_s"] + seconds["compute_s"] + seconds["bandwidth_s"]
    share: FloatArray = seconds["launch_s"] / together
    return share


def variances(
    job: Job, columns: Columns, terms: StepTerms, model: Fitted | None = None
) -> dict[str, FloatArray]:
    """[rows] variance of log(step) by its cause. model: another fit than the shipped one."""
    model = model or fitted()
    features = residual_features(job, columns, issuing_share(terms, model))
    found = {
        f"{name} scatter": (getattr(model.spreads, name) * feature) ** 2
        for name, feature in features.items()
    }
    found["constants"] = model.spreads.known**2 * parameter_variance(terms, model)
    found.update(_offsets(job, columns, model))
    found["host"] = (slot_host_sd(columns) * host_share(terms, model.constants)) ** 2
    found["compile"] = compile_variance(job, columns) + lever_variance(job, columns)
    found.update(_of_the_job(job, columns))
    return found


def job_log_sd(job: Job, columns: Columns) -> FloatArray:
    """[rows] log spread of a step by what nobody knows of the job, whatever the machine."""
    spread: FloatArray = np.sqrt(sum(_of_the_job(job, columns).values()))
    return spread


def _layers_sd(job: Job) -> float:
    if job.model.kernel_package:
        return DELTA_NETS
    return MIXED_LAYERS if job.model.is_unmeasured else 0.0


def _of_the_job(job: Job, columns: Columns) -> dict[str, FloatArray]:
    return {
        "objective": np.full(columns.rows, job.work.time_sd**2),
        "variant": np.full(columns.rows, DORA**2 * job.method.is_dora),
        "layers": np.full(columns.rows, _layers_sd(job) ** 2),
        "uncounted": np.full(columns.rows, job.uncounted_sd[0] ** 2),
        **{fact: sides.faster for fact, sides in unsaid(job, columns).items()},
    }


def log_sd(job: Job, columns: Columns, terms: StepTerms, model: Fitted | None = None) -> FloatArray:
    """[rows] log standard deviation of a step."""
    spread: FloatArray = np.sqrt(sum(variances(job, columns, terms, model).values()))
    return spread


def compile_variance(job: Job, columns: Columns) -> FloatArray:
    """[rows] variance of log(step) by what torch.compile gains: nobody has measured it.

    Where today's run was measured, its own setting is known and it is the others that are not.
    """
    return np.where(compile_is_known(job, columns), 0.0, COMPILED**2)


def lever_variance(job: Job, columns: Columns) -> FloatArray:
    """[rows] variance of log(step) by what fp8, flash attention 3 and cuDNN's attention gain.

    Published pairs of fp8 run from -15 to +28 %; of the other there is one.
    """
    fp8 = np.where(columns.equals("precision", "fp8"), FP8**2, 0.0)
    newer = columns.equals("attention", FLASH[1]) | takes_cudnn(job, columns)
    return fp8 + np.where(newer, FLASH_3**2, 0.0)


def compile_is_known(job: Job, columns: Columns) -> BoolArray:
    """[rows] whether no unmeasured gain of torch.compile is counted: off, or as in today's run."""
    known = columns.equals("compile", "off")
    if job.today is None or not job.evidence:
        return known
    as_today = columns.equals("compile", job.today.compile)
    if job.today.compile != "off":
        as_today = as_today & columns.equals("compile_scope", job.today.compile_scope)
    return as_today


def unseen_device(columns: Columns) -> FloatArray:
    """[rows] step at the slow end of a device that no measured step speaks of, over the step.

    1 where one does.
    """
    model = fitted()
    devices, index = distinct_devices(columns)
    unseen = [
        0.0
        if model.offset("device", device.name)
        else math.hypot(sd_of_device(device, model), math.sqrt(board_variance(device, model)))
        for device in devices
    ]
    return np.exp(Z90 * np.asarray(unseen))[index]


def board_variance(device: Device, model: Fitted, gpus: int = 1) -> float:
    """What a board in a slot adds to the variance of log(step), on the slow side alone.

    Nothing where its rates were measured. gpus: of the run.
    """
    if device.rates is not None:
        return 0.0
    return device_variances(device, model.devices.get(device.name, 0), model.spreads, gpus)[1]


def board_share(device: Device, model: Fitted, stack: str, gpus: int) -> float:
    """What a board in a slot adds, of all that is added on the slow side alone."""
    board, count = board_variance(device, model, gpus), np.asarray([float(gpus)])
    _, program = programs_of(count, model.programs.get(stack, 0), model.spreads)
    rest = float(slow_source_variance(count, program, model.spreads)[0])
    return board / max(board + rest, TINY)


def device_variances(
    device: Device, sources: int, spreads: Spreads, gpus: int
) -> tuple[float, float]:
    """What a device adds to the variance of log(step), and a board on the slow side besides.

    sources: how many have measured steps on it. One of them leaves open what is the device and what
    the source: whoever leaves that source out judges the device as one that nobody measured, so
    that its spread shrinks as sources come, and does not fall with the first. gpus: of the run.
    Formula: as `program_variances`, p what the spread of devices left out whole has beside that of
    sources.
    """
    source = spreads.source if gpus > 1 else spreads.alone_fast
    never = PROCESSOR if device.is_cpu else math.sqrt(max(spreads.device**2 - source**2, 0.0))
    both = _left(never, source, sources)
    both = max(both, LABEL_IN_DOUBT.get(device.name, 0.0) ** 2)
    if device.form_factor != "pcie":
        return both, 0.0
    return both, max(_left(NEVER_MEASURED_BOARD, spreads.alone_slow, sources) - both, 0.0)


def _left(between: float, source: float, sources: int) -> float:
    """Variance of an effect that is left by so many sources."""
    if not sources:
        return between**2
    return between**2 * source**2 / max(source**2 + sources * between**2, TINY)


def _offsets(job: Job, columns: Columns, model: Fitted) -> dict[str, FloatArray]:
    size = np.full(columns.rows, model.spreads.known**2)
    kernels = model.offset("kernels", job.software.kernels)
    counts = columns.number("offer.count")
    program, _ = programs_of(counts, model.programs.get(job.software.stack, 0), model.spreads)
    return {
        "device": _by_device(columns, lambda device, gpus: sd_of_device(device, model, gpus) ** 2),
        "stack": program,
        "kernels": size * (kernels.log_sd if kernels else OTHER_KERNELS) ** 2,
    }


def _by_device(columns: Columns, of: Callable[[Device, int], float]) -> FloatArray:
    """[rows] a number of a device and how many of it run: 1, or 2 for several."""
    devices, index = distinct_devices(columns)
    one, several = (np.asarray([of(each, gpus) for each in devices]) for gpus in (1, 2))
    return np.where(columns.several, several[index], one[index])


def programs_of(
    counts: FloatArray, sources: int | FloatArray, spreads: Spreads
) -> tuple[FloatArray, FloatArray]:
    """[n] each: `program_variances` of runs on so many GPUs.

    sources: how many have measured steps of the program, [n] or of all.
    """
    known, one = np.broadcast_to(sources, counts.shape), counts <= 1
    both, slow = np.zeros(len(counts)), np.zeros(len(counts))
    for own in sorted(set(known.tolist())):
        for alone in (False, True):
            rows = (known == own) & (one == alone)
            both[rows], slow[rows] = program_variances(int(own), spreads, alone=alone)
    return both, slow


def program_variances(
    sources: int, spreads: Spreads, *, alone: bool = False
) -> tuple[float, float]:
    """What a training program adds to the variance of log(step), and on the slow side besides.

    sources: how many have measured steps of it. Of one that none has, the spread of programs that
    were left out whole takes the place of that of sources; of the others, what so many sources
    leave open of the program's own effect. alone: of runs on one GPU.
    Formula: 1 / (1 / p^2 + n / s^2), p the spread between programs and s that between sources.
    Source: the variance of a normal mean under a normal prior; derived.
    """
    source = (spreads.alone_fast if alone else spreads.source) ** 2
    fast, slow = (max(side**2, source) for side in (spreads.program_fast, spreads.program_slow))
    if not sources:
        return fast - source, max(slow - fast, 0.0)
    between = ((math.sqrt(fast) + math.sqrt(slow)) / 2.0) ** 2
    return between * source / max(source + sources * between, TINY), 0.0


def slow_source_variance(
    counts: FloatArray, program_slow: FloatArray, spreads: Spreads
) -> FloatArray:
    """[n] what differs between sources adds to the variance of log(step), on the slow side alone.

    counts: GPUs of each run; program_slow: what its training program adds there. The wider of the
    two: they are seen together.
    """
    several = max(SEVERAL_GPUS**2 - spreads.source**2, 0.0)
    alone = max(spreads.alone_slow**2 - spreads.alone_fast**2, 0.0)
    return np.maximum(np.where(counts > 1, several, alone), program_slow)


def is_new_program(job: Job) -> bool:
    """Whether no measured step is of the job's training program."""
    return not fitted().programs.get(job.software.stack, 0)


def program_range() -> tuple[float, float]:
    """What a program that nobody measured takes of the model's time: the ends of 80 %."""
    spreads = fitted().spreads
    fast, slow = program_variances(0, spreads)
    least = spreads.source**2 + fast
    return math.exp(-Z90 * math.sqrt(least)), math.exp(Z90 * math.sqrt(least + slow))


def virtual_host_sd(columns: Columns) -> FloatArray:
    """[rows] log spread of the host's seconds on the slow side, where the host was assumed fast."""
    return columns.of_device(
        lambda device: VIRTUAL_HOST if device.architecture in HOSTS and not device.rates else 0.0
    )


def slow_variance(job: Job, columns: Columns, terms: StepTerms) -> FloatArray:
    """[rows] what the side of slower has beside the square of `log_sd`.

    Below zero where what nobody said of the run can only make it faster.
    """
    model = fitted()
    counts = columns.number("offer.count")
    _, slow = programs_of(counts, model.programs.get(job.software.stack, 0), model.spreads)
    of_source = slow_source_variance(counts, slow, model.spreads)
    boards = _by_device(columns, lambda device, gpus: board_variance(device, model, gpus))
    int8 = job.method.is_lora and job.method.base == "int8"
    open_ = total(job, columns)
    hosts = (virtual_host_sd(columns) * host_share(terms, model.constants)) ** 2
    more: FloatArray = of_source + boards + hosts + int8 * INT8_SLOW**2
    return more + open_.slower - open_.faster


def slot_host_sd(columns: Columns) -> FloatArray:
    """[rows] log spread of the seconds to issue a kernel by the host: 0 where it is known."""
    return columns.of_device(
        lambda device: SLOT_HOST if device.form_factor == "pcie" and device.rates is None else 0.0
    )


def sd_of_device(device: Device, model: Fitted, gpus: int = 1) -> float:
    """Log standard deviation that a device adds; of one that is here, less where it was measured.

    gpus: of the run.
    """
    sources = model.devices.get(device.name, 0)
    usual = math.sqrt(device_variances(device, sources, model.spreads, gpus)[0])
    if device.rates is None:
        return usual
    left = MEASURED_PROCESSOR if device.is_cpu else MEASURED_DEVICE
    return min(usual, math.hypot(left, device.rates.log_sd))


def host_spread(columns: Columns, field: str, *, stated: float, assumed: float) -> FloatArray:
    """[rows] the one spread where somebody stated a field of the host, else the other."""
    return columns.of_host(lambda host: assumed if field in host.assumed else stated)
