"""A task of SkyPilot as the YAML of a task here.

Each field becomes the one that docs/coming-from-skypilot.md names, or is refused with what to write
instead: nothing is left out in silence. All of it is pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fairlead.configuration.convert import ConfigurationError

_BUCKET = re.compile(r"(?:s3|gs|r2|cos|https?)://", re.ASCII)
_CLOUD_ONLY = frozenset(
    {
        "accelerator_args", "autostop", "cloud", "disk_tier", "infra", "instance_type",
        "labels", "network_tier", "region", "use_spot", "zone",
    }
)  # fmt: skip
"""Fields of `resources` about clouds: nodes are added to a fleet here."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)i?b?", re.ASCII | re.IGNORECASE)


class Converted(NamedTuple):
    """The configuration, and sentences about what differs."""

    configuration: dict[str, Any]
    notes: tuple[str, ...]


class _Task:
    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.resources: dict[str, Any] = {}
        self.notes: list[str] = []


def convert(data: object) -> Converted:
    """Return the task. Raises ConfigurationError with the field of the file."""
    if not isinstance(data, Mapping):
        raise ConfigurationError("", "is not a task of SkyPilot: it is no mapping")
    task = _Task()
    for name, value in data.items():
        known = _FIELDS.get(str(name))
        if known is None:
            raise ConfigurationError(str(name), _WITHOUT.get(str(name), "has no counterpart here"))
        if value is not None:
            known(task, str(name), value)
    commands = task.fields.pop("commands", [])
    setup = task.fields.pop("setup", [])
    return Converted(
        {
            "type": "task",
            **task.fields,
            **({"resources": task.resources} if task.resources else {}),
            **({"setup": setup} if setup else {}),
            "commands": commands,
            "env_style": ["skypilot"],
        },
        tuple(task.notes),
    )


def _name(task: _Task, field: str, value: Any) -> None:
    task.fields["name"] = str(value).lower().replace("_", "-").replace(".", "-")


def _nodes(task: _Task, field: str, value: Any) -> None:
    if value != 1:
        task.fields["nodes"] = value


