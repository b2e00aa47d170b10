"""A file of dstack for a run, as its author means it here.

dstack's YAML is the model of ours, so most files need nothing. This module turns the rest into our
fields: forms that dstack reads in a way of its own, and fields of its cloud that have no meaning on
nodes that an operator added. `translated` is pure, and idempotent on what it returns.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping
from typing import Any

import msgspec

WORKING_FOLDER = "/workflow"
"""Where dstack puts the repository, and from where a relative `working_dir` counts."""
_DOCKER_IMAGE = "dstackai/dind"
_START_DOCKER = "start-dockerd"
_HOME = "/root"
_MENTION = "DSTACK_"
_GATEWAY_OF_PROJECT = re.compile(r"[\w-]+/([\w-]+)", re.ASCII)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|[\w.-]+@[\w.-]+:")
_OF_CLOUDS = (
    *("spot_policy", "backends", "regions", "availability_zones", "instance_types"),
    *("max_price", "reservation", "creation_policy", "idle_duration", "instances"),
)
"""Fields that choose among a cloud's offers."""
FIELDS: Mapping[str, str] = {
    "docker": "true: an image with a Docker daemon, which is started before the commands",
    "utilization_policy": "anything: it ends no run here",
    **dict.fromkeys(_OF_CLOUDS, "anything: nodes are machines that an operator added"),
}
"""Fields of dstack alone that a file may have, and what they may hold."""
_AMOUNTS = ("cpu", "memory", "gpu", "disk", "shm_size")


class Translation(msgspec.Struct, frozen=True, kw_only=True):
    """`data`: the configuration in our fields. `notes`: what its user should know, one phrase each;
    empty for a file without dstack's own forms."""

    data: dict[str, Any]
    notes: tuple[str, ...] = ()


def translated(data: Mapping[str, Any]) -> Translation:
    """Return the configuration with dstack's own forms in ours.

    What it does not know stays as it is, so that `parse` refuses it with its hint.
    """
    if data.get("type") not in _TYPES:
        return Translation(data=dict(data))
    work = _Work(data)
    for step in _STEPS:
        step(work)
    if work.notes or work.silently or _mentions(data):
        work.data.setdefault("env_style", ["dstack"])
    return Translation(data=work.data, notes=tuple(work.notes))


def ports_of(configuration: Mapping[str, Any]) -> tuple[object, ...]:
    """Return the ports of a submitted configuration, also those of groups in a file of dstack."""
    return tuple(translated(configuration).data.get("ports") or ())


class _Work:
    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = dict(data)
        self.notes: list[str] = []
        self.silently = False
        """Something of dstack's was translated that needs no word."""


def _mentions(data: Mapping[str, Any]) -> bool:
    """Return whether what the jobs run names a variable of dstack's."""
    groups = (*_mappings(data.get("groups")), *_mappings(data.get("replicas")))
    parts = (data, *groups)
    texts = (part.get(name) for part in parts if isinstance(part, Mapping) for name in _RUNS)
    return any(_MENTION in str(text) for text in texts if text)


_RUNS = ("setup", "commands", "entrypoint", "init", "env")


def _amounts(work: _Work) -> None:
    """Read amounts beside an empty `resources` as those of it: an indentation was forgotten."""
    data = work.data
    if "resources" not in data or data["resources"] is not None:
        return
    found = {name: data.pop(name) for name in _AMOUNTS if name in data}
    data.pop("resources")
    if found:
        data["resources"] = found
        work.notes.append(f"{', '.join(found)} read as those of resources")


def _groups(work: _Work) -> None:
    """Name the groups that have no name, and gather their ports."""
    groups = work.data.get("groups")
    if not isinstance(groups, list | tuple) or not all(isinstance(g, dict) for g in groups):
        return
    taken = {group.get("name") for group in groups}
    named, ports = [], list(work.data.get("ports") or ())
    for number, group in enumerate(groups):
        changed = dict(group)
        if "name" not in changed:
            name = f"group{number}"
            changed = {"name": name if name not in taken else f"nameless{number}", **changed}
            work.silently = True
        if isinstance(own := changed.get("ports"), list | tuple):
            ports += [port for port in own if port not in ports]
            del changed["ports"]
            work.silently = True
        named.append(changed)
    work.data["groups"] = named
    if ports:
        work.data["ports"] = ports


def _folders(work: _Work) -> None:
    """Let a relative `working_dir` count from where dstack puts the repository."""
    folder = work.data.get("working_dir")
    if not isinstance(folder, str) or not folder or folder.startswith("/"):
        return
    work.data["working_dir"] = posixpath.normpath(posixpath.join(WORKING_FOLDER, folder))
    work.silently = True
    repos = work.data.get("repos")
    if isinstance(repos, list | tuple):
        work.data["repos"] = [_with_path(repo) for repo in repos]


def _with_path(repo: object) -> object:
    if isinstance(repo, str):
        has_path = ":" in repo and not _URL.match(repo)
        return repo if has_path or _URL.match(repo) else f"{repo}:{WORKING_FOLDER}"
    if isinstance(repo, dict) and repo.get("path") in (None, "."):
        return {**repo, "path": WORKING_FOLDER}
    return repo


