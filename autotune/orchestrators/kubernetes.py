"""A Kubernetes Job, for several machines a PyTorchJob, with the pick's files in a ConfigMap.

Source: batch/v1 Job, v1 ConfigMap of the Kubernetes API; kubeflow.org/v1 PyTorchJob of Kubeflow's
training operator 1.9, which sets MASTER_ADDR, and as RANK which machine it is; the node label is
that of NVIDIA's GPU feature discovery, which is the driver's name with dashes.
`tests/orchestrators` holds the file against the API's own schema and Kubeflow's own client where
they are installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.domain.errors import InputError
from autotune.orchestrators.contract import (
    REQUIREMENTS,
    SCRIPT,
    STORE,
    Orchestrator,
    as_yaml,
    whole_gb,
    whole_gib,
)

if TYPE_CHECKING:
    from autotune.orchestrators.contract import Launch

IMAGE = "python:3.11"  # with a compiler, which torch.compile needs; CUDA comes with torch's wheel
CLAIM = "checkpoints"
TOKEN = "huggingface"  # noqa: S105 - the name of a secret, not one
MOST_BYTES = 1_000_000  # of a ConfigMap: 1 MiB with its keys
PRODUCT = "nvidia.com/gpu.product"
OPERATORS = "pytorch"  # the one container that Kubeflow's operator tells its place
_PLACE = (  # a launcher of our own counts processes, and would read these as its own
    'export NODE_RANK="$RANK"',
    "unset RANK WORLD_SIZE ${!PET_@}",
)


class Kubernetes(Orchestrator):
    """A ConfigMap and a Job for `kubectl apply`."""

    name = "k8s"
    title = "Kubernetes"
    file = "k8s.yaml"
    command = "kubectl apply -f k8s.yaml"
    has_spot = False

    def write(self, launch: Launch) -> tuple[str, list[str]]:
        """The two objects."""
        held = {name: text for name, text in launch.files.items() if not name.endswith(".diff")}
        total = sum(len(text.encode()) for text in held.values())
        if total > MOST_BYTES:
            msg = f"the files of the run hold {total} bytes, and a ConfigMap at most {MOST_BYTES}"
            raise InputError(msg, "put them on a volume, or export sky or dstack")
        keys = {name: name.replace("/", "__") for name in held}
        config = {
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": launch.name},
            "data": {keys[name]: text for name, text in held.items()},
        }  # fmt: skip
        notes = [
            f"k8s: a claim {CLAIM} has to be there, whose volume outlives the run"
            + (", ReadWriteMany: several machines write to it" if launch.offer.nodes > 1 else ""),
            f"k8s: a gated model needs the secret {TOKEN} with a key HF_TOKEN",
        ]
        if launch.offer.nodes > 1:
            notes.append("k8s: a PyTorchJob needs Kubeflow's training operator in the cluster")
        if launch.rows:
            notes.append(f"k8s: rows of {launch.rows} have to lie on the volume, as DATA says")
        if launch.asks_for_rows and not launch.rows:
            notes.append(f"k8s: the rows are read from {STORE}/rows.jsonl: put them there")
        if not launch.writes_to:
            notes.append(f"k8s: your own file says where results go: let it be below {STORE}")
        text = as_yaml(config) + "---\n" + as_yaml(_started(launch, keys))
        return launch.head(self.command) + text, notes


def _started(launch: Launch, keys: dict[str, str]) -> dict[str, Any]:
    """A Job for one machine; for several, what Kubeflow's operator starts together."""
    nodes = launch.offer.nodes
    pod = _pod(launch, keys)
    ends = {"activeDeadlineSeconds": round(launch.limit_s)} if launch.limit_s else {}
    if nodes == 1:
        spec: dict[str, Any] = {"backoffLimit": 3, **ends,
                                "template": {"spec": pod}}  # fmt: skip
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": launch.name},
                "spec": spec}  # fmt: skip
    replicas = {
        role: {"replicas": count, "restartPolicy": "OnFailure", "template": {"spec": pod}}
        for role, count in (("Master", 1), ("Worker", nodes - 1))
    }
    return {
        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": launch.name},
        "spec": {"runPolicy": {"backoffLimit": 3, "cleanPodPolicy": "Running", **ends},
                 "pytorchReplicaSpecs": replicas},
    }  # fmt: skip


def _pod(launch: Launch, keys: dict[str, str]) -> dict[str, Any]:
    """What runs on one machine."""
    offer = launch.offer
    gpu = {} if offer.device.is_cpu else {f"{offer.device.vendor}.com/gpu": offer.per_node}
    ram = launch.stated("ram_bytes")
    asked: dict[str, Any] = {
        "cpu": offer.host.cores, **({"memory": f"{whole_gib(ram)}Gi"} if ram else {}), **gpu,
        "ephemeral-storage": f"{whole_gb(launch.disk_bytes)}G",
    }  # fmt: skip
    shm = whole_gib(offer.host.shm_bytes) or 1
    container = {
        "name": "train" if offer.nodes == 1 else OPERATORS,
        "image": IMAGE,
        "workingDir": "/work",
        "command": ["bash", "-c", "\n".join([
            "set -e",
            "cp -RL /run-folder/. .",
            f"python -m pip install -r {REQUIREMENTS}",
            *launch.keeps_results(),
            *(_PLACE if offer.nodes > 1 else ()),
            f"exec bash {SCRIPT}",
        ]) + "\n"],
        "env": _environment(launch),
        "resources": {"limits": gpu or {"cpu": offer.host.cores}, "requests": asked},
        "volumeMounts": [
            {"name": "run-folder", "mountPath": "/run-folder"},
            {"name": "work", "mountPath": "/work"},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - the workers' shared memory
            {"name": "store", "mountPath": STORE},
        ],
    }  # fmt: skip
    items = [{"key": key, "path": name} for name, key in keys.items()]
    volumes = [
        {"name": "run-folder", "configMap": {"name": launch.name, "items": items}},
        {"name": "work", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{shm}Gi"}},
        {"name": "store", "persistentVolumeClaim": {"claimName": CLAIM}},
    ]
    again = {"restartPolicy": "OnFailure"} if offer.nodes == 1 else {}  # else the operator's to say
    return {**_node(launch), **again, "containers": [container], "volumes": volumes}


def _environment(launch: Launch) -> list[dict[str, Any]]:
    reference = {"name": TOKEN, "key": "HF_TOKEN", "optional": True}
    found: list[dict[str, Any]] = [
        {"name": "RESUME", "value": "1"},
        {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}},
    ]
    if launch.asks_for_rows:
        rows = launch.rows_there.rpartition("/")[2] or "rows.jsonl"
        found.append({"name": "DATA", "value": f"{STORE}/{rows}"})
    return found


def _node(launch: Launch) -> dict[str, Any]:
    """The label of the nodes that have the device; none for what the driver does not label."""
    device = launch.offer.device
    if device.vendor != "nvidia" or not device.aliases:
        return {}
    return {"nodeSelector": {PRODUCT: device.aliases[0].replace(" ", "-")}}
