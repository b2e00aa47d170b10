"""The SSH key with which the jobs of one run reach each other: derived, so that it is stored
nowhere and the same after a restart.

The text of a private key in OpenSSH's format holds a number that other writers draw by chance; here
it is derived too, since a request that is repeated must have the same body.
"""

from __future__ import annotations

import base64
import struct
import textwrap

import asyncssh
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from runner.schemas import ClusterKey

_TYPE = b"ssh-ed25519"
_MAGIC = b"openssh-key-v1\0"
_NO_CIPHER = b"none"
_BLOCK = 8
_SEED_BYTES, _CHECK_BYTES = 32, 4
_LINE = 70


def secret_of(identity: asyncssh.SSHKey) -> bytes:
    """What keys of runs are derived from, given the controller's own key."""
    return identity.export_private_key("pkcs8-der")


def cluster_key(secret: bytes, run_id: str) -> ClusterKey:
    """An Ed25519 key pair; without `secret` nobody learns anything about it from `run_id`, or from
    the keys of other runs."""
    purpose = b"fairlead: SSH between the nodes of the run " + run_id.encode()
    length = _SEED_BYTES + _CHECK_BYTES
    derived = HKDF(algorithm=hashes.SHA256(), length=length, salt=None, info=purpose).derive(secret)
    seed, check = derived[:_SEED_BYTES], derived[_SEED_BYTES:]
    point = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    public = _string(_TYPE) + _string(point)
    return ClusterKey(
        private=_openssh(seed, check, point, public),
        public=f"{_TYPE.decode()} {base64.b64encode(public).decode()}",
    )


def _openssh(seed: bytes, check: bytes, point: bytes, public: bytes) -> str:
    """OpenSSH's PROTOCOL.key, without a cipher and without a comment."""
    inner = check * 2 + _string(_TYPE) + _string(point) + _string(seed + point) + _string(b"")
    inner += bytes(range(1, _BLOCK - len(inner) % _BLOCK + 1)) if len(inner) % _BLOCK else b""
    head = _MAGIC + _string(_NO_CIPHER) * 2 + _string(b"") + struct.pack(">I", 1)
    text = base64.b64encode(head + _string(public) + _string(inner)).decode()
    lines = "\n".join(textwrap.wrap(text, _LINE))
    return f"-----BEGIN OPENSSH PRIVATE KEY-----\n{lines}\n-----END OPENSSH PRIVATE KEY-----\n"


def _string(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data
