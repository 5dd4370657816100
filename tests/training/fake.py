"""A device that runs behind its host, and a Trainer that raises the real one's events in order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

GIB = 2**30


class Device:
    """A host clock and the moment until which the device is busy; a mark passes when it is free."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.free_s = 0.0
        self.allocated = self.reserved = 0
        self.total = 80 * GIB

    def host(self, seconds: float) -> None:
        self.now_s += seconds

    def queue(self, seconds: float) -> None:
        self.free_s = max(self.free_s, self.now_s) + seconds

    def wait(self) -> None:
        self.now_s = max(self.now_s, self.free_s)

    def mark(self) -> float:
        return max(self.now_s, self.free_s)

    def has_passed(self, mark: float) -> bool:
        return mark <= self.now_s

    def between(self, start: float, end: float) -> float:
        return end - start


def torch_of(device: Device, name: str) -> SimpleNamespace:
    """As much of torch as the callback touches."""

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = device.mark()

        def query(self) -> bool:
            return device.has_passed(self.at)

        def elapsed_time(self, later: Any) -> float:
            return 1000.0 * device.between(self.at, later.at)

    def stats(_: int) -> dict[str, int]:
        return {
            "allocated_bytes.all.peak": device.allocated,
            "reserved_bytes.all.peak": device.reserved,
        }

    cuda = SimpleNamespace(
        Event=Event,
        get_device_name=lambda _: name,
        memory_stats=stats,
        memory_reserved=lambda _: device.reserved,
        mem_get_info=lambda _: (device.total - device.reserved, device.total),
    )
    return SimpleNamespace(cuda=cuda, __version__="2.13.0")


def arguments(folder: Path, **changes: Any) -> SimpleNamespace:
    known = {
        "output_dir": str(folder),
        "device": SimpleNamespace(type="cuda", index=0), "n_gpu": 1, "world_size": 1,
        "per_device_train_batch_size": 16, "gradient_accumulation_steps": 8,
        "save_strategy": "steps", "dataloader_num_workers": 0, "bf16": False, "fp16": True,
    }  # fmt: skip
    return SimpleNamespace(**(known | changes))


class Training:
    """The events of a Trainer, each with the seconds that pass before it."""

    def __init__(self, callback: Any, device: Device, args: Any, steps: int, **state: Any) -> None:
        known = {"global_step": 0, "max_steps": steps, "save_steps": 50,
                 "is_world_process_zero": True}  # fmt: skip
        self.callback, self.device, self.args = callback, device, args
        self.state, self.control = SimpleNamespace(**(known | state)), SimpleNamespace()

    def tell(self, event: str, **more: Any) -> None:
        result = getattr(self.callback, event)(self.args, self.state, self.control, **more)
        assert result is None  # the control object is left alone

    def begin(self, model: Any = None) -> None:
        self.tell("on_train_begin", model=model)
        self.tell("on_epoch_begin")

    def step(  # one optimizer step, then what follows it
        self, work_s: float, fetch_s: float = 0.0, *, log_s: float = 0.0, save_s: float = 0.0,
        evaluate_s: float = 0.0,
    ) -> None:  # fmt: skip
        device = self.device
        device.host(fetch_s)
        self.tell("on_step_begin")
        device.queue(work_s)
        device.wait()
        self.state.global_step += 1
        self.tell("on_step_end")
        if log_s:
            device.host(log_s)
            self.tell("on_log", logs={"loss": float("nan"), "learning_rate": 1e-4})
        if evaluate_s:
            device.host(evaluate_s)
            self.tell("on_log", logs={"eval_loss": 1.0})
            told = {"eval_runtime": evaluate_s, "eval_samples_per_second": 40.0 / evaluate_s}
            self.tell("on_evaluate", metrics={"eval_loss": 1.0, **told})
        if save_s:
            device.host(save_s)
            self.tell("on_save")

    def end(self) -> None:
        self.tell("on_epoch_end")
        self.tell("on_train_end")