def _env(task: _Task, field: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise ConfigurationError(field, "is not a mapping of variables")
    own = task.fields.setdefault("env", {})
    for name, content in value.items():
        # Without a value SkyPilot asks for one on the command line.
        own[name] = f"${{{name}}}" if content is None else str(content)


def _setup(task: _Task, field: str, value: Any) -> None:
    task.fields["setup"] = [str(value).strip()]


def _run(task: _Task, field: str, value: Any) -> None:
    task.fields["commands"] = [str(value).strip()]


def _folder(task: _Task, field: str, value: Any) -> None:
    if isinstance(value, Mapping):
        url, ref = value.get("url"), value.get("ref")
        task.fields["repos"] = [{"url": url, **({"branch": ref} if ref else {})}]
    else:
        task.fields["repos"] = [str(value)]


def _mounts(task: _Task, field: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise ConfigurationError(field, "is not a mapping")
    for remote, local in value.items():
        field_path = f"{field}.{remote}"
        if isinstance(local, Mapping):
            source, mode = str(local.get("source", "")), str(local.get("mode", "MOUNT"))
            if mode != "COPY" or not source.startswith("s3://"):
                raise ConfigurationError(
                    field_path, "a bucket is no file system here: use mode COPY"
                )
            task.fields.setdefault("buckets", []).append({"url": source, "path": remote})
        elif _BUCKET.match(str(local)):
            if not str(local).startswith("s3://"):
                raise ConfigurationError(field_path, "only s3:// is copied: download it in setup")
            task.fields.setdefault("buckets", []).append({"url": str(local), "path": remote})
        else:
            task.fields.setdefault("files", []).append(f"{local}:{remote}")


def _resources(task: _Task, field: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise ConfigurationError(field, "is not a mapping")
    for name, asked in value.items():
        field_path = f"{field}.{name}"
        if asked is None:
            continue
        if name in _CLOUD_ONLY:
            task.notes.append(f"{field_path} is left out: jobs go to the nodes of a fleet")
            continue
        known = _RESOURCES.get(str(name))
        if known is None:
            raise ConfigurationError(field_path, "has no counterpart here")
        known(task, field_path, asked)


def _gpus(task: _Task, field: str, value: Any) -> None:
    if isinstance(value, Mapping) and len(value) == 1:
        value = ":".join(str(part) for part in next(iter(value.items())))
    if not isinstance(value, str):
        raise ConfigurationError(field, "names several kinds: choose one, such as H100:8")
    name, _, count = value.partition(":")
    task.resources["gpu"] = f"{name}:{count or 1}"


def _alternatives(task: _Task, field: str, value: Any) -> None:
    """Leave out alternatives that differ in their clouds alone; what they need would be lost."""
    for number, one in enumerate(value if isinstance(value, list) else [value]):
        if not isinstance(one, Mapping):
            raise ConfigurationError(f"{field}[{number}]", "is not a mapping of resources")
        needed = [str(name) for name in one if name not in _CLOUD_ONLY]
        if needed:
            path = f"{field}[{number}].{needed[0]}"
            raise ConfigurationError(path, "is one of several: choose one, in `resources` itself")
    task.notes.append(f"{field} is left out: jobs go to the nodes of a fleet")


def _least(target: str, unit: str = "") -> Callable[[_Task, str, Any], None]:
    def put(task: _Task, field: str, value: Any) -> None:
        text = str(value)
        least = text.removesuffix("+")
        match = _SIZE.fullmatch(least.strip())
        if match is None or (match[2] and not unit):
            raise ConfigurationError(field, f"{text[:60]!r} is not an amount such as 4 or 4+")
        amount = f"{match[1]}{match[2].upper()}B" if match[2] else f"{match[1]}{unit}"
        if least != text:
            task.notes.append(f"{field}: the job gets {amount}, and no more")
        task.resources[target] = amount if unit else float(amount)

    return put


def _max_price(task: _Task, field: str, value: Any) -> None:
    task.fields["max_price"] = value


def _image(task: _Task, field: str, value: Any) -> None:
    if not str(value).startswith("docker:"):
        raise ConfigurationError(field, "is an image of a cloud: write docker:IMAGE")
    task.fields["image"] = str(value).removeprefix("docker:")


def _ports(task: _Task, field: str, value: Any) -> None:
    given = value if isinstance(value, list) else [value]
    if any("-" in str(one) for one in given):
        raise ConfigurationError(field, "has a range: name each port")
    if not all(str(one).isdecimal() for one in given):
        raise ConfigurationError(field, "is not a port: write numbers such as 8080")
    task.fields["ports"] = [int(one) for one in given]


def _recovery(task: _Task, field: str, value: Any) -> None:
    """SkyPilot starts a job again after the loss of its machine, as is the default here; after its
    own errors only so often as this says."""
    given = dict(value) if isinstance(value, Mapping) else {"strategy": value}
    errors = given.pop("max_restarts_on_errors", None)
    if errors is not None and (isinstance(errors, bool) or not isinstance(errors, int)):
        raise ConfigurationError(f"{field}.max_restarts_on_errors", "is not a whole number")
    if errors:
        task.fields["retry"] = {"max_failures": errors}
    if given:
        task.notes.append(f"{field}.{next(iter(given))} is left out: jobs go to nodes of a fleet")


_RESOURCES: Mapping[str, Callable[[_Task, str, Any], None]] = {
    "accelerators": _gpus,
    "gpus": _gpus,
    "any_of": _alternatives,
    "ordered": _alternatives,
    "max_hourly_cost": _max_price,
    "cpus": _least("cpu"),
    "memory": _least("memory", "GB"),
    "disk_size": _least("disk", "GB"),
    "image_id": _image,
    "job_recovery": _recovery,
    "ports": _ports,
}
_FIELDS: Mapping[str, Callable[[_Task, str, Any], None]] = {
    "name": _name,
    "num_nodes": _nodes,
    "envs": _env,
    "setup": _setup,
    "run": _run,
    "workdir": _folder,
    "file_mounts": _mounts,
    "resources": _resources,
}
_WITHOUT: Mapping[str, str] = {
    "secrets": "store them with `fairlead secret set`, and name them as ${{ secrets.NAME }} in env",
    "service": "write a file with type: service",
    "volumes": "write volumes: [/FOLDER/OF/THE/NODE:/PATH]",
    "event_callback": "has no counterpart: `fairlead events -f --json` can feed a script",
    "config": "is about clouds, and has no counterpart",
    "experimental": "has no counterpart",
}
