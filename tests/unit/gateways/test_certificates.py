"""Certificates are checked, found in Caddy's storage, given to HAProxy, and taken back."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from common.haproxy_admin import HaproxyAway, HaproxyRefused
from fairlead.wire.gateway import Certificate
from gateway import certificates
from gateway.certificates import BadFile, HostCertificates, Pair, check_files
from tests.support.certificates import Authority
from tests.support.waiting import eventually

NOW = datetime.datetime.now(datetime.UTC)


class Files:
    """A good certificate for *.apps.test, and its key."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.cert, self.key = folder / "cert.pem", folder / "key.pem"
        self.authority.issue(self.cert, self.key, "*.apps.test")

    def check(self) -> Pair:
        wanted = Certificate(kind="files", cert=str(self.cert), key=str(self.key))
        return check_files(wanted, "apps.test", NOW)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def _expire(files: Files) -> None:
    files.authority.issue(files.cert, files.key, "*.apps.test", days=-1)


def _encrypt(files: Files) -> None:
    key = load_pem_private_key(files.key.read_bytes(), password=None)
    sealed = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    files.key.write_bytes(sealed)


def test_the_chain_and_the_key_come_together(files: Files) -> None:
    pair = files.check()
    parts = files.cert.read_text().strip(), files.key.read_text().strip()
    assert pair.content == "{}\n{}\n".format(*parts)
    assert pair.issuer == "CN=test authority"


@pytest.mark.parametrize(
    ("spoil", "field", "said"),
    [
        (lambda files: files.cert.unlink(), "certificate.cert", "No such file"),
        (lambda files: files.key.unlink(), "certificate.key", "No such file"),
        (lambda files: files.cert.write_text("?"), "certificate.cert", "no certificate in PEM"),
        (lambda files: files.key.write_text("?"), "certificate.key", "no private key in PEM"),
        (
            lambda files: files.authority.issue(files.cert, files.key, "*.other.test"),
            "certificate.cert",
            r"is for \*\.other\.test; services are at NAME\.apps\.test",
        ),
        (
            lambda files: files.authority.issue(
                files.cert, files.key.with_name("x"), "*.apps.test"
            ),
            "certificate.key",
            "does not belong to the certificate",
        ),
        (_expire, "certificate.cert", "expired on"),
        (_encrypt, "certificate.key", "is encrypted; store the key without a password"),
    ],
)
def test_a_bad_file_is_named_with_its_field(
    files: Files, spoil: object, field: str, said: str
) -> None:
    assert callable(spoil)
    spoil(files)
    with pytest.raises(BadFile, match=said) as refused:
        files.check()
    assert refused.value.field == field


class PlayedHaproxy:
    """What it shows, by file; `is_away`: it does not answer."""

    def __init__(self) -> None:
        self.shown: dict[str, str] = {}
        self.hidden: list[str] = []
        self.lives = 1
        self.is_away = False
        self.refuses: str | None = None

    async def life(self) -> str:
        self._answer()
        return str(self.lives)

    async def show_certificate(self, file: Path, content: str) -> None:
        self._answer()
        self._take(file, content)

    async def hide_certificate(self, file: Path) -> None:
        self._answer()
        self.shown.pop(file.name, None)
        self.hidden.append(file.name)

    def _take(self, file: Path, content: str) -> None:
        if file.name == self.refuses:
            raise HaproxyRefused("set ssl cert: unable to load it")
        assert file.read_text() == content
        self.shown[file.name] = content

    def _answer(self) -> None:
        if self.is_away:
            raise HaproxyAway("admin.sock: no answer")


