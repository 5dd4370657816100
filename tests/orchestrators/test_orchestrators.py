"""Files for SkyPilot, Slurm, dstack and Kubernetes: what they ask for, carry and refuse."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import exportcases
import pytest
from commandline import typed
from packaging.requirements import Requirement
from ruamel.yaml import YAML
from startedcases import machine

from autotune.app.runs.orchestrated import requirements
from autotune.catalog.devices import load_devices
from autotune.catalog.prices.prices import load_prices
from autotune.domain.candidates import Candidate
from autotune.domain.errors import InputError
from autotune.orchestrators.registry import ORCHESTRATORS
from autotune.orchestrators.skypilot import accelerators

if TYPE_CHECKING:
    from startedcases import Case

SNAPSHOTS = Path(__file__).parent / "snapshots"
FILES = {each.name: each.file for each in ORCHESTRATORS.values()}
WRITABLE = [
    (case, name)
    for case in ("rented", "named", "anywhere", "owned", "processor", "machines")
    for name in ORCHESTRATORS
    if case != "named" or ORCHESTRATORS[name].has_spot
]


def read(text: str) -> Any:
    """The last YAML document of a file."""
    return list(YAML(typ="safe").load_all(text))[-1]


@pytest.mark.parametrize(("case", "name"), WRITABLE)
def test_the_file_of_a_machine_is_this(case: str, name: str, cases: dict[str, Case]) -> None:
    """To accept a change: AUTOTUNE_UPDATE_SNAPSHOTS=1."""
    text = cases[case].written(name).files[FILES[name]]
    path = SNAPSHOTS / f"{case}-{FILES[name]}"
    if os.environ.get("AUTOTUNE_UPDATE_SNAPSHOTS") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["slurm", "k8s"])
def test_a_spot_machine_is_refused_where_it_cannot_be_asked_for(
    name: str, cases: dict[str, Case]
) -> None:
    with pytest.raises(InputError, match="cannot ask for a spot machine") as refused:
        cases["named"].written(name)
    assert refused.value.hint == "export sky or dstack, or price the machine without spot"


def test_an_accelerator_that_skypilot_lacks_is_refused_with_those_it_has(
    cases: dict[str, Case],
) -> None:
    absent = replace(cases["rented"], offer=machine("rtx-2080ti"))
    with pytest.raises(InputError, match="no accelerator that is rtx-2080ti") as refused:
        absent.written("sky")
    assert "h100-sxm" in str(refused.value.hint)


@pytest.mark.parametrize("name", ORCHESTRATORS)
def test_nobody_rents_a_laptop(name: str, cases: dict[str, Case]) -> None:
    laptop = replace(cases["rented"], offer=machine("apple-m3-max-40c"))
    with pytest.raises(InputError, match="has no machines with apple-m3-max-40c"):
        laptop.written(name)


def test_every_cloud_of_an_accelerator_sells_that_device_or_is_not_priced() -> None:
    """The form factor decides the price: a cloud of the price list sells that very device."""
    devices = set(load_devices())
    sold: dict[str, set[str]] = {}
    for price in load_prices():
        sold.setdefault(price.provider, set()).add(price.device_name)
    for device, known in accelerators().items():
        assert device in devices
        if device.startswith("rtx-"):
            continue  # sold in one form
        form = device.partition("-")[0]
        for each in known:
            for cloud in each.clouds:
                same = {name for name in sold.get(cloud, ()) if name.partition("-")[0] == form}
                forms = {_form(name) for name in same}
                assert not same or _form(device) in forms, (device, cloud, same)


def _form(device: str) -> str:
    """Without its memory: a100-sxm4."""
    return re.sub(r"-\d+gb$", "", device)


def test_a_machine_of_ones_own_is_never_rented(cases: dict[str, Case]) -> None:
    owned = cases["owned"].written("sky", "dstack")
    sky, dstack = read(owned.files["sky.yaml"]), read(owned.files["train.dstack.yml"])
    assert sky["resources"]["infra"] == "ssh"
    assert "any_of" not in sky["resources"]
    assert "max_price" not in dstack


def test_the_machine_is_asked_for_as_it_was_priced(cases: dict[str, Case]) -> None:
    named = read(cases["named"].written("sky").files["sky.yaml"])["resources"]
    assert (named["infra"], named["instance_type"]) == ("aws", "p4d.24xlarge")
    assert named["use_spot"] is True
    spot = read(cases["named"].written("dstack").files["train.dstack.yml"])
    assert spot["spot_policy"] == "spot"
    assert spot["max_price"] == pytest.approx(1.1 * cases["named"].offer.usd_per_hour)


def test_what_was_only_assumed_of_a_host_is_not_asked_for(cases: dict[str, Case]) -> None:
    written = cases["anywhere"].written("sky", "dstack", "slurm")
    sky = read(written.files["sky.yaml"])["resources"]
    assert not {"cpus", "memory"} & set(sky)
    assert not {"cpu", "memory", "shm_size"} & set(
        read(written.files["train.dstack.yml"])["resources"]
    )
    assert "--mem" not in written.files["run.sbatch"]


def test_rows_of_this_machine_are_carried_or_named(cases: dict[str, Case]) -> None:
    sky = read(cases["anywhere"].written("sky").files["sky.yaml"])
    assert sky["file_mounts"]["/data/rows with blank.jsonl"].startswith("/home/somebody/")
    assert sky["envs"]["DATA"] == "/data/rows with blank.jsonl"
    unnamed = read(cases["rented"].written("sky").files["sky.yaml"])
    assert unnamed["envs"] == {"CHECKPOINT_BUCKET": None, "DATA": None}  # asked for at the start


def test_a_hung_run_is_stopped_well_after_its_slow_end(cases: dict[str, Case]) -> None:
    assert "#SBATCH --time=0-15:00:00\n" in cases["rented"].written("slurm").files["run.sbatch"]
    job = read(cases["rented"].written("k8s").files["k8s.yaml"])
    assert job["spec"]["activeDeadlineSeconds"] == 54_000
    for target, file in (("slurm", "run.sbatch"), ("k8s", "k8s.yaml")):
        assert "; it is stopped after 15.0 h" in cases["rented"].written(target).files[file]


def test_a_file_without_a_time_limit_promises_none(cases: dict[str, Case]) -> None:
    text = cases["rented"].written("sky").files["sky.yaml"]
    assert "stopped after" not in text
    assert "sets no time limit" in text


@pytest.mark.parametrize("target", ["hf", "trl", "axolotl", "llamafactory", "unsloth"])
def test_what_to_install_is_pinned_and_can_be_read_by_pip(
    target: str, cases: dict[str, Case]
) -> None:
    lines = cases["rented"].written("slurm", target=target).files["requirements.txt"].splitlines()
    found = {each.name: each for each in map(Requirement, lines)}
    package = {"hf": "transformers"}.get(target, target)
    own = target in {"hf", "trl"}  # another trainer pins its torch by itself
    assert ("torch" in found) == own
    assert str(found[package].specifier).startswith("==")


def test_a_quantised_base_installs_what_quantises(cases: dict[str, Case]) -> None:
    case = cases["rented"]
    nf4 = replace(case.job, method=replace(case.job.method, base="nf4"))
    pick = Candidate(nf4, case.offer, exportcases.config())
    assert "bitsandbytes" in {Requirement(line).name for line in requirements(pick, "hf")}


def test_kubernetes_carries_every_file_and_puts_it_where_it_was(cases: dict[str, Case]) -> None:
    written = cases["rented"].written("k8s")
    config, job = YAML(typ="safe").load_all(written.files["k8s.yaml"])
    (volume,) = [each for each in job["spec"]["template"]["spec"]["volumes"] if "configMap" in each]
    places = {item["path"]: config["data"][item["key"]] for item in volume["configMap"]["items"]}
    assert {"run.sh", "train.py", "training_args.json"} <= set(places)
    assert all(re.fullmatch(r"[-._a-zA-Z0-9]+", key) for key in config["data"])
    assert places["run.sh"].startswith("#!/usr/bin/env bash")
    assert "requirements.txt" in places


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("sky", {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.8"}),
        ("dstack", {"DSTACK_NODE_RANK": "1", "DSTACK_MASTER_NODE_IP": "10.0.0.7"}),
        (
            "k8s",
            {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "23456",
             "PET_NNODES": "2", "RESUME": "1"},
        ),
    ],
)  # fmt: skip
def test_each_of_several_machines_is_told_its_place(
    name: str, told: dict[str, str], cases: dict[str, Case], tmp_path: Path
) -> None:
    """The commands of the file, run with what the orchestrator sets on the second of two."""
    document = read(cases["machines"].written(name).files[FILES[name]])
    (tmp_path / "run.sh").write_text("env | sort\n")
    (tmp_path / "python").write_text("#!/bin/sh\n")
    (tmp_path / "python").chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", commands(name, document).replace("/checkpoints", str(tmp_path / "store"))],
        cwd=tmp_path, capture_output=True, text=True, check=True,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", **told},
    )  # fmt: skip
    seen = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert (seen["NODE_RANK"], seen["MASTER_ADDR"], seen["RESUME"]) == ("1", "10.0.0.7", "1")
    assert not {"RANK", "WORLD_SIZE", "PET_NNODES"} & set(seen)


@pytest.mark.parametrize("name", ["sky", "dstack", "k8s"])
def test_every_machine_gets_its_own_share_of_the_gpus(name: str, cases: dict[str, Case]) -> None:
    document = read(cases["machines"].written(name).files[FILES[name]])
    if name == "sky":
        asked = document["num_nodes"], document["resources"]["accelerators"]
        assert asked == (2, "H100:8")
        assert document["resources"]["network_tier"] == "best"
    if name == "dstack":
        assert (document["nodes"], document["resources"]["gpu"]["count"]) == (2, 8)
        assert document["max_price"] == pytest.approx(1.1 * 110.08 / 2, abs=0.01)  # of a machine
    if name == "k8s":
        assert document["kind"] == "PyTorchJob"
        roles = document["spec"]["pytorchReplicaSpecs"]
        assert {role: each["replicas"] for role, each in roles.items()} == {
            "Master": 1, "Worker": 1,
        }  # fmt: skip
        (container,) = roles["Worker"]["template"]["spec"]["containers"]
        assert container["name"] == "pytorch"  # the one that the operator tells its place
        assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}


def commands(name: str, document: Any) -> str:
    """The shell lines of a file that start a training on one machine."""
    if name == "sky":
        return str(document["run"])
    if name == "dstack":
        return " && ".join(document["commands"][1:])
    spec = document["spec"]
    template = (spec if "template" in spec else spec["pytorchReplicaSpecs"]["Worker"])["template"]
    lines = template["spec"]["containers"][0]["command"][-1].splitlines()
    return "\n".join(line for line in lines if not line.startswith(("cp ", "python ")))


@pytest.mark.parametrize("name", ["sky", "dstack", "k8s"])
def test_results_land_on_what_outlives_the_machine(
    name: str, cases: dict[str, Case], tmp_path: Path
) -> None:
    """The commands of the file, run: what a training writes lies in the store afterwards."""
    document = read(cases["rented"].written(name).files[FILES[name]])
    store, work = tmp_path / "store", tmp_path / "work"
    work.mkdir()
    lines = commands(name, document)
    (work / "run.sh").write_text('mkdir -p output && echo "$RESUME" > output/checkpoint\n')
    for _ in range(2):  # a second start goes on in the same place
        subprocess.run(
            ["bash", "-c", lines.replace("/checkpoints", str(store))], cwd=work, check=True,
            env={**os.environ, "RESUME": "1"},
        )  # fmt: skip
    (kept,) = store.rglob("checkpoint")
    assert kept.read_text() == "1\n"
    assert (work / "output").is_symlink()


def test_a_batch_script_starts_run_sh_where_it_was_submitted(
    cases: dict[str, Case], tmp_path: Path
) -> None:
    """As slurmd does it: a copy of the script, far from the folder, with srun in PATH."""
    folder, spool, programs = (tmp_path / name for name in ("run folder", "spool", "bin"))
    for each in (folder, spool, programs):
        each.mkdir()
    (spool / "slurm_script").write_text(cases["rented"].written("slurm").files["run.sbatch"])
    (folder / "run.sh").write_text('echo "in $PWD, resume $RESUME"\n')
    srun = programs / "srun"
    srun.write_text('#!/bin/sh\nshift\nexec "$@"\n')
    srun.chmod(srun.stat().st_mode | stat.S_IXUSR)
    path = f"{programs}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", spool / "slurm_script"], cwd=spool, capture_output=True, text=True, check=False,
        env={"PATH": path, "SLURM_SUBMIT_DIR": str(folder)},
    )  # fmt: skip
    assert done.stdout == f"in {folder}, resume 1\n", done.stderr
    (folder / "run.sh").unlink()
    without = subprocess.run(
        ["bash", spool / "slurm_script"], cwd=spool, capture_output=True, text=True, check=False,
        env={"PATH": path, "SLURM_SUBMIT_DIR": str(folder)},
    )  # fmt: skip
    assert without.returncode == 1
    assert "there is no run.sh" in without.stderr


def test_a_run_is_exported_for_an_orchestrator_as_typed(tmp_path: Path) -> None:
    """Before and after the answer; the command that starts it is printed; a mistake is named."""
    words = ("tune", "jobs/h100_38h.yaml", "--export")
    told = typed(*words, "sky,slurm", "--run", str(tmp_path / "run"), home=tmp_path)
    folder = tmp_path / "run"
    for file in ("sky.yaml", "run.sbatch"):  # what is printed is what the file's head says
        head = (folder / file).read_text(encoding="utf-8").partition("in this folder: ")[2]
        assert f"&& {head.splitlines()[0]})" in told.stdout
    assert "sky jobs launch sky.yaml --env CHECKPOINT_BUCKET=..." in told.stdout
    assert {"sky.yaml", "run.sbatch", "requirements.txt", "run.sh"} <= {
        path.name for path in folder.iterdir()
    }
    for name, file in FILES.items():
        done = typed("export", str(folder), "--to", name, home=tmp_path)
        assert done.returncode == 0
        assert (folder / file).is_file()
        assert file in done.stdout
    wrong = typed("export", str(folder), "--to", "skypilott", home=tmp_path)
    assert wrong.returncode == 2
    assert "sky, slurm, dstack, k8s" in wrong.stderr


def test_a_trainers_own_file_is_carried_along(tmp_path: Path) -> None:
    """The user's file with the pick in it, in `own`, with its results on the bucket."""
    source = tmp_path / "mine.yml"
    shutil.copy(Path(__file__).parents[1] / "trainers" / "own" / "axolotl.yml", source)
    done = typed(
        "tune", str(source), "--gpu", "h100", "--rows", "20k", "--export", "sky,k8s",
        "--run", str(tmp_path / "run"), home=tmp_path,
    )  # fmt: skip
    assert done.returncode in {0, 4}, done.stderr
    config, _ = YAML(typ="safe").load_all((tmp_path / "run" / "k8s.yaml").read_text())
    assert any(key.startswith("own__") for key in config["data"])
    assert "axolotl==" in (tmp_path / "run" / "requirements.txt").read_text()
