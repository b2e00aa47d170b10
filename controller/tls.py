"""The certificate of the API; the operator may renew it while the controller runs."""

from __future__ import annotations

import asyncio
import datetime
import logging
import os
import ssl
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from controller.identity import write_private

log = logging.getLogger(__name__)
LOOK_SECONDS = 30.0


class CertificateUnusable(Exception):
    """The certificate or its key cannot be used; the message names the file and the reason."""


class CertificateFiles(msgspec.Struct, frozen=True, kw_only=True):
    """`certificate`: PEM, the server's own first, then those that lead to its root. `key`: PEM,
    without a passphrase."""

    certificate: Path
    key: Path


class ServerCertificate:
    """The certificate of a TLS listener. New connections get the files' newest content."""

    def __init__(self, files: CertificateFiles) -> None:
        """Read both files. Raises CertificateUnusable."""
        self._files = files
        self._read = _stamp(files)
        self.context = _context(files)

    async def watch(self) -> None:
        """Look for renewed files until cancelled."""
        while True:
            # certbot and its like replace files by links: inotify would have to watch each folder
            # on the way.
            await asyncio.sleep(LOOK_SECONDS)
            self.renew()

    def renew(self) -> bool:
        """Load the files if they have changed and match; return whether they were loaded.

        A half-written file is left for the next look: the old certificate stays.
        """
        try:
            # Before they are read: what changes during that is seen at the next look.
            stamp = _stamp(self._files)
            if stamp == self._read:
                return False
            # On trial: OpenSSL keeps the certificate of a pair that does not match in its context.
            _context(self._files)
            _load(self.context, self._files)
        except CertificateUnusable as error:
            log.warning("the renewed certificate is not used: %s", error)
            return False
        self._read = stamp
        log.info("the API's certificate was renewed from %s", self._files.certificate)
        return True


OWN_NAME = "join.pem"
_OWN_YEARS = 20


def own_certificate(data: Path) -> tuple[ssl.SSLContext, str]:
    """Return a context with a self-signed certificate, made on first use, and its fingerprint.

    Clients compare the fingerprint (hex SHA-256 of the certificate) and no name. Blocking. Raises
    CertificateUnusable."""
    path = data / OWN_NAME
    try:
        if not path.exists():
            write_private(path, _self_signed())
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise CertificateUnusable(f"{path}: {error.strerror}") from None
    except ValueError:
        raise CertificateUnusable(f"{path}: this is not PEM; remove it to make another") from None
    context = _context(CertificateFiles(certificate=path, key=path))
    return context, certificate.fingerprint(hashes.SHA256()).hex()


def _self_signed() -> bytes:
    """Return key and certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fairlead controller")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=365 * _OWN_YEARS))
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return private + made.public_bytes(serialization.Encoding.PEM)


def _stamp(files: CertificateFiles) -> list[tuple[int, int, int]]:
    found = []
    for path in (files.certificate, files.key):
        try:
            # It follows links: certbot and Kubernetes renew by turning a symbolic link.
            status = os.stat(path)
        except OSError as error:
            raise CertificateUnusable(f"{path}: {error.strerror}") from None
        found.append((status.st_ino, status.st_mtime_ns, status.st_size))
    return found


def _context(files: CertificateFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(context, files)
    return context


def _load(context: ssl.SSLContext, files: CertificateFiles) -> None:
    try:
        # Without a callback OpenSSL asks for a passphrase at the terminal, and waits there.
        context.load_cert_chain(files.certificate, files.key, password=_no_passphrase)
    except ssl.SSLError as error:
        reasons = {
            "KEY_VALUES_MISMATCH": "it is not the certificate of the key",
            "BAD_PASSWORD_READ": "its key has a passphrase, which no user can type at a start",
        }
        # OpenSSL tells its reasons as words; Python has no other error for each of them.
        why = reasons.get(error.reason or "", "this is not PEM, or it is cut off")
        raise CertificateUnusable(f"{files.certificate} with {files.key}: {why}") from None
    # After ssl.SSLError, which is a kind of it.
    except OSError as error:
        raise CertificateUnusable(
            f"{files.certificate} with {files.key}: {error.strerror}"
        ) from None


def _no_passphrase() -> str:
    return ""
