"""The `trainer_state.json` of a Hugging Face Trainer, and what lies beside it, as a `RunLog`.

The file names no device and, half-way, usually holds no time. In the order in which they are taken:

1. `train_runtime` beside the losses, which the Trainer writes when it counts input tokens;
2. `train_runtime` at the end, when the script saved the state after training;
3. when the checkpoint folders beside it were written.

Source: transformers 5.23, `TrainerState`, `Trainer._maybe_log_save_evaluate`, `_finalize_training`,
`_save_checkpoint` and `trainer_utils.speed_metrics`. `train_runtime` counts from the start of
`train()`, so it holds compiling, saves and evaluations but neither loading nor the last
`save_model`; after a resume it starts again.

Model and method are said by what was saved beside the state: a checkpoint of an adapter holds
PEFT's `adapter_config.json`, one of whole weights the model's `config.json`. Source: peft 0.21,
`PeftConfig.save_pretrained`; transformers 5.23, `PreTrainedModel.save_pretrained`.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeGuard

from autotune.catalog.files import read_regular
from autotune.domain.errors import InputError
from autotune.domain.typed.values import shown
from autotune.domain.units import is_number
from autotune.evidence.log.run_log import RunLog, Stretch
from autotune.evidence.log.text import count, log_text, number, parsed_json
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from autotune.domain.observation import MemoryKind

STATE_FILE = "trainer_state.json"
CHECKPOINT = re.compile(r"checkpoint-([1-9][0-9]{0,11})")
_EVALUATION = re.compile(r"eval_(?:\w+_)?runtime")
_MEMORY = (  # what --skip_memory_metrics false adds; their sum is the peak while training
    "before_init_mem_gpu", "init_mem_gpu_alloc_delta", "train_mem_gpu_alloc_delta",
    "train_mem_gpu_peaked_delta",
)  # fmt: skip
PART_OF_RUN = 0.9  # steps per second times runtime under this share of all: the run was resumed
COPIED_S = 1.0  # folders written closer together than this were copied, not trained
BY_FOLDERS = "when its checkpoint folders were written"
HALF_DIGIT = 0.0005  # speed_metrics rounds rates to three decimals, seconds to four


def read_trainer_state(path: Path) -> RunLog:
    """What a trainer_state.json and the checkpoints beside it say.

    Raises InputError when it is none: damaged, cut short, or with text where a number belongs.
    """
    state = parsed_json(log_text(path), str(path))
    if not isinstance(state, dict) or not {"global_step", "log_history"} <= state.keys():
        what = "holds no global_step and log_history" if isinstance(state, dict) else shown(state)
        msg = f"{path} is not a trainer_state.json: {what}"
        raise InputError(msg, f"the Trainer writes {STATE_FILE} into every checkpoint folder")
    entries = _entries(state["log_history"], str(path))
    log = _stated(state, entries, path)
    model, method = saved_beside(path)
    log = replace(_saved_otherwise(log, path), model=model, method=method)
    return _timed(log, entries, path)


def _saved_otherwise(log: RunLog, path: Path) -> RunLog:
    """The log without `save_steps` where its own checkpoint shows that it was not in force."""
    match = CHECKPOINT.fullmatch(path.resolve().parent.name)
    every, step = log.save_every_steps, int(match[1]) if match else 0
    if not every or not step or step % every == 0 or step == log.max_steps:
        return log
    note = (
        f"a checkpoint at step {step} does not follow save_steps {every}: it was saved by epoch or "
        "by metric"
    )
    return replace(log, save_every_steps=None, notes=(*log.notes, note))


def _entries(history: object, where: str) -> list[dict[str, Any]]:
    """The log lines, each with a checked step, in the order of steps."""
    if not isinstance(history, list):
        msg = f"{where}: log_history is {shown(history)}, and must be a list"
        raise InputError(msg, "the file is damaged, or not the Trainer's")
    last = 0
    for position, entry in enumerate(history):
        place = f"{where}: log_history[{position}]"
        if not isinstance(entry, dict):
            msg = f"{place} is {shown(entry)}, and must be a mapping"
            raise InputError(msg, "the file is damaged, or not the Trainer's")
        step = count(entry.get("step"), f"{place}.step")
        if step < last:
            msg = f"{place}.step is {step} after {last}: steps must not go back"
            raise InputError(msg, "the file is damaged, or two files were joined")
        last = step
    return history


def _stated(state: dict[str, Any], entries: Sequence[dict[str, Any]], path: Path) -> RunLog:
    def maybe(key: str) -> int | None:
        value = state.get(key)
        return None if value is None else count(value, f"{path}: {key}") or None

    done = count(state["global_step"], f"{path}: global_step")
    most = maybe("max_steps")
    if most is not None and done > most:
        msg = f"{path}: global_step {done} is beyond max_steps {most}"
        raise InputError(msg, "the file is damaged, or two files were joined")
    if entries and entries[-1]["step"] > done:
        msg = f"{path}: log_history reaches step {entries[-1]['step']}, global_step is {done}"
        raise InputError(msg, "the file is damaged, or two files were joined")
    save = state.get("save_steps")
    epoch = state.get("epoch")
    tokens = state.get("num_input_tokens_seen")
    where = str(path)
    return RunLog(
        path=where,
        form="trainer_state",
        steps_done=done,
        max_steps=most,
        epoch=None if epoch is None else number(epoch, f"{where}: epoch", high=1e9) or None,
        epochs=maybe("num_train_epochs"),
        micro_batch_size=maybe("train_batch_size"),
        save_every_steps=None
        if save is None
        else int(number(save, f"{where}: save_steps")) or None,
        evaluations=tuple(_evaluations(entries, where)),
        evaluation_rows=_evaluation_rows(entries),
        memory_bytes=_memory(entries, where),
        tokens=None
        if tokens is None
        else number(tokens, f"{where}: num_input_tokens_seen", high=1e18) or None,
    )


def _evaluations(entries: Sequence[dict[str, Any]], where: str) -> list[tuple[int, float]]:
    return [
        (entry["step"], number(value, f"{where}: log_history[{position}].{key}"))
        for position, entry in enumerate(entries)
        for key, value in entry.items()
        if _EVALUATION.fullmatch(key)
    ]


def _evaluation_rows(entries: Sequence[dict[str, Any]]) -> int | None:
    """Rows of the last evaluation, over all sets of data, where rounded rates still tell them."""
    told = [
        (entry["step"], rows_of(entry))
        for entry in entries
        if any(_EVALUATION.fullmatch(key) for key in entry)
    ]
    last = [rows for step, rows in told if step == told[-1][0]]
    return sum(last) if last and all(last) else None


def rows_of(metrics: Mapping[str, Any]) -> int:
    """Rows that the metrics of an evaluation are of; 0 where they do not tell.

    Formula: seconds x rows per second; untold where their rounding is half a row or more.
    """
    total = 0
    for key in filter(_EVALUATION.fullmatch, metrics):
        seconds, rate = metrics[key], metrics.get(key.replace("runtime", "samples_per_second"))
        if not (_is_rate(seconds) and _is_rate(rate)):
            return 0
        if seconds * HALF_DIGIT + rate * HALF_DIGIT / 10 >= 1.0 / 2.0:
            return 0
        total += round(seconds * rate)
    return total


def _is_rate(value: Any) -> TypeGuard[float]:  # noqa: ANN401 - parsed JSON
    return is_number(value) and 0 < value < math.inf


def _memory(entries: Sequence[dict[str, Any]], where: str) -> dict[MemoryKind, float]:
    """[bytes] allocated at the peak of training, where the Trainer was told to measure it."""
    for entry in reversed(entries):
        if all(key in entry for key in _MEMORY):
            sizes = [number(entry[k], f"{where}: {k}", low=-1e18, high=1e18) for k in _MEMORY]
            return {"allocated": sum(sizes)} if sum(sizes) > 0 else {}
    return {}


@dataclass(frozen=True, slots=True)
class _Point:
    """Seconds since `train()` was called, when so many steps were done."""

    step: int
    seconds: float
    steps_per_s: float = 0.0
    samples_per_s: float = 0.0
    final: bool = False  # the line that ends `train()`


def _points(entries: Sequence[dict[str, Any]], where: str) -> list[_Point]:
    found = []
    for position, entry in enumerate(entries):
        if "train_runtime" not in entry:
            continue
        place = f"{where}: log_history[{position}]"

        def rate(key: str, entry: dict[str, Any] = entry, place: str = place) -> float:
            return number(entry.get(key, 0.0), f"{place}.{key}", high=1e12)

        seconds = number(entry["train_runtime"], f"{place}.train_runtime")
        steps, samples = rate("train_steps_per_second"), rate("train_samples_per_second")
        final = "train_loss" in entry or steps > 0
        found.append(_Point(entry["step"], seconds, steps, samples, final))
    return found


def _timed(log: RunLog, entries: Sequence[dict[str, Any]], path: Path) -> RunLog:
    """The log with the seconds of its steps, from the best source there is."""
    points = _points(entries, str(path))
    final = next((point for point in reversed(points) if point.final), None)
    if final is not None and final.steps_per_s > 0 and final.samples_per_s > 0:
        log = replace(log, samples_per_step=_rounded_ratio(final.samples_per_s, final.steps_per_s))
    if sum(not point.final for point in points) > (1 if final else 0):
        stretches = _between(points)
        if stretches:
            return replace(log, stretches=stretches, timed_by="train_runtime beside the losses")
    if final is not None and final.step > 0 and final.seconds > 0:
        return _by_the_end(log, final)
    stretches = _by_folders(path, log.steps_done)
    if stretches:
        return replace(log, stretches=stretches, timed_by=BY_FOLDERS, dated=True)
    return log


def _rounded_ratio(samples: float, steps: float) -> float | None:
    """Samples a step, where rounding to three decimals leaves two digits of it."""
    return samples / steps if min(samples, steps) > 50 * HALF_DIGIT else None


def _between(points: Sequence[_Point]) -> tuple[Stretch, ...]:
    """Stretches between the points; a clock that starts again opens a session."""
    first = points[0]
    found = [Stretch(0, first.step, first.seconds, warm_up=True)] if first.step > 0 else []
    for before, after in pairwise(points):
        if after.seconds < before.seconds:
            continue  # a new session: how many of the steps are its own is not known
        if after.step == before.step:
            if found and after.final:
                grown = found[-1].seconds + after.seconds - before.seconds
                found[-1] = replace(found[-1], seconds=grown)
            continue
        found.append(Stretch(before.step, after.step, after.seconds - before.seconds))
    return tuple(part for part in found if part.seconds > 0)


def _by_the_end(log: RunLog, final: _Point) -> RunLog:
    """One stretch: all that `train()` did. A resumed run counts only its last session."""
    own = final.steps_per_s * final.seconds
    known = final.steps_per_s > 50 * HALF_DIGIT
    begin, notes = 0, log.notes
    if known and own < PART_OF_RUN * final.step:
        begin = max(final.step - max(round(own), 1), 0)
        note = f"train_runtime covers steps {begin + 1} to {final.step}: the run was resumed"
        notes = (*notes, note)
    whole = Stretch(begin, final.step, final.seconds, warm_up=True)
    return replace(log, stretches=(whole,), timed_by="train_runtime", notes=notes)


def _by_folders(path: Path, done: int) -> tuple[Stretch, ...]:
    """Stretches between checkpoint folders beside the file, by when their states were written."""
    here = path.resolve().parent
    top = here.parent if CHECKPOINT.fullmatch(here.name) else here
    written: list[tuple[int, float]] = []
    try:
        for folder in top.iterdir():
            match = CHECKPOINT.fullmatch(folder.name)
            state = folder / STATE_FILE
            if match and int(match[1]) <= done and state.is_file():
                written.append((int(match[1]), state.stat().st_mtime))
    except OSError:
        return ()
    written.sort()
    found = []
    for (begin, earlier), (end, later) in pairwise(written):
        if later - earlier < COPIED_S:
            return ()  # copied: their dates say nothing
        found.append(Stretch(begin, end, later - earlier, saves=1))
    return tuple(found)


def checkpoint_state(folder: Path) -> Path | None:
    """The newest trainer_state.json of an output or checkpoint folder; None where there is none."""
    own = folder / STATE_FILE
    if own.is_file():
        return own
    steps = [
        (int(match[1]), child / STATE_FILE)
        for child in folder.iterdir()
        if (match := CHECKPOINT.fullmatch(child.name)) and (child / STATE_FILE).is_file()
    ]
    return max(steps)[1] if steps else None


ADAPTER, CONFIG = "adapter_config.json", "config.json"
SIZES = {  # of `Model`, by the keys of a config.json
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "vocab_size": "vocab_size",
}
FINAL = "final"  # where an exported script saves the result
LARGEST = 1_000_000  # [bytes] of such a file


def saved_beside(state: Path) -> tuple[dict[str, int], dict[str, Any]]:
    """Sizes of the model and values of the method; empty where nothing readable says them."""
    here = state.resolve().parent
    for folder in (here, here / FINAL):
        adapter = _mapping(folder / ADAPTER)
        if adapter.get("peft_type") == "LORA":
            rank = adapter.get("r")
            return {}, {"kind": "lora", **({"rank": rank} if _is_size(rank) else {})}
        sizes = model_sizes(_mapping(folder / CONFIG))
        if sizes:
            return sizes, {"kind": "full"}
    return {}, {}


def model_sizes(config: dict[str, Any]) -> dict[str, int]:
    """The sizes that tell a model from another; a composite's, of its text part."""
    text = config.get("text_config")
    text = text if isinstance(text, dict) else config
    return {ours: text[key] for ours, key in SIZES.items() if _is_size(text.get(key))}


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _mapping(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_regular(path, LARGEST))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
