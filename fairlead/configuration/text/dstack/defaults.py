"""The defaults that a file of dstack has, and notes of what stays different here."""

from __future__ import annotations

from typing import Any

from fairlead.configuration.text.dstack.work import TAGS, Work, mappings_of

_RETRY_DURATION = "1h"


def _parts_with_resources(work: Work) -> list[dict[str, Any]]:
    """Return the mappings that may hold `resources` and `volumes`: the whole and its groups."""
    groups = (*mappings_of(work.data.get("groups")), *mappings_of(work.data.get("replicas")))
    return [work.data, *groups]


def _amounts_without_lower_end(work: Work) -> None:
    """Leave out amounts that name only the most: the machines are there, whatever their size."""
    for part in _parts_with_resources(work):
        resources = part.get("resources")
        if not isinstance(resources, dict):
            continue
        only_most = [name for name in _SINGLE if str(resources.get(name)).startswith("..")]
        part["resources"] = {name: one for name, one in resources.items() if name not in only_most}
        for name in only_most:
            work.note(f"{name}: {resources[name]} sets no limit")


def _lower_ends(work: Work) -> None:
    """Tell the ranges of which a job gets the lower end and no more. What names only the least of
    CPU and memory follows the node of a job that holds GPUs or its whole node."""
    several = _count(work.data.get("nodes")) > 1 or len(mappings_of(work.data.get("groups"))) > 1
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


def _min_disk(work: Work) -> None:
    """Tell the amount for which small nodes are refused."""
    for part in _parts_with_resources(work)[1:] or [work.data]:
        resources = {**_mapping(work.data.get("resources")), **_mapping(part.get("resources"))}
        if "disk" not in resources:
            work.note("asks for 100GB of disk, as in dstack")


def _tags(work: Work) -> None:
    if work.data.pop(TAGS, None) is not None:
        work.note("without meaning on your own nodes: tags")


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _instances(work: Work) -> None:
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


def _volumes(work: Work) -> None:
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


def _when_it_waits(work: Work) -> None:
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


def _retries(work: Work) -> None:
    """Try nothing again without a word. A service would end with its first failed replica."""
    if work.data.get("retry") is not None:
        return
    if work.data.get("type") == "service":
        work.note("a replica that ends is started again (dstack's way: retry: false)")
    else:
        work.data["retry"] = False


def _priority(work: Work) -> None:
    work.data.setdefault("priority", 0)


def _probe_of_the_model(work: Work) -> None:
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


def _image(work: Work) -> None:
    """Tell which image stands in for dstack's own."""
    for part in _parts_with_resources(work)[1:] or [work.data]:
        if part.get("nvcc", work.data.get("nvcc")):
            work.note("nvcc: the image that the operator names")
        elif "image" not in part and "image" not in work.data:
            work.note("the image is the controller's default one, not dstack's")


_SINGLE = ("cpu", "memory", "disk", "shm_size")


STEPS = (
    *(_tags, _when_it_waits, _retries, _priority, _instances, _probe_of_the_model),
    *(_amounts_without_lower_end, _lower_ends, _min_disk, _volumes, _image),
)
