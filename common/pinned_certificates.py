"""Certificates of the direct way, which the other end pins as SSH pins host keys.

Each end makes its own key and signs its own certificate. No authority stands behind it: an end
trusts exactly those that came through SSH. The name in a certificate is the digest of its key, so
no end can have the name of another one.
"""

from __future__ import annotations

import datetime
import hashlib

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DOMAIN = "fairlead.internal"
_DIGEST = 32
_MAX_TEXT = 4096
MAX_BYTES = 900
"""A certificate in PEM; those that `make` makes have 640."""
# Pinned keys do not expire: whoever may not come in any more is not pinned any more. So a wrong
# clock refuses nobody. The second one says "without a well-defined end" (RFC 5280, 4.1.2.5).
_BEGIN = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_END = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)


_BAD = (
    InvalidSignature,
    UnsupportedAlgorithm,
    ValueError,
    TypeError,
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.UnsupportedGeneralNameType,
)


class BadCertificate(Exception):
    """It is no certificate that `make` makes; the message says why."""


def make() -> str:
    """Return a new certificate with its key (PEM)."""
    key = ec.generate_private_key(ec.SECP256R1())
    digest = _digest(key.public_key())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, digest)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_BEGIN)
        .not_valid_after(_END)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(_names(digest))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return _pem(certificate) + private.decode()


def certificate_of(text: str) -> str:
    """Return the certificate alone, without the key beside it. Raises BadCertificate."""
    return _pem(_load(text))


def check(text: str) -> str:
    """Return the domain of the names of this certificate: each has one label more. Raises
    BadCertificate for what could speak for another key."""
    certificate = _load(text)
    try:
        key = certificate.public_key()
    # cryptography reads the key at this call only, and has no common error for those it refuses.
    except (UnsupportedAlgorithm, ValueError) as error:
        raise BadCertificate("its key is none that is known here") from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise BadCertificate("its key is none of an elliptic curve")
    digest = _digest(key)
    try:
        certificate.verify_directly_issued_by(certificate)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        basic = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except _BAD as error:
        raise BadCertificate("it is not signed by its own key, or lacks an extension") from error
    if basic.ca:
        raise BadCertificate("it is one of an authority")
    if list(names) != [x509.DNSName(_names(digest))]:
        raise BadCertificate("it names another key")
    return f"{digest}.{_DOMAIN}"


def _load(text: str) -> x509.Certificate:
    if len(text) > _MAX_TEXT:
        raise BadCertificate(f"it has more than {_MAX_TEXT} bytes")
    try:
        certificate = x509.load_pem_x509_certificate(text.encode())
    except ValueError as error:
        raise BadCertificate("it is no certificate in PEM") from error
    if len(_pem(certificate)) > MAX_BYTES:
        raise BadCertificate(f"it has more than {MAX_BYTES} bytes")
    return certificate


def _digest(key: ec.EllipticCurvePublicKey) -> str:
    encoded = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(encoded).hexdigest()[:_DIGEST]


def _names(digest: str) -> str:
    return f"*.{digest}.{_DOMAIN}"


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
