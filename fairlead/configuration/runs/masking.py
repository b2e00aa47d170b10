"""What may be shown of a configuration, as it was written: neither secrets nor what was filled in.

`secrecy` knows what a field hides; here are all fields of all types of run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import msgspec

from fairlead.configuration.field import own_fields
from fairlead.configuration.runs.types import DEFINITIONS


@functools.cache
def _hidden() -> Mapping[str, Callable[[object], object]]:
    """Return how each field is shown that can hold secrets, of all types of run."""
    structs: list[type[msgspec.Struct]] = [one.fields for one in DEFINITIONS.values()]
    return {
        name: described.field.public
        for struct in structs
        for name, described in own_fields(struct).items()
        if described.field.public is not None
    }


def public(written: Mapping[str, object]) -> dict[str, object]:
    """Return a copy without secrets, of data that may have any shape.

    Passwords are hidden, and the values of environment variables that may be secret.
    """
    shown = dict(written)
    for name in ("groups", "replicas"):
        if isinstance(groups := shown.get(name), list | tuple):
            shown[name] = [
                public(group) if isinstance(group, Mapping) else group for group in groups
            ]
    for name, show in _hidden().items():
        if name in shown:
            shown[name] = show(shown[name])
    return shown


def without_uploads(configuration: Mapping[str, object]) -> dict[str, object]:
    """Return what the user wrote, without what `fairlead apply` filled in."""
    return {name: _without_upload(name, content) for name, content in configuration.items()}


def _without_upload(field: str, content: object) -> object:
    if field == "sweep" and isinstance(content, Mapping):
        return {key: value for key, value in content.items() if key != "sets"}
    if field not in ("repos", "files") or not isinstance(content, list | tuple):
        return content
    return [
        {key: value for key, value in one.items() if key != "uploaded"}
        if isinstance(one, Mapping)
        else one
        for one in content
    ]
