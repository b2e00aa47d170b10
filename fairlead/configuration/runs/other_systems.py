"""Names of other systems that are no fields here, each with a sentence about what to do instead.

A name that is another word for one of our fields stands at that field (`Field(called=…)`).
"""

from __future__ import annotations

from collections.abc import Mapping

_SPOT = "write spot_policy: spot, on-demand or auto"
_PROFILES = "write the fields of the profile here, such as spot_policy and max_price"
_OF_SERVICES = "is for services (type: service)"
OF_TASKS = "is for tasks (type: task)"
_OF_DEV_ENVIRONMENTS = "is for dev environments (type: dev-environment)"
_TUNNEL = (
    "no port has to be opened; write ports, or use `fairlead port-forward RUN PORT` while it runs"
)
_BUILT = "nodes build no images; push it to a registry and use its name as image"
_BANDS = "there are no queues; write band and priority"
_NO_LIMIT_YET = "is not supported yet; max_duration limits how long the run may be running"

HINTS: Mapping[str, str] = {
    "port": _TUNNEL,
    "args": "write commands, or entrypoint with its arguments",
    "node": "choose a node by constraints: [node EQ NAME]; several jobs are nodes",
    "instances": "an instance of a fleet has no number here; give the names of nodes, such as"
    " constraints: [node EQ gpu-1]; several jobs are nodes",
    "dstack": "a job here reaches no server of dstack; use `fairlead` and its API",
    "docker": "a job has no Docker; use an image that has it, and privileged: true",
    "dockerfile": _BUILT,
    "build": _BUILT,
    "spot": _SPOT,
    "profiles": _PROFILES,
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
