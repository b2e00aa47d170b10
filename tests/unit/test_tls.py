"""The API's certificate: what is shown, what renews it, and which files are refused."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography import x509

from controller.tls import CertificateFiles, CertificateUnusable, ServerCertificate
from tests.support.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    return CertificateFiles(certificate=tmp_path / "api.pem", key=tmp_path / "api.key")


class Listener:
    def __init__(self, certificate: ServerCertificate, authority: Authority) -> None:
        self.certificate = certificate
        self._trusting = ssl.create_default_context(cafile=str(authority.file))
        self._server: asyncio.Server

    async def listen(self) -> None:
        async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        self._server = await asyncio.start_server(
            close, "127.0.0.1", 0, ssl=self.certificate.context
        )

    async def shown(self) -> int:
        """Return the serial number that a new connection is shown."""
        port = self._server.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=self._trusting)
        found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        await writer.wait_closed()
        return x509.load_der_x509_certificate(found).serial_number

    async def close(self) -> None:
        self._server.close()
        await self._server.wait_closed()


@pytest.fixture
async def listener(authority: Authority, files: CertificateFiles) -> AsyncIterator[Listener]:
    authority.issue(files.certificate, files.key)
    listener = Listener(ServerCertificate(files), authority)
    await listener.listen()
    yield listener
    await listener.close()


async def test_new_connections_get_the_renewed_certificate(
    listener: Listener, authority: Authority, files: CertificateFiles
) -> None:
    before = await listener.shown()
    assert listener.certificate.renew() is False
    serial = authority.issue(files.certificate, files.key)
    assert listener.certificate.renew() is True
    assert await listener.shown() == serial != before


async def test_half_written_files_leave_the_old_certificate(
    listener: Listener, authority: Authority, files: CertificateFiles
) -> None:
    before = await listener.shown()
    old_key = files.key.read_bytes()
    serial = authority.issue(files.certificate, files.key)
    new_key = files.key.read_bytes()
    files.key.write_bytes(old_key)
    assert listener.certificate.renew() is False
    assert await listener.shown() == before
    files.key.write_bytes(new_key)
    assert listener.certificate.renew() is True
    assert await listener.shown() == serial


async def test_a_file_that_is_gone_leaves_the_old_certificate(
    listener: Listener, files: CertificateFiles
) -> None:
    before = await listener.shown()
    files.certificate.unlink()
    assert listener.certificate.renew() is False
    assert await listener.shown() == before


def test_files_that_cannot_be_used_are_named(authority: Authority, files: CertificateFiles) -> None:
    with pytest.raises(CertificateUnusable, match=r"api\.pem: No such file"):
        ServerCertificate(files)
    authority.issue(files.certificate, files.key)
    right_key = files.key.read_bytes()
    authority.issue(files.key.with_name("other.pem"), files.key)
    with pytest.raises(CertificateUnusable, match="it is not the certificate of the key"):
        ServerCertificate(files)
    files.key.write_bytes(right_key[:50])
    with pytest.raises(CertificateUnusable, match="this is not PEM, or it is cut off"):
        ServerCertificate(files)
