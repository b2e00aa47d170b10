"""The facts that a controller is examined by."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from controller.outputs.bucket import Bucket
from controller.outputs.examination import BucketFacts
from controller.store.examination import DatabaseFacts
from controller.store.sql import Database
from controller.tls import CertificateFiles


class ConfigFile(msgspec.Struct, frozen=True, kw_only=True):
    """The controller's file. `fault`: why a controller does not start with it, with the fix.
    `regions`: those of its providers, by their names; None: the provider has no regions.
    `limited`: the users with a budget of their own."""

    path: Path
    fault: str | None = None
    regions: Mapping[str, Collection[str] | None] = {}
    limited: frozenset[str] = frozenset()


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the controller that is examined."""

    data: Path
    secrets_key: Path
    database: Database
    listen: tuple[str, int]
    url: str | None = None
    tls: CertificateFiles | None = None
    bucket: Bucket | None = None
    """That of --bucket."""
    logs_bucket: Bucket | None = None
    """That of --logs-bucket."""
    outputs_bucket: Bucket | None = None
    """That of --outputs-bucket."""
    config: ConfigFile | None = None
    """That of --config."""


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """The server's own certificate. `names`: what it is for."""

    ends_in_days: float
    names: tuple[str, ...]


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What was found. `answers`: why a URL does not answer; None: it does."""

    setup: Setup
    database: DatabaseFacts
    folder: str | None = None
    """Why the data folder cannot be used."""
    free: int = 0
    total: int = 1
    installation: str | None = None
    """The id of the installation to which the folder belongs; None: it is new."""
    keys: str | None = None
    """The fingerprint of both key files."""
    missing_keys: tuple[Path, ...] = ()
    open_keys: tuple[Path, ...] = ()
    """Key files that others can read."""
    unusable_keys: str | None = None
    answers: dict[str, str | None] = {}
    port: str | None = None
    """Why the address of --listen cannot be had; None: it is free, or a controller listens."""
    listens: bool = False
    certificate: Certificate | str | None = None
    """A string: why it cannot be used."""
    buckets: tuple[BucketFacts, ...] = ()
