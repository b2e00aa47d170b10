"""Gathers the facts about a controller, without a change to anything."""

from __future__ import annotations

import datetime
import os
import shutil
import socket
import ssl
import time
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path

import msgspec
from cryptography import x509

from common.links.errors import why_unreachable
from controller.doctor.facts import Certificate, Facts, Setup
from controller.identity import (
    ADMIN_TOKEN_NAME,
    IDENTITY_NAME,
    IdentityUnusable,
    fingerprint,
    installation_of,
    open_to_others,
)
from controller.outputs.examination import BucketFacts, bucket_facts
from controller.relay import address_of
from controller.store.examination import DatabaseFacts, postgresql_facts, sqlite_facts
from controller.store.postgresql import PostgresqlDatabase
from controller.store.sqlite import DATABASE_NAME, SqliteDatabase
from controller.tls import CertificateFiles, CertificateUnusable, ServerCertificate

_ANSWER_SECONDS = 5.0


def gather(setup: Setup) -> Facts:
    """Look at everything. Blocking, for some seconds where something does not answer."""
    facts = gather_shared(setup)
    folder, free, total = _disk(setup.data)
    port, listens = _try_port(setup)
    sight = facts.database.sight
    alive = () if sight is None else tuple(filter(sight.is_alive, sight.peers))
    own = () if setup.url is None else (setup.url,)
    urls = dict.fromkeys((*own, *(one.url for one in alive)))
    return msgspec.structs.replace(
        facts,
        folder=folder,
        free=free,
        total=total,
        answers={url: _why_silent(url) for url in urls},
        port=port,
        listens=listens,
        certificate=None if setup.tls is None else _certificate(setup.tls),
    )


def gather_shared(setup: Setup) -> Facts:
    """Look at what all controllers share: database, keys, buckets. Blocking, as `gather` is."""
    database = database_facts(setup)
    paths = (setup.data / IDENTITY_NAME, setup.secrets_key)
    keys = installation = unusable = None
    try:
        installation = installation_of(setup.data)
        keys = fingerprint(setup.data, setup.secrets_key)
    except IdentityUnusable as error:
        unusable = str(error)
    return Facts(
        setup=setup,
        database=database,
        installation=installation,
        keys=keys,
        missing_keys=tuple(path for path in paths if not path.exists()),
        open_keys=open_to_others((*paths, setup.data / ADMIN_TOKEN_NAME)),
        unusable_keys=unusable,
        buckets=_bucket_facts(setup, installation or database.installation),
    )


def _bucket_facts(setup: Setup, installation: str | None) -> tuple[BucketFacts, ...]:
    named = (
        ("--bucket", setup.bucket),
        ("--logs-bucket", setup.logs_bucket),
        ("--outputs-bucket", setup.outputs_bucket),
    )
    return tuple(
        # Outputs alone need no list.
        bucket_facts(bucket, option, installation, lists=option != "--outputs-bucket")
        for option, bucket in named
        if bucket is not None
    )


def database_facts(setup: Setup) -> DatabaseFacts:
    """Blocking."""
    if isinstance(setup.database, PostgresqlDatabase):
        return postgresql_facts(setup.database)
    assert isinstance(setup.database, SqliteDatabase)
    # SQLite would make a file that is missing.
    if not (setup.data / DATABASE_NAME).exists():
        return DatabaseFacts(kind="sqlite")
    return sqlite_facts(setup.database)


def _disk(data: Path) -> tuple[str | None, int, int]:
    # The first start makes the folder.
    folder = data if data.exists() else data.parent
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        return error.strerror or str(error), 0, 1
    if not folder.is_dir():
        return "it is not a folder", 0, 1
    if not os.access(folder, os.W_OK | os.X_OK):
        return "this user may not write there", usage.free, usage.total
    return None, usage.free, usage.total


def _try_port(setup: Setup) -> tuple[str | None, bool]:
    host, port = setup.listen
    scheme = "http" if setup.tls is None else "https"
    shown = f"[{host}]" if ":" in host else host
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        # The certificate may be for another name than this address.
        if _why_silent(f"{scheme}://{shown}:{port}", verify=False) is None:
            return None, True
        return why_unreachable(error), False
    return None, False


def _why_silent(url: str, *, verify: bool = True) -> str | None:
    """Return why no controller answers there; None: one does."""
    try:
        host, port = address_of(url)
    except ValueError as error:
        return str(error)
    if url.startswith("https:"):
        context = ssl.create_default_context()
        if not verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection: HTTPConnection = HTTPSConnection(
            host, port, timeout=_ANSWER_SECONDS, context=context
        )
    else:
        connection = HTTPConnection(host, port, timeout=_ANSWER_SECONDS)
    try:
        connection.request("GET", "/v1/health")
        status = connection.getresponse().status
    except ssl.SSLCertVerificationError as error:
        return f"its certificate is not trusted ({error.verify_message})"
    except OSError as error:
        return why_unreachable(error)
    # Another program has the port, and does not speak HTTP.
    except HTTPException:
        return "it does not answer like a Fairlead controller"
    finally:
        connection.close()
    return None if status == 200 else f"it answers with HTTP {status}"


def _certificate(files: CertificateFiles) -> Certificate | str:
    try:
        ServerCertificate(files)
        found = x509.load_pem_x509_certificate(files.certificate.read_bytes())
    except CertificateUnusable as error:
        return str(error)
    except (OSError, ValueError) as error:
        return f"{files.certificate}: {error}"
    now = datetime.datetime.fromtimestamp(time.time(), datetime.UTC)
    left = found.not_valid_after_utc - now
    return Certificate(ends_in_days=left.total_seconds() / 86400, names=_names(found))


def _names(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    # Old certificates name their host in the subject alone (RFC 2818, 3.1).
    except x509.ExtensionNotFound:
        return ()
    hosts = names.get_values_for_type(x509.DNSName)
    return (*hosts, *(str(one) for one in names.get_values_for_type(x509.IPAddress)))
