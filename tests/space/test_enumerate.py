from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.domain.candidates import CLOSED_FORM, OFFER, SearchSpace
from autotune.domain.config import KNOBS, PLAIN, Config
from autotune.domain.errors import InputError
from autotune.domain.job import Method
from autotune.space.enumerate import AXES, enumerate_candidates, knob_levels
from autotune.space.file import load_space
from autotune.space.rules import violations

ALL_OPT_IN = tuple(PLAIN)


def enumerated(job: Any, space: SearchSpace) -> set[tuple[int, str]]:
    found = enumerate_candidates(job, space)
    candidates = found.candidates
    keys = {
        (int(candidates.codes[OFFER][i]), candidates.config(i).key) for i in range(len(candidates))
    }
    assert len(keys) == len(candidates), "no candidate twice"
    return keys


def brute_force(job: Any, space: SearchSpace) -> set[tuple[int, str]]:
    valid = set()
    for number, offer in enumerate(job.offers):
        levels = [knob_levels(job, space, offer, name) for name in AXES]
        for values in product(*levels):
            knobs = dict(zip(AXES, values, strict=True))
            micro_rows = int(knobs["micro_batch_size"]) * offer.count
            config = Config(
                gradient_accumulation_steps=job.global_batch_size // micro_rows,
                **knobs,  # type: ignore[arg-type]
            )
            if not violations(job, offer, config):
                valid.add((number, config.key))
    return valid


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_candidates_are_exactly_the_settings_that_pass_the_rules(build: Any, data: Any) -> None:
    def some(name: str, values: list[Any]) -> tuple[Any, ...]:
        picked = st.lists(st.sampled_from(values), min_size=1, max_size=2, unique=True)
        return tuple(data.draw(picked, label=name))

    full = load_space("extended")
    values = {name: some(name, list(own)) if own else own for name, own in full.values.items()}
    for name, always in (("precision", "fp32"), ("attention", "sdpa")):  # fp8 alone may be closed
        values[name] = tuple(dict.fromkeys((*values[name], always)))
    names = data.draw(
        st.lists(st.sampled_from(["t4", "a100", "cpu", "mi300x"]), min_size=1, max_size=2)
    )
    offers = tuple(
        build.offer(
            name,
            data.draw(st.sampled_from([1, 2, 3])),
            cores=data.draw(st.sampled_from([1, 4, 16])),
            shm_bytes=data.draw(st.sampled_from([1e5, 1e9])),
        )
        for name in names
    )
    kind, base = data.draw(
        st.sampled_from(
            [
                ("lora", "16bit"),
                ("lora", "nf4"),
                ("lora", "32bit"),
                ("full", "16bit"),
                ("full", "32bit"),
            ]
        )
    )
    job = build.job(
        *offers,
        method=Method(kind, base, 16 if kind == "lora" else 0),
        global_batch_size=data.draw(st.sampled_from([1, 6, 8])),
        padding=data.draw(st.sampled_from(["longest", "max_length"])),
        allow=data.draw(st.sampled_from([(), ALL_OPT_IN])),
    )
    space = SearchSpace("small", values)
    expected = brute_force(job, space)
    if all(job.global_batch_size % offer.count for offer in offers):
        with pytest.raises(InputError, match="global batch"):
            enumerate_candidates(job, space)
    else:
        assert enumerated(job, space) == expected


def test_counts_add_up(build: Any) -> None:
    job = build.job(build.offer("t4"), build.offer("a100", 2), build.offer("h100", 3))
    found = enumerate_candidates(job, load_space())
    assert found.space_size == sum(found.rejected.values()) + len(found.candidates)
    assert sum(sum(own.values()) for own in found.by_offer) == sum(found.rejected.values())
    assert not (found.candidates.codes[OFFER] == 2).any(), "three devices cannot share a batch of 8"


def test_the_global_batch_is_exact_for_every_candidate(build: Any) -> None:
    offers = [build.offer("a100", count) for count in (1, 2, 4, 8)]
    job = build.job(*offers, global_batch_size=48)
    candidates = enumerate_candidates(job, load_space()).candidates
    for i in range(0, len(candidates), 7):
        config = candidates.config(i)
        rows = config.micro_batch_size * config.gradient_accumulation_steps
        assert rows * candidates.offer(i).count == 48
    splits = {candidates.value("micro_batch_size", i) for i in range(len(candidates))}
    assert splits == {1, 2, 3, 4, 6, 8, 12, 16, 24, 48}


def test_checkpoint_knobs_are_closed_forms_unless_locked(build: Any) -> None:
    plain = enumerate_candidates(build.job(), load_space()).candidates
    assert plain.levels["checkpoint_every_steps"] == (CLOSED_FORM,)
    assert plain.levels["save_total_limit"] == (CLOSED_FORM,)
    locked = build.job(lock={"checkpoint_every_steps": 50, "save_total_limit": 3})
    held = enumerate_candidates(locked, load_space()).candidates
    assert held.levels["checkpoint_every_steps"] == (50,)
    assert held.levels["save_total_limit"] == (3,)


def test_memory_is_pinned_with_cuda_and_never_on_a_cpu(build: Any) -> None:
    job = build.job(build.offer("a100"), build.offer("cpu"), method=Method("lora", "32bit", 8))
    candidates = enumerate_candidates(job, load_space()).candidates
    seen = {
        (candidates.offer(i).device.name, candidates.value("pin_memory", i))
        for i in range(len(candidates))
    }
    assert seen == {("a100", True), ("cpu", False)}


