"""Hints about a field that does not exist: known names of other systems, else the most similar
field.

A wrong guess costs more than none, so only similar names are suggested.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

from controller.lifecycle.model import RunType

_ALIKE = 0.75

_OWN_NODES = (
    "nodes are machines that an operator added, not offers of a cloud; "
    "choose among them by fleets and constraints"
)
_OF_SERVICES = "is for services (type: service)"
_OF_TASKS = "is for tasks (type: task)"
GANG_OF_A_REPLICA = "is for tasks: the nodes of a replica live and die together; leave it out"
_OF_DEV_ENVIRONMENTS = "is for dev environments (type: dev-environment)"
_OF_TASKS_AND_SERVICES = "is for tasks and services; write what shall run first as init"
_TUNNEL = (
    "no port has to be opened; write ports, or use `fairlead port-forward RUN PORT` while it runs"
)
_BUILT = "nodes build no images; push it to a registry and use its name as image"
_BANDS = "there are no queues; write band and priority"
_A_RANGE = "write a range, such as replicas: 1..4, and scaling: {metric: rps, target: 10}"
_ROUTER = (
    "each replica here gets requests like the others; write the workers as one service, and the"
    " router as another that asks the first by its URL"
)
_NO_LIMIT_YET = "is not supported yet; max_duration limits how long the run may be running"

RENAMED: Mapping[str, str] = {
    "fleet": "fleets",
    "workdir": "working_dir",
    "work_dir": "working_dir",
    "cwd": "working_dir",
    "environment": "env",
    "container": "image",
    "docker_image": "image",
    "container_image": "image",
    "run": "commands",
    "script": "commands",
    "cmd": "commands",
    "command": "commands",
    "code": "repos",
    "cron": "schedule",
    "partition": "fleets",
    "nodelist": "constraints",
    "retry.max": "retry.max_failures",
    "registry_auth.user": "registry_auth.username",
    "volumes.target": "volumes.path",
    "files.src": "files.local_path",
    "files.source": "files.local_path",
    "resources.vram": "resources.gpu.memory",
    "resources.gpu.type": "resources.gpu.name",
    "resources.gpu.model": "resources.gpu.name",
    "mounts": "volumes",
    "registry": "registry_auth",
    "image_auth": "registry_auth",
    "cpu": "resources.cpu",
    "cpus": "resources.cpu",
    "memory": "resources.memory",
    "disk": "resources.disk",
    "gpu": "resources.gpu",
    "gpus": "resources.gpu",
    "shm_size": "resources.shm_size",
    "job_count": "nodes",
    "num_nodes": "nodes",
    "tasks": "groups",
    "gang_options": "gang",
    "file_paths": "files",
    "timeout": "max_duration",
    "retries": "retry.max_failures",
    "max_retries": "retry.max_failures",
    "max_retries_failure": "retry.max_failures",
    "max_retries_preemption": "retry.max_preemptions",
    "max_failures": "retry.max_failures",
    "max_preemptions": "retry.max_preemptions",
    "max_failed_job_count": "max_failed_jobs",
    "max_task_failures": "max_failed_jobs",
    "priority_band": "band",
    "coscheduling": "gang",
    "resources.cpus": "resources.cpu",
    "resources.gpus": "resources.gpu",
    "resources.accelerators": "resources.gpu",
    "resources.gpu_count": "resources.gpu.count",
    "resources.ram": "resources.memory",
    "resources.mem": "resources.memory",
    "resources.disk_size": "resources.disk",
    "resources.shm": "resources.shm_size",
}
"""Names that dstack, YTsaurus, Iris and common use give to these fields."""

HINTS: Mapping[str, str] = {
    "port": _TUNNEL,
    "args": "write commands, or entrypoint with its arguments",
    "node": "choose a node by constraints: [node EQ NAME]; several jobs are nodes",
    "volumes.source": "write name for a named volume, instance_path for a folder of the node",
    "resources.gpu.vendor": "nodes have GPUs of NVIDIA",
    "instances": "an instance of a fleet has no number here; give the names of nodes, such as"
    " constraints: [node EQ gpu-1]; several jobs are nodes",
    "dstack": "a job here reaches no server of dstack; use `fairlead` and its API",
    "docker": "a job has no Docker; use an image that has it, and privileged: true",
    "dockerfile": _BUILT,
    "build": _BUILT,
    "spot": _OWN_NODES,
    "spot_policy": _OWN_NODES,
    "backends": _OWN_NODES,
    "regions": _OWN_NODES,
    "availability_zones": _OWN_NODES,
    "instance_types": _OWN_NODES,
    "max_price": _OWN_NODES,
    "reservation": _OWN_NODES,
    "creation_policy": _OWN_NODES,
    "idle_duration": _OWN_NODES,
    "profiles": _OWN_NODES,
    "queue": _BANDS,
    "pool": _BANDS,
    "inactivity_duration": _OF_DEV_ENVIRONMENTS,
    "home": _OF_DEV_ENVIRONMENTS,
    "utilization_policy": _NO_LIMIT_YET,
    "ide": _OF_DEV_ENVIRONMENTS,
    "model": _OF_SERVICES,
    "replicas": f"{_OF_SERVICES}; several jobs are nodes",
    "scaling": _OF_SERVICES,
    "gateway": _OF_SERVICES,
    "probes": _OF_SERVICES,
    "rate_limits": _OF_SERVICES,
    "https": _OF_SERVICES,
    "auth": _OF_SERVICES,
    "strip_prefix": _OF_SERVICES,
    "router": _OF_SERVICES,
}
"""Fields of other systems that a task here does not have, or has in another form."""


SERVICE_HINTS: Mapping[str, str] = {
    **HINTS,
    "domain": "a gateway gives the host name; write gateway",
    "host": "a gateway gives the host name; write gateway",
    "health_check": "write probes: [{type: http, url: /health}]",
    "healthcheck": "write probes: [{type: http, url: /health}]",
    "min_replicas": _A_RANGE,
    "max_replicas": _A_RANGE,
    "autoscaling": _A_RANGE,
    "ports": "a service has one port",
    "router": _ROUTER,
    "gang": GANG_OF_A_REPLICA,
    "groups": f"{_OF_TASKS}; for replicas of several kinds write a list as replicas",
    "schedule": f"{_OF_TASKS}; a service starts when it is applied, and with replicas: 0..1 and"
    " scaling it sleeps until its first request",
    "stop_criteria": _OF_TASKS,
    "max_failed_jobs": f"{_OF_TASKS}; a failed replica never ends a service that has others",
    "max_failed_attempts": f"{_OF_TASKS}; write retry",
    "startup_order": _OF_TASKS,
}
"""Fields of other systems, and of tasks, that a service here does not have."""


DEV_ENVIRONMENT_HINTS: Mapping[str, str] = {
    **{name: hint for name, hint in HINTS.items() if name not in ("inactivity_duration", "home")},
    "commands": _OF_TASKS_AND_SERVICES,
    "run": _OF_TASKS_AND_SERVICES,
    "script": _OF_TASKS_AND_SERVICES,
    "groups": f"{_OF_TASKS}; a dev environment is one job on one node",
    "nodes": f"{_OF_TASKS}; a dev environment is one job on one node",
    "stop_criteria": _OF_TASKS,
    "startup_order": _OF_TASKS,
    "max_failed_jobs": _OF_TASKS,
    "max_failed_attempts": f"{_OF_TASKS}; write retry",
}
"""Fields of other systems, and of tasks, that a dev environment here does not have."""


_HINTS_OF = {
    RunType.TASK: HINTS,
    RunType.SERVICE: SERVICE_HINTS,
    RunType.DEV_ENVIRONMENT: DEV_ENVIRONMENT_HINTS,
}


_MOST_NAMED = 12


def not_a_field(
    path: str, names: Collection[str], run_type: RunType | None = None
) -> tuple[str, str | None]:
    """Return the sentence about the last part of `path`, which is none of the allowed `names`, and
    what is allowed. A long list of names would hide the one that was meant.

    `run_type`: the type of run whose file has this path, without numbers of entries; None: another
    file, to which no hint applies.
    """
    few = ", ".join(sorted(names)) if len(names) <= _MOST_NAMED else None
    if run_type is not None:
        hints = _HINTS_OF[run_type]
        renamed = RENAMED.get(path)
        if renamed is not None and renamed not in hints:
            return f"is not a field; write {renamed}", few
        if path in hints:
            return f"is not a field: {hints[path]}", few
    alike = difflib.get_close_matches(path.rpartition(".")[2], list(names), n=1, cutoff=_ALIKE)
    if alike:
        return f"is not a field; did you mean {alike[0]}?", few
    return "is not a field", few or f"one of {len(names)} names that `fairlead schema` describes"
