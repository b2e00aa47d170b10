"""Certificates of a gateway: from Caddy's storage, or from files of its operator, to HAProxy.

Both are looked at again and again, so that a renewed certificate is shown without a restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from common.files.durable import write_durably
from common.haproxy_admin import HaproxyAway, HaproxyRefused
from fairlead.wire.gateway import Certificate, HostCertificate

log = logging.getLogger(__name__)
LOOK_SECONDS = 2.0
SOON_SECONDS = 0.2
"""The pause between two looks while a host waits for its first certificate."""
_FILES = "files"
"""The name of the certificate that the operator gave, which is for all hosts."""
_NONE_YET = "there is none yet; `journalctl -u fairlead-caddy` on its machine says more"


class BadFile(Exception):
    """A file cannot be used. `field`: of the gateway, which names it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate and its key. `content`: the chain and the key (PEM); `expires`: Unix time."""

    content: str
    issuer: str
    expires: float


def check_files(certificate: Certificate, domain: str, now: datetime.datetime) -> Pair:
    """Return what the two files hold. Raises BadFile."""
    cert = _contents("cert", certificate.cert or "")
    key = _contents("key", certificate.key or "")
    leaf = _check_certificate(certificate.cert or "", cert, domain, now)
    _check_key(certificate.key or "", key, leaf)
    return _pair(cert, key, leaf)


def _pair(cert: bytes, key: bytes, leaf: x509.Certificate) -> Pair:
    return Pair(
        content=f"{cert.decode().strip()}\n{key.decode().strip()}\n",
        issuer=leaf.issuer.rfc4514_string(),
        expires=leaf.not_valid_after_utc.timestamp(),
    )


def _contents(name: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except PermissionError as error:
        raise BadFile(
            f"certificate.{name}",
            f"{path} on the gateway's machine: the user fairlead-gateway cannot read it; let its "
            "group do so",
        ) from error
    except OSError as error:
        raise BadFile(
            f"certificate.{name}", f"{path} on the gateway's machine: {error.strerror}"
        ) from error


def _check_certificate(
    path: str, content: bytes, domain: str, now: datetime.datetime
) -> x509.Certificate:
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
    return leaf


def _check_key(path: str, content: bytes, leaf: x509.Certificate) -> None:
    field = "certificate.key"
    try:
        key = load_pem_private_key(content, password=None)
    # cryptography raises it for a key with a passphrase when none is given.
    except TypeError:
        raise BadFile(field, f"{path} is encrypted; store the key without a password") from None
    except ValueError:
        raise BadFile(field, f"{path} is no private key in PEM form") from None
    if _same(key.public_key(), leaf.public_key()):
        return
    raise BadFile(field, f"{path} does not belong to the certificate")


def _same(one: PublicKeyTypes, other: object) -> bool:
    return one == other


def _names(leaf: x509.Certificate) -> list[str]:
    try:
        found = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    # Old certificates name their host in the subject alone (RFC 2818, 3.1).
    except x509.ExtensionNotFound:
        return []
    return found.value.get_values_for_type(x509.DNSName)


class Shows(Protocol):
    """What shows certificates to clients (`gateway.haproxy.Haproxy`)."""

    async def life(self) -> str: ...

    async def show_certificate(self, file: Path, content: str) -> None: ...

    async def hide_certificate(self, file: Path) -> None: ...


class HostCertificates:
    """The certificates of the hosts of all services, in `folder`, with the list of its files that
    HAProxy reads when it starts. `changed` is called with each new finding."""

    def __init__(self, folder: Path, shows: Shows, changed: Callable[[], None]) -> None:
        self._folder = folder
        self._shows = shows
        self._changed = changed
        self._hosts: frozenset[str] = frozenset()
        self._others: frozenset[str] = frozenset()
        self._source: Pair | Path | None = None
        self._is_set = False
        """There was an update: until then, what an earlier agent left is shown on."""
        self._found: tuple[HostCertificate, ...] = ()
        self._given: dict[str, str] | None = None
        """What HAProxy has, by name; None: not known yet."""
        self._refused: dict[str, str] = {}
        """Why HAProxy refused what it was given, by name."""
        self._life = ""
        self._updated = asyncio.Event()

    def update(
        self, hosts: Iterable[str], source: Pair | Path | None, *, others: Iterable[str] = ()
    ) -> None:
        """Show certificates for exactly these hosts, and for `others`, which are not reported.
        `source`: one for all, or Caddy's storage; None: there are none."""
        self._hosts, self._others = frozenset(hosts), frozenset(others)
        self._source, self._is_set = source, True
        self._updated.set()

    def found(self) -> tuple[HostCertificate, ...]:
        return self._found

    async def keep(self) -> None:
        """Look again and again until cancelled."""
        while True:
            if self._is_set:
                await self._look()
            is_waiting = any(one.error is not None for one in self._found)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SOON_SECONDS if is_waiting else LOOK_SECONDS):
                    await self._updated.wait()
            self._updated.clear()

    async def _look(self) -> None:
        hosts, others, source = self._hosts, self._others, self._source
        pairs = await asyncio.to_thread(_pairs, source, hosts | others)
        why, names = _NONE_YET, _names_of(source, hosts | others)
        try:
            await self._show(pairs, names)
        # All of it is given again then: an HAProxy that was started again knows none.
        except (HaproxyAway, HaproxyRefused, OSError) as error:
            self._given, pairs = None, {}
            why = f"HAProxy does not show it: {error}"
        expected = sorted(hosts) if source is not None else ()
        found = tuple(self._state_of(host, pairs, why) for host in expected)
        if self._found != found:
            self._found = found
            self._changed()

    async def _show(self, pairs: dict[str, Pair], names: frozenset[str]) -> None:
        """Show these, and on, what there was of the other `names`: a new one may be being written.

        Raises HaproxyAway, HaproxyRefused, OSError.
        """
        if (life := await self._shows.life()) != self._life or self._given is None:
            self._given = dict.fromkeys(await asyncio.to_thread(self._left), "")
            self._life = life
        fresh = [name for name, pair in pairs.items() if self._given.get(name) != pair.content]
        gone = self._given.keys() - names
        if not fresh and not gone:
            return
        for name in fresh:
            await self._give(name, pairs[name].content)
        # Before the files go: HAProxy does not start if the list names a missing one.
        await asyncio.to_thread(
            self._list, sorted(self._given.keys() - gone - self._refused.keys())
        )
        for name in gone:
            await self._shows.hide_certificate(self._file(name))
            await asyncio.to_thread(self._file(name).unlink, missing_ok=True)
            del self._given[name]
            self._refused.pop(name, None)

    async def _give(self, name: str, content: str) -> None:
        """Only what HAProxy has taken is listed: with a bad file it would not start again."""
        assert self._given is not None
        await asyncio.to_thread(write_durably, self._file(name), content.encode(), 0o600)
        self._refused.pop(name, None)
        try:
            await self._shows.show_certificate(self._file(name), content)
            log.info("showing a certificate for %s", name)
        except HaproxyRefused as refused:
            self._refused[name] = str(refused)
            log.error("HAProxy refuses the certificate for %s: %s", name, refused)
        self._given[name] = content

    def _state_of(self, host: str, pairs: dict[str, Pair], why_none: str) -> HostCertificate:
        name = host if host in pairs else _FILES
        why = self._refused.get(name, why_none)
        if name not in pairs or name in self._refused:
            return HostCertificate(host=host, error=why)
        return HostCertificate(host=host, issuer=pairs[name].issuer, expires=pairs[name].expires)

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.pem"

    def _left(self) -> list[str]:
        """Return what an earlier agent left. Blocking."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return [path.stem for path in self._folder.glob("*.pem")]

    def _list(self, names: list[str]) -> None:
        lines = "".join(f"{self._file(name)}\n" for name in names)
        write_durably(self._folder / "shown.list", lines.encode(), 0o600)


def _names_of(source: Pair | Path | None, hosts: frozenset[str]) -> frozenset[str]:
    """Return the names that certificates of this source may have."""
    if isinstance(source, Pair):
        return frozenset((_FILES,))
    return frozenset() if source is None else hosts


def _pairs(source: Pair | Path | None, hosts: frozenset[str]) -> dict[str, Pair]:
    """Return what there is, by name. Blocking."""
    if isinstance(source, Pair):
        return {_FILES: source}
    if source is None:
        return {}
    found = ((host, _stored(source, host)) for host in hosts)
    return {host: pair for host, pair in found if pair is not None}


def _stored(storage: Path, host: str) -> Pair | None:
    """Return the host's certificate in Caddy's storage, which writes the key first."""
    for cert in storage.glob(f"certificates/*/{host}/{host}.crt"):
        try:
            content, key = cert.read_bytes(), cert.with_suffix(".key").read_bytes()
            leaf = x509.load_pem_x509_certificates(content)[0]
            if _same(load_pem_private_key(key, password=None).public_key(), leaf.public_key()):
                return _pair(content, key, leaf)
        except (OSError, ValueError, IndexError):
            continue  # it is being written
    return None
