"""The forms that dstack alone has, as ours; they are understood in every file."""

from __future__ import annotations

import posixpath
import re
import shlex
from typing import Any

from fairlead.configuration.text.dstack.work import DEV_ENVIRONMENT, Work

WORKING_FOLDER = "/workflow"
"""Where dstack puts the repository, and from where a relative `working_dir` counts."""


_DOCKER_IMAGE = "dstackai/dind"


_START_DOCKER = "start-dockerd"


_HOME = "/root"


_OF_PROJECT = re.compile(r"[\w-]+/([\w-]+)", re.ASCII)


_ADDRESS = "ip_address"


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|[\w.-]+@[\w.-]+:")


_AMOUNTS = ("cpu", "memory", "gpu", "disk", "shm_size")


def _amounts(work: Work) -> None:
    """Read amounts beside an empty `resources` as those of it: an indentation was forgotten."""
    data = work.data
    if "resources" not in data or data["resources"] is not None:
        return
    found = {name: data.pop(name) for name in _AMOUNTS if name in data}
    data.pop("resources")
    if found:
        data["resources"] = found
        work.notes.append(f"{', '.join(found)} read as those of resources")


def _groups(work: Work) -> None:
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


def _folders(work: Work) -> None:
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


def _files(work: Work) -> None:
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


def _clouds(work: Work) -> None:
    data = work.data
    # dstack writes "never" as -1.
    if data.get("idle_duration") in (-1, "-1"):
        data["idle_duration"] = "off"
    if data.pop("utilization_policy", None) is not None:
        work.notes.append("utilization_policy ends no run here: max_duration limits it")


def _entrypoint(work: Work) -> None:
    """Give the commands to the entrypoint as its arguments, as dstack does."""
    entrypoint, commands = work.data.get("entrypoint"), work.data.get("commands")
    if not isinstance(entrypoint, str) or not isinstance(commands, list | tuple):
        return
    try:
        words = shlex.split(entrypoint)
    # A quote that is not closed: the check of the field says so, with its line.
    except ValueError:
        return
    if words and commands:
        work.data["entrypoint"] = [*words, *commands]
        del work.data["commands"]
        work.notes.append("commands are the arguments of entrypoint")


def _docker(work: Work) -> None:
    """Give a job with `docker: true` dstack's image with a Docker daemon, which it starts."""
    data, wanted = work.data, work.data.get("docker")
    if not isinstance(wanted, bool) or (wanted and ("image" in data or "python" in data)):
        return
    del data["docker"]
    work.silently = True
    if not wanted:
        return
    data |= {"image": _DOCKER_IMAGE, "privileged": True}
    field = "init" if data.get("type") == DEV_ENVIRONMENT else "commands"
    commands = data.get(field, () if field == "init" else None)
    if isinstance(commands, list | tuple):
        data[field] = [_START_DOCKER, *commands]
    work.notes.append(
        f"docker: image {_DOCKER_IMAGE}, privileged where the node's operator allows it"
    )


def _python(work: Work) -> None:
    """Take a file whose `python` or `nvcc` is in place of an image for one of dstack."""
    data = work.data
    if "image" not in data and ("python" in data or "nvcc" in data):
        work.silently = True


def _parts(work: Work) -> None:
    """Do the same for each group of a task, and each kind of replicas of a service."""
    for kind in ("groups", "replicas"):
        if isinstance(parts := work.data.get(kind), list | tuple):
            work.data[kind] = [_part(work, one) if isinstance(one, dict) else one for one in parts]


def _part(work: Work, part: dict[str, Any]) -> dict[str, Any]:
    own = Work(part)
    _docker(own)
    _python(own)
    if part.get("docker") and own.data.pop("privileged", None):
        work.data["privileged"] = True
    work.notes += [note for note in own.notes if note not in work.notes]
    work.silently |= own.silently
    return own.data


def _gateway(work: Work) -> None:
    """Take the project off the name of another project's gateway: here all share them."""
    if work.data.get("type") == "service" and "gateway" in work.data:
        written = work.data["gateway"]
        name = _without_project(written)
        if name != written:
            work.data["gateway"] = name
            work.notes.append(f"gateway {name}, without a project")


def _fleets(work: Work) -> None:
    """Take the project off the names of fleets."""
    written = work.data.get("fleets")
    if isinstance(written, list | tuple):
        names = [_without_project(one) for one in written]
        if names != list(written):
            work.data["fleets"] = names
            work.notes.append("fleets without a project")


def _without_project(written: object) -> object:
    """Return the name of `PROJECT/NAME` or of a mapping with `name`, and any other value as it
    is."""
    if isinstance(written, dict) and written.keys() <= {"name", "project"}:
        return written.get("name", written)
    match = _OF_PROJECT.fullmatch(written) if isinstance(written, str) else None
    return written if match is None else match[1]


def _rate_limits(work: Work) -> None:
    """Read dstack's name for counting by the client's address."""
    limits = work.data.get("rate_limits")
    if isinstance(limits, list | tuple):
        work.data["rate_limits"] = [_by_address(one) for one in limits]


def _by_address(limit: object) -> object:
    if not isinstance(limit, dict):
        return limit
    key = limit.get("key")
    if isinstance(key, dict) and key.get("type") == _ADDRESS:
        return {**limit, "key": {**key, "type": "ip"}}
    return {**limit, "key": "ip"} if key == _ADDRESS else limit


def _ranges(work: Work) -> None:
    """Write ranges that are mappings of min and max as strings, in which we have them."""
    data = work.data
    if "replica_groups" in data and "replicas" not in data:
        data["replicas"] = data.pop("replica_groups")
    for name in ("replicas", "resources"):
        if isinstance(data.get(name), dict):
            data[name] = _range(data[name])
    for kind in ("groups", "replicas"):
        if isinstance(parts := data.get(kind), list | tuple):
            data[kind] = [_range(one) for one in parts]


def _range(value: object) -> object:
    if isinstance(value, list | tuple):
        return [_range(one) for one in value]
    if not isinstance(value, dict):
        return value
    if value and value.keys() <= {"min", "max"}:
        least, most = (value.get(end) for end in ("min", "max"))
        if all(one is None or type(one) in (int, float, str) for one in (least, most)):
            return f"{'' if least is None else least}..{'' if most is None else most}"
    if "arch" in value and value.keys() <= {"arch", "count"}:
        parts = (value.get("arch"), _range(value.get("count")))
        return ":".join(str(one) for one in parts if one is not None)
    return {name: _range(one) if name in _WITH_RANGES else one for name, one in value.items()}


_WITH_RANGES = frozenset({"resources", "count", *_AMOUNTS})


def _editor(work: Work) -> None:
    """Tell what `version` of a desktop IDE does."""
    ide = work.data.get("ide")
    if work.data.get("type") == DEV_ENVIRONMENT and "version" in work.data and ide in _DESKTOP:
        work.notes.append(f"{ide} brings the server of its own version when it connects")


_DESKTOP = ("vscode", "cursor", "windsurf", "zed")


STEPS = (
    *(_amounts, _ranges, _groups, _folders, _files, _clouds, _entrypoint, _docker, _python),
    *(_parts, _gateway, _fleets, _rate_limits, _editor),
)
