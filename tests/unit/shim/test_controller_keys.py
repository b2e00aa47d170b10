"""A node that several controllers may log in to tells each of them."""

from __future__ import annotations

from pathlib import Path

import asyncssh
import msgspec
import pytest

from fairlead.wire.shim import EventType
from shim.access.controller_keys import fingerprints
from tests.unit.shim.parts import Node, until_event

KEYS = [asyncssh.generate_private_key("ssh-ed25519") for _ in range(2)]
LINES = [f"restrict,port-forwarding {key.export_public_key().decode().strip()}" for key in KEYS]
SHOWN = tuple(key.get_fingerprint() for key in KEYS)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("\n".join(LINES), SHOWN),
        (f'from="10.0.0.1" {LINES[0]}\n{LINES[0]}\n# {LINES[1]}\n\n', SHOWN[:1]),
        ("restrict ssh-ed25519 AAAA\nnonsense\n", ()),
    ],
)
def test_keys_are_shown_as_ssh_keygen_shows_them(
    tmp_path: Path, text: str, found: tuple[str, ...]
) -> None:
    (tmp_path / "keys").write_text(text)
    assert fingerprints(tmp_path / "keys") == found
    assert fingerprints(tmp_path / "none") == ()


async def test_the_controller_that_was_there_first_is_told_of_the_second(tmp_path: Path) -> None:
    node, file = Node(tmp_path), tmp_path / "keys"
    node.settings = msgspec.structs.replace(node.settings, controller_keys=file)
    file.write_text(LINES[0])
    async with node.shim() as daemon:
        assert (await daemon.node()).controllers == SHOWN[:1]
        file.write_text("\n".join(LINES))
        assert (await daemon.node()).controllers == SHOWN
        await until_event(daemon.events, lambda event: event.type is EventType.NODE)
