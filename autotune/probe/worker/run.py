"""One probe, from the request to what was measured."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import torch

from .arguments import Unsupported, check, prepare, training_arguments
from .contract import PHASES, PhaseFile
from .memory import Meter, limit, resident_bytes
from .model import QUANTISED, build
from .parts import checkpoint, evaluation, loader
from .ranks import StopSign, largest, local_bytes, several, slowest
from .rows import Pad, Rows, Source
from .timing import Clock, ProbeTrainer, Stopwatch
from .windows import Step, summary

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE_S = 60.0
MOST_STEPS = 10_000  # the stopwatch ends the training long before
STATE_BYTES = 12  # of a trained parameter and its two moments in fp32, at most


class Run:
    """A probe under way. `stage` says where it is, for whoever has to explain how it ended.

    What it does at the moment is also told to the folder that the request names (`phase`).
    """

    def __init__(self, request: dict[str, Any], work: Path, begun_s: float) -> None:
        """request: checked by the caller; work: an empty folder for checkpoints."""
        self.request, self.work, self.begun_s = request, work, begun_s
        self.stage = "start"
        self._entered = begun_s
        self.result: dict[str, Any] = {"warnings": [], "seconds": {}}
        self.device = torch.device("cpu")
        self.phase = PhaseFile(request.get("work_dir"))
        self.phase.enter("loading the libraries")

    def measure(self) -> dict[str, Any]:
        """Everything, in the order of what is worth most."""
        request = self.request
        torch.manual_seed(request["seed"])
        if request["device"] == "cuda":
            self.device = _gpu()
        self.meter = Meter(self.device)
        if request["compile"] == "off" and not several():
            self.meter.count()
        if request.get("memory_limit_bytes"):
            limit(self.device, int(request["memory_limit_bytes"]))
        self._enter("build")
        source = Source(request, int(request["model"]["vocab_size"]))
        # FSDP divides a model that the host holds: one device may not hold all of it. bitsandbytes
        # quantises on the device only.
        whole = request["sharding"] == "fsdp" and request["method"]["base"] not in QUANTISED
        place = torch.device("cpu") if whole else self.device
        model = build(request, place)
        self._count(model)
        self.meter.note("build")
        self._enter("prepare")
        self.clock = Clock(self.device)
        trainer = self._trainer(model, source)
        self._enter("train")
        trainer.train()
        self.meter.uncount()
        check(trainer, request)
        self._steps(trainer)
        self._rest(trainer, source)
        self._enter("done")
        self.result["memory"] = largest(self.meter.report()) if several() else self.meter.report()
        return self.result

    def _enter(self, stage: str) -> None:
        now = time.perf_counter()
        if self.stage != "start":
            self.result["seconds"][self.stage] = now - self._entered
        else:
            self.result["seconds"]["import"] = now - self.begun_s
        self.stage, self._entered = stage, now
        compiles = stage == "train" and self.request["compile"] != "off"
        self.phase.enter("compiling" if compiles else PHASES.get(stage, stage))

    def _count(self, model: Any) -> None:  # noqa: ANN401 - a module
        parameters = list(model.parameters())
        self.result["parameters"] = {
            "all": sum(p.numel() for p in parameters),
            "trained": sum(p.numel() for p in parameters if p.requires_grad),
            "bytes": sum(p.numel() * p.element_size() for p in parameters),
        }

    def _trainer(self, model: Any, source: Source) -> ProbeTrainer:  # noqa: ANN401 - a module
        from transformers import TrainingArguments

        request = self.request
        plan = {**request["steps"], **(request.get("looks") or {})}
        plan["patience_s"] = request.get("patience_s", PATIENCE_S)
        if several():  # one rank alone cannot pause
            plan["windows"] = 1
        per_step = request["micro_batch_size"] * request["gradient_accumulation_steps"]
        chunk = 50 * request["micro_batch_size"] if request["length_grouping"] == "on" else 0
        world = int(request.get("count", 1))
        self.rows = Rows(
            source, int(plan["longest"]) * per_step * world, MOST_STEPS * per_step * world, chunk
        )
        self.collate = Pad(request["max_length"], request["padding"])
        arguments = training_arguments(
            request, output_dir=str(self.work), max_steps=MOST_STEPS,
            on_cpu=self.device.type == "cpu",
        )  # fmt: skip
        prepare(request, on_cpu=self.device.type == "cpu")
        self.watch = Stopwatch(
            plan, self.clock, self.meter, StopSign(self.work if several() else None),
            self.phase.enter,
        )  # fmt: skip
        trainer = ProbeTrainer(
            model=model, args=TrainingArguments(**arguments), train_dataset=self.rows,
            data_collator=self.collate, callbacks=[self.watch],
        )  # fmt: skip
        trainer.stopwatch = self.watch
        return trainer

    def _steps(self, trainer: Any) -> None:  # noqa: ANN401 - a Trainer
        watch, request = self.watch, self.request
        watch.finish()
        measured = watch.measured
        found: dict[str, Any] = summary(measured) | watch.windows.report()
        found["block_s"] = watch.windows.best.block_s
        found["steady"] = bool(found["window"]["steady"])
        before = watch.windows.before
        found["warmup_steps"] = len(before)
        self._spent(before, measured)
        typical = found["step_s"] / max(found["tokens"], 1)
        extra = sum(max(s.wall_s - typical * s.tokens, 0.0) for s in before)
        found["first_step_s"], found["warmup_extra_s"] = watch.first_step_s, extra
        found["retries"] = self.meter.retries() - watch.retries_before
        found["accumulation"] = request["gradient_accumulation_steps"]
        found["each_s"] = [round(step.wall_s, 6) for step in watch.steps]
        if several():
            found |= slowest(found) | {"world": trainer.args.world_size}
            self.result["parameters"]["local_bytes"] = local_bytes(trainer.model)
        self.result["step"] = found
        if request["compile"] != "off":
            self.result["compile"] = {"extra_s": extra, **_graphs()}
        if not found["steady"]:
            self.result["warnings"].append("the steps never became steady")

    def _spent(self, before: list[Step], measured: list[Step]) -> None:
        """[s] what training took, by purpose; `around` is the Trainer's start and end."""
        longest = int(self.request["steps"]["longest"])
        parts = {
            "longest": sum(s.wall_s for s in before[:longest]),
            "warmup": sum(s.wall_s for s in before[longest:]),
            "window": sum(s.wall_s for s in measured),
        }
        parts["again"] = sum(s.wall_s for s in self.watch.steps) - sum(parts.values())
        parts["waited"] = self.watch.windows.waited_s
        around = time.perf_counter() - self._entered - sum(parts.values())
        self.result["train_seconds"] = parts | {"around": max(around, 0.0)}

    def _rest(self, trainer: Any, source: Source) -> None:  # noqa: ANN401 - a Trainer
        """Evaluation, checkpoint and loader; on several devices only the first rank's."""
        request = self.request
        if request.get("evaluation"):
            self._enter("evaluation")
            count = int(request["evaluation"]["batch_size"])
            self.meter.reset()
            if request["compile"] == "off" and not several():
                self.meter.count()
            longest = [self._row(source, i, longest=True) for i in range(count)]
            evaluation(trainer, self.clock, self.collate(longest))
            self.meter.note("evaluation")
            self.meter.uncount()
            typical = [self._row(source, i, longest=False) for i in range(count)]
            self.result["evaluation"] = evaluation(trainer, self.clock, self.collate(typical))
        most = request.get("checkpoint_max_bytes", 0)
        if most and self.result["parameters"]["trained"] * STATE_BYTES <= most:
            self._enter("checkpoint")
            self.meter.reset()
            self.result["checkpoint"] = checkpoint(trainer, self.clock)
            self.meter.note("checkpoint")
        elif most:
            self.result["warnings"].append("no checkpoint: it would be larger than allowed")
        if request["loader_workers"] and trainer.args.process_index == 0:
            self._enter("loader")
            tail = torch.utils.data.Subset(self.rows, range(self.rows.first, self.rows.total))
            pin = bool(trainer.args.dataloader_pin_memory)
            self.result["loader"] = loader(tail, self.collate, request, pin=pin)

    def _row(self, source: Source, i: int, *, longest: bool) -> dict[str, list[int]]:
        order = source.longest if longest else self.rows.order
        ids = source.ids(order[i % len(order)], stretch=longest)
        return {"input_ids": ids, "labels": ids}


