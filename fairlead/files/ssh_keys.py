"""The public keys of this user: a submitted run accepts them for SSH.

They are the user's own, or that of FAIRLEAD_SSH_KEY.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from fairlead.errors import UsageError
from fairlead.wire.public_keys import KINDS

VARIABLE = "FAIRLEAD_SSH_KEY"
_SUFFIX = ".pub"
_MAX_KEYS = 32
_MAX_BYTES = 1 << 14


def public_keys(environ: Mapping[str, str], home: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return public key lines: that of FAIRLEAD_SSH_KEY (the path of a key or its `.pub`), else
    those of `~/.ssh/*.pub`.

    Raises UsageError for a named key that cannot be used.
    """
    named = environ.get(VARIABLE)
    if named:
        key = _line(_public(os.path.expanduser(named)))
        if key is None:
            raise UsageError(f"{VARIABLE}: {named} has no readable public key next to it")
        return (key,)
    folder = os.path.join(home, ".ssh")
    found = (_line(os.path.join(folder, name)) for name in _names(folder))
    return tuple(dict.fromkeys(key for key in found if key is not None))[:_MAX_KEYS]


def _names(folder: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if name.endswith(_SUFFIX))
    # Most users of a controller by its API alone have none.
    except OSError:
        return []


def _public(path: str) -> str:
    return path if path.endswith(_SUFFIX) else f"{path}{_SUFFIX}"


def _line(path: str) -> str | None:
    """Return the key without its comment, which often names a person and a machine."""
    try:
        with open(path, encoding="ascii") as file:
            words = file.read(_MAX_BYTES).split()
    # A folder, a private key of another user, or no text at all: it is no key to offer.
    except (OSError, UnicodeDecodeError):
        return None
    return " ".join(words[:2]) if len(words) >= 2 and words[0] in KINDS else None
