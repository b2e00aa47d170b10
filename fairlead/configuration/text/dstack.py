"""A file of dstack for a run, as its author means it here (docs/rules.md 5.18).

dstack's YAML is the model of ours, so most forms need nothing. This module turns the rest into our
fields. Forms that only dstack has are understood in every file. A file that is dstack's also gets
dstack's defaults, and every difference that remains is a note. `translated` is pure, and idempotent
on what it returns.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping
from typing import Any

import msgspec

DIALECT = "dstack"
FILE_NAMES = (".dstack.yml", ".dstack.yaml")
"""The ends of the names of dstack's files."""

WORKING_FOLDER = "/workflow"
"""Where dstack puts the repository, and from where a relative `working_dir` counts."""
_DOCKER_IMAGE = "dstackai/dind"
_START_DOCKER = "start-dockerd"
_HOME = "/root"
_MENTION = "DSTACK_"
_OF_PROJECT = re.compile(r"[\w-]+/([\w-]+)", re.ASCII)
_ADDRESS = "ip_address"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|[\w.-]+@[\w.-]+:")
_TAGS = "tags"
"""Of dstack too, but a word that others would write: it makes no file one of dstack."""
FIELDS: Mapping[str, str] = {
    "docker": "true: an image with a Docker daemon, which is started before the commands",
    "instances": "a list of names of nodes",
    "utilization_policy": "anything: it ends no run here",
    _TAGS: "anything: nodes are machines that an operator added",
}
"""Fields of dstack alone that a file may have, and what they may hold."""
_MARKS = frozenset({*FIELDS, "dstack", "router"} - {_TAGS})
_AMOUNTS = ("cpu", "memory", "gpu", "disk", "shm_size")
_RETRY_DURATION = "1h"


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
    is_dstacks = is_of_dstack(data)
    for step in _STEPS:
        step(work)
    for step in _STEPS_OF_DSTACKS_FILES if is_dstacks else ():
        step(work)
    if is_dstacks:
        work.data["dialect"] = DIALECT
    if is_dstacks or work.silently:
        work.data.setdefault("env_style", ["dstack"])
    return Translation(data=work.data, notes=tuple(work.notes))


def is_of_dstack(data: Mapping[str, Any]) -> bool:
    """Return whether the file is dstack's: its `dialect` decides, else fields that only dstack
    has, and variables that only jobs of dstack have."""
    if (dialect := data.get("dialect")) is not None:
        return bool(dialect == DIALECT)
    groups = (*_mappings(data.get("groups")), *_mappings(data.get("replicas")))
    has_mark = any(not _MARKS.isdisjoint(part) for part in (data, *groups))
    return has_mark or ("env_style" not in data and _mentions(data))


def marked(data: object, file_name: str) -> object:
    """Return the data of a file of this name; the name of a file of dstack gives its dialect."""
    if not isinstance(data, dict) or data.get("type") not in _TYPES or "dialect" in data:
        return data
    return {**data, "dialect": DIALECT} if file_name.endswith(FILE_NAMES) else data


def ports_of(configuration: Mapping[str, Any]) -> tuple[object, ...]:
    """Return the ports of a submitted configuration, also those of groups in a file of dstack."""
    return tuple(translated(configuration).data.get("ports") or ())


class _Work:
    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = dict(data)
        self.notes: list[str] = []
        self.silently = False
        """A form of dstack was translated that needs no note."""

    def note(self, phrase: str) -> None:
        if phrase not in self.notes:
            self.notes.append(phrase)


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
    # dstack writes "never" as -1.
    if data.get("idle_duration") in (-1, "-1"):
        data["idle_duration"] = "off"
    if data.pop("utilization_policy", None) is not None:
        work.notes.append("utilization_policy ends no run here: max_duration limits it")


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
    if work.data.get("type") == "service" and "gateway" in work.data:
        written = work.data["gateway"]
        name = _without_project(written)
        if name != written:
            work.data["gateway"] = name
            work.notes.append(f"gateway {name}, without a project")


