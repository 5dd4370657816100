"""Whether a window of measured steps can be believed: what others took of the machine meanwhile.

Read from the kernel's own counters (Linux; where there are none, the steps alone speak): processor
seconds of everybody and of this probe, seconds that the hypervisor gave away, seconds that a thread
was ready and had no core. `disturbances` is the one place that decides. Free of torch.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MARK = "AUTOTUNE_PROBE"  # environment variable that all processes of one probe carry
# Assumptions: what a step's median bears without being a few per cent off.
OTHERS = 0.10  # of the cores that this process may use, on a processor
STOLEN = 0.03  # of those cores, given to other virtual machines
WAITED = 0.05  # of the window, by the thread that waited longest
HURRIED = 0.02  # of the cores: less than this by others explains no waiting
SPREAD = 0.25  # robust sd of a step, relative
DRIFT = 0.15  # relative, from the first to the last step
STALLED = 0.15  # of the steps took more than half as long again as was to be expected
BUSY_DEVICE = 0.10  # of the time, before this probe began
FAST = 0.1  # quantile of the steps that an undisturbed one is like
MOST_SLOWDOWN = 20.0
LOOK_S = 0.5


@dataclass(frozen=True)
class Counters:
    """What had been counted at one moment. [s]; None: nobody counts it here.

    busy_s and stolen_s are of the cores that this process may use. waits_s: by thread.
    """

    at_s: float
    own_s: float
    busy_s: float | None = None
    stolen_s: float | None = None
    waits_s: dict[int, float] = field(default_factory=dict)
    throttles: int = 0


class Host:
    """Reads the counters. proc, sys: where they are mounted.

    alone: this process is all there is of ours; else its session and what carries the probe's mark.
    """

    def __init__(
        self, proc: Path = Path("/proc"), sys: Path = Path("/sys"), *, alone: bool = False
    ) -> None:
        """Find out once which cores this process may use."""
        self.proc, self.sys, self.alone = proc, sys, alone
        try:
            self.cpus = sorted(os.sched_getaffinity(0))
        except (AttributeError, OSError):
            self.cpus = list(range(os.cpu_count() or 1))
        self.cores = len(self.cpus)
        self._tick = _ticks_per_s()

    def read(self) -> Counters:
        """Now."""
        busy, stolen = self._busy()
        return Counters(
            at_s=time.monotonic(), own_s=self._probe_s(), busy_s=busy, stolen_s=stolen,
            waits_s=self._waits(), throttles=self._throttles(),
        )  # fmt: skip

    def _busy(self) -> tuple[float | None, float | None]:
        """Source: man 5 proc, /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal."""
        wanted = {f"cpu{number}" for number in self.cpus}
        busy = stolen = 0.0
        try:
            lines = (self.proc / "stat").read_text(encoding="ascii").splitlines()
            for line in lines:
                name, *rest = line.split()
                if name in wanted:
                    ticks = [float(value) for value in rest[:8]]
                    busy += sum(ticks[:3]) + sum(ticks[5:7])
                    stolen += ticks[7] if len(ticks) > 7 else 0.0  # noqa: PLR2004 - its place
        except (OSError, ValueError, IndexError):
            return None, None
        return busy / self._tick, stolen / self._tick

    def _probe_s(self) -> float:
        """[s] of this process, its children and whatever else belongs to the same probe."""
        wanted = _mark()
        own, session = time.process_time(), _session()
        if self.alone:
            return own + _reaped_s()
        for folder in self.proc.glob("[0-9]*"):
            if int(folder.name) == os.getpid():
                own += _reaped_s()
                continue
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session or (wanted and wanted in _environ(folder)):
                    own += sum(float(value) for value in fields[11:15]) / self._tick
        return own

    def _waits(self) -> dict[int, float]:
        """Source: Documentation/scheduler/sched-stats.rst: nanoseconds run, waited, slices."""
        found = {}
        for folder in (self.proc / "self" / "task").glob("[0-9]*"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                waited = int((folder / "schedstat").read_text(encoding="ascii").split()[1])
                found[int(folder.name)] = waited / 1e9
        return found

    def _throttles(self) -> int:
        """How often the cores were slowed down for their heat (x86)."""
        count = 0
        for number in self.cpus:
            path = self.sys / f"devices/system/cpu/cpu{number}/thermal_throttle/core_throttle_count"
            with contextlib.suppress(OSError, ValueError):
                count += int(path.read_text(encoding="ascii"))
        return count


def _ticks_per_s() -> float:
    with contextlib.suppress(AttributeError, ValueError, OSError):
        return float(os.sysconf("SC_CLK_TCK"))
    return 100.0


def _mark() -> bytes:
    """What the environment of all ranks has: a launcher gives each a session of its own."""
    mark = os.environ.get(MARK, "")
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    return f"{MARK}={mark}".encode() if mark and several else b""


def _session() -> int:
    """The session of this process, which a probe has to itself."""
    with contextlib.suppress(AttributeError, OSError):
        return os.getsid(0)
    return -1


def _reaped_s() -> float:
    """[s] of children that have ended."""
    spent = os.times()
    return spent.children_user + spent.children_system


def _environ(folder: Path) -> bytes:
    try:
        return (folder / "environ").read_bytes()
    except OSError:
        return b""


def between(before: Counters, after: Counters, cores: int) -> dict[str, float]:
    """What happened from one reading to the next; what nobody counts is left out.

    own, others, stolen: [cores] on average. waited: share of the time, of the thread that waited
    longest for a core.
    """
    wall = max(after.at_s - before.at_s, 1e-9)
    own = max(after.own_s - before.own_s, 0.0) / wall
    found = {"wall_s": wall, "cores": float(cores), "own": own}
    if before.busy_s is not None and after.busy_s is not None:
        found["others"] = max((after.busy_s - before.busy_s) / wall - own, 0.0)
    if before.stolen_s is not None and after.stolen_s is not None:
        found["stolen"] = max(after.stolen_s - before.stolen_s, 0.0) / wall
    both = before.waits_s.keys() & after.waits_s.keys()
    if both:
        longest = max(after.waits_s[k] - before.waits_s[k] for k in both)
        found["waited"] = min(max(longest, 0.0) / wall, 1.0)
    found["throttles"] = float(max(after.throttles - before.throttles, 0))
    return found


def slope_of(values: Sequence[float]) -> float:
    """Change from one value to the next: the median slope between any two (Theil and Sen)."""
    return statistics.median(
        (later - earlier) / (j - i)
        for i, earlier in enumerate(values)
        for j, later in enumerate(values)
        if j > i
    )


def spread_of(ratios: Sequence[float]) -> dict[str, float]:
    """How steps differ from what their lengths explain. ratios: measured over fitted, in order.

    spread: 1.4826 x median |r - median| / median, which a few stalls do not touch. drift: from the
    first to the last, along the median of pairwise slopes. stalled: share beyond 1.5 times the
    median. fast: the quantile of FAST over the median.
    Source: Rousseeuw and Croux (1993); Theil (1950) and Sen (1968).
    """
    if len(ratios) < 2:  # noqa: PLR2004 - one step has no spread
        return {"spread": 0.0, "drift": 0.0, "stalled": 0.0, "fast": 1.0}
    centre = statistics.median(ratios)
    return {
        "spread": 1.4826 * statistics.median(abs(r - centre) for r in ratios) / centre,
        "drift": slope_of(ratios) * (len(ratios) - 1) / centre,
        "stalled": sum(r > 1.5 * centre for r in ratios) / len(ratios),
        "fast": sorted(ratios)[int(FAST * len(ratios))] / centre,
    }


def disturbances(seen: Mapping[str, Any]) -> list[str]:
    """Why what was measured meanwhile is not the machine's own pace; empty: nothing speaks so.

    seen: readings of a window (`between`, `spread_of`, steady, device: cpu or cuda) and of its
    device (throttled_by, busy_before). What was not read says nothing.
    """
    cores, why = max(float(seen.get("cores", 1.0)), 1.0), []
    others, stolen = float(seen.get("others", 0.0)), float(seen.get("stolen", 0.0))
    waited = float(seen.get("waited", 0.0))
    if seen.get("device", "cpu") == "cpu" and others > OTHERS * cores:
        why.append(f"other programs used {others:.1f} of {cores:.0f} cores")
    if stolen > STOLEN * cores:
        why.append(f"other virtual machines were given {stolen:.1f} of {cores:.0f} cores")
    # Own threads wait for each other too, where a configuration starts more than there are cores.
    foreign = others + stolen > HURRIED * cores or "others" not in seen
    if waited > WAITED and foreign and not why:
        why.append(f"it waited for a core {waited:.0%} of the time")
    why += _of_steps(seen)
    if seen.get("throttles"):
        why.append("the processor slowed down for its heat")
    slowed = [word for word in seen.get("throttled_by", ()) if word != "power cap"]
    if slowed:  # a power cap is how a card runs at full load, now and later
        why.append(f"the device slowed down ({', '.join(slowed)})")
    if float(seen.get("busy_before", 0.0)) > BUSY_DEVICE:
        why.append(f"others kept the device busy {float(seen['busy_before']):.0%} of the time")
    return why


def unexplained(seen: Mapping[str, Any]) -> bool:
    """Whether steps differ and no reading says why: who hides there hides elsewhere too."""
    return bool(_of_steps(seen)) and disturbances(seen) == _of_steps(seen)


def differ_by_themselves(seen: Mapping[str, Any]) -> bool:
    """Whether steps that never were alike are this machine's own pace: nobody else was on it.

    Measured: Trainer steps on an H100 in a virtual machine of 16 cores, bound by issuing kernels:
    robust sd 0.13 with 0.07 cores of others.
    """
    cores = max(float(seen.get("cores", 1.0)), 1.0)
    counted = "others" in seen and "stolen" in seen
    foreign = float(seen.get("others", 0.0)) + float(seen.get("stolen", 0.0))
    alone = counted and foreign <= HURRIED * cores
    return alone and not disturbances({**seen, "steady": True})


def _of_steps(seen: Mapping[str, Any]) -> list[str]:
    """What the steps themselves say."""
    why = []
    if seen.get("steady") is False:
        why.append("the steps never became steady")
    if float(seen.get("spread", 0.0)) > SPREAD:
        why.append(f"steps differ by {float(seen['spread']):.0%}")
    if float(seen.get("stalled", 0.0)) > STALLED:
        why.append(f"{float(seen['stalled']):.0%} of the steps stalled")
    if abs(float(seen.get("drift", 0.0))) > DRIFT:
        change = "slower" if float(seen["drift"]) > 0 else "faster"
        why.append(f"steps became {abs(float(seen['drift'])):.0%} {change} within the window")
    return why


def slowdown(seen: Mapping[str, Any]) -> float:
    """How many times longer a disturbed step may have taken than an undisturbed one, at least 1.

    Derived: a thread that waits a share w of the time runs 1 / (1 - w) times as long; cores that
    are all taken are shared in proportion to what each used; the quickest steps were the least
    disturbed ones.
    """
    waited = min(float(seen.get("waited", 0.0)), 0.95)
    found = [1.0, 1.0 / (1.0 - waited), 1.0 / max(float(seen.get("fast", 1.0)), 0.05)]
    own, cores = float(seen.get("own", 0.0)), float(seen.get("cores", 0.0))
    foreign = float(seen.get("others", 0.0)) + float(seen.get("stolen", 0.0))
    if own > 0 and cores > 0 and own + foreign > 0.9 * cores:
        found.append((own + foreign) / own)
    return min(max(found), MOST_SLOWDOWN)


def wait_for_calm(host: Host, most_s: float, *, on_cpu: bool) -> tuple[bool, float]:
    """Sleep until others leave the machine alone, at most so long; whether they do, and [s] slept.

    Where nobody counts what they use, a moment is waited and calm is hoped for.
    """
    begun = time.monotonic()
    before = host.read()
    while True:
        left = most_s - (time.monotonic() - begun)
        if left <= 0:
            return False, time.monotonic() - begun
        time.sleep(min(LOOK_S, left))
        after = host.read()
        seen = between(before, after, host.cores)
        seen.pop("waited", None)  # asleep, it waits for nothing
        if not disturbances({**seen, "device": "cpu" if on_cpu else "cuda"}):
            return True, time.monotonic() - begun
        before = after
