from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from autotune.domain.errors import InputError
from autotune.evidence.log.console import OUT_OF_MEMORY
from autotune.evidence.log.read import read_log
from autotune.evidence.log.run_log import speed_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOTAL, STEP_S, EVALUATION_S, EVALUATED_AT = 3_251, 3.2, 20.0, 100
MAPPED = "Map: 100%|##########| 52002/52002 [{clock}<00:00, 640.1 examples/s]\n"
BATCH = "  Instantaneous batch size per device = 2\n  Gradient Accumulation steps = 8\n"


def clock(seconds: float) -> str:
    """As tqdm's format_interval has it."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"


def bars(steps: int) -> Iterator[str]:
    """A training that evaluates once, its bar redrawn after every step."""
    passed = 6.0  # the first step warms up
    for step in range(1, steps + 1):
        yield f"\r  3%|3  | {step}/{TOTAL} [{clock(passed)}<2:48:44,  3.20s/it]"
        if step == EVALUATED_AT:
            yield "\r  0%|   | 0/32 [00:00<?, ?it/s]\r100%|##| 32/32 [00:19<00:00, 1.60it/s]\n"
            yield "{'eval_loss': '1.2', 'eval_runtime': '20.0', 'epoch': '0.03'}\n"
            passed += EVALUATION_S
        passed += STEP_S


def kept(folder: Path, *text: str, name: str = "train.log") -> Path:
    path = folder / name
    path.write_text("".join(text))
    return path


@pytest.mark.parametrize("name", ["train.log", "slurm-17.out", "nohup.txt"])
def test_a_consoles_bar_tells_how_long_a_step_takes(tmp_path: Path, name: str) -> None:
    log = read_log(kept(tmp_path, BATCH, *bars(400), name=name))
    assert (log.form, log.steps_done, log.max_steps) == ("console", 400, TOTAL)
    assert (log.micro_batch_size, log.gradient_accumulation_steps) == (2, 8)
    assert log.evaluations == ((EVALUATED_AT, EVALUATION_S),)
    speed = speed_of(log, 0.0, 0.0)
    assert speed is not None
    assert speed.step_s == pytest.approx(STEP_S, rel=0.01)
    assert log.ended == ""


def test_a_training_that_ran_out_of_memory_says_so_only_where_it_did_not_end(
    tmp_path: Path,
) -> None:
    failed = "\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB.\n"
    assert read_log(kept(tmp_path, *bars(200), failed)).ended == OUT_OF_MEMORY
    assert read_log(kept(tmp_path, failed, *bars(TOTAL))).ended == ""


def test_tokenising_for_longer_than_the_training_is_not_taken_for_it(tmp_path: Path) -> None:
    mapped = MAPPED.format(clock=clock(7_200))
    assert read_log(kept(tmp_path, mapped, *bars(200))).max_steps == TOTAL


@pytest.mark.parametrize("text", ["hello\n", MAPPED.format(clock="01:20"), "3%| | 1/3251 [00:06<"])
def test_what_shows_no_progress_of_a_training_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match="shows no progress of a training"):
        read_log(kept(tmp_path, text))
