"""The corpus of public run files of dstack: what each means there, and what becomes of it here.

`dstack-shapes.jsonl` holds the forms of the files; their values are replaced. `meant_there` is
written from dstack's documents and knows nothing of `fairlead.configuration`, so that it can
judge it. Run as a program it prints the figures of docs/coming-from-dstack.md:

    python -m tests.unit.configuration.dstack_corpus
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.parse import parse
from fairlead.configuration.runs.plan import Defaults, Plan, to_run
from fairlead.configuration.text.dstack import marked, translated
from fairlead.configuration.text.environment import with_environment
from fairlead.model.service import ProbeKind
from fairlead.wire.job import EnvStyle

SHAPES_FILE = Path(__file__).parent / "dstack-shapes.jsonl"
SHAPES: list[dict[str, Any]] = [json.loads(line) for line in SHAPES_FILE.read_text().splitlines()]
FILE = "run.dstack.yml"
OPERATORS = Defaults(nvcc_image="team/cuda:13-devel")
"""An operator who follows docs/controller.md for users of dstack."""


# -- the shapes as files ----------------------------------------------------------------------


def filled(shape: Any) -> Any:
    """Return the shape with values that a user would have written in place of the masked ones."""
    if isinstance(shape, dict):
        return {name: _filled_field(name, content) for name, content in shape.items()}
    if isinstance(shape, list):
        return [filled(one) for one in shape]
    return shape


def _filled_field(name: str, content: Any) -> Any:
    if name in ("path", "instance_path", "url", "prefix") and content == "text":
        return "/text"
    if name == "format" and content == "text":
        return "openai"
    if name == "groups":
        return [
            {**filled(group), **({"name": f"g{number}"} if "name" in group else {})}
            for number, group in enumerate(content)
        ]
    if name == "volumes" and len(content) > 1:
        return [
            f"{one}/{number}" if isinstance(one, str) else filled(one)
            for number, one in enumerate(content)
        ]
    if name == "repos":
        return [one.replace("p://", "https://") if isinstance(one, str) else one for one in content]
    return filled(content)


def environment(shape: dict[str, Any]) -> dict[str, str]:
    """Return the variables that the file only names, with values."""
    entries = shape.get("env", [])
    return {entry: "v" for entry in entries if isinstance(entry, str) and "=" not in entry}


def is_whole(shape: dict[str, Any]) -> bool:
    """Return whether dstack itself would run it: pages also show parts of files."""
    parts = shape.get("groups") or _groups(shape) or [shape]
    runs = all(any(name in part | shape for name in _WHAT_RUNS) for part in parts)
    return {
        "task": runs,
        "service": runs and "port" in shape,
        "dev-environment": True,
    }[shape["type"]]


_WHAT_RUNS = ("commands", "image", "entrypoint")


def _groups(shape: dict[str, Any]) -> list[dict[str, Any]]:
    replicas = shape.get("replicas")
    return replicas if isinstance(replicas, list) else []


def as_sent(shape: dict[str, Any], file: str = FILE) -> dict[str, Any]:
    """Return what `fairlead apply` makes of the file, without its code."""
    sent = with_environment(marked(filled(shape), file), environment(shape), {})
    assert isinstance(sent, dict)
    return sent


def planned(shape: dict[str, Any], file: str = FILE, defaults: Defaults = OPERATORS) -> Plan:
    """Return the plan of the file. Raises ConfigurationError."""
    sent = as_sent(shape, file)
    parse(sent)
    without_code = {key: one for key, one in sent.items() if key not in ("repos", "files")}
    return to_run(parse(without_code), without_code, defaults)


def refusal(shape: dict[str, Any]) -> str | None:
    try:
        planned(shape)
    except ConfigurationError as error:
        return str(error)
    return None


# -- what a file means in dstack --------------------------------------------------------------


class Meaning(msgspec.Struct, frozen=True, kw_only=True):
    """What a run of dstack is, as far as both systems have a word for it."""

    priority: int
    retries: frozenset[str]
    retry_duration: float | None
    waits: float | None
    """Seconds for which it waits for a machine."""
    max_duration: float | None
    least: tuple[tuple[float, int, int], ...]
    """Cores, bytes of memory and of disk that each group asks for at least."""
    exact: bool
    """No job may get another number of GPUs, larger ones or more CPUs than here, where it gets the
    lower end of a range."""
    gpus: tuple[int, ...]
    images: tuple[str | None, ...]
    """None: an image of dstack's own."""
    nodes: tuple[int, ...]
    replicas: tuple[tuple[int, int], ...]
    probes: tuple[str, ...]
    volumes_follow: bool
    """A volume is one disk, which goes where its job goes."""
    variables: bool


