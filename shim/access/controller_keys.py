"""The controllers that may log in to this node, as the file of their keys has them.

A node that has two controllers tells both of them: each would place jobs as if it were alone.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from fairlead.wire.public_keys import KINDS, public_key

_MAX_KEYS = 16


def fingerprints(file: Path) -> tuple[str, ...]:
    """Return the keys of a file of authorized keys, as `ssh-keygen -l` shows them. Blocking. A file
    that cannot be read has none."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return ()
    found = dict.fromkeys(each for line in lines if (each := _fingerprint(line)) is not None)
    return tuple(found)[:_MAX_KEYS]


def _fingerprint(line: str) -> str | None:
    """None: the line holds no key. Options may stand before a key."""
    words = line.split()
    at = next((number for number, word in enumerate(words) if word in KINDS), None)
    if line.startswith("#") or at is None or (key := public_key(" ".join(words[at:]))) is None:
        return None
    digest = hashlib.sha256(base64.b64decode(key.split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"
