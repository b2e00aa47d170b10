"""The way of clients to a daemon's socket on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from common.open_answers import Dial


def dial_to(path: str | Path) -> Dial:
    async def dial(make: Callable[[], asyncio.Protocol]) -> None:
        await asyncio.get_running_loop().create_unix_connection(make, str(path))

    return dial