_SECONDS = {"1h": 3600.0, "2h": 7200.0, "8h": 28800.0, "24h": 86400.0, "48h": 172800.0}
_GB = 10**9


def _least(amount: Any, default: float, unit: int = 1) -> float:
    low = str(amount if amount is not None else "").partition("..")[0].removeprefix("x86:")
    if low.endswith("TB"):
        return float(low.removesuffix("TB")) * 1000 * unit
    return float(low.removesuffix("GB")) * unit if low else default


def _gpus(asked: Any) -> int:
    if isinstance(asked, dict):
        return int(_least(asked.get("count", 1), 1))
    for part in reversed(str(asked if asked is not None else 0).split(":")):
        if part.partition("..")[0].isdigit():
            return int(part.partition("..")[0])
    return 1


def _may_be_more(asked: dict[str, Any], *, whole: bool) -> bool:
    """`whole`: the job has its machine for itself."""
    gpu = asked.get("gpu")
    parts = [gpu.get("count"), gpu.get("memory")] if isinstance(gpu, dict) else str(gpu).split(":")
    for part in parts:
        low, dots, high = str(part).partition("..")
        if dots and (high or low.isdigit()):
            return True
    for name in ("cpu", "memory"):
        low, dots, high = str(asked.get(name)).partition("..")
        if dots and (high or not (gpu or whole)):
            return True
    return False


def meant_there(shape: dict[str, Any]) -> Meaning:
    """Return what dstack's documents say of this file."""
    parts = [{**shape, **part} for part in shape.get("groups") or _groups(shape) or [shape]]
    asked = [part.get("resources") or part for part in parts]
    retry = shape.get("retry")
    events = frozenset(retry["on_events"]) if retry else frozenset[str]()
    duration = _SECONDS[retry["duration"]] if retry else None
    replicas = [str(part.get("count", 1)) for part in _groups(shape)] or [
        str(shape.get("replicas", 1))
    ]
    model = ("/v1/chat/completions",) if "model" in shape else ()
    probes = tuple("/text" for _ in shape["probes"]) if "probes" in shape else model
    volumes = [one for part in parts for one in part.get("volumes", [])]
    return Meaning(
        priority=shape.get("priority", 0),
        retries=events,
        retry_duration=duration,
        waits=duration if "no-capacity" in events else 0.0,
        max_duration=_SECONDS.get(shape.get("max_duration", "")),
        least=tuple(
            (
                _least(one.get("cpu"), 2.0),
                int(_least(one.get("memory"), 8 * _GB, _GB)),
                int(_least(one.get("disk"), 100 * _GB, _GB)),
            )
            for one in asked
        ),
        exact=not any(
            _may_be_more(one, whole=len(parts) > 1 or shape.get("nodes", 1) > 1) for one in asked
        ),
        gpus=tuple(_gpus(one.get("gpu")) for one in asked),
        images=tuple(None if part.get("docker") else part.get("image") for part in parts),
        nodes=tuple(part.get("nodes", 1) for part in parts),
        replicas=tuple((int(one[0]), int(one[-1])) for one in replicas),
        probes=probes,
        volumes_follow=any(isinstance(one, dict) and "name" in one for one in volumes),
        variables=True,
    )


# -- what becomes of it here ------------------------------------------------------------------

WAITS = "waits while no node is free, where dstack fails at once"
_RANGE = "of a range the lower end"
_IMAGE = "the image is the controller's default one"
_RESTARTS = "a replica that ends is started again"
_VOLUME = "a named volume is a folder of each node"
_NAME_OF = {"dstackai/dind": "docker", OPERATORS.nvcc_image: "nvcc"}


