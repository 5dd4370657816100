"""Jobs as a user might write them, drawn: sizes, methods, machines, lengths, limits, evidence."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from ruamel.yaml import YAML

if TYPE_CHECKING:
    from pathlib import Path

MODELS = (
    "Qwen/Qwen2.5-0.5B", "meta-llama/Llama-3.2-1B", "google/gemma-2-2b", "Qwen/Qwen2.5-1.5B",
    "meta-llama/Llama-2-7b-hf", "mistralai/Mistral-7B-v0.1", "meta-llama/Llama-2-70b-hf",
)  # fmt: skip
GPUS = ("h100-sxm", "a100-sxm4-80gb", "l40s", "a100-sxm4-40gb", "rtx-4090", "l4", "t4")
METHODS = (
    {"kind": "lora", "rank": 8}, {"kind": "lora", "rank": 64}, {"kind": "full"},
    {"kind": "lora", "rank": 16, "base": "nf4"}, {"kind": "lora", "rank": 16, "base": "int8"},
    {"kind": "lora", "rank": 16, "base": "32bit"}, {"kind": "full", "base": "32bit"},
)  # fmt: skip


@st.composite
def hardware(draw: st.DrawFn) -> dict[str, Any]:
    """One offer."""
    offer: dict[str, Any] = {
        "gpu": draw(st.sampled_from(GPUS)),
        "count": draw(st.sampled_from([1, 2, 4, 8])),
        "price": draw(st.sampled_from(["free", "0.35 USD/h", "2.50 USD/h", "32 USD/h"])),
    }
    if draw(st.booleans()):
        offer["host"] = {
            "cores": draw(st.sampled_from([2, 8, 64])),
            "disk": draw(st.sampled_from(["20 GB", "200 GB", "4 TB"])),
            "checkpoint_write": draw(st.sampled_from(["5 MB/s", "200 MB/s", "2 GB/s"])),
        }
    if draw(st.integers(0, 3)) == 0:
        offer["spot"] = True
    return offer


def _machine(offer: dict[str, Any]) -> tuple[object, ...]:
    """What a row tells of its machine: two that differ in their host alone look alike."""
    return tuple(offer.get(name) for name in ("gpu", "count", "price", "spot"))


@st.composite
def data(draw: st.DrawFn) -> dict[str, Any]:
    """Rows, how long they are, and what is done to them."""
    most = draw(st.sampled_from([64, 128, 512, 1024, 4096]))
    found: dict[str, Any] = {
        "rows": draw(st.integers(1, 2_000_000)),
        "max_length": most,
        "padding": draw(st.sampled_from(["longest", "max_length"])),
        "pretokenized": draw(st.booleans()),
        "storage": draw(st.sampled_from(["local", "network"])),
    }
    if draw(st.booleans()):
        p50 = draw(st.integers(1, most))
        p95 = draw(st.integers(p50, most))
        found["lengths"] = {"p50": p50, "p95": p95, "max": draw(st.integers(p95, most))}
    return found


@st.composite
def limits(draw: st.DrawFn) -> dict[str, Any]:
    """Any of the limits, loose or out of reach."""
    drawn = {
        "deadline": st.sampled_from(["10min", "5h", "200h"]),
        "budget": st.sampled_from(["0.5 USD", "20 USD", "900 USD"]),
        "max_session": st.sampled_from(["1h", "24h"]),
        "max_lost_work": st.sampled_from(["1min", "30min", "4h"]),
        "vram_headroom": st.sampled_from([0.0, 0.03, 0.08, 0.3]),
    }
    names = draw(st.lists(st.sampled_from(sorted(drawn)), unique=True, max_size=3))
    return {name: draw(drawn[name]) for name in names}


@st.composite
def evidence(draw: st.DrawFn, batch: int) -> list[dict[str, Any]]:
    """A run that was seen: its time, its memory, and whether it is what is run today."""
    micro = draw(st.sampled_from([m for m in (1, 2, 4, 8) if batch % m == 0]))
    measured = draw(
        st.sampled_from(
            [{"duration": "3 h"}, {"duration": "38 h"}, {"step_time": "0.9 s"},
             {"peak_memory": "11 GiB"}, {"out_of_memory": True}]
        )
    )  # fmt: skip
    config = {
        "micro_batch_size": micro, "num_dataloader_workers": draw(st.sampled_from([0, 2])),
        "checkpoint_every_steps": draw(st.sampled_from([50, 1000])), "compile": "off",
    }  # fmt: skip
    return [{"measured": measured, "config": config, "today": draw(st.booleans())}]


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """A whole job file. Some are invalid: a rule of the product refuses them by name."""
    batch = draw(st.sampled_from([1, 4, 8, 16, 64, 256]))
    document: dict[str, Any] = {
        "name": "drawn",
        "model": draw(st.sampled_from(MODELS)),
        "method": dict(draw(st.sampled_from(METHODS))),
        "data": draw(data()),
        "train": {
            "epochs": draw(st.sampled_from([0.5, 1, 3])), "global_batch_size": batch,
        },
        "hardware": draw(st.lists(hardware(), min_size=1, max_size=3, unique_by=_machine)),
        "limits": draw(limits()),
    }  # fmt: skip
    if draw(st.booleans()):
        rows = draw(st.sampled_from([1, 500, 20_000]))
        document["evaluation"] = {"rows": rows, "every_steps": draw(st.sampled_from([50, 5000]))}
    if draw(st.booleans()):
        document["evidence"] = draw(evidence(batch))
    return document


def write(document: dict[str, Any], path: Path) -> Path:
    """The document as a job file."""
    stream = io.StringIO()
    YAML(typ="safe", pure=True).dump(document, stream)
    path.write_text(stream.getvalue(), encoding="utf-8")
    return path