def _fleets(work: _Work) -> None:
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


def _rate_limits(work: _Work) -> None:
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


def _ranges(work: _Work) -> None:
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


def _editor(work: _Work) -> None:
    """Tell what `version` of a desktop IDE does."""
    ide = work.data.get("ide")
    if work.data.get("type") == _DEV_ENVIRONMENT and "version" in work.data and ide in _DESKTOP:
        work.notes.append(f"{ide} brings the server of its own version when it connects")


# -- what a file of dstack means beyond its forms ----------------------------------------------


def _parts_with_resources(work: _Work) -> list[dict[str, Any]]:
    """Return the mappings that may hold `resources` and `volumes`: the whole and its groups."""
    groups = (*_mappings(work.data.get("groups")), *_mappings(work.data.get("replicas")))
    return [work.data, *groups]


def _amounts_without_lower_end(work: _Work) -> None:
    """Leave out amounts that name only the most: the machines are there, whatever their size."""
    for part in _parts_with_resources(work):
        resources = part.get("resources")
        if not isinstance(resources, dict):
            continue
        only_most = [name for name in _SINGLE if str(resources.get(name)).startswith("..")]
        part["resources"] = {name: one for name, one in resources.items() if name not in only_most}
        for name in only_most:
            work.note(f"{name}: {resources[name]} sets no limit")


def _lower_ends(work: _Work) -> None:
    """Tell the ranges of which a job gets the lower end and no more. What names only the least of
    CPU and memory follows the node of a job that holds GPUs or its whole node."""
    several = _count(work.data.get("nodes")) > 1 or len(_mappings(work.data.get("groups"))) > 1
    found = []
    for part in _parts_with_resources(work):
        resources = _mapping(part.get("resources"))
        follows = several or "gpu" in resources or _count(part.get("nodes")) > 1
        found += [
            f"{name}: {_in_words(one)}"
            for name, one in resources.items()
            if (name in ("cpu", "memory") and _is_range(str(one), open_too=not follows))
            or (name == "gpu" and _is_range_of_gpus(one))
        ]
    if found:
        work.note(f"of a range the lower end ({', '.join(dict.fromkeys(found))})")


def _in_words(written: object) -> str:
    if not isinstance(written, dict):
        return str(written)
    return f"{{{', '.join(f'{name}: {one}' for name, one in written.items())}}}"


def _is_range(amount: str, *, open_too: bool) -> bool:
    lower, dots, upper = amount.partition("..")
    return bool(dots and lower) and (open_too or bool(upper.strip()))


def _is_range_of_gpus(written: object) -> bool:
    """Return whether it has a range of numbers, or of memory with an upper end."""
    if isinstance(written, dict):
        count, memory = str(written.get("count", "")), str(written.get("memory", ""))
        return ".." in count or _is_range(memory, open_too=False)
    parts = str(written).split(":")
    return any(_is_range(part, open_too=part.replace(".", "").isdigit()) for part in parts)


def _count(written: object) -> int:
    return written if isinstance(written, int) else 1


def _min_disk(work: _Work) -> None:
    """Tell the amount for which small nodes are refused."""
    for part in _parts_with_resources(work)[1:] or [work.data]:
        resources = {**_mapping(work.data.get("resources")), **_mapping(part.get("resources"))}
        if "disk" not in resources:
            work.note("asks for 100GB of disk, as in dstack")


def _tags(work: _Work) -> None:
    if work.data.pop(_TAGS, None) is not None:
        work.note("without meaning on your own nodes: tags")


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _instances(work: _Work) -> None:
    """Make a constraint of the names of nodes; an instance's number says nothing here."""
    written = work.data.get("instances")
    if not isinstance(written, list | tuple) or not written:
        return
    names = [_name_of_instance(one) for one in written]
    others = work.data.get("constraints") or ()
    if any(name is None for name in names) or not isinstance(others, list | tuple):
        return
    del work.data["instances"]
    constraint = {"attribute": "node", "operator": "IN", "values": names}
    work.data["constraints"] = [*others, constraint]
    work.note("instances are names of nodes")


