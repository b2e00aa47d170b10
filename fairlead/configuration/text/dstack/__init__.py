"""A file of dstack for a run, as its author means it here (docs/rules.md 5.18).

dstack's YAML is the model of ours, so most forms need nothing. This package turns the rest into our
fields. Forms that only dstack has are understood in every file (`forms`). A file that is dstack's
also gets dstack's `defaults`, and every difference that remains is a note. `translated` is pure,
and idempotent on what it returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from fairlead.configuration.text.dstack.work import DEV_ENVIRONMENT, TAGS, Work, mappings_of

DIALECT = "dstack"
FILE_NAMES = (".dstack.yml", ".dstack.yaml")
"""The ends of the names of dstack's files."""
_MENTION = "DSTACK_"
_RUNS = ("setup", "commands", "entrypoint", "init", "env")
_TYPES = ("task", "service", DEV_ENVIRONMENT)
FIELDS: Mapping[str, str] = {
    "docker": "true: an image with a Docker daemon, which is started before the commands",
    "instances": "a list of names of nodes",
    "utilization_policy": "anything: it ends no run here",
    TAGS: "anything: nodes are machines that an operator added",
}
"""Fields of dstack alone that a file may have, and what they may hold."""
_MARKS = frozenset({*FIELDS, "dstack", "router"} - {TAGS})


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
    # Who submits a plain task asks only whose file it is.
    from fairlead.configuration.text.dstack import defaults, forms

    work = Work(data)
    is_dstacks = is_of_dstack(data)
    for step in forms.STEPS:
        step(work)
    for step in defaults.STEPS if is_dstacks else ():
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
    groups = (*mappings_of(data.get("groups")), *mappings_of(data.get("replicas")))
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


def _mentions(data: Mapping[str, Any]) -> bool:
    """Return whether what the jobs run names a variable of dstack's."""
    groups = (*mappings_of(data.get("groups")), *mappings_of(data.get("replicas")))
    parts = (data, *groups)
    texts = (part.get(name) for part in parts if isinstance(part, Mapping) for name in _RUNS)
    return any(_MENTION in str(text) for text in texts if text)