def differences(shape: dict[str, Any], plan: Plan) -> Iterator[str]:
    """Yield each difference between the two meanings, as the beginning of the note that tells it;
    one that no note tells is a name of `Meaning`."""
    there = meant_there(shape)
    policy, is_service = plan.policy, plan.service is not None
    if policy.scheduling_timeout != there.waits:
        yield WAITS if policy.scheduling_timeout is None else "waits"
    if policy.retry.on_events != there.retries:
        yield _RESTARTS if is_service and not there.retries else "retries"
    if policy.retry.duration != there.retry_duration and there.retries:
        yield "retry_duration"
    if policy.priority != there.priority:
        yield "priority"
    if policy.max_duration != there.max_duration:
        yield "max_duration"
    needs = [one.spec.resources for one in plan.groups]
    if tuple((one.cpu, one.memory - _beside(shape, one), one.disk) for one in needs) != there.least:
        yield "least"
    if tuple(one.gpu.count for one in needs) != there.gpus:
        yield "gpus"
    if not there.exact:
        yield _RANGE if ".." in _amounts(shape).replace("..64", "") else "cpu: ..64 sets no limit"
    for image, one in zip(there.images, plan.groups, strict=True):
        if image is None:
            yield _NAME_OF.get(one.spec.image, _IMAGE)
        elif image != one.spec.image:
            yield "images"
    yield from _of_services(there, plan)
    if there.volumes_follow:
        yield _VOLUME
    if any(one.spec.env_style != (EnvStyle.DSTACK,) for one in plan.groups):
        yield "variables"
    yield from ("utilization_policy" for name in shape if name == "utilization_policy")
    yield from ("gateway" for name in (shape.get("gateway"),) if name)


def _of_services(there: Meaning, plan: Plan) -> Iterator[str]:
    if plan.service is None:
        if tuple(one.group.nodes for one in plan.groups) != there.nodes:
            yield "nodes"
        return
    if tuple((one.least, one.most) for one in plan.service.groups) != there.replicas:
        yield "replicas"
    serves = plan.specs[0].serves
    assert serves is not None
    asked = tuple(one.url for one in serves.probes if one.kind is ProbeKind.HTTP)
    if asked != there.probes:
        yield "probes"


def _amounts(shape: dict[str, Any]) -> str:
    parts = [shape, *shape.get("groups", ()), *_groups(shape)]
    names = ("cpu", "memory", "gpu")
    asked = [part.get("resources") or part for part in parts]
    return json.dumps([one.get(name) for one in asked for name in names])


def _beside(shape: dict[str, Any], need: Any) -> int:
    """Return what of the memory is there for /dev/shm: it counts as memory that is left out."""
    shm_size = need.shm_size or 0
    return shm_size if need.memory == 8 * _GB + shm_size else 0


def notes_of(shape: dict[str, Any]) -> tuple[str, ...]:
    return translated(as_sent(shape)).notes


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The files by what becomes of them. `silent`: among `same` and `told`, with a difference that
    no line tells."""

    whole: int
    same: int
    told: int
    silent: tuple[str, ...]
    notes: Counter[str]
    refused: Counter[str]

    def lines(self) -> list[str]:
        refused = sum(self.refused.values())
        return [
            f"Of {len(SHAPES)} public files {self.whole} are whole:",
            f"- {self._part(self.same)} mean the same, except that they wait for a node;",
            f"- {self._part(self.told)} apply, and one line tells what else is different;",
            f"- {self._part(refused)} are refused with a sentence.",
        ]

    def _part(self, count: int) -> str:
        return f"{count} ({100 * count / self.whole:.0f} %)"


def figures() -> Figures:
    whole = [shape for shape in SHAPES if is_whole(shape)]
    refused: Counter[str] = Counter()
    notes: Counter[str] = Counter()
    silent: list[str] = []
    same = told = 0
    for shape in whole:
        if (why := refusal(shape)) is not None:
            refused[why.partition(" (allowed")[0]] += 1
            continue
        found = set(differences(shape, planned(shape)))
        said = notes_of(shape)
        notes.update(said)
        silent += [one for one in found if not any(note.startswith(one) for note in said)]
        same += found <= {WAITS}
        told += not found <= {WAITS}
    return Figures(
        whole=len(whole), same=same, told=told, silent=tuple(silent), notes=notes, refused=refused
    )


def main() -> None:
    found = figures()
    lines = found.lines()
    for title, table in (("told:", found.notes), ("refused:", found.refused)):
        lines += ["", title, *(f"{count:5} {what}" for what, count in table.most_common())]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
