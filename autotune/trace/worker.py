"""The traced process: one JSON request a line on stdin, one JSON result a line on stdout.

Run as `python -m autotune.trace.worker`. It is a process of its own because an unsupported op on a
build of torch without CUDA can abort the interpreter.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.trace.request import StepRequest
    from autotune.trace.tracker import Peak

DEPTHS_OF_PERIOD = (1, 2)  # depths traced, in units of the model's layer pattern (at least 2 and 4)


def layer_period(model: dict[str, Any]) -> int:
    """Layers after which the pattern of layer kinds repeats: 2 for Gemma-2, 6 for Gemma-3."""
    types = model.get("layer_types")
    if types:
        for period in range(1, len(types)):
            if all(types[i] == types[i % period] for i in range(len(types))):
                return period
        return len(types)
    return int(model.get("sliding_window_pattern") or (2 if model["model_type"] == "gemma2" else 1))


def traced(request: StepRequest, *, full: bool) -> dict[str, Any]:
    """Peaks of the step at full depth, or extrapolated from two small depths per (phase, op)."""
    from autotune.trace.step import trace_step

    depth = request.num_layers
    period = layer_period(request.model)
    low, high = (max(d * period, 2 * d) for d in DEPTHS_OF_PERIOD)
    if full or depth <= high:
        peaks = trace_step(request).peaks
        return _answer({key: (p.total, p.parts) for key, p in peaks.items()}, depths=[depth])
    small = trace_step(request.at_depth(low)).peaks
    large = trace_step(request.at_depth(high)).peaks
    grown = {
        key: _extrapolate(small[key], large[key], (depth - low) / (high - low))
        for key in large
        if key in small
    }
    return _answer(grown, depths=[low, high])


def _extrapolate(small: Peak, large: Peak, steps: float) -> tuple[float, dict[str, float]]:
    """Linear in layers, per part: a peak is a maximum of linear functions, each kept apart."""
    parts = {
        name: small.parts.get(name, 0) + (large.parts[name] - small.parts.get(name, 0)) * steps
        for name in large.parts
    }
    return sum(parts.values()), parts


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


def main() -> None:
    """Answer requests until stdin closes."""
    warnings.simplefilter("ignore")
    out = sys.stdout
    sys.stdout = sys.stderr  # libraries that print must not break the protocol
    from autotune.trace.request import StepRequest

    print(json.dumps({"versions": versions()}), file=out, flush=True)
    for line in sys.stdin:
        begun = time.perf_counter()
        try:
            asked = json.loads(line)
            request = StepRequest.from_json(asked["request"])
            answer = traced(request, full=asked.get("full", False))
            answer["seconds"] = time.perf_counter() - begun
        except Exception as error:  # noqa: BLE001 - any failure of foreign model code is an answer
            answer = {"failed": f"{type(error).__name__}: {error}"[:2000]}
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main()