def _name_of_instance(written: object) -> str | None:
    if isinstance(written, dict) and len(written) == 1:
        written = written.get("name", written.get("hostname"))
    return written if isinstance(written, str) and written else None


def _volumes(work: _Work) -> None:
    """Tell that a named volume is no disk of a cloud that follows its jobs. It is always there, so
    `optional` says nothing."""
    for part in _parts_with_resources(work):
        volumes = part.get("volumes")
        if not isinstance(volumes, list | tuple):
            continue
        part["volumes"] = [
            {name: value for name, value in one.items() if name != "optional"}
            if isinstance(one, dict) and "name" in one
            else one
            for one in volumes
        ]
        for one in volumes:
            if "name" in one if isinstance(one, dict) else not str(one).startswith("/"):
                work.note("a named volume is a folder of each node, not one disk for all nodes")


def _when_it_waits(work: _Work) -> None:
    """Wait for a node as long as `retry` says. Without a word dstack fails at once: we wait."""
    data = work.data
    retry = data.get("retry")
    if isinstance(retry, dict) and "duration" not in retry:
        retry = data["retry"] = {**retry, "duration": _RETRY_DURATION}
    if "scheduling_timeout" in data:
        return
    waits = _RETRY_DURATION if retry is True else None
    if isinstance(retry, dict) and _is_for_capacity(retry.get("on_events")):
        waits = retry["duration"]
    if waits is not None and data.get("type") != "service":
        data["scheduling_timeout"] = waits
    else:
        work.note("waits while no node is free, where dstack fails at once")


def _is_for_capacity(events: object) -> bool:
    return events is None or (isinstance(events, list | tuple) and "no-capacity" in events)


def _retries(work: _Work) -> None:
    """Try nothing again without a word. A service would end with its first failed replica."""
    if work.data.get("retry") is not None:
        return
    if work.data.get("type") == "service":
        work.note("a replica that ends is started again (dstack's way: retry: false)")
    else:
        work.data["retry"] = False


def _priority(work: _Work) -> None:
    work.data.setdefault("priority", 0)


def _probe_of_the_model(work: _Work) -> None:
    """Ask the model itself whether a replica is ready, unless the file has probes."""
    data = work.data
    model = data.get("model")
    name = model.get("name") if isinstance(model, dict) else model
    prefix = model.get("prefix", "/v1") if isinstance(model, dict) else "/v1"
    if "probes" in data or not isinstance(name, str) or not isinstance(prefix, str):
        return
    import json  # for a model of dstack's alone

    asked = {"model": name, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    probe = {
        "type": "http",
        "method": "post",
        "url": f"{prefix.rstrip('/')}/chat/completions",
        "headers": {"Content-Type": "application/json"},
        "body": json.dumps(asked),
        "timeout": "30s",
    }
    data["probes"] = [probe]


def _image(work: _Work) -> None:
    """Tell which image stands in for dstack's own."""
    for part in _parts_with_resources(work)[1:] or [work.data]:
        if part.get("nvcc", work.data.get("nvcc")):
            work.note("nvcc: the image that the operator names")
        elif "image" not in part and "image" not in work.data:
            work.note("the image is the controller's default one, not dstack's")


_SINGLE = ("cpu", "memory", "disk", "shm_size")
_DEV_ENVIRONMENT = "dev-environment"
_DESKTOP = ("vscode", "cursor", "windsurf", "zed")
_TYPES = ("task", "service", _DEV_ENVIRONMENT)
_STEPS = (
    *(_amounts, _ranges, _groups, _folders, _files, _clouds, _entrypoint, _docker, _python),
    *(_parts, _gateway, _fleets, _rate_limits, _editor),
)
_STEPS_OF_DSTACKS_FILES = (
    *(_tags, _when_it_waits, _retries, _priority, _instances, _probe_of_the_model),
    *(_amounts_without_lower_end, _lower_ends, _min_disk, _volumes, _image),
)
