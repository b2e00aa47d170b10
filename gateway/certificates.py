"""Certificates of a gateway: its operator's files before Caddy gets them, and what hosts show.

Caddy reads the files of a certificate once. They are watched here, so that a renewed certificate
is served without a restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import hashlib
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from controller.links.base import why_unreachable
from gateway.schemas import Certificate, HostCertificate

LOOK_SECONDS = 15.0
FIRST_PAUSE_SECONDS = 60.0
MOST_PAUSE_SECONDS = 1800.0
"""A look at a host without a certificate lets Caddy ask its authority for one, which allows few
failures in an hour."""
GOOD_SECONDS = 3600.0
LOOKS_AT_ONCE = 4
"""So many hosts get their first certificate at once: authorities limit that, too."""


class BadFile(Exception):
    """A file cannot be used. `field`: of the gateway, which names it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def check_files(certificate: Certificate, domain: str, now: datetime.datetime) -> str:
    """Return a name for what the two files hold now. Raises BadFile.

    The agent may be unable to read them: then Caddy decides, and their times name them.
    """
    pair = _contents("cert", certificate.cert or ""), _contents("key", certificate.key or "")
    cert, key = pair
    if cert is not None:
        _check_certificate(certificate.cert or "", cert, domain, now)
    if key is not None:
        _check_key(certificate.key or "", key, cert)
    if cert is None or key is None:
        return f"{_time(certificate.cert)}-{_time(certificate.key)}"
    return hashlib.sha256(cert + key).hexdigest()[:16]


def _contents(name: str, path: str) -> bytes | None:
    try:
        return Path(path).read_bytes()
    except PermissionError:
        return None
    except OSError as error:
        raise BadFile(
            f"certificate.{name}", f"{path} on the gateway's machine: {error.strerror}"
        ) from error


def _time(path: str | None) -> int:
    try:
        return Path(path or "").stat().st_mtime_ns
    except OSError:
        return 0


def _check_certificate(path: str, content: bytes, domain: str, now: datetime.datetime) -> None:
    field = "certificate.cert"
    try:
        leaf = x509.load_pem_x509_certificates(content)[0]
    except (ValueError, IndexError):
        raise BadFile(field, f"{path} is no certificate in PEM form") from None
    names = _names(leaf)
    if not any(name.endswith(f".{domain}") for name in names):
        raise BadFile(
            field,
            f"{path} is for {', '.join(names) or 'no host name'}; services are at NAME.{domain}, "
            f"so it must be for *.{domain}",
        )
    if leaf.not_valid_after_utc < now:
        raise BadFile(field, f"{path} expired on {leaf.not_valid_after_utc:%Y-%m-%d}")


def _check_key(path: str, content: bytes, certificate: bytes | None) -> None:
    field = "certificate.key"
    try:
        key = load_pem_private_key(content, password=None)
    except TypeError:
        raise BadFile(field, f"{path} is encrypted; store the key without a password") from None
    except ValueError:
        raise BadFile(field, f"{path} is no private key in PEM form") from None
    if certificate is None:
        return
    leaf = x509.load_pem_x509_certificates(certificate)[0]
    if _same(key.public_key(), leaf.public_key()):
        return
    raise BadFile(field, f"{path} does not belong to the certificate")


def _same(one: PublicKeyTypes, other: object) -> bool:
    return one == other


def _names(leaf: x509.Certificate) -> list[str]:
    try:
        found = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return found.value.get_values_for_type(x509.DNSName)


async def look(host: str, port: int) -> HostCertificate:
    """Look at the certificate that Caddy, on this machine, shows for a host name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # who signed it is told, not judged
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            _, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=context, server_hostname=host
            )
    except TimeoutError:
        return HostCertificate(
            host=host, error=f"Caddy is still waiting for it after {LOOK_SECONDS:g} s"
        )
    except ssl.SSLError as error:
        why = (error.reason or "no reason given").lower().replace("_", " ")
        return HostCertificate(
            host=host,
            error=f"Caddy has none ({why}); `journalctl -u caddy` on its machine says why",
        )
    except OSError as error:
        return HostCertificate(
            host=host, error=f"Caddy does not listen at port {port}: {why_unreachable(error)}"
        )
    with contextlib.closing(writer):
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    leaf = x509.load_der_x509_certificate(shown)
    return HostCertificate(
        host=host,
        issuer=leaf.issuer.rfc4514_string(),
        expires=leaf.not_valid_after_utc.timestamp(),
    )


class HostCertificates:
    """The certificates of the hosts of all services. `changed` is called with each new finding."""

    def __init__(self, port: int, changed: Callable[[], None]) -> None:
        self._port = port
        self._changed = changed
        self._found: dict[str, HostCertificate] = {}
        self._looks: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(LOOKS_AT_ONCE)

    def update(self, hosts: Iterable[str], *, anew: bool) -> None:
        """Look at exactly these hosts. `anew`: Caddy was given another configuration."""
        wanted = set(hosts)
        for host in [one for one in self._looks if anew or one not in wanted]:
            self._looks.pop(host).cancel()
        self._found = {host: one for host, one in self._found.items() if host in wanted}
        for host in wanted - self._looks.keys():
            self._looks[host] = asyncio.create_task(self._keep(host), name=f"certificate {host}")

    def found(self) -> tuple[HostCertificate, ...]:
        return tuple(self._found[host] for host in sorted(self._found))

    async def close(self) -> None:
        looks = list(self._looks.values())
        for task in looks:
            task.cancel()
        await asyncio.gather(*looks, return_exceptions=True)

    async def _keep(self, host: str) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            async with self._slots:
                found = await look(host, self._port)
            if self._found.get(host) != found:
                self._found[host] = found
                self._changed()
            if found.error is None:
                pause = FIRST_PAUSE_SECONDS
                await asyncio.sleep(GOOD_SECONDS)
            else:
                await asyncio.sleep(pause)
                pause = min(MOST_PAUSE_SECONDS, pause * 5)
