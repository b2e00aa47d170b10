"""The base of most documents."""

from __future__ import annotations

import msgspec


class View(msgspec.Struct, frozen=True, kw_only=True):
    pass
