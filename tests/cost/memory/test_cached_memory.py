"""What torch's allocator holds beside what is in use, against the simulated allocator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import lora, memory_columns, priced_job

from autotune.catalog.models.models import find_model
from autotune.cost.constants import memory_constants
from autotune.cost.memory.cache import BLOCK_STEP, OUTGROWN_OPEN, PRIORS, outgrown
from autotune.cost.memory.component import DevicePeak, price_memory
from autotune.domain.job import Lengths
from autotune.trace.allocator import CachingAllocator

SEVEN = find_model("Mistral-7B-v0.1")
UNIFORM = Lengths(tuple(np.linspace(1.0, 2048.0, 101).tolist()), 1024.0, 2048, known=True)
CAPPED = Lengths((64.0, 700.0, 1500.0, 2048.0, 2048.0), 1300.0, 2048, known=True)


def drawn(lengths: Lengths, rows: int, batches: int, runs: int = 600) -> np.ndarray:
    """[runs, batches] lengths of padded batches, drawn at random."""
    at = np.random.default_rng(0).random((runs, batches, rows)).max(axis=2)
    levels = np.linspace(0.0, 1.0, len(lengths.quantiles))
    return np.floor(np.interp(at, levels, lengths.quantiles))


def up_to(longest: int) -> Lengths:
    """Lengths that are spread evenly up to the longest."""
    return Lengths(tuple(np.linspace(1.0, longest, 101).tolist()), longest / 2, longest, known=True)


@pytest.mark.parametrize(("lengths", "rows", "batches"), [
    (UNIFORM, 1, 500), (UNIFORM, 8, 500), (UNIFORM, 1, 5), (CAPPED, 1, 500), (CAPPED, 4, 20),
])  # fmt: skip
def test_records_before_the_longest_batch_are_counted_as_draws_show_them(
    lengths: Lengths, rows: int, batches: int
) -> None:
    sums = []
    for run in drawn(lengths, rows, batches):
        records = np.unique(np.maximum.accumulate(run))
        sums.append((records.sum() - records[-1]) / records[-1])
    found = outgrown(lengths, float(rows), float(batches))
    assert found.mean == pytest.approx(np.mean(sums), rel=0.05, abs=0.02)
    few = 0.5 if batches < 10 else 0.0  # records of few draws scatter less than independent ones
    assert found.sd == pytest.approx(np.std(sums), rel=0.15 + few, abs=0.05)


def test_equal_lengths_outgrow_nothing() -> None:
    one = Lengths((512.0, 512.0), 512.0, 512, known=True)
    assert outgrown(one, 1.0, 100.0).mean == outgrown(UNIFORM, 1.0, 1.0).mean == 0.0


def test_logits_that_a_longer_batch_outgrew_stay_in_the_simulated_allocator() -> None:
    token = 12 * 32_000  # bytes of the logits at the peak
    ratios = []
    for run in drawn(UNIFORM, 1, 60, runs=40):
        allocator = CachingAllocator()
        for length in run.astype(int):
            blocks = [allocator.malloc(int(length) * token // 3) for _ in range(3)]
            for block in blocks:
                allocator.free(block)
        longest = run.max() * token
        ratios.append((allocator.counts.peak_reserved - longest) / longest)
    assert np.mean(ratios) == pytest.approx(outgrown(UNIFORM, 1.0, 60.0).mean, rel=0.15)


def test_16_bit_logits_that_were_widened_stay_in_the_simulated_allocator() -> None:
    number = 1024 * 32_000
    allocator, blocks = CachingAllocator(), {}
    for name, size in (("narrow", 2), ("wide", 4), ("softmax", 4), ("first", 4), ("second", 4)):
        blocks[name] = allocator.malloc(size * number)
        if name in {"wide", "softmax"}:
            allocator.free(blocks["narrow" if name == "wide" else "wide"])
    left = allocator.counts.peak_reserved - allocator.counts.peak_allocated
    assert left == pytest.approx(2 * number, rel=0.05)
    job = priced_job(SEVEN, lora(SEVEN), 1024)
    assert job.software.loss == "upcast"
    columns = memory_columns(micro_batch_size=1)
    cache = DevicePeak.of(job, columns, memory_constants()).cache
    assert float(cache.logits[0]) == 2 * 1024 * SEVEN.vocab_size


def test_blocks_of_one_layer_are_cached_however_many_layers_there_are() -> None:
    deeper = replace(SEVEN, num_layers=2 * SEVEN.num_layers)
    found = [
        DevicePeak.of(priced_job(own, lora(own), 1024), memory_columns(), memory_constants())
        for own in (SEVEN, deeper)
    ]
    assert float(found[0].cache.layers[0]) == pytest.approx(float(found[1].cache.layers[0]))


ONE = {"micro_batch_size": 4, "activation_checkpointing": "full"}


def ragged(**knobs: object) -> dict[str, float]:
    """A 7B under LoRA, four rows of up to 2,048 tokens at a time."""
    job = replace(priced_job(SEVEN, lora(SEVEN), 2048), lengths=UNIFORM)
    knobs = ONE | knobs
    return {k: float(v[0]) for k, v in price_memory(job, memory_columns(**knobs)).items()}


def test_a_batch_sorted_by_length_starts_with_the_longest_and_outgrows_nothing() -> None:
    assert ragged(length_grouping="on")["reserved"] < ragged()["reserved"]
    assert ragged(length_grouping="on")["allocated"] == ragged()["allocated"]


def test_ragged_rows_widen_what_is_said_of_reserved_bytes_by_how_their_order_falls() -> None:
    assert ragged()["reserved_log_sd"] > ragged(length_grouping="on")["reserved_log_sd"] + 0.005


def test_a_run_that_caches_little_is_known_better_than_one_that_caches_much() -> None:
    for found in (ragged(), ragged(length_grouping="on")):
        share = 1.0 - found["allocated"] / found["reserved"]
        most = np.hypot(found["log_sd"], memory_constants().cached_sd * share)
        least = np.hypot(found["log_sd"], OUTGROWN_OPEN * memory_constants().cached_sd * share)
        assert found["reserved_log_sd"] >= least * (1.0 - 1e-9)
        assert found["reserved_log_sd"] < most + 0.1


@pytest.mark.parametrize("covered", [0.25, 0.5])
def test_of_outgrown_logits_only_what_a_standing_block_does_not_hold_is_kept(
    covered: float,
) -> None:
    token = 12 * 32_000  # bytes of the logits at the peak
    standing = round(covered * 2048 * token)
    ratios = []
    for run in drawn(UNIFORM, 1, 60, runs=40):
        allocator = CachingAllocator()
        for length in run.astype(int):
            allocator.free(allocator.malloc(standing))
            blocks = [allocator.malloc(int(length) * token // 12) for _ in range(12)]
            for block in blocks:
                allocator.free(block)
        longest = run.max() * token
        ratios.append(allocator.counts.peak_reserved / longest - 1.0)
    without = outgrown(UNIFORM, 1.0, 60.0).mean
    beyond = outgrown(UNIFORM, 1.0, 60.0, covered).mean
    assert beyond < (1.0 - covered) * without
    assert np.mean(ratios) == pytest.approx(beyond, rel=0.2)


def test_a_record_within_the_rounding_of_a_block_outgrows_nothing() -> None:
    token = 4 * 32_000  # bytes of a token's logits in fp32: sixteen of them are one step of a block
    longest = 512
    lengths = up_to(longest)
    ratios = []
    for run in drawn(lengths, 1, 200, runs=60):
        allocator = CachingAllocator()
        for length in run.astype(int):
            allocator.free(allocator.malloc(int(length) * token))
        ratios.append(allocator.counts.peak_reserved / (run.max() * token) - 1.0)
    finely, rounded = (
        outgrown(lengths, 1.0, 200.0, 0.0, g).mean for g in (1.0, BLOCK_STEP / token)
    )
    assert np.mean(ratios) == pytest.approx(rounded, rel=0.15)
    assert finely > 1.2 * np.mean(ratios)


def test_a_head_that_normalises_its_weight_needs_fp32_room_that_short_logits_share() -> None:
    baichuan = find_model("Baichuan2-7B-Chat")
    plain = replace(baichuan, family="llama")
    found: dict[tuple[str, int], dict[str, float]] = {}
    for name, own in (("normalised", baichuan), ("plain", plain)):
        for length in (256, 1024, 4096):
            job = replace(priced_job(own, lora(own), length), lengths=up_to(length))
            priced = price_memory(
                job, memory_columns(micro_batch_size=1, activation_checkpointing="full")
            )
            found[name, length] = {k: float(priced[k][0]) for k in ("allocated", "reserved")}
    weight = baichuan.vocab_size * baichuan.hidden_size
    short = found["normalised", 256]["allocated"] - found["plain", 256]["allocated"]
    long = found["normalised", 4096]["allocated"] - found["plain", 4096]["allocated"]
    assert 4.0 * weight < short < 6.0 * weight  # in fp32 and in 16 bits, less 256 rows of logits
    assert long == pytest.approx(2.0 * weight, rel=0.01)  # the logits take what was fp32
    grown = {
        name: found[name, 1024]["reserved"] - found[name, 256]["reserved"]
        for name in ("plain", "normalised")
    }
    assert grown["normalised"] < 0.25 * grown["plain"]


def test_a_loss_without_logits_leaves_no_outgrown_logits() -> None:
    job = replace(priced_job(SEVEN, lora(SEVEN), 2048), lengths=UNIFORM)
    fused = replace(job, software=replace(job.software, loss="fused"))
    cache = [DevicePeak.of(each, memory_columns(**ONE), memory_constants()).cache
             for each in (job, fused)]  # fmt: skip
    assert float(cache[1].outgrown_logits[0]) < 0.2 * float(cache[0].outgrown_logits[0])


def test_gradients_and_moments_are_not_outgrown_by_longer_rows() -> None:
    job = priced_job(SEVEN, lora(SEVEN), 2048)
    full = replace(
        job, method=replace(job.method, kind="full", rank=0, targets=()), lengths=UNIFORM
    )
    found = DevicePeak.of(full, memory_columns(optimizer="adamw_torch"), memory_constants())
    trained = float(found.parts["gradients"][0])
    short = replace(full, lengths=Lengths((1.0, 64.0), 32.0, 64, known=True), max_length=64)
    cache = DevicePeak.of(short, memory_columns(optimizer="adamw_torch"), memory_constants()).cache
    assert float(cache.held(memory_constants().cached)[0]) < 0.3 * trained


def test_the_shipped_shares_stay_near_those_of_the_simulated_allocator() -> None:
    for name, share in memory_constants().cached.items():
        mean, sd = PRIORS[name]
        assert abs(np.log(share / mean)) < 3.0 * sd, name


def test_rows_that_all_are_shorter_than_a_block_grows_by_outgrow_nothing() -> None:
    short = replace(UNIFORM, quantiles=tuple(np.linspace(1.0, 9.0, len(UNIFORM.quantiles))))
    assert outgrown(short, 1.0, 60.0, 0.0, 1e6).mean == 0.0
