"""The keys by which gateways log in at the node: the authorized_keys file of their user."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from common.files.durable import sync_folder, write_beside
from fairlead.wire.public_keys import public_key
from shim.errors import invalid

_MAX_KEYS = 64


def render(keys: Iterable[str]) -> str:
    """Return the authorized_keys of the gateways' user. Raises Refused for what is no key."""
    lines = list(keys)
    if len(lines) > _MAX_KEYS:
        raise invalid(f"at most {_MAX_KEYS} public keys", "keys")
    found: set[str] = set()
    for number, line in enumerate(lines):
        key = public_key(line)
        if key is None:
            raise invalid("must be an OpenSSH public key on one line", f"keys[{number}]")
        found.add(key)
    return "".join(f"restrict,port-forwarding {key} gateway\n" for key in sorted(found))


def removes(path: Path, text: str) -> bool:
    """Return whether a key of the file is not in this text. Blocks."""
    before = path.read_text() if path.is_file() else ""
    return not set(before.splitlines()) <= set(text.splitlines())


def replace(path: Path, text: str) -> None:
    """Replace the file. sshd reads it as the gateways' user, so all may read it; only its owner may
    write. Blocks."""
    if path.is_file() and path.read_text() == text:
        return
    fresh = write_beside(path, text.encode(), 0o644)
    fresh.chmod(0o644)  # whatever the umask took away
    fresh.rename(path)
    sync_folder(path.parent)
