"""Certificates that are pinned: what is taken, and what could speak for another key."""

from __future__ import annotations

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from common import pinned_certificates
from common.pinned_certificates import BadCertificate


def test_a_certificate_names_its_own_key() -> None:
    first, second = pinned_certificates.make(), pinned_certificates.make()
    alone = pinned_certificates.certificate_of(first)
    assert "PRIVATE KEY" in first
    assert "PRIVATE KEY" not in alone
    assert pinned_certificates.check(alone) != pinned_certificates.check(second)


@pytest.mark.parametrize("text", ["", "x", "-----BEGIN CERTIFICATE-----\nAAAA\n", "x" * 5000])
def test_what_is_no_certificate_is_refused(text: str) -> None:
    with pytest.raises(BadCertificate):
        pinned_certificates.check(text)


def _signed(*, ca: bool, name: str, signer: ec.EllipticCurvePrivateKey | None = None) -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([])
    day = datetime.timedelta(days=1)
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(signer or key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM).decode()


def test_a_certificate_that_names_another_key_is_refused() -> None:
    other = pinned_certificates.check(pinned_certificates.make())
    with pytest.raises(BadCertificate, match="another key"):
        pinned_certificates.check(_signed(ca=False, name=f"*.{other}"))


def test_an_authority_is_refused() -> None:
    with pytest.raises(BadCertificate, match="authority"):
        pinned_certificates.check(_signed(ca=True, name="x.test"))


def test_a_certificate_that_another_key_signed_is_refused() -> None:
    signer = ec.generate_private_key(ec.SECP256R1())
    with pytest.raises(BadCertificate, match="own key"):
        pinned_certificates.check(_signed(ca=False, name="x.test", signer=signer))
