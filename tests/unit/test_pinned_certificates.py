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


def _with(*extensions: x509.ExtensionType, replaced: tuple[bytes, bytes] = (b"", b"")) -> str:
    """A certificate that its own key signed, after bytes of it were replaced."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(x509.Name([]))
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
    )
    for one in extensions:
        builder = builder.add_extension(one, critical=False)
    made = builder.sign(key, hashes.SHA256())
    if any(replaced):
        body = made.tbs_certificate_bytes.replace(*replaced)
        assert body != made.tbs_certificate_bytes
        signature = b"\0" + key.sign(body, ec.ECDSA(hashes.SHA256()))
        inner = body + _ECDSA + bytes([3, len(signature)]) + signature
        der = b"\x30\x82" + len(inner).to_bytes(2, "big") + inner
        made = x509.load_der_x509_certificate(der)
    return made.public_bytes(serialization.Encoding.PEM).decode()


_ECDSA = bytes.fromhex("300a06082a8648ce3d040302")
_SAN, _ISSUERS = b"\x55\x1d\x11", b"\x55\x1d\x12"


def test_a_certificate_that_haproxy_could_not_hear_of_is_refused() -> None:
    names = [x509.DNSName(f"{number}.test") for number in range(60)]
    big = _with(x509.SubjectAlternativeName(names))
    assert pinned_certificates.MAX_BYTES < len(big) < 4096
    with pytest.raises(BadCertificate, match="more than 900 bytes"):
        pinned_certificates.certificate_of(big)


def test_names_of_an_unknown_kind_are_refused() -> None:
    unknown = x509.UnrecognizedExtension(x509.SubjectAlternativeName.oid, b"\x30\x02\xa3\x00")
    with pytest.raises(BadCertificate):
        pinned_certificates.check(_with(unknown))


def test_an_extension_that_is_there_twice_is_refused() -> None:
    name = x509.DNSName("x.test")
    twice = _with(
        x509.SubjectAlternativeName([name]),
        x509.IssuerAlternativeName([name]),
        replaced=(_ISSUERS, _SAN),
    )
    with pytest.raises(BadCertificate):
        pinned_certificates.check(twice)