def _gpu() -> torch.device:
    """The GPU of this rank. Raises Unsupported."""
    if not torch.cuda.is_available():
        msg = f"no CUDA device can be used: torch {torch.__version__} sees none"
        raise Unsupported(msg)
    here, local = torch.cuda.device_count(), int(os.environ.get("LOCAL_RANK", "0"))
    if local >= here:
        msg = f"rank {local} has no CUDA device: {here} can be seen"
        raise Unsupported(msg)
    found = torch.device("cuda", local)
    torch.cuda.set_device(found)
    return found


def _graphs() -> dict[str, int]:
    """What torch.compile made: graphs in all; more than one means it compiled again."""
    from torch._dynamo.utils import counters

    return {
        "graphs": int(counters["stats"].get("unique_graphs", 0)),
        "breaks": sum(counters["graph_break"].values()),
    }


def machine(device: torch.device) -> dict[str, Any]:
    """What ran the probe."""
    import platform

    found: dict[str, Any] = {
        "kind": device.type, "name": "cpu", "threads": torch.get_num_threads(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0,
        "python": platform.python_version(), "resident_bytes": resident_bytes(),
    }  # fmt: skip
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        found |= {
            "name": about.name, "capability": f"{about.major}.{about.minor}",
            "torch_bytes": about.total_memory, "cuda": torch.version.cuda,
            "sm_count": about.multi_processor_count,
        }  # fmt: skip
    return found