def test_every_knob_is_a_column(build: Any) -> None:
    candidates = enumerate_candidates(build.job(), load_space()).candidates
    assert set(candidates.levels) == set(candidates.codes) == {OFFER, *KNOBS}
    assert {str(codes.dtype) for codes in candidates.codes.values()} == {"int32"}


def test_opt_in_values_need_the_jobs_consent(build: Any) -> None:
    closed = enumerate_candidates(build.job(), load_space("extended"))
    assert closed.candidates.levels["packing"] == ("off",)
    assert closed.opt_in_ignored["packing"] == ("on",)
    assert set(closed.opt_in_ignored) == {*ALL_OPT_IN, "precision", "attention"}
    opened = build.job(allow=("packing", "optimizer"))
    for name in ("default", "extended"):
        found = enumerate_candidates(opened, load_space(name))
        assert set(found.candidates.levels["packing"]) == {"off", "on"}
        assert len(found.candidates.levels["optimizer"]) == 4
    assert enumerate_candidates(build.job(), load_space()).opt_in_ignored == {}


def test_a_locked_opt_in_value_counts_as_consent(build: Any) -> None:
    job = build.job(lock={"packing": "on"})
    found = enumerate_candidates(job, load_space("extended"))
    assert found.candidates.levels["packing"] == ("on",)
    assert "packing" not in found.opt_in_ignored
    assert "attend to each other" in found.warnings[0]


@pytest.mark.parametrize(
    ("lock", "says"),
    [
        ({"precision": "bf16"}, ("precision bf16", "t4", "natively")),
        ({"attention": "flash_attention_2"}, ("flash_attention_2", "t4", "8.0")),
        ({"micro_batch_size": 3}, ("micro_batch_size 3", "global batch")),
        ({"gradient_accumulation_steps": 3}, ("gradient_accumulation_steps 3", "global batch")),
        ({"num_dataloader_workers": 64}, ("num_dataloader_workers 64", "cores")),
        ({"sharding": "fsdp"}, ("sharding fsdp", "one device")),
        ({"micro_batch_size": 4, "gradient_accumulation_steps": 4}, ("4", "global batch")),
    ],
)
def test_an_impossible_lock_names_device_and_value(
    build: Any, lock: dict[str, Any], says: tuple[str, ...]
) -> None:
    job = build.job(build.offer("t4"), lock=lock)
    with pytest.raises(InputError) as caught:
        enumerate_candidates(job, load_space())
    assert all(part in caught.value.message for part in says), caught.value.message


def test_a_lock_that_one_offer_can_hold_only_drops_the_others(build: Any) -> None:
    job = build.job(build.offer("t4"), build.offer("a100"), lock={"precision": "bf16"})
    found = enumerate_candidates(job, load_space())
    assert set(found.candidates.codes[OFFER].tolist()) == {1}
    assert found.by_offer[0]


def test_locked_splits_are_kept_exactly(build: Any) -> None:
    job = build.job(lock={"gradient_accumulation_steps": 4})
    candidates = enumerate_candidates(job, load_space()).candidates
    assert candidates.levels["gradient_accumulation_steps"] == (4,)
    assert candidates.levels["micro_batch_size"] == (2,)


def test_a_batch_that_no_offer_can_split_is_an_input_error(build: Any) -> None:
    with pytest.raises(InputError, match="no split makes a global batch of 8"):
        enumerate_candidates(build.job(build.offer("a100", 3)), load_space())


def test_a_method_that_the_hardware_cannot_run_leaves_nothing_and_says_why(build: Any) -> None:
    job = build.job(build.offer("t4"), method=Method("full", "16bit"), lock={"compile": "off"})
    found = enumerate_candidates(job, load_space())
    assert len(found.candidates) == 0
    assert any("base 32bit" in reason for reason in found.rejected)
    assert found.space_size == sum(found.rejected.values())


def test_hundreds_of_thousands_of_candidates_are_enumerated_whole(build: Any) -> None:
    offers = [build.offer("h100", 2, cores=64) for _ in range(14)]
    job = build.job(*offers, global_batch_size=128, padding="max_length", allow=ALL_OPT_IN)
    found = enumerate_candidates(job, load_space("extended"))
    assert len(found.candidates) > 300_000
    assert len(found.candidates) + sum(found.rejected.values()) == found.space_size


def test_a_lock_that_cannot_be_names_the_values_that_can(build: Any) -> None:
    """Opt-in ones among them, and none that the rules leave without a candidate."""
    job = build.job(build.offer("a100"), lock={"offload": "all"})
    with pytest.raises(InputError, match="offload all is locked") as caught:
        enumerate_candidates(job, load_space("default"))
    assert "offload none, optimizer, activations can run here" in str(caught.value.hint)


def test_what_a_host_could_have_more_of_is_no_way_to_keep_a_lock_of_the_device(build: Any) -> None:
    """Data workers are rejected for too few cores as well, which is another matter."""
    job = build.job(build.sold("p100", cores=1), lock={"compile": "default"})
    with pytest.raises(InputError, match="Triton compiles for") as caught:
        enumerate_candidates(job, load_space("default"))
    assert "compile off can run here" in str(caught.value.hint)
    assert "host.cores" not in str(caught.value.hint)
