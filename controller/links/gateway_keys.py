"""The keys by which gateways and followers log in at nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol


class _Shim(Protocol):
    async def put_gateways(self, keys: Iterable[str]) -> None: ...


async def put_keys(shim: _Shim, keys: Callable[[], tuple[str, ...]]) -> None:
    """Let exactly these keys in at the shim's node, as they are when this returns. Raises what the
    shim does."""
    put = None
    # Two of these requests may overtake each other on their way: a key that was removed meanwhile
    # must not come back with the older one.
    while (wanted := keys()) != put:
        await shim.put_gateways(wanted)
        put = wanted
