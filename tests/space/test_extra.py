"""A user's own knobs in a search-space file, and candidates at their levels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from autotune.cost.model import CostModel
from autotune.domain.candidates import Candidates
from autotune.domain.config import KNOBS, Config
from autotune.domain.errors import InputError
from autotune.space.enumerate import enumerate_candidates
from autotune.space.file import at_every_level, load_space

if TYPE_CHECKING:
    from pathlib import Path


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_levels_keep_their_kind_and_null_is_unset(tmp_path: Path) -> None:
    text = (
        "extra:\n"
        "  env.OMP_NUM_THREADS: [1, 2]\n"
        "  env.PYTORCH_ALLOC_CONF: [null, 'expandable_segments:True']\n"
        "  args.use_liger_kernel: [false, true]\n"
        "  args.ddp_bucket_cap_mb: [unset, 50]\n"
    )
    space = load_space(written(tmp_path, text))
    assert space.extra == {
        "env.OMP_NUM_THREADS": ("1", "2"),
        "env.PYTORCH_ALLOC_CONF": ("unset", "expandable_segments:True"),
        "args.use_liger_kernel": (False, True),
        "args.ddp_bucket_cap_mb": ("unset", 50),
    }
    assert space.values == load_space().values


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ("OMP_NUM_THREADS: [1, 2]", "env.NAME or args.NAME"),
        ("env.OMP NUM: [1, 2]", "env.NAME or args.NAME"),
        ("env.: [1, 2]", "env.NAME or args.NAME"),
        ("env.OMP_NUM_THREADS: 2", "two levels or more, not 2"),
        ("env.OMP_NUM_THREADS: [2]", "two levels or more"),
        ("env.OMP_NUM_THREADS: [2, '2']", "repeats a level"),
        ("args.debug: [1, true]", "repeats a level"),
        ("env.OMP_NUM_THREADS: [1.5, 2]", "1.5"),
        ("env.FLAG: [true, false]", "text or a whole number"),
        ("env.FLAG: ['', a]", "plain characters"),
        ('env.FLAG: ["a\\nb", c]', "plain characters"),
        ("env.FLAG: [[1], 2]", "text or a whole number"),
        ("env.CUDA_VISIBLE_DEVICES: [0, 1]", "set by the run itself"),
        ("env.ACCELERATE_USE_FSDP: [0, 1]", "set by the run itself"),
        ("args.per_device_train_batch_size: [1, 2]", "is the knob micro_batch_size"),
        ("args.optim: [adamw_torch, adafactor]", "is the knob optimizer"),
        ("args.learning_rate: [1, 2]", "changes what is trained"),
        ("args.max_grad_norm: [1, 0]", "changes what is trained"),
        ("args.output_dir: [a, b]", "set by the run itself"),
        ("args.hub_token: [a, b]", "set by the run itself"),
        ("args.debug: [0.5, 1]", "float"),
        ("args.debug: [1, true, 2, x, {}]", "dict"),
        (", ".join(f"env.K{i}: [a, b, c]" for i in range(4)), "81 combinations"),
    ],
)
def test_what_cannot_be_searched_is_said(tmp_path: Path, extra: str, says: str) -> None:
    path = written(tmp_path, f"extra: {{{extra}}}")
    with pytest.raises(InputError) as caught:
        load_space(path)
    assert says in caught.value.message
    assert caught.value.hint or "plain" in says


def test_extra_must_be_a_mapping(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must map knobs of your own"):
        load_space(written(tmp_path, "extra: [env.A]"))
    with pytest.raises(InputError, match="extra"):
        load_space(written(tmp_path, "extras: {env.A: [a, b]}"))


def test_the_model_sees_the_present_level_and_probes_see_all(build: Any, tmp_path: Path) -> None:
    job = build.job(build.offer("a100", 1, 1.6))
    extra = "extra: {env.A: [now, later], args.use_liger_kernel: [false, true]}"
    space = load_space(written(tmp_path, extra))
    plain = enumerate_candidates(job, load_space()).candidates
    found = enumerate_candidates(job, space).candidates
    assert len(found) == len(plain)
    assert found.config(0).extra == (("env.A", "now"), ("args.use_liger_kernel", False))
    wide = at_every_level(found, space.extra)
    assert len(wide) == 4 * len(plain)
    keys = [wide.config(i).key for i in range(len(wide))]
    assert len(set(keys)) == len(keys)
    assert wide.config(4).as_dict() == found.config(1).as_dict()
    one, four = CostModel(job).price(found), CostModel(job).price(wide)
    assert four.cost_usd.reshape(-1, 4).T.tolist() == [one.cost_usd.tolist()] * 4


def test_a_config_s_record_gives_it_back() -> None:
    config = Config(
        micro_batch_size=1, gradient_accumulation_steps=8, checkpoint_every_steps=5,
        precision="bf16", extra=(("env.A", "2"), ("args.b", True)),
    )  # fmt: skip
    assert Config.of(config.as_record()) == config
    assert set(config.as_dict()) == set(KNOBS)
    assert config.key.endswith("env.A=2,args.b=True")
    assert config.environment == {"A": "2"}
    assert config.arguments == {"b": True}
    with pytest.raises(TypeError, match="speed"):
        Config.of({**config.as_record(), "speed": 2})


def test_explicit_candidates_keep_their_own_knobs(build: Any) -> None:
    offer = build.offer("a100", 1, 1.6)
    plain = Config(1, 8, 5, "bf16")
    own = Config(1, 8, 5, "bf16", extra=(("env.A", "2"),))
    found = Candidates.of([(offer, own), (offer, plain)])
    assert [found.config(i).extra for i in (0, 1)] == [own.extra, (("env.A", "unset"),)]
    assert Candidates.of([(offer, plain)]).config(0) == plain
