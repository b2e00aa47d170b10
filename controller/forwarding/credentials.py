"""TLS between controllers: both ends prove that they have the key of the installation.

Each makes the same certificate from `id_ed25519`, which all controllers of an installation share,
and accepts no other one. So no certificate of an operator is needed, and a proxy between the two
can neither read nor change anything.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import ssl
import tempfile
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fairlead controllers")])


class LinkTls(msgspec.Struct, frozen=True):
    """The two ends of TLS between controllers."""

    leader: ssl.SSLContext
    follower: ssl.SSLContext


def link_tls(secret: bytes, folder: Path) -> LinkTls:
    """Return both ends, made from a secret that all controllers of the installation share.
    Blocking. Raises OSError.

    `folder`: a private one; the ssl module reads keys from files alone.
    """
    derived = hmac.new(secret, b"fairlead: links between controllers", hashlib.sha256).digest()
    key = Ed25519PrivateKey.from_private_bytes(derived)
    certificate = _certificate(key)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    # It is made with mode 0600, and is gone before this returns.
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".link-") as file:
        file.write(private + certificate)
        file.flush()
        return LinkTls(
            leader=_context(ssl.PROTOCOL_TLS_SERVER, file.name, certificate),
            follower=_context(ssl.PROTOCOL_TLS_CLIENT, file.name, certificate),
        )


def _certificate(key: Ed25519PrivateKey) -> bytes:
    """Return the certificate, which is the same at each controller: Ed25519 signs alike each time,
    and nothing in it depends on the clock."""
    return (
        x509.CertificateBuilder()
        .subject_name(_NAME)
        .issuer_name(_NAME)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime.datetime(2000, 1, 1))
        .not_valid_after(datetime.datetime(2200, 1, 1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, None)
        .public_bytes(serialization.Encoding.PEM)
    )


def _context(protocol: int, file: str, certificate: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # The key is what tells a controller; a name would tell nothing more.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(file)
    context.load_verify_locations(cadata=certificate.decode())
    return context