class Bed:
    def __init__(self, folder: Path) -> None:
        self.storage, self.shown = folder / "storage", folder / "certificates"
        self.haproxy = PlayedHaproxy()
        self.authority = Authority(folder)
        self.changes = 0

    def issue(self, host: str) -> str:
        """Store a certificate as Caddy does; return its content."""
        kept = self.storage / "certificates/local" / host
        kept.mkdir(parents=True, exist_ok=True)
        cert, key = kept / f"{host}.crt", kept / f"{host}.key"
        self.authority.issue(cert, key, host)
        return f"{cert.read_text().strip()}\n{key.read_text().strip()}\n"

    def _changed(self) -> None:
        self.changes += 1

    @contextlib.asynccontextmanager
    async def keeping(self) -> AsyncIterator[HostCertificates]:
        made = HostCertificates(self.shown, self.haproxy, self._changed)
        task = asyncio.create_task(made.keep())
        try:
            yield made
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def listed(self) -> list[str]:
        file = self.shown / "shown.list"
        lines = file.read_text().splitlines() if file.exists() else []
        return [Path(line).name for line in lines]


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bed:
    monkeypatch.setattr(certificates, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(certificates, "SOON_SECONDS", 0.01)
    return Bed(tmp_path)


async def test_a_host_shows_its_certificate_once_caddy_has_it_and_a_renewed_one(bed: Bed) -> None:
    async with bed.keeping() as made:
        made.update(["web.apps.test"], bed.storage, others=["gateway.apps.test"])
        await eventually(made.found)
        (waiting,) = made.found()
        assert waiting.error is not None
        assert "journalctl -u fairlead-caddy" in waiting.error
        first = bed.issue("web.apps.test")
        await eventually(lambda: bed.haproxy.shown == {"web.apps.test.pem": first})
        await eventually(lambda: made.found()[0].issuer == "CN=test authority")
        renewed = bed.issue("web.apps.test")
        other = bed.issue("gateway.apps.test")
        both = {"web.apps.test.pem": renewed, "gateway.apps.test.pem": other}
        await eventually(lambda: bed.haproxy.shown == both)
        assert [one.host for one in made.found()] == ["web.apps.test"]
        await eventually(lambda: bed.listed() == ["gateway.apps.test.pem", "web.apps.test.pem"])


async def test_a_host_that_is_gone_and_what_an_earlier_agent_left_are_shown_no_more(
    bed: Bed,
) -> None:
    bed.shown.mkdir()
    (bed.shown / "old.apps.test.pem").write_text("?")
    bed.haproxy.shown["old.apps.test.pem"] = "?"
    content = bed.issue("web.apps.test")
    async with bed.keeping() as made:
        made.update(["web.apps.test"], bed.storage)
        await eventually(lambda: bed.haproxy.shown == {"web.apps.test.pem": content})
        made.update([], bed.storage)
        await eventually(lambda: bed.haproxy.shown == {})
        assert bed.listed() == []
        await eventually(lambda: not list(bed.shown.glob("*.pem")))


async def test_what_an_earlier_agent_left_is_shown_until_it_is_known_better(bed: Bed) -> None:
    bed.shown.mkdir()
    (bed.shown / "web.apps.test.pem").write_text("?")
    bed.haproxy.shown["web.apps.test.pem"] = "?"
    async with bed.keeping() as made:
        await asyncio.sleep(0)
        made.update(["web.apps.test", "new.apps.test"], bed.storage)
        new = bed.issue("new.apps.test")
        both = {"web.apps.test.pem": "?", "new.apps.test.pem": new}
        await eventually(lambda: bed.haproxy.shown == both)
        await eventually(lambda: bed.listed() == ["new.apps.test.pem", "web.apps.test.pem"])
        content = bed.issue("web.apps.test")
        await eventually(lambda: bed.haproxy.shown["web.apps.test.pem"] == content)
    assert bed.haproxy.hidden == []


async def test_a_pair_of_files_is_for_all_hosts(bed: Bed, files: Files) -> None:
    pair = files.check()
    async with bed.keeping() as made:
        made.update(["a.apps.test", "b.apps.test"], pair)
        await eventually(lambda: bed.haproxy.shown == {"files.pem": pair.content})
        await eventually(lambda: [one.error for one in made.found()] == [None, None])
        made.update(["a.apps.test"], None)
        await eventually(lambda: bed.haproxy.shown == {})
        await eventually(lambda: made.found() == ())
    assert bed.haproxy.hidden == ["files.pem"]


async def test_a_haproxy_that_was_away_shows_all_when_it_is_back(bed: Bed) -> None:
    content = bed.issue("web.apps.test")
    bed.haproxy.is_away = True
    async with bed.keeping() as made:
        made.update(["web.apps.test"], bed.storage)
        await eventually(lambda: made.found() and "no answer" in (made.found()[0].error or ""))
        bed.haproxy.is_away = False
        await eventually(lambda: bed.haproxy.shown == {"web.apps.test.pem": content})
        await eventually(lambda: made.found()[0].error is None)
        assert bed.listed() == ["web.apps.test.pem"]


async def test_a_haproxy_that_was_started_again_is_given_all_again(bed: Bed) -> None:
    content = bed.issue("web.apps.test")
    async with bed.keeping() as made:
        made.update(["web.apps.test"], bed.storage)
        await eventually(lambda: bed.haproxy.shown == {"web.apps.test.pem": content})
        bed.haproxy.shown.clear()
        bed.haproxy.lives += 1
        await eventually(lambda: bed.haproxy.shown)
        assert bed.haproxy.shown == {"web.apps.test.pem": content}


async def test_a_certificate_that_haproxy_refuses_is_told_and_holds_up_no_other(bed: Bed) -> None:
    bed.haproxy.refuses = "odd.apps.test.pem"
    bed.issue("odd.apps.test")
    content = bed.issue("web.apps.test")
    async with bed.keeping() as made:
        made.update(["odd.apps.test", "web.apps.test"], bed.storage)
        await eventually(lambda: bed.haproxy.shown == {"web.apps.test.pem": content})
        await eventually(lambda: len(made.found()) == 2)
        assert [one.error for one in made.found()] == ["set ssl cert: unable to load it", None]
        assert bed.listed() == ["web.apps.test.pem"]
        bed.haproxy.refuses = None
        renewed = bed.issue("odd.apps.test")
        await eventually(lambda: bed.haproxy.shown.get("odd.apps.test.pem") == renewed)
        await eventually(lambda: bed.listed() == ["odd.apps.test.pem", "web.apps.test.pem"])


async def test_a_key_that_does_not_fit_yet_is_waited_for(bed: Bed) -> None:
    bed.issue("web.apps.test")
    key = bed.storage / "certificates/local/web.apps.test/web.apps.test.key"
    good = key.read_bytes()
    bed.authority.issue(key.with_name("x.crt"), key, "web.apps.test")
    async with bed.keeping() as made:
        made.update(["web.apps.test"], bed.storage)
        await eventually(made.found)
        assert bed.haproxy.shown == {}
        key.write_bytes(good)
        await eventually(lambda: set(bed.haproxy.shown) == {"web.apps.test.pem"})
