"""Which paths of a node its operator lets jobs mount."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

_DEVICES = "/dev"


def allowing_prefix(path: str, prefixes: Iterable[str], *, is_device: bool) -> str | None:
    """Return the longest prefix that allows the path; None: no prefix does.

    A device's prefix must lie below /dev, where jobs put no links.
    """
    whole = PurePosixPath(path)
    fitting = [
        prefix
        for prefix in prefixes
        if whole.is_relative_to(prefix)
        # A job that can write below the prefix could put a link to any device there.
        and (not is_device or PurePosixPath(prefix).is_relative_to(_DEVICES))
    ]
    return max(fitting, key=lambda one: len(PurePosixPath(one).parts), default=None)
