"""The output of a command."""

from __future__ import annotations

from tests.unit.cli.conftest import Fairlead, Result


async def of(start: Fairlead, *arguments: str, **env: str) -> Result:
    return await (await start(*arguments, **env)).ended()
