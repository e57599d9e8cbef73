"""Nights started by Kubernetes: a CronJob that submits a KubeRay RayJob."""

from __future__ import annotations

import re
import shlex
import shutil
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from orchestrator.nightly._book import write_text
from orchestrator.nightly._config import Nightly
from orchestrator.nightly._entry import Entry, call
from trainables.addresses import redacted, shown
from trainables.errors import InputError

__all__ = ["KubernetesOptions", "install", "manifests", "uninstall"]

STORAGE, SETTINGS = "/calsweep", "/calsweep-nightly"
LONGEST = 40  # A CronJob's name may have 52 characters, and its Jobs' more.
MEANS = {"app.kubernetes.io/name": "calsweep-nightly"}


@dataclass(frozen=True)
class KubernetesOptions:
    """What the manifests need to know of the cluster.

    Attributes:
        image: Image with calsweep and Ray, for every node of the Ray cluster.
        claim: PersistentVolumeClaim for storage and data.
        namespace: Where everything lives.
        kubectl_image: Image with kubectl, which submits the RayJob.
        cpus: CPUs of the Ray head, on which the nights run.
        memory: Its memory, as Kubernetes writes it.
    """

    image: str
    claim: str
    namespace: str = "default"
    kubectl_image: str = "kubectl:1.34"
    cpus: int = 2
    memory: str = "8Gi"


def manifests(nightly: Nightly, entry: Entry, options: KubernetesOptions) -> list[dict[str, Any]]:
    """Return the manifests: rights to create a RayJob, the files, the CronJob.

    The RayJob has a name of its own every night, so that nothing has to be deleted first; the
    night's lock and name keep two from running at once, or one twice.

    Raises:
        InputError: If the benchmark's name cannot be made a Kubernetes name.
    """
    name = _kubernetes_name(entry.name)
    meta = {"name": name, "namespace": options.namespace, "labels": MEANS}
    files = {"nightly.yaml": _settings(nightly), "rayjob.yaml": _dump(rayjob(entry, options))}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    rule = {"apiGroups": ["ray.io"], "resources": ["rayjobs"], "verbs": ["create", "get"]}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": meta,
            "rules": [rule],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": role,
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": options.namespace}],
        },
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": files},
        _cronjob(entry, options, meta),
    ]


def _cronjob(entry: Entry, options: KubernetesOptions, meta: dict[str, Any]) -> dict[str, Any]:
    hours = ",".join(map(str, entry.hours))
    zone = {"timeZone": entry.time_zone} if entry.time_zone else {}
    container = {
        "name": "submit",
        "image": options.kubectl_image,
        # No shell: kubectl's own image has none, and nothing has to be quoted.
        "command": ["kubectl", "create", "--filename", f"{SETTINGS}/rayjob.yaml"],
        "volumeMounts": [{"name": "settings", "mountPath": SETTINGS, "readOnly": True}],
        "securityContext": {"allowPrivilegeEscalation": False},
    }
    pod = {
        "serviceAccountName": meta["name"],
        "restartPolicy": "OnFailure",
        "containers": [container],
        "volumes": [{"name": "settings", "configMap": {"name": meta["name"]}}],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": meta,
        "spec": {
            "schedule": f"{entry.minute} {hours} * * *",
            **zone,
            "concurrencyPolicy": "Forbid",
            "startingDeadlineSeconds": 3600,
            "jobTemplate": {"spec": {"backoffLimit": 3, "template": {"spec": pod}}},
        },
    }


def rayjob(entry: Entry, options: KubernetesOptions) -> dict[str, Any]:
    """Return the RayJob of a night: a Ray cluster of one head, gone when the night is over."""
    name = _kubernetes_name(entry.name)
    cluster = {
        "rayVersion": version("ray"),
        "authOptions": {"mode": "token"},
        "headGroupSpec": {"rayStartParams": {}, "template": {"spec": _head(name, options)}},
    }
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {
            "generateName": f"{name}-",
            "namespace": options.namespace,
            "labels": MEANS,
        },
        "spec": {
            "entrypoint": _entrypoint(entry),
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": 86400,
            # A night that ends with an alarm has failed for Kubernetes; it is not to be repeated.
            "backoffLimit": 0,
            "rayClusterSpec": cluster,
        },
    }