def _files(work: _Work) -> None:
    """Put files that go to `~` into the home of root, who runs dstack's jobs."""
    files = work.data.get("files")
    if not isinstance(files, list | tuple) or work.data.get("user") not in (None, "root"):
        return
    changed = [_at_home(file) for file in files]
    if changed != list(files):
        work.data["files"] = changed
        work.silently = True


def _at_home(file: object) -> object:
    if isinstance(file, str):
        local, _, path = file.partition(":")
        path = path or (local if local.startswith("~/") else "")
        return f"{local}:{_HOME}{path[1:]}" if path.startswith("~/") else file
    if isinstance(file, dict) and "uploaded" not in file:
        target = file.get("path") or file.get("local_path")
        if isinstance(target, str) and target.startswith("~/"):
            return {**file, "path": f"{_HOME}{target[1:]}"}
    return file


def _clouds(work: _Work) -> None:
    data = work.data
    without = [name for name in _OF_CLOUDS if data.pop(name, None) is not None]
    if without:
        work.notes.append(f"without meaning on your own nodes: {', '.join(without)}")
    if data.pop("utilization_policy", None) is not None:
        work.notes.append("utilization_policy ends no run here: max_duration limits it")
    named = [one["name"] for one in _mappings(data.get("volumes")) if one.get("name")]
    if named and any(name in work.data for name in ("python", "docker")):
        work.notes.append("a named volume is a folder of the node on which a job runs")


def _mappings(value: object) -> list[dict[str, Any]]:
    return (
        [one for one in value if isinstance(one, dict)] if isinstance(value, list | tuple) else []
    )


def _entrypoint(work: _Work) -> None:
    """Give the commands to the entrypoint as its arguments, as dstack does."""
    entrypoint, commands = work.data.get("entrypoint"), work.data.get("commands")
    if not isinstance(entrypoint, str) or not isinstance(commands, list | tuple):
        return
    try:
        words = shlex.split(entrypoint)
    except ValueError:
        return
    if words and commands:
        work.data["entrypoint"] = [*words, *commands]
        del work.data["commands"]
        work.notes.append("commands are the arguments of entrypoint")


def _docker(work: _Work) -> None:
    """Give a job with `docker: true` dstack's image with a Docker daemon, which it starts."""
    data, wanted = work.data, work.data.get("docker")
    if not isinstance(wanted, bool) or (wanted and ("image" in data or "python" in data)):
        return
    del data["docker"]
    work.silently = True
    if not wanted:
        return
    data |= {"image": _DOCKER_IMAGE, "privileged": True}
    field = "init" if data.get("type") == _DEV_ENVIRONMENT else "commands"
    commands = data.get(field, () if field == "init" else None)
    if isinstance(commands, list | tuple):
        data[field] = [_START_DOCKER, *commands]
    work.notes.append(
        f"docker: image {_DOCKER_IMAGE}, privileged where the node's operator allows it"
    )


def _python(work: _Work) -> None:
    """Take a file whose `python` or `nvcc` is in place of an image for one of dstack."""
    data = work.data
    if "image" not in data and ("python" in data or "nvcc" in data):
        work.silently = True


def _parts(work: _Work) -> None:
    """Do the same for each group of a task, and each kind of replicas of a service."""
    for kind in ("groups", "replicas"):
        if isinstance(parts := work.data.get(kind), list | tuple):
            work.data[kind] = [_part(work, one) if isinstance(one, dict) else one for one in parts]


def _part(work: _Work, part: dict[str, Any]) -> dict[str, Any]:
    own = _Work(part)
    _docker(own)
    _python(own)
    if part.get("docker") and own.data.pop("privileged", None):
        work.data["privileged"] = True
    work.notes += [note for note in own.notes if note not in work.notes]
    work.silently |= own.silently
    return own.data


def _gateway(work: _Work) -> None:
    """Take the project off the name of another project's gateway: here all share them."""
    match = _GATEWAY_OF_PROJECT.fullmatch(str(work.data.get("gateway")))
    if work.data.get("type") == "service" and match is not None:
        work.data["gateway"] = match[1]
        work.notes.append(f"gateway {match[1]}, without a project")


def _editor(work: _Work) -> None:
    """Tell what `version` of a desktop IDE does."""
    ide = work.data.get("ide")
    if work.data.get("type") == _DEV_ENVIRONMENT and "version" in work.data and ide in _DESKTOP:
        work.notes.append(f"{ide} brings the server of its own version when it connects")


_DEV_ENVIRONMENT = "dev-environment"
_DESKTOP = ("vscode", "cursor", "windsurf", "zed")
_TYPES = ("task", "service", _DEV_ENVIRONMENT)
_STEPS = (
    *(_amounts, _groups, _folders, _files, _clouds, _entrypoint, _docker, _python),
    _parts,
    _gateway,
    _editor,
)
