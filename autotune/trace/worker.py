"""The traced process: one JSON request a line on stdin, one JSON result a line on stdout.

Run as `python -m autotune.trace.worker`. It is a process of its own because an unsupported op on a
build of torch without CUDA can abort the interpreter. Traced code sees an empty stdin, and what it
prints goes to stderr, so that it cannot speak for this process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import warnings
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import TextIO

    from autotune.trace.request import StepRequest
    from autotune.trace.tracker import Peak

_PERIODS = {"gemma2": 2, "gemma4_text": 6, "gemma4_unified_text": 6}  # where no config says so
DEPTHS_OF_PERIOD = (1, 2)  # depths traced, in units of the model's layer pattern (at least 2 and 4)


def layer_period(model: dict[str, Any]) -> int:
    """Layers after which the pattern of layer kinds repeats: 2 for Gemma-2, 6 for Gemma-3.

    All of them where the last layers share keys and values of those before.
    """
    if model.get("num_kv_shared_layers"):
        return int(model["num_hidden_layers"])
    types = model.get("layer_types")
    if types:
        for period in range(1, len(types)):
            if all(types[i] == types[i % period] for i in range(len(types))):
                return period
        return len(types)
    stated = model.get("sliding_window_pattern")
    return int(stated or _PERIODS.get(str(model.get("model_type")), 1))


def layers_before(model: dict[str, Any]) -> int:
    """Layers before the pattern begins: the dense ones of a mixture, which do not grow with depth.

    Source: transformers 5.23, the decoder layers of glm4_moe, deepseek_v2, ernie4_5_moe,
    glm4_moe_lite and lfm2_moe.
    """
    types = model.get("mlp_layer_types") or []
    listed = next((i for i, kind in enumerate(types) if kind == "sparse"), 0)
    named = (
        model.get(key) or 0
        for key in ("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers")
    )
    return max(listed, *named)


def traced(request: StepRequest, *, full: bool) -> dict[str, Any]:
    """Peaks of the step at full depth, or extrapolated from two small depths per (phase, op).

    A part that shrinks with depth peaks at another tensor of the operation there: then from twice
    those depths.
    """
    from autotune.trace.step import trace_step

    depth = request.num_layers
    period = layer_period(request.model)
    before = layers_before(request.model)
    low, high = (before + max(d * period, 2 * d) for d in DEPTHS_OF_PERIOD)
    while not full and depth > high:
        small = trace_step(request.at_depth(low)).peaks
        large = trace_step(request.at_depth(high)).peaks
        grown = {
            key: _extrapolate(small[key], large[key], (depth - low) / (high - low))
            for key in large
            if key in small
        }
        answer = _answer(grown, depths=[low, high])
        if min([*answer["parts"].values(), *answer["phases"].values()]) >= 0.0:
            return answer
        low, high = high, 2 * high
    return _answer(_as_found(trace_step(request).peaks), depths=[depth])


def traced_run(request: StepRequest, *, capacity: int, blas: int) -> dict[str, Any]:
    """The first steps of the run at full depth, and what the caching allocator makes of them."""
    from autotune.trace.answers import least_capacity, simulate
    from autotune.trace.step import trace_run

    tracker = trace_run(request, blas)
    events = tracker.events or []
    answer = _answer(_as_found(tracker.peaks), depths=[request.num_layers])
    answer["allocator"] = {
        "capacity": capacity,
        "roomy": asdict(simulate(events)),
        "limited": asdict(simulate(events, capacity=capacity)),
        "expandable": asdict(simulate(events, capacity=capacity, expandable=True)),
        "needed": least_capacity(events),
        "expandable_needed": least_capacity(events, expandable=True),
        "events": len(events),
    }
    return answer


def _extrapolate(small: Peak, large: Peak, steps: float) -> tuple[float, dict[str, float]]:
    """Linear in layers, per part: a peak is a maximum of linear functions, each kept apart."""
    parts = {
        name: small.parts.get(name, 0) + (large.parts[name] - small.parts.get(name, 0)) * steps
        for name in large.parts
    }
    return sum(parts.values()), parts


def _as_found(peaks: dict[tuple[str, str], Peak]) -> dict[tuple[str, str], tuple[float, Any]]:
    return {key: (peak.total, peak.parts) for key, peak in peaks.items()}


def _answer(
    peaks: dict[tuple[str, str], tuple[float, dict[str, Any]]], depths: list[int]
) -> dict[str, Any]:
    (phase, op), (total, parts) = max(peaks.items(), key=lambda item: item[1][0])
    phases: dict[str, float] = {}
    for (name, _), (value, _) in peaks.items():
        phases[name] = max(phases.get(name, 0.0), value)
    return {
        "peak_bytes": total, "parts": parts, "phase": phase, "op": op, "phases": phases,
        "depths": depths,
    }  # fmt: skip


def versions() -> dict[str, str]:
    """The versions that were traced."""
    from importlib.metadata import version

    return {name: version(name) for name in ("torch", "transformers", "peft")}


def _streams() -> tuple[TextIO, TextIO]:
    """The protocol's own streams, out of reach of what is traced."""
    asks, answers = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    return asks, answers


def main() -> None:
    """Answer requests until stdin closes."""
    _die_with_parent()
    warnings.simplefilter("ignore")
    asks, out = _streams()
    from autotune.trace.request import StepRequest

    print(json.dumps({"versions": versions()}), file=out, flush=True)
    for line in asks:
        begun = time.perf_counter()
        try:
            asked = json.loads(line)
            request = StepRequest.from_json(asked["request"])
            if "capacity" in asked:
                answer = traced_run(request, capacity=asked["capacity"], blas=asked["blas"])
            else:
                answer = traced(request, full=asked.get("full", False))
            answer["seconds"] = time.perf_counter() - begun
        except Exception as error:  # noqa: BLE001 - any failure of foreign model code is an answer
            answer = {"failed": _reason(error)}
        print(json.dumps(answer), file=out, flush=True)


def _die_with_parent() -> None:
    """A trace takes minutes, and nobody waits for it once its parent was killed (Linux).

    Source: man 2 prctl, PR_SET_PDEATHSIG.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)


def _reason(error: Exception) -> str:
    """What went wrong, in one line."""
    text = " ".join(str(error).split())[:300]
    kind = type(error).__name__
    return text if kind == "Unsupported" else f"{kind}: {text}" if text else kind


if __name__ == "__main__":
    main()
