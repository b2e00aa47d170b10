"""What a machine boots with, derived from the controller's key and the machine's id.

Nothing of it is stored, and it is equal byte for byte at each call: a provider with idempotent
requests refuses a repeated one that differs.
"""

from __future__ import annotations

import base64
import struct

import asyncssh
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from common.links import host_keys
from common.tokens import TOKEN_PREFIX, digest
from controller.pipelines.renting.settings import Pinned

_ALGORITHM = b"ssh-ed25519"
_BLOCK = 8
_LINE = 70


def host_key(secret: bytes, machine_id: str) -> tuple[str, str]:
    """Return the machine's private host key as OpenSSH keeps it in a file, and its public line."""
    seed = _derived(secret, "host key", machine_id)
    public = Ed25519PrivateKey.from_private_bytes(seed).public_key()
    private = _openssh(seed, public.public_bytes(Encoding.Raw, PublicFormat.Raw))
    return private, host_keys.public_line(asyncssh.import_private_key(private))


def join_token(secret: bytes, machine_id: str) -> str:
    """Return the token with which the machine tells its address."""
    return TOKEN_PREFIX + _derived(secret, "join", machine_id).hex()


def pin(secret: bytes, machine_id: str) -> Pinned:
    """Return what the controller keeps of both."""
    return Pinned(
        host_key=host_key(secret, machine_id)[1],
        token_digest=digest(join_token(secret, machine_id)),
    )


def _derived(secret: bytes, purpose: str, machine_id: str) -> bytes:
    info = f"fairlead: {purpose} of the machine {machine_id}".encode()
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=info).derive(secret)


def _openssh(seed: bytes, public: bytes) -> str:
    """Write the key as in openssh's PROTOCOL.key.

    Libraries put a random number into it, by which a wrong password is noticed; there is no
    password here, so a part of the public key does as well.
    """
    blob = _string(_ALGORITHM) + _string(public)
    check = public[:4]
    private = check + check + blob + _string(seed + public) + _string(b"")
    private += bytes(range(1, 1 + -len(private) % _BLOCK))
    content = b"openssh-key-v1\0" + _string(b"none") + _string(b"none") + _string(b"")
    content += struct.pack(">I", 1) + _string(blob) + _string(private)
    text = base64.b64encode(content).decode()
    lines = [text[at : at + _LINE] for at in range(0, len(text), _LINE)]
    return "\n".join(
        ["-----BEGIN OPENSSH PRIVATE KEY-----", *lines, "-----END OPENSSH PRIVATE KEY-----", ""]
    )


def _string(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data
