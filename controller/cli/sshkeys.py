"""Which public keys a submitted run lets in: the user's own, unless FAIRLEAD_SSH_KEY names one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from controller.cli.errors import EXIT_USAGE, CliError

VARIABLE = "FAIRLEAD_SSH_KEY"
_KINDS = ("ssh-ed25519 ", "ssh-rsa ", "ecdsa-sha2-nistp", "sk-ssh-ed25519@", "sk-ecdsa-sha2-")
_MOST_KEYS = 32
_MOST_BYTES = 1 << 14


def public_keys(environ: Mapping[str, str], home: Path) -> tuple[str, ...]:
    """Public key lines: that of FAIRLEAD_SSH_KEY (the path of a key or of its `.pub`), else those
    of `~/.ssh/*.pub`. Raises CliError for a named key that cannot be used."""
    named = environ.get(VARIABLE)
    if named:
        key = _line(_public(Path(named).expanduser()))
        if key is None:
            raise CliError(f"{VARIABLE}: {named} has no readable public key beside it", EXIT_USAGE)
        return (key,)
    files = sorted((home / ".ssh").glob("*.pub"))
    found = (_line(file) for file in files)
    return tuple(dict.fromkeys(key for key in found if key is not None))[:_MOST_KEYS]


def identity(environ: Mapping[str, str]) -> Path | None:
    """The private key to show, where one was named."""
    named = environ.get(VARIABLE)
    return Path(named.removesuffix(".pub")).expanduser().absolute() if named else None


def _public(path: Path) -> Path:
    return path if path.suffix == ".pub" else path.with_name(f"{path.name}.pub")


def _line(path: Path) -> str | None:
    """The comment stays at home: it often names a person and a machine."""
    try:
        with path.open(encoding="ascii") as file:
            words = file.read(_MOST_BYTES).split()
    except (OSError, UnicodeDecodeError):
        return None
    line = " ".join(words[:2])
    return line if len(words) >= 2 and line.startswith(_KINDS) and "-cert-" not in line else None
