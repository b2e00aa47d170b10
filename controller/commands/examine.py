"""`controller doctor` and `upgrade-check`: they look before something fails, and change nothing."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from controller.commands.database_url import find_database
from controller.commands.serve_options import (
    BucketOptions,
    DatabaseFile,
    LogOptions,
    OutputOptions,
    SecretsKeyFile,
    TlsOptions,
    parse_listen,
    parse_peers,
)
from controller.daemon.options import CannotStart
from controller.daemon.providers import require_library
from controller.doctor.facts import ConfigFile, Setup
from controller.doctor.findings import examine, upgrade
from controller.doctor.gathering import gather, gather_shared
from controller.server_config import load as load_operating
from controller.vault import SECRETS_KEY_NAME
from fairlead.cli import output
from fairlead.cli.commands.options import Json
from fairlead.configuration.text.source import SourceError
from fairlead.wire.node import Finding, FindingLevel

_NO_TLS, _NO_BUCKET, _NO_LOGS = TlsOptions(), BucketOptions(), LogOptions()
_NO_OUTPUTS = OutputOptions()


def doctor(
    *,
    data: Path,
    listen: str = "127.0.0.1:8700",
    tls: TlsOptions = _NO_TLS,
    database: str | None = None,
    database_file: DatabaseFile = None,
    secrets_key_file: SecretsKeyFile = None,
    url: str | None = None,
    config: Path | None = None,
    bucket: BucketOptions = _NO_BUCKET,
    logs: LogOptions = _NO_LOGS,
    outputs: OutputOptions = _NO_OUTPUTS,
    json: Json = False,
) -> int:
    """Examine what a controller needs, and print a sentence and a fix for each finding.

    The controller may be running. Give the options with which it starts. The exit status is 1 if
    something is wrong.

    Parameters
    ----------
    data
        The controller's folder.
    listen
        As for `fairlead controller`.
    database
        As for `fairlead controller`.
    url
        As for `fairlead controller`.
    config
        As for `fairlead controller`.
    """
    setup = _setup(data, listen, tls, database, database_file, secrets_key_file, url)
    return _show(examine(gather(_with_files(setup, bucket, logs, outputs, config))), json)


def upgrade_check(
    *,
    data: Path,
    database: str | None = None,
    database_file: DatabaseFile = None,
    secrets_key_file: SecretsKeyFile = None,
    url: str | None = None,
    config: Path | None = None,
    bucket: BucketOptions = _NO_BUCKET,
    logs: LogOptions = _NO_LOGS,
    outputs: OutputOptions = _NO_OUTPUTS,
    json: Json = False,
) -> int:
    """Say whether this version can run next to the controllers that are up.

    Give the options with which it will start: it also says if its keys, buckets or clock are not
    those of the others, or if it refuses the file of --config. The exit status is 1 if it cannot
    start.

    Parameters
    ----------
    data
        The controller's folder.
    database
        As for `fairlead controller`.
    url
        As for `fairlead controller`.
    config
        As for `fairlead controller`.
    """
    no_listen = "127.0.0.1:8700"
    setup = _setup(data, no_listen, _NO_TLS, database, database_file, secrets_key_file, url)
    return _show(upgrade(gather_shared(_with_files(setup, bucket, logs, outputs, config))), json)


def _with_files(
    setup: Setup,
    bucket: BucketOptions,
    logs: LogOptions,
    outputs: OutputOptions,
    config: Path | None,
) -> Setup:
    """Raises CliError."""
    return msgspec.structs.replace(
        setup,
        bucket=bucket.parse(),
        logs_bucket=logs.bucket(),
        outputs_bucket=outputs.bucket(),
        config=None if config is None else _config_file(config),
    )


def _config_file(path: Path) -> ConfigFile:
    """Return the file as this version reads it at its start."""
    try:
        operating = load_operating(path)
        providers = operating.providers
        for name, one in providers.items():
            require_library(name, one)
    except (SourceError, CannotStart) as error:
        return ConfigFile(path=path, fault=str(error))
    return ConfigFile(
        path=path,
        regions={name: one.regions for name, one in providers.items()},
        limited=frozenset(operating.spending.users),
    )


def _setup(
    data: Path,
    listen: str,
    tls: TlsOptions,
    database: str | None,
    database_file: Path | None,
    secrets_key_file: Path | None,
    url: str | None,
) -> Setup:
    """Raises CliError."""
    peers = None if url is None else parse_peers(url)
    return Setup(
        data=data,
        secrets_key=secrets_key_file or data / SECRETS_KEY_NAME,
        database=find_database(data, database, database_file, os.environ),
        listen=parse_listen(listen),
        url=None if peers is None else peers.url,
        tls=tls.files(),
    )


def _show(findings: list[Finding], json: bool) -> int:
    if json:
        output.emit_json(msgspec.json.encode({"findings": findings}))
    else:
        for each in findings:
            output.emit(f"{each.level:8} {each.check:9} {each.message}")
            if each.fix:
                output.emit(f"{'':19}fix: {each.fix}")
    return int(any(each.level is FindingLevel.ERROR for each in findings))
