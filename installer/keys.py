"""The controllers that may log in to this machine, by their public keys.

A key stays until it is taken away by name: an installation for one controller must not lock another
one out of its node.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Sequence, Set
from dataclasses import dataclass

from installer.steps import at, write
from installer.system import InstallError, System

OPTIONS = "restrict,port-forwarding"
_KEY = re.compile(
    r"(?:^|\s)(?P<kind>(?:ssh|ecdsa|sk)-[a-z0-9@.-]+) (?P<blob>AAAA\S*)(?P<comment>.*)"
)


def keys_of(text: str) -> list[str]:
    """Return the public keys of a file of authorized keys, without their options."""
    return [key for line in text.splitlines() if (key := _key_of(line)) is not None]


def admitted(
    standing: Sequence[str], named: Sequence[str], *, takeover: bool, revoke_others: bool
) -> tuple[str, ...]:
    """Return the keys that may log in after an installation that names some. Raises InstallError
    when the machine is another controller's node and nothing was said about that."""
    if revoke_others:
        return tuple(named)
    new = others(named, standing)
    if standing and new and not takeover:
        raise InstallError(
            f"another controller has this machine as its node: {shown(standing)} may log in. "
            "--takeover lets this one in as well: each would place jobs here as if it were alone. "
            "--revoke-others takes the other's access away"
        )
    return (*standing, *new)


def others(standing: Sequence[str], named: Sequence[str]) -> list[str]:
    """Return the keys that may log in and are not among the named ones."""
    known = set(map(_identity, named))
    return [key for key in standing if _identity(key) not in known]


def shown(keys: Sequence[str]) -> str:
    return ", ".join(map(_shown, keys))


@dataclass(frozen=True)
class Keys:
    """A file with just these keys. A line that is there keeps the options that an operator gave
    it."""

    name: str
    wanted: tuple[str, ...]

    def difference(self, system: System, earlier: Set[str]) -> str | None:
        before = self._text(system)
        if before is not None and before == self._wanted_text(before):
            return None
        known = keys_of(before or "")
        ours, theirs = set(map(_identity, self.wanted)), set(map(_identity, known))
        added = [key for key in self.wanted if _identity(key) not in theirs]
        revoked = [key for key in known if _identity(key) not in ours]
        words = [f"lets {_shown(key)} in" for key in added]
        words += [f"lets {_shown(key)} in no more" for key in revoked]
        return "; ".join(words) or "written"

    def apply(self, system: System) -> None:
        write(at(system, self.name), self._wanted_text(self._text(system) or ""), 0o644)

    def leftover(self, system: System) -> str | None:
        return None if self._text(system) is None else "removed"

    def undo(self, system: System) -> None:
        at(system, self.name).unlink(missing_ok=True)

    def _text(self, system: System) -> str | None:
        """None: it is not there, or not a file of its own."""
        path = at(system, self.name)
        if path.is_symlink() or not path.exists():
            return None
        return path.read_text()

    def _wanted_text(self, before: str) -> str:
        ours = set(map(_identity, self.wanted))
        kept = [
            line
            for line in before.splitlines()
            if (key := _key_of(line)) is None or _identity(key) in ours
        ]
        known = set(map(_identity, keys_of("\n".join(kept))))
        new = [f"{OPTIONS} {key}" for key in self.wanted if _identity(key) not in known]
        return "".join(f"{line}\n" for line in (*kept, *new))


def standing_keys(system: System, name: str) -> list[str] | None:
    """Return the keys of the file; None where there is no file."""
    path = at(system, name)
    return keys_of(path.read_text()) if path.is_file() else None


def _key_of(line: str) -> str | None:
    if line.lstrip().startswith("#") or (match := _KEY.search(line)) is None:
        return None
    return f"{match['kind']} {match['blob']}{match['comment'].rstrip()}"


def _identity(key: str) -> tuple[str, ...]:
    """Without the comment."""
    return tuple(key.split()[:2])


def _shown(key: str) -> str:
    """As `ssh-keygen -l` does."""
    _, blob, *comment = key.split()
    try:
        digest = hashlib.sha256(base64.b64decode(blob, validate=True)).digest()
    except binascii.Error:
        return key
    named = f" ({' '.join(comment)})" if comment else ""
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}{named}"
