"""A task's container as the engine knows it: its name, its labels, and what a listing tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairlead.wire.shim import VolumeKind
from shim.engines.base import ContainerSpec, ContainerState, Found, NodeFault
from shim.engines.docker.events import Past

_BOUND = (VolumeKind.HOST, VolumeKind.DEVICE)
_LOST_CODE = 255
_INSTALL = "fairlead.install"
_TASK = "fairlead.task"
_RUN = "fairlead.run"
_ALLOCATION = "fairlead.allocation"
_GPUS = "fairlead.gpus"
_RECORD = "fairlead.record"


def name_of(task_id: str) -> str:
    """Return the name of the task's container."""
    return f"fairlead-{task_id}"


def labels_of(spec: ContainerSpec, install_id: str) -> dict[str, str]:
    """Return the labels from which a restarted shim knows its containers again."""
    return {
        _INSTALL: install_id,
        _TASK: spec.task_id,
        _RUN: spec.run_id,
        _ALLOCATION: spec.allocation_id,
        _GPUS: ",".join(spec.gpus),
        _RECORD: spec.record,
    }


def filters(install_id: str, task_id: str | None = None) -> dict[str, list[str]]:
    """Return the filters for a listing of the containers of this shim, or of one task."""
    of_task = [] if task_id is None else [f"{_TASK}={task_id}"]
    return {"label": [f"{_INSTALL}={install_id}", *of_task]}


def is_own(inspected: dict[str, Any], install_id: str, task_id: str | None = None) -> bool:
    """Return whether this shim made the container, for this task unless it is None."""
    labels = inspected["Config"].get("Labels") or {}
    return labels.get(_INSTALL) == install_id and task_id in (None, labels.get(_TASK))


def found(listed: dict[str, Any]) -> Found:
    """Return a container of a listing."""
    labels = listed["Labels"]
    return Found(
        container_id=listed["Id"],
        task_id=labels.get(_TASK, listed["Id"]),
        state=state_of(listed["State"]),
        record=labels.get(_RECORD),
        run_id=labels.get(_RUN, ""),
        allocation_id=labels.get(_ALLOCATION, ""),
        gpus=tuple(filter(None, labels.get(_GPUS, "").split(","))),
    )


def ports_of(listed: dict[str, Any]) -> dict[int, int]:
    """Return the published ports: port of the container → port of the node."""
    # A port that is exposed and not published has no PublicPort.
    ports = listed.get("Ports") or ()
    return {one["PrivatePort"]: one["PublicPort"] for one in ports if "PublicPort" in one}


def state_of(text: str) -> ContainerState:
    if text == "created":
        return ContainerState.CREATED
    # Docker's "dead" and "removing" are halves of a removal: no process is left in them.
    ended = text in ("exited", "dead", "removing")
    return ContainerState.EXITED if ended else ContainerState.RUNNING


def exit_code_of(state: dict[str, Any], past: Past) -> int | None:
    """Return the exit code of an ended container, None where the engine has lost it.

    containerd 2 forgets a container that ended while containerd was down ("cleaning leaked shim
    process" in its log), and dockerd then writes 255.
    """
    code = int(state["ExitCode"])
    return None if code == _LOST_CODE and not past.remembered else code


def check_sources(spec: ContainerSpec, runtime: Path) -> None:
    """Raise NodeFault where the engine would make an empty folder in the place of a lost one."""
    volumes = (mount.source for mount in spec.mounts if mount.kind in _BOUND)
    for source in (str(runtime), spec.job_folder, spec.run_folder, *volumes):
        if not Path(source).exists():
            raise NodeFault(f"bind source path does not exist: {source}")
