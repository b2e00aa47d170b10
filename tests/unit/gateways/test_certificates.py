"""The files of a gateway's certificate are checked before Caddy gets them."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from gateway.certificates import BadFile, check_files
from gateway.schemas import Certificate
from tests.support.certificates import Authority

NOW = datetime.datetime.now(datetime.UTC)


class Files:
    """A good certificate for *.apps.test, and its key."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.cert, self.key = folder / "cert.pem", folder / "key.pem"
        self.authority.issue(self.cert, self.key, "*.apps.test")

    def check(self) -> str:
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


def test_what_the_files_hold_has_a_name_that_changes_when_they_are_renewed(files: Files) -> None:
    before = files.check()
    assert files.check() == before
    files.authority.issue(files.cert, files.key, "*.apps.test")
    assert files.check() != before


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
