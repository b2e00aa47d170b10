"""Recognises lines of OpenSSH public keys, without a library for keys."""

from __future__ import annotations

KINDS = frozenset(
    {
        "ssh-ed25519",
        "ssh-rsa",
        "ecdsa-sha2-nistp256",
        "ecdsa-sha2-nistp384",
        "ecdsa-sha2-nistp521",
        "sk-ssh-ed25519@openssh.com",
        "sk-ecdsa-sha2-nistp256@openssh.com",
    }
)
"""The kinds of keys that Fairlead accepts; certificates are not among them."""
_MAX_LENGTH = 4096


def public_key(line: str) -> str | None:
    """Return `KIND BASE64` of a public key line, without its comment; None for any other line, or
    one with options before the key."""
    words = line.split(" ", 2)
    # A line end in it would become a second line of authorized_keys.
    if len(line) > _MAX_LENGTH or not line.isprintable() or len(words) < 2:
        return None
    kind, blob = words[0], words[1]
    import base64  # loads regular expressions; `apply` needs the KINDS alone
    import binascii

    try:
        content = base64.b64decode(blob, validate=True)
    except (binascii.Error, ValueError):
        return None
    # The blob begins with its own kind (RFC 4253, 6.6), by which sshd judges the key.
    named = len(kind).to_bytes(4, "big") + kind.encode()
    return f"{kind} {blob}" if kind in KINDS and content.startswith(named) else None
