from __future__ import annotations

import subprocess
import sys
import tomllib
from dataclasses import fields, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest
from shippedfits import until_calibrated

from autotune.app.validate import run_calibration
from autotune.cost import constants as shipped
from autotune.cost.constants import Constants, Spreads, constants, fitted, levels_of
from autotune.cost.model import CostModel
from autotune.domain.candidates import Candidates
from autotune.domain.errors import InputError
from autotune.evidence.cases import timed_cases
from autotune.evidence.fit.least_squares import minimise
from autotune.evidence.fit.refit import refit_cases
from autotune.evidence.fit.time import NAMES, SHARES, Fit, MeasuredSteps, fit, measured_steps
from autotune.evidence.record.table import SHIPPED_ROWS, read_cases

if TYPE_CHECKING:
    from pathlib import Path


@cache
def steps() -> MeasuredSteps:
    cases = read_cases(SHIPPED_ROWS).cases
    return measured_steps(timed_cases(case for case in cases if case.teaches_time))


@cache
def plain() -> Fit:
    return fit(steps())


@until_calibrated
@pytest.mark.usefixtures("fitted_once")
def test_the_shipped_calibration_is_what_the_command_writes(tmp_path: Path) -> None:
    out = tmp_path / "calibration.toml"
    run_calibration(out)
    again = "run `autotune calibrate --out autotune/cost/calibration.toml` and commit the file"
    assert out.read_text(encoding="utf-8") == shipped.PATH.read_text(encoding="utf-8"), again


@until_calibrated
def test_the_calibration_file_says_what_it_was_fitted_on() -> None:
    table = tomllib.loads(shipped.PATH.read_text(encoding="utf-8"))
    assert sum(table["fit"]["rows"].values()) == len(steps())
    assert len(table["fit"]["data_sha256"]) == 64
    assert set(table["step"]) == {item.name for item in fields(Constants)}
    assert set(table["log_sd"]) == {item.name for item in fields(Spreads)}
    assert table["left_out"]["all rows"]["n"] == len(steps())


def test_what_is_fitted_is_what_is_priced() -> None:
    own = steps()
    model = fitted()
    for i in range(0, len(own), 29):
        case = own.cases[i]
        device = case.offer.device
        levels = levels_of(device.name, case.job.software, device.architecture)
        logs = [model.offset(e, level) for e, level in levels.items()]
        factor = np.exp(sum(offset.log_factor for offset in logs if offset))
        predicted = own.take(np.asarray([i])).predict(constants(), np.asarray([factor]))
        bill = CostModel(case.job).price(Candidates.of([(case.offer, case.config)]))
        assert predicted[0] == pytest.approx(float(bill.step_s[0]), rel=1e-9), case.id


@until_calibrated
def test_shares_stay_fractions_and_the_covariance_is_one() -> None:
    found = plain()
    assert all(0 < getattr(found.constants, name) < 1 for name in SHARES)
    assert found.names[: len(NAMES)] == NAMES
    assert np.allclose(found.covariance, found.covariance.T, atol=1e-9)
    assert (np.linalg.eigvalsh(found.covariance) > 0).all()
    shipped_one = fitted().covariance
    assert shipped_one.shape == found.covariance.shape
    assert np.abs(shipped_one - found.covariance).max() < 1e-4


def test_a_wildly_wrong_row_hardly_moves_the_fit() -> None:
    own = steps()
    seconds = own.seconds.copy()
    seconds[40] *= 20.0
    first, bent = plain(), fit(replace(own, seconds=seconds))
    sd = np.sqrt(np.diag(first.covariance))[: len(NAMES)]
    for name, spread in zip(NAMES, sd, strict=True):
        before, after = getattr(first.constants, name), getattr(bent.constants, name)
        assert abs(np.log(after / before)) < 2.0 * spread, name


def test_a_device_that_is_slower_than_its_terms_gets_an_offset_shrunk_towards_zero() -> None:
    own = steps()
    slow = np.asarray([case.offer.device.name == "a100-sxm4-40gb" for case in own.cases])
    seconds = np.where(slow, own.seconds * 1.5, own.seconds)
    before = plain().offsets["device"]["a100-sxm4-40gb"].log_factor
    after = fit(replace(own, seconds=seconds)).offsets["device"]["a100-sxm4-40gb"].log_factor
    assert 0.5 * np.log(1.5) < after - before < np.log(1.5)


def test_a_table_without_a_step_time_cannot_be_fitted() -> None:
    with pytest.raises(InputError, match="no step time"):
        refit_cases([], "")


def test_an_unwritable_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        run_calibration(tmp_path / "absent" / "file.toml")


def test_fitting_imports_neither_scipy_nor_torch_nor_optuna() -> None:
    code = (
        "import sys;"
        "from autotune.evidence.fit import time;"
        "from autotune.evidence.cases import timed_cases;"
        "from autotune.evidence.record import table;"
        "cases = timed_cases(table.read_cases(table.SHIPPED_ROWS).cases[:100]);"
        "time.fit(time.measured_steps(cases));"
        "print({m.split('.')[0] for m in sys.modules} & {'scipy', 'torch', 'optuna'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_least_squares_finds_a_line_through_noise_and_an_outlier() -> None:
    x = np.linspace(0.0, 1.0, 50)
    y = 2.0 + 3.0 * x + 0.01 * np.sin(97.0 * x)
    y[25] += 100.0

    def residuals(p: np.ndarray) -> np.ndarray:
        return (p[0] + p[1] * x - y) / 0.01

    found = minimise(residuals, np.zeros(2), np.full(2, 100.0))
    assert found.x == pytest.approx([2.0, 3.0], abs=0.01)


def test_without_rows_least_squares_is_its_prior() -> None:
    mean, sd = np.asarray([1.0, -2.0]), np.asarray([0.5, 2.0])
    found = minimise(lambda _: np.zeros(1), mean, sd)
    assert found.x == pytest.approx(mean)
    assert np.sqrt(np.diag(found.covariance)) == pytest.approx(sd)


def test_what_one_source_alone_measured_of_a_device_stays_with_the_source() -> None:
    own = steps()
    nvl = np.asarray([case.offer.device.name == "h100-nvl" for case in own.cases])
    assert len({case.group[0] for case, here in zip(own.cases, nvl, strict=True) if here}) == 1
    slower = replace(own, seconds=np.where(nvl, own.seconds * 1.5, own.seconds))
    before, after = plain().offsets["device"]["h100-nvl"], fit(slower).offsets["device"]["h100-nvl"]
    assert 0.0 < after.log_factor - before.log_factor < 0.3 * np.log(1.5)


def test_boards_of_one_generation_share_what_was_learned_of_any() -> None:
    own = steps()
    hopper = np.asarray([case.offer.device.architecture == "hopper" for case in own.cases])
    slower = replace(own, seconds=np.where(hopper, own.seconds * 1.2, own.seconds))
    before, after = (model.offsets["generation"]["hopper"] for model in (plain(), fit(slower)))
    assert after.log_factor > before.log_factor + 0.03
