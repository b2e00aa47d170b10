"""The runtime API of a HAProxy, at its admin socket."""

from __future__ import annotations

import asyncio
from pathlib import Path

ANSWER_SECONDS = 5.0
MAX_TRUSTED = 16_000
"""Bytes of certificates: a command has to fit HAProxy's buffer (tune.bufsize) of 16 KiB."""
_LOCKED_SECONDS = 0.05


class HaproxyAway(Exception):
    """No HAProxy listens at its admin socket: it carries no request. The message says why."""


class HaproxyRefused(Exception):
    """HAProxy did not do what it was told; the message is its answer."""


async def ask(admin: Path, command: str) -> str:
    """Return the answer to a command. Raises HaproxyAway."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await asyncio.open_unix_connection(admin)
            try:
                writer.write(f"{command}\n".encode())
                # HAProxy closes the connection after the answer to one command.
                return (await reader.read(-1)).decode()
            finally:
                writer.close()
    except (OSError, TimeoutError) as error:
        raise HaproxyAway(f"{admin}: {error or 'no answer'}") from error


async def do(admin: Path, command: str, *accepted: str) -> None:
    """Perform a command, whose answer is empty or has one of these strings. Raises HaproxyAway,
    HaproxyRefused."""
    answer = (await ask(admin, command)).strip()
    if answer and not any(word in answer for word in accepted):
        raise HaproxyRefused(f"{command.splitlines()[0]}: {answer}")


async def trust(admin: Path, file: Path, certificates: str) -> None:
    """Let HAProxy trust exactly these certificates, at most MAX_TRUSTED bytes, where its
    configuration names `file`. Raises HaproxyAway, HaproxyRefused."""
    # An empty line ends the payload of a command of the runtime API.
    lines = "\n".join(line for line in certificates.splitlines() if line.strip())
    await _in_turn(admin, f"set ssl ca-file {file} <<\n{lines}\n", "transaction ")
    await _in_turn(admin, f"commit ssl ca-file {file}", "Success")


async def _in_turn(admin: Path, command: str, accepted: str) -> None:
    """Perform a command about certificates, of which HAProxy takes one at a time."""
    until = asyncio.get_running_loop().time() + ANSWER_SECONDS
    while True:
        try:
            await do(admin, command, accepted)
            return
        except HaproxyRefused as refused:
            if "locked" not in str(refused) or asyncio.get_running_loop().time() > until:
                raise
        await asyncio.sleep(_LOCKED_SECONDS)
