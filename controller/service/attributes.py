"""Attributes of nodes and fleets, which constraints ask about: what may be given."""

from __future__ import annotations

import re
from collections.abc import Mapping

from controller.service.errors import Invalid

MOST_ATTRIBUTES = 64
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")
_MOST_VALUE = 256
BUILT_IN = frozenset(
    {"node", "fleet", "cpu", "memory", "disk", "gpu.count", "gpu.name", "gpu.memory"}
)
"""Every node has these by itself (see `controller.scheduling.attributes`)."""


def check_attributes(attributes: Mapping[str, str | None], field: str = "attributes") -> None:
    """Raises Invalid, naming the field."""
    if len(attributes) > MOST_ATTRIBUTES:
        raise Invalid(f"more than {MOST_ATTRIBUTES} attributes", field=field)
    for name, value in attributes.items():
        if not _NAME.fullmatch(name):
            raise Invalid(
                f"{name!r} is not an attribute's name: 1 to 63 letters, digits and ._/- with a "
                f"letter or digit at both ends",
                field=field,
            )
        if name in BUILT_IN:
            raise Invalid(f"every node has {name} by itself; give another name", field=field)
        if value is not None and not (0 < len(value) <= _MOST_VALUE and value.isprintable()):
            raise Invalid(
                f"the value of {name} must be 1 to {_MOST_VALUE} printable characters",
                field=field,
            )


def changed_attributes(
    attributes: Mapping[str, str], changes: Mapping[str, str | None]
) -> dict[str, str]:
    """`changes`: None removes one."""
    merged = {**attributes, **changes}
    return {name: value for name, value in merged.items() if value is not None}
