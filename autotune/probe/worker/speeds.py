"""`python -m autotune.probe.worker.speeds REQUEST RESULT`: what this machine does in a second.

Matrix products by dtype and size, elementwise kernels, the host's work to issue a kernel, copies,
the loader. Each is repeated for a while; the result is written anew after each part, so that what
was measured stays when a later part breaks or the time is over. Beside each part stands what others
took of the machine meanwhile.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.nn import functional

from .__main__ import versions, write_atomic
from .contract import KEPT_CHARACTERS, SCHEMA_VERSION, PhaseFile
from .disturbance import FAST, Host, between, disturbances, slowdown
from .model import HEADS, TOKENS, WIDTH, Block, counted

if TYPE_CHECKING:
    from collections.abc import Callable

    Clock = Callable[[], float]

Fact = dict[str, Any]
DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16,
          "bf16": torch.bfloat16}  # fmt: skip
# Rows, outputs and inputs of a product. A processor's also as small as those of a model for tests.
PRODUCTS = {
    "cuda": ((4096, 1024, 1024), (4096, 4096, 4096), (8192, 8192, 8192)),
    "cpu": ((1024, 64, 64), (1024, 256, 256), (512, 512, 512)),
}
ELEMENTS = {"cuda": 64 * 2**20, "cpu": 2**18}  # of a tensor; a processor's caches gain nothing
COPIED_BYTES = 256 * 2**20
NEW_SIZES = 16  # that are met for the first time, once each
LEAST = 5  # repetitions, however long one takes
AT_ONCE_S, MOST_AT_ONCE = 2e-3, 200  # of a GPU's calls that one reading spans
MOST = 2000
HEAD_DIMS, LENGTH = (16, 64), 256  # of a processor's attention
LAYERS = (2, 8)  # of small ones, whose difference is what one more takes
ROW_LENGTHS, BATCH_ROWS, ROWS = (64, 1024), 8, 256
SHARES = {"host": 0.05, "matmul": 0.4, "elementwise": 0.1, "issue": 0.2, "copies": 0.1,
          "loader": 0.15}  # fmt: skip
OF_ONE_THREAD = ("host", "issue", "loader")
# Log sd of a thread's own seconds while others use its core and cache: assumption.
SHARED_CORE = 0.2


class NotHereError(Exception):
    """This part cannot be measured on this machine, and why."""


class Speeds:
    """The parts of `SHARES`, on one device. seconds: that all of them together may take."""

    def __init__(self, request: dict[str, Any]) -> None:
        """Raises NotHereError where the device cannot be used."""
        self.request = request
        self.kind = str(request["device"])
        if self.kind == "cuda" and not torch.cuda.is_available():
            msg = f"torch {torch.__version__} sees no CUDA device"
            raise NotHereError(msg)
        self.device = torch.device(self.kind)
        self.seconds = float(request["seconds"])
        # What one thread does takes its own seconds, whoever else wants the core.
        alone = self.kind == "cpu" and torch.get_num_threads() == 1
        self.clock = time.process_time if alone else time.perf_counter
        self.host_clock = time.process_time if self.kind == "cpu" else time.perf_counter

    def host(self, seconds: float) -> list[Fact]:
        """[s] of one thread for a thousand rounds of plain Python."""
        took = self.timed(plain_python, seconds, time.process_time)
        return [fact("host_thread", took["s"], took)]

    def matmul(self, seconds: float) -> list[Fact]:
        """[FLOP/s] of products C[m, n] = A[m, k] B[n, k]^T."""
        found, shapes = [], PRODUCTS[self.kind]
        names = [name for name in self.request["precisions"] if name in DTYPES]
        for name in names:
            torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
            for m, n, k in shapes:
                a = torch.randn(m, k, dtype=DTYPES[name], device=self.device)
                b = torch.randn(n, k, dtype=DTYPES[name], device=self.device)

                def product(a: torch.Tensor = a, b: torch.Tensor = b) -> object:
                    return functional.linear(a, b)

                took = self.timed(product, seconds / len(names) / len(shapes))
                found.append(fact("matmul", 2.0 * m * n * k / took["s"], took, precision=name,
                                  shape=[m, n, k]))  # fmt: skip
        if self.kind != "cpu":
            return found
        narrow = [name for name in ("bf16", "fp16") if name in names]
        found += [self.attention(name, dim) for name in names for dim in HEAD_DIMS]
        return [*found, *self.new_size(narrow[0])] if narrow else found

    def attention(self, name: str, dim: int) -> Fact:
        """[FLOP/s] of a processor's causal attention, forward and backward."""
        rows = [torch.randn(2, HEADS, LENGTH, dim, dtype=DTYPES[name]) for _ in range(3)]
        q, k, v = (each.requires_grad_() for each in rows)

        def both() -> None:
            functional.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()

        took = self.timed(both, self.seconds / 40.0)
        flop = 3.5 * 2.0 * 2.0 * (2 * HEADS) * dim * LENGTH**2 / 2.0
        return fact("attention", flop / took["s"], took, precision=name,
                    shape=[2 * HEADS, LENGTH, dim])  # fmt: skip

    def new_size(self, name: str) -> list[Fact]:
        """[s] that a processor takes to generate code for a product of sizes it has not met."""
        longer = []
        for rows in range(101, 101 + 8 * NEW_SIZES, 8):
            a, b = (torch.randn(side, 64, dtype=DTYPES[name]) for side in (rows, 64))
            took = []
            for _ in range(2):
                begun = self.clock()
                functional.linear(a, b)
                took.append(self.clock() - begun)
            longer.append(took[0] - took[1])
        middle = statistics.median(longer)
        if middle <= 0:
            return []
        spread = max(math.log(middle / max(sorted(longer)[NEW_SIZES // 4], middle / 4)), 0.01)
        own = float(self.clock is time.process_time)
        return [fact("new_size", middle, {"log_sd": spread, "samples": NEW_SIZES, "own": own})]

    def elementwise(self, seconds: float) -> list[Fact]:
        """[bytes/s] that the kernels between products move: read and written, each counted."""
        wide = torch.float32 if self.kind == "cpu" else torch.bfloat16
        x, y = (torch.randn(ELEMENTS[self.kind], device=self.device, dtype=wide) for _ in range(2))
        size = x.element_size()
        rows = x.view(-1, 64)

        def kernels() -> None:
            _ = functional.silu(x)  # 2 values an element
            _ = x * y  # 3
            _ = x + y  # 3
            _ = rows.pow(2)  # 2
            _ = rows.mean(-1)  # 1
            _ = torch.exp(x)  # 2

        took = self.timed(kernels, seconds)
        return [fact("elementwise", 13.0 * size * x.numel() / took["s"], took)]

    def issue(self, seconds: float) -> list[Fact]:
        """[s] of the host for a kernel of a forward and of a backward: layers of eight tokens.

        On a GPU without the device's own time: its smallest kernels take longer than issuing one.
        """
        ahead: dict[int, Any] = {}
        back: dict[int, Any] = {}
        for layers in LAYERS:
            network = nn.Sequential(*(Block() for _ in range(layers))).to(self.device)
            rows = torch.randn(1, TOKENS, WIDTH, device=self.device)

            def forward(network: nn.Module = network, rows: torch.Tensor = rows) -> torch.Tensor:
                return cast("torch.Tensor", network(rows)).sum()

            def both(forward: Callable[[], torch.Tensor] = forward) -> None:
                forward().backward()

            ahead[layers] = self.timed(forward, seconds / 4, self.host_clock)
            back[layers] = self.timed(both, seconds / 4, self.host_clock)
        few, many = LAYERS
        counts = [ops - less for ops, less in zip(counted(many), counted(few), strict=True)]
        forward_s = ahead[many]["s"] - ahead[few]["s"]
        backward_s = back[many]["s"] - back[few]["s"] - forward_s
        if min(forward_s, backward_s) <= 0:
            msg = "more layers took no longer: the machine is too busy to tell"
            raise NotHereError(msg)
        return [
            fact("issue_forward", forward_s / counts[0], ahead[many]),
            fact("issue_backward", backward_s / counts[1], back[many]),
        ]

    def copies(self, seconds: float) -> list[Fact]:
        """[bytes/s] from pinned memory of the host, and to each other device of the machine."""
        if self.kind != "cuda":
            msg = "the processor is the device: nothing is copied to it"
            raise NotHereError(msg)
        here = torch.empty(COPIED_BYTES, dtype=torch.uint8, device=self.device)
        host = torch.empty(COPIED_BYTES, dtype=torch.uint8, pin_memory=True)
        took = self.timed(lambda: here.copy_(host, non_blocking=True), seconds / 2)
        found = [fact("copy_to_device", COPIED_BYTES / took["s"], took)]
        for peer in (peers := range(1, torch.cuda.device_count())):
            there = torch.empty(COPIED_BYTES, dtype=torch.uint8, device=f"cuda:{peer}")

            def send(there: torch.Tensor = there) -> None:
                there.copy_(here)
                torch.cuda.synchronize(there.device)

            took = self.timed(send, seconds / 2 / len(peers), time.perf_counter)
            found.append(fact("copy_peer", COPIED_BYTES / took["s"], took, shape=[0, peer]))
        return found

    def loader(self, seconds: float) -> list[Fact]:
        """[s] of one loading process for a row and for a token of it; speed-up by two workers."""
        took = {}
        for length in ROW_LENGTHS:
            rows = tokenised(length)

            def batch(rows: Any = rows) -> object:  # noqa: ANN401 - of a library without types
                return padded([rows[i] for i in range(BATCH_ROWS)])

            took[length] = self.timed(batch, seconds / 3, time.process_time)
        short, long = ROW_LENGTHS
        token_s = (took[long]["s"] - took[short]["s"]) / BATCH_ROWS / (long - short)
        row_s = took[short]["s"] / BATCH_ROWS - token_s * short
        if min(token_s, row_s) <= 0:
            msg = "longer rows took no longer: the machine is too busy to tell"
            raise NotHereError(msg)
        found = [fact("loader_row", row_s, took[short]), fact("loader_token", token_s, took[long])]
        by_wall = {**took[long], "own": 0.0}
        return [*found, fact("loader_workers", workers_gain(seconds / 3), by_wall)]

    def timed(
        self, call: Callable[[], object], seconds: float, host: Clock | None = None
    ) -> dict[str, float]:
        """[s] one call takes: on a processor the quick ones, on a GPU, which heats up, the median.

        On a GPU by its events, so many calls at once that launching one and waiting for it are not
        in it. host: a clock of the host instead: until the call returns, however long the device
        then runs. log_sd: how far the median lies from the quick ones, at least 0.01.
        """
        cuda = self.kind == "cuda"
        for _ in range(2):
            call()
        self.wait()
        clock, calls = host or self.clock, 1
        if cuda and host is None:
            once = max(self.between_events(call, 1), 1e-6)
            calls = min(max(round(AT_ONCE_S / once), 1), MOST_AT_ONCE)
        took: list[float] = []
        begun = time.perf_counter()
        while len(took) < MOST and (len(took) < LEAST or time.perf_counter() - begun < seconds):
            if cuda and host is None:
                took.append(self.between_events(call, calls))
            else:
                start = clock()
                call()
                took.append(clock() - start)
                self.wait()
        middle = statistics.median(took)
        quick = sorted(took)[int(FAST * len(took))]
        spread = max(math.log(middle / quick), 0.01)
        own = float(clock is time.process_time)  # waiting for a core is not in it
        return {
            "s": middle if cuda else quick, "log_sd": spread, "samples": len(took), "own": own
        }  # fmt: skip

    def between_events(self, call: Callable[[], object], calls: int) -> float:
        """[s] of one of so many calls, on the device's own clock."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000.0 / calls

    def wait(self) -> None:
        """Until the device has done everything."""
        if self.kind == "cuda":
            torch.cuda.synchronize()


def plain_python() -> int:
    """What modules do around their kernels: look up attributes, build arguments, call."""
    table, total = {"a": 1, "b": 2}, 0
    for number in range(1000):
        own = {**table, "c": number}
        total += len(own) + max(own["a"], own.get("b", 0))
    return total


def tokenised(length: int) -> Any:  # noqa: ANN401 - of a library without types
    """Rows as a trainer's tokenised data set holds them: three columns in Arrow."""
    try:
        from datasets import Dataset
    except ImportError as error:
        msg = f"datasets, which trainers read rows with, cannot be imported: {error}"
        raise NotHereError(msg) from None
    ids = [list(range(row, row + length)) for row in range(ROWS)]
    ones = [[1] * length] * ROWS
    return Dataset.from_dict({"input_ids": ids, "attention_mask": ones, "labels": ids})


def padded(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """A batch as a collator makes it."""
    longest = max(len(row["input_ids"]) for row in rows)
    return {
        name: torch.tensor([row[name] + [0] * (longest - len(row[name])) for row in rows])
        for name in rows[0]
    }


def workers_gain(seconds: float) -> float:
    """Rows a second of two workers over those of none; 1 where workers gain nothing."""
    paces, rows = [], tokenised(ROW_LENGTHS[1])
    for workers in (0, 2):
        endless = torch.utils.data.RandomSampler(rows, replacement=True, num_samples=10**6)
        batches = torch.utils.data.DataLoader(
            rows, BATCH_ROWS, sampler=endless, collate_fn=padded, num_workers=workers
        )
        drawn = iter(batches)
        for _ in range(1 + 4 * workers):  # the first, and what was ready before anybody asked
            next(drawn)
        begun, count = time.perf_counter(), 0
        while count < LEAST or time.perf_counter() - begun < seconds / 2:
            next(drawn)
            count += 1
        paces.append(count / (time.perf_counter() - begun))
        del drawn
    return paces[1] / paces[0]


def fact(
    name: str, value: float, took: dict[str, float], *, precision: str = "",
    shape: list[int] | None = None,
) -> Fact:  # fmt: skip
    """A figure with its spread and from how many repetitions it comes."""
    return {
        "name": name, "value": value, "log_sd": took["log_sd"], "samples": took["samples"],
        "precision": precision, "shape": shape or [], "own": took["own"],
    }  # fmt: skip


def measured(request: dict[str, Any], result: Path) -> None:
    """Every part in turn; the result is on the disk after each."""
    phase = PhaseFile(request.get("work_dir"))
    found: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION, "key": request["key"], "facts": [], "parts": [],
        "not_measured": [],
        "versions": versions(), "threads": torch.get_num_threads(), "done": False,
    }  # fmt: skip
    try:
        speeds = Speeds(request)
    except NotHereError as error:
        missing = [{"name": name, "why": str(error)} for name in SHARES]
        write_atomic(result, {**found, "not_measured": missing, "done": True})
        return
    for name in SHARES:
        phase.enter(f"measuring: {name}")
        found = taken(found, name, getattr(speeds, name), speeds)
        write_atomic(result, found)
    write_atomic(result, {**found, "done": True})


def taken(
    found: dict[str, Any], name: str, part: Callable[[float], list[Fact]], speeds: Speeds
) -> dict[str, Any]:
    """The result with one part more: its facts, or why there are none."""
    host = Host()
    before = host.read()
    threads = torch.get_num_threads()
    if speeds.kind == "cpu" and name in OF_ONE_THREAD:
        torch.set_num_threads(1)  # work too small to share: others would only wait in it
    try:
        facts = part(speeds.seconds * SHARES[name])
    except Exception as error:  # noqa: BLE001 - any failure of a part is a result
        plain = isinstance(error, NotHereError)
        why = str(error) if plain else f"{type(error).__name__}: {error}"
        lost = {"name": name, "why": why[:KEPT_CHARACTERS]}
        return {**found, "not_measured": [*found["not_measured"], lost]}
    finally:
        torch.set_num_threads(threads)
    seen = {**between(before, host.read(), host.cores), "device": speeds.kind}
    why_not = disturbances(seen)
    # The quick repetitions are taken, which others disturbed least: half of what they may have.
    by_clock = {0.0: math.log(slowdown(seen)) / 2.0, 1.0: SHARED_CORE}
    for each in facts:
        wider = by_clock[each.pop("own")] if why_not else 0.0
        each["log_sd"] = math.hypot(each["log_sd"], wider)
        each["disturbed"] = why_not
    return {**found, "facts": [*found["facts"], *facts], "parts": [*found["parts"], name]}


def main() -> int:
    """Run as a program."""
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    measured(request, Path(sys.argv[2]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
