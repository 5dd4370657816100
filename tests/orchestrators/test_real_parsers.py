"""The real parsers' word on what is written; `make parsers` installs them, else this is skipped."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from startedcases import Case

pytestmark = pytest.mark.slow
CASES = ("rented", "named", "anywhere", "owned", "processor", "machines")
SKY = """
import sys, yaml
from sky.utils import common_utils, schemas
from sky.task import Task
told = yaml.safe_load(open(sys.argv[1]))
common_utils.validate_schema(told, schemas.get_task_schema(), "task: ")
common_utils.validate_schema(told["resources"], schemas.get_resources_schema(), "resources: ")
for mount in told.get("file_mounts", {}).values():
    if isinstance(mount, dict):
        common_utils.validate_schema(mount, schemas.get_storage_schema(), "storage: ")
print("SKY AGREES")
"""
DSTACK = """
import sys, yaml
from dstack._internal.core.models.configurations import parse_run_configuration
read = parse_run_configuration(yaml.safe_load(open(sys.argv[1])))
print(type(read).__name__, read.resources.pretty_format())
"""
K8S = """
import sys, yaml, kubernetes_validate
for each in yaml.safe_load_all(open(sys.argv[1])):
    kind = each["kind"]
    if kind == "PyTorchJob":  # what runs on each machine is the API's own; the rest Kubeflow's
        (pod, *others) = [role["template"] for role in each["spec"]["pytorchReplicaSpecs"].values()]
        assert all(other == pod for other in others)
        each = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {}, "template": pod}
    print(kubernetes_validate.validate(each, "1.30", strict=True), kind)
"""
KUBEFLOW = """
import json, sys, yaml
import kubernetes.client.models as known
import kubeflow.training as kubeflow
from kubernetes.client import ApiClient
for name in dir(kubeflow):
    if name.startswith("KubeflowOrg"):
        setattr(known, name, getattr(kubeflow, name))
told = list(yaml.safe_load_all(open(sys.argv[1])))[-1]
class Answer:
    data = json.dumps(told)
client = ApiClient()
read = client.deserialize(Answer, "KubeflowOrgV1PyTorchJob")
for role in told["spec"]["pytorchReplicaSpecs"].values():  # quantities are texts there
    for asked in role["template"]["spec"]["containers"][0]["resources"].values():
        asked.update({key: str(value) for key, value in asked.items()})
assert client.sanitize_for_serialization(read) == told  # a field it did not know would be gone
print("KUBEFLOW AGREES")
"""


@pytest.fixture
def asked(
    cases: dict[str, Case], real: Callable[[str, str, Path], str], tmp_path: Path
) -> Callable[[str, str, str, str], str]:
    """What a parser says of a case's file."""

    def ask(case: str, name: str, environment: str, lines: str) -> str:
        written: Any = cases[case].written(name)
        file = tmp_path / "file.yaml"
        file.write_text(written.files[next(key for key in written.files if key != REQUIREMENTS)])
        return real(environment, lines, file)

    return ask


REQUIREMENTS = "requirements.txt"


@pytest.mark.parametrize("case", CASES)
def test_skypilot_takes_the_task(case: str, asked: Callable[..., str]) -> None:
    assert "SKY AGREES" in asked(case, "sky", "skypilot", SKY)


@pytest.mark.parametrize("case", CASES)
def test_dstack_takes_the_task(case: str, asked: Callable[..., str]) -> None:
    told = asked(case, "dstack", "dstack", DSTACK)
    assert told.startswith("TaskConfiguration")
    expected = {
        "machines": "gpu=H100:75GB..:8",
        "rented": "gpu=H100:75GB..:1",
        "named": "gpu=A100:38GB..:8",
        "processor": "gpu=0",
    }
    assert expected.get(case, "") in told


@pytest.mark.parametrize("case", [case for case in CASES if case != "named"])
def test_kubernetes_takes_both_objects(case: str, asked: Callable[..., str]) -> None:
    told = asked(case, "k8s", "kubernetes-validate", K8S)
    assert "ConfigMap" in told
    assert ("PyTorchJob" if case == "machines" else "Job") in told.split()


def test_kubeflows_client_knows_every_field_of_the_job_on_machines(
    asked: Callable[..., str],
) -> None:
    assert "KUBEFLOW AGREES" in asked("machines", "k8s", "kubeflow-training", KUBEFLOW)


def test_bash_reads_the_batch_script(cases: dict[str, Case], tmp_path: Path) -> None:
    script = tmp_path / "run.sbatch"
    script.write_text(cases["rented"].written("slurm").files["run.sbatch"])
    subprocess.run([shutil.which("bash") or "bash", "-n", script], check=True)
