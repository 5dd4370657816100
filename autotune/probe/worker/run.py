"""One probe, from the request to what was measured."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import torch

from .arguments import training_arguments
from .memory import Meter, limit, resident_bytes
from .model import build
from .parts import checkpoint, evaluation, loader
from .rows import Pad, Rows, Source
from .steady import summary
from .timing import Clock, ProbeTrainer, Stopwatch

if TYPE_CHECKING:
    from pathlib import Path

MOST_STEPS = 10_000  # the stopwatch ends the training long before
STATE_BYTES = 12  # of a trained parameter and its two moments in fp32, at most


class Run:
    """A probe under way. `stage` says where it is, for whoever has to explain how it ended."""

    def __init__(self, request: dict[str, Any], work: Path, begun_s: float) -> None:
        """request: checked by the caller; work: an empty folder for checkpoints."""
        self.request, self.work, self.begun_s = request, work, begun_s
        self.stage = "start"
        self._entered = begun_s
        self.result: dict[str, Any] = {"warnings": [], "seconds": {}}
        self.device = torch.device("cpu")
        if request["device"] == "cuda":
            local = int(os.environ.get("LOCAL_RANK", "0"))
            self.device = torch.device("cuda", local)
            torch.cuda.set_device(self.device)

    def measure(self) -> dict[str, Any]:
        """Everything, in the order of what is worth most."""
        request = self.request
        torch.manual_seed(request["seed"])
        torch.set_flush_denormal(True)
        self.meter = Meter(self.device)
        if request.get("memory_limit_bytes"):
            limit(self.device, int(request["memory_limit_bytes"]))
        self._enter("build")
        source = Source(request, int(request["model"]["vocab_size"]))
        model = build(request, self.device)
        self._count(model)
        self.meter.note("build")
        self._enter("prepare")
        self.clock = Clock(self.device)
        trainer = self._trainer(model, source)
        self._enter("train")
        trainer.train()
        self._steps(trainer)
        self._rest(trainer, source)
        self._enter("done")
        self.result["memory"] = self.meter.report()
        return self.result

    def _enter(self, stage: str) -> None:
        now = time.perf_counter()
        if self.stage != "start":
            self.result["seconds"][self.stage] = now - self._entered
        else:
            self.result["seconds"]["import"] = now - self.begun_s
        self.stage, self._entered = stage, now

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
        plan = dict(request["steps"])
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
        self.watch = Stopwatch(plan, self.clock, self.meter)
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
        found: dict[str, Any] = summary(measured)
        found["block_s"] = watch.block_s
        found["steady"] = watch.steady_from is not None
        found["warmup_steps"] = len(watch.steps) - len(measured)
        before = watch.steps[: len(watch.steps) - len(measured)]
        typical = found["step_s"] / max(found["tokens"], 1)
        extra = sum(max(s.wall_s - typical * s.tokens, 0.0) for s in before)
        found["first_step_s"], found["warmup_extra_s"] = watch.first_step_s, extra
        found["retries"] = self.meter.retries() - watch.retries_before
        found["accumulation"] = request["gradient_accumulation_steps"]
        if trainer.args.world_size > 1:
            found |= _slowest(found) | {"world": trainer.args.world_size}
        self.result["step"] = found
        if request["compile"] != "off":
            self.result["compile"] = {"extra_s": extra, **_graphs()}
        if not found["steady"]:
            self.result["warnings"].append("the steps never became steady")

    def _rest(self, trainer: Any, source: Source) -> None:  # noqa: ANN401 - a Trainer
        """Evaluation, checkpoint and loader; on several devices only the first rank's."""
        request = self.request
        if request.get("evaluation"):
            self._enter("evaluation")
            count = int(request["evaluation"]["batch_size"])
            self.meter.reset()
            longest = [self._row(source, i, longest=True) for i in range(count)]
            evaluation(trainer, self.clock, self.collate(longest))
            self.meter.note("evaluation")
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


def _slowest(found: dict[str, Any]) -> dict[str, float]:
    """Times of the slowest rank: the step of all is as long as its."""
    import torch.distributed as dist

    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, found)
    names = ("step_s", "micro_s", "optimizer_s", "data_s", "block_s", "first_step_s")
    return {name: max(rank[name] for rank in every) for name in names}


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
