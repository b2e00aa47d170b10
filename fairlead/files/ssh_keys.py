"""The public keys of this user: a submitted run accepts them for SSH.

They are the user's own, or that of FAIRLEAD_SSH_KEY.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fairlead.errors import UsageError
from fairlead.wire.public_keys import KINDS

VARIABLE = "FAIRLEAD_SSH_KEY"
_MAX_KEYS = 32
_MAX_BYTES = 1 << 14


def public_keys(environ: Mapping[str, str], home: Path) -> tuple[str, ...]:
    """Return public key lines: that of FAIRLEAD_SSH_KEY (the path of a key or its `.pub`), else
    those of `~/.ssh/*.pub`.

    Raises UsageError for a named key that cannot be used.
    """
    named = environ.get(VARIABLE)
    if named:
        key = _line(_public(Path(named).expanduser()))
        if key is None:
            raise UsageError(f"{VARIABLE}: {named} has no readable public key next to it")
        return (key,)
    files = sorted((home / ".ssh").glob("*.pub"))
    found = (_line(file) for file in files)
    return tuple(dict.fromkeys(key for key in found if key is not None))[:_MAX_KEYS]


def _public(path: Path) -> Path:
    return path if path.suffix == ".pub" else path.with_name(f"{path.name}.pub")


def _line(path: Path) -> str | None:
    """Return the key without its comment, which often names a person and a machine."""
    try:
        with path.open(encoding="ascii") as file:
            words = file.read(_MAX_BYTES).split()
    # A folder, a private key of another user, or no text at all: it is no key to offer.
    except (OSError, UnicodeDecodeError):
        return None
    return " ".join(words[:2]) if len(words) >= 2 and words[0] in KINDS else None
