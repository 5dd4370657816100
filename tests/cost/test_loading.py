"""What the host's memory holds while weights are loaded and saved, against real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from autotune.app.tune.answer import explain
from autotune.app.whatif.shortfall import shortfall_of
from autotune.cost.offloading import WIDE_BYTES
from autotune.domain.job import Origin
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


def test_under_fsdp_each_process_loads_since_transformers_5(lab: Any) -> None:
    found = billed(lab, "32bit", 8, sharding="fsdp").at("memory", "loading_host_bytes", 0)
    assert found == pytest.approx(8 * WIDE_BYTES * WEIGHTS, rel=0.01)


@pytest.mark.parametrize(
    ("base", "sharding", "each"),
    [
        ("16bit", "ddp", 2.0),  # in the process that writes
        ("16bit", "fsdp", 2.0),  # gathered there
        ("16bit", "zero3", 2.0),
        ("16bit", "zero2", 16.0),  # by each of eight
    ],
)
def test_a_save_holds_the_model_as_often_as_it_is_copied(
    lab: Any, base: str, sharding: str, each: float
) -> None:
    found = billed(lab, base, 8, sharding=sharding).at("memory", "saving_host_bytes", 0)
    assert found == pytest.approx(each * WEIGHTS, rel=0.01)


def test_adapters_are_saved_alone_but_where_the_frozen_model_is_gathered_with_them(
    lab: Any,
) -> None:
    def held(sharding: str, base: str = "nf4") -> float:
        return billed(lab, base, 8, sharding=sharding).at("memory", "saving_host_bytes", 0)

    adapters = held("ddp")
    assert 0 < adapters < 0.05 * WEIGHTS
    assert held("fsdp") > adapters + 0.5 * WEIGHTS
    assert held("zero3", "32bit") == pytest.approx(adapters / 2, rel=0.01)  # in 16 bit
    assert held("zero2", "32bit") == pytest.approx(8 * (2.0 * WEIGHTS + adapters / 2), rel=0.01)


def test_a_file_that_keeps_shards_apart_gathers_nothing(lab: Any) -> None:
    job = lab.job(LLAMA, lab.lora(), 512, global_batch_size=64)
    row = (lab.offer("h200", 8), lab.config(1, 8, sharding="fsdp"))

    def held(text: str) -> float:
        own = replace(job, origin=Origin("axolotl", "yaml", "a.yml", text))
        return Pricing(own).of([row]).at("memory", "saving_host_bytes", 0)

    apart = "fsdp_config: {state_dict_type: SHARDED_STATE_DICT}"
    assert held("") == held(f"{apart}\nfinal_state_dict_type: FULL_STATE_DICT") > 2.0 * WEIGHTS
    assert held(apart) < 0.05 * WEIGHTS


def test_a_file_that_gathers_states_holds_them_once_the_model_is_written(lab: Any) -> None:
    """Source: accelerate 1.15 utils/fsdp_utils.py, save_fsdp_optimizer, after the model's save."""
    job = lab.job(LLAMA, replace(lab.full(), base="32bit"), 512, global_batch_size=64)
    row = (lab.offer("h200", 8), lab.config(1, 8, sharding="fsdp"))

    def held(text: str) -> float:
        own = replace(job, origin=Origin("axolotl", "yaml", "a.yml", text))
        return Pricing(own).of([row]).at("memory", "saving_host_bytes", 0)

    assert held("") == pytest.approx(4.0 * WEIGHTS, rel=0.01)
    assert held("fsdp_final_state_dict_type: FULL_STATE_DICT") == held("")
    assert held("fsdp_state_dict_type: FULL_STATE_DICT") == pytest.approx(8.0 * WEIGHTS, rel=0.01)


@pytest.mark.parametrize(
    ("stack", "kind", "count", "epochs", "each"),
    [
        ("torchtune", "full", 1, 1, 2.0),
        ("torchtune", "full", 8, 2, 6.0),  # states in 16 bit too, to go on from
        ("torchtune", "lora", 1, 1, 2.0),  # merged
        ("litgpt", "full", 1, 1, 0.0),  # one tensor after the other
        ("litgpt", "full", 8, 1, 2.0),
        ("litgpt", "lora", 1, 1, 2.0),
    ],
)
def test_trainers_with_code_of_their_own_copy_the_model(
    lab: Any, stack: str, kind: str, count: int, epochs: int, each: float
) -> None:
    """Source: torchtune's _checkpoint_client.py, litgpt's finetune/full.py and merge_lora.py."""
    method = lab.full() if kind == "full" else lab.lora()
    job = lab.job(LLAMA, method, 512, global_batch_size=8 * count)
    software = replace(job.software, own_model=True, stack=stack)
    job = replace(job, software=software, epochs=epochs)
    config = lab.config(1, 8, sharding="fsdp" if count > 1 else "none")
    found = Pricing(job).of([(lab.offer("h200", count), config)])
    assert found.at("memory", "saving_host_bytes", 0) == pytest.approx(each * WEIGHTS, rel=0.01)


def test_a_stated_host_that_cannot_save_is_said(lab: Any) -> None:
    small, large = (billed(lab, "16bit", 8, ram * GIB, sharding="zero2") for ram in (100, 200))
    assert list(small.feasible) == [False]
    assert list(large.feasible) == [True]
    missing = shortfall_of(small, 0)
    assert missing is not None
    said = shortfall_lead(missing, nearest=False)
    assert "saving, for which ZeRO-2 copies the whole model in each of 8 processes, needs" in said


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


TOGETHER = """
import gc, os, sys, time, torch, transformers
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
def held():
    words = open("/proc/self/status").read().split()
    return int(words[words.index("RssAnon:") + 1]) * 1024
dist.init_process_group("gloo")
load = transformers.AutoModelForCausalLM.from_pretrained
load(sys.argv[1], dtype=torch.bfloat16)
before = held()
model = load(sys.argv[1], dtype=torch.float32)
count = sum(each.numel() for each in model.parameters())
loaded = held() - before
mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
for module in (*model.model.layers, model):
    fully_shard(module, mesh=mesh)
gc.collect()
before = held()
options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, cpu_offload=True)
state = get_model_state_dict(model, options=options)
gathered = sum(each.numel() * each.element_size() for each in state.values())
if state:
    model.save_pretrained(sys.argv[2], state_dict=state)
with open(f"{sys.argv[2]}.{dist.get_rank()}", "w") as file:
    print(loaded / count, gathered / count, (held() - before) / count, file=file)
while not os.path.exists(f"{sys.argv[2]}.{1 - dist.get_rank()}"):
    time.sleep(0.05)
os._exit(0)  # all is written, and threads of gloo may abort a process that tears them down
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's own account")
def test_two_real_processes_load_a_model_each_and_gather_one(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "together.py").write_text(TOGETHER)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
         str(tmp_path / "together.py"), str(saved), str(tmp_path / "out")],
        capture_output=True, check=False, text=True, timeout=300,
        env={**os.environ, "ACCELERATE_USE_FSDP": "true", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
             "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, second = (
        [float(word) for word in (tmp_path / f"out.{rank}").read_text().split()] for rank in (0, 1)
    )
    assert first[0] == pytest.approx(WIDE_BYTES, abs=0.15)
    assert second[0] == pytest.approx(WIDE_BYTES, abs=0.15)
    assert (first[1], second[1]) == (pytest.approx(WIDE_BYTES, rel=0.01), 0.0)
    # of a CPU's shards the gathered buffers are in the same memory: at most a layer or two more
    assert WIDE_BYTES <= first[2] < WIDE_BYTES + 1.5
    assert second[2] < 1.5
