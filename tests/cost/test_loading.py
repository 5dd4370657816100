"""What the host's memory holds while weights are loaded, against real processes that load some."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from autotune.app.tune.answer import explain
from autotune.app.whatif.shortfall import shortfall_of
from autotune.cost.offloading import WIDE_BYTES
from autotune.pricing import Pricing
from autotune.report.sections.memory import shortfall_lead

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.cost.bill import Bill

LLAMA = "meta-llama/Llama-3.1-8B"
WEIGHTS = 8.03e9
GIB = 2**30
LOADS = """
import sys, torch, transformers
def held():
    words = open("/proc/self/status").read().split()
    return int(words[words.index("RssAnon:") + 1]) * 1024
load = transformers.AutoModelForCausalLM.from_pretrained
load(sys.argv[1], dtype=torch.bfloat16)  # what the libraries make, once before
before = held()
model = load(sys.argv[1], dtype=getattr(torch, sys.argv[2]))
print((held() - before) / sum(each.numel() for each in model.parameters()))
"""


def billed(lab: Any, base: str, count: int, ram: float | None = None, **knobs: Any) -> Bill:
    method = replace(lab.full() if base == "16bit" else lab.lora(), base=base)
    job = lab.job(LLAMA, method, 512, global_batch_size=8 * count)
    offer = lab.offer("h200", count)
    if ram is not None:
        offer = replace(offer, host=replace(offer.host, ram_bytes=ram, assumed=()))
    sharding = "ddp" if count > 1 else "none"
    config = lab.config(1, 8, activation_checkpointing="full", **{"sharding": sharding, **knobs})
    return Pricing(job).of([(offer, config)])


def test_each_process_makes_its_own_fp32_weights_and_maps_16_bit_files(lab: Any) -> None:
    for count in (1, 8):
        made = billed(lab, "32bit", count).at("memory", "loading_host_bytes", 0)
        assert made == pytest.approx(count * WIDE_BYTES * WEIGHTS, rel=0.01)
        assert billed(lab, "nf4", count).at("memory", "loading_host_bytes", 0) == 0.0
    assert billed(lab, "16bit", 1).at("memory", "loading_host_bytes", 0) == 0.0
    each = billed(lab, "32bit", 8, sharding="zero2")
    assert each.at("memory", "loading_host_bytes", 0) == made
    shared = billed(lab, "32bit", 8, sharding="zero3")
    assert shared.at("memory", "loading_host_bytes", 0) == 0.0


def test_a_stated_host_that_cannot_load_is_said_and_an_assumed_one_is_spoken_of(lab: Any) -> None:
    small, large = (billed(lab, "32bit", 8, ram * GIB) for ram in (200, 300))
    assert list(small.feasible) == [False]
    assert list(large.feasible) == [True]
    missing = shortfall_of(small, 0)
    assert missing is not None
    assert missing.resource == "ram"
    said = shortfall_lead(missing, nearest=False)
    assert "loading fp32 weights in each of 8 processes needs" in said
    assumed = billed(lab, "32bit", 8)
    assert list(assumed.feasible) == [True]
    needed = assumed.at("memory", "loading_host_bytes", 0)
    told = explain.ram_note(assumed, 0)
    spoken = needed > explain.RAM_SHARE * assumed.estimate(0).offer.host.ram_bytes
    assert bool(told) is spoken
    assert not explain.ram_note(large, 0)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("model")
    config = transformers.LlamaConfig(
        vocab_size=8000, hidden_size=512, intermediate_size=2048, num_hidden_layers=12,
        num_attention_heads=8, num_key_value_heads=8,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="50MB")
    return folder


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's own account")
@pytest.mark.parametrize(("dtype", "each"), [("bfloat16", 0.0), ("float32", WIDE_BYTES)])
def test_a_real_process_holds_as_much_while_it_loads(saved: Path, dtype: str, each: float) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LOADS, str(saved), dtype],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert float(ran.stdout.split()[-1]) == pytest.approx(each, abs=0.15)