def _entrypoint(entry: Entry) -> str:
    zone = ["--time-zone", entry.time_zone] if entry.time_zone else []
    command = ["calsweep", "nightly", "run", f"{SETTINGS}/nightly.yaml", "--at", entry.at]
    run = shlex.join([*command, *zone, "--address", "auto", "--quiet"])
    return f"cd {STORAGE} && {run}"


def _head(name: str, options: KubernetesOptions) -> dict[str, Any]:
    size = {"cpu": str(options.cpus), "memory": options.memory}
    container = {
        "name": "ray-head",
        "image": options.image,
        "resources": {"requests": size, "limits": dict(size)},
        "volumeMounts": [
            {"name": "storage", "mountPath": STORAGE},
            {"name": "settings", "mountPath": SETTINGS, "readOnly": True},
        ],
    }
    volumes = [
        {"name": "storage", "persistentVolumeClaim": {"claimName": options.claim}},
        {"name": "settings", "configMap": {"name": name}},
    ]
    return {"containers": [container], "volumes": volumes}


def _kubernetes_name(name: str) -> str:
    plain = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")
    if not plain or len(plain) > LONGEST:
        raise InputError(
            f"sweep.name: {name!r} cannot name things in Kubernetes; allowed are 1 to {LONGEST} "
            "letters, digits and '-'"
        )
    return f"calsweep-{plain}"


def _settings(nightly: Nightly) -> str:
    """Return the nightly file with its sweep inside, its storage on the claim.

    Raises:
        InputError: If it would show a login to whoever may read the manifests.
    """
    uri = nightly.sweep.tracking_uri
    if redacted(uri) != uri:
        raise InputError(
            f"tracking.uri {shown(uri)}: its login or query would lie in a manifest in plain text; "
            "leave it out, and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or "
            "PGPASSWORD, in the image"
        )
    sweep = nightly.sweep.model_dump(mode="json")
    sweep |= {"storage": f"{STORAGE}/storage", "data_root": f"{STORAGE}/data"}
    return _dump({**nightly.model.model_dump(mode="json"), "sweep": sweep})


def _dump(document: Any) -> str:
    return yaml.safe_dump(document, sort_keys=False)


def install(nightly: Nightly, entry: Entry, options: KubernetesOptions, out: Path) -> list[str]:
    """Write the manifests to a file and apply them, or say how; return a line each.

    Raises:
        InputError: If the file cannot be written, or kubectl refuses the manifests.
    """
    documents = manifests(nightly, entry, options)
    write_text(out.absolute(), yaml.safe_dump_all(documents, sort_keys=False))
    command = ["kubectl", "apply", "--filename", str(out)]
    if shutil.which("kubectl") is None:
        return [f"wrote {out}", f"kubectl is missing here; apply it with: {shlex.join(command)}"]
    done = call(command)
    if done.returncode:
        reason = " ".join(done.stderr.split()) or "no reason given"
        raise InputError(f"{out} is written, but `{shlex.join(command)}` failed: {reason}")
    return [f"wrote {out}", *done.stdout.splitlines()]


def uninstall(name: str, namespace: str) -> list[str]:
    """Delete everything that ``install`` made; or say how."""
    kinds = "cronjob,configmap,rolebinding,role,serviceaccount"
    command = ["kubectl", "delete", kinds, _kubernetes_name(name), "--namespace", namespace]
    command.append("--ignore-not-found")
    if shutil.which("kubectl") is None:
        return [f"kubectl is missing here; remove it with: {shlex.join(command)}"]
    done = call(command)
    if done.returncode:
        raise InputError(f"`{shlex.join(command)}` failed: {' '.join(done.stderr.split())}")
    return done.stdout.splitlines()
