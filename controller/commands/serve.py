"""`controller`: the process that all other commands talk to."""

from __future__ import annotations

import gc
import logging
import os
import resource
import sys
from pathlib import Path
from typing import Annotated, Literal

import uvloop
from cyclopts import Parameter

from controller.commands.database_url import find_database
from controller.commands.serve_options import (
    AllowedOrigin,
    BucketOptions,
    DatabaseFile,
    JobOptions,
    KeepOptions,
    LogOptions,
    OutputOptions,
    SecretsKeyFile,
    ServiceOptions,
    ShipOptions,
    TlsOptions,
    UploadOptions,
    parse_keep,
    parse_listen,
    parse_origin,
    parse_peers,
    read_config,
)
from controller.daemon import serving
from controller.daemon.options import CannotStart, Options
from controller.server_config import Operating
from controller.store.errors import StoreError
from fairlead.cli import output
from fairlead.cli.errors import EXIT_USAGE, CliError

LogLevel = Literal["debug", "info", "warning", "error"]
GC_THRESHOLDS = (1_000, 10, 800)
"""A collection of young objects takes some milliseconds, during which everything else waits. A full
collection runs only after millions of objects."""
SWITCH_SECONDS = 0.001

_TLS, _JOBS, _UPLOADS = TlsOptions(), JobOptions(), UploadOptions()
_KEEP, _OUTPUTS, _LOGS = KeepOptions(), OutputOptions(), LogOptions()
_BUCKET, _SHIP, _SERVICES = BucketOptions(), ShipOptions(), ServiceOptions()


def controller(
    *,
    data: Path,
    listen: str = "127.0.0.1:8700",
    tls: TlsOptions = _TLS,
    allowed_origin: AllowedOrigin = (),
    join: str | None = None,
    config: Path | None = None,
    jobs: JobOptions = _JOBS,
    uploads: UploadOptions = _UPLOADS,
    database: str | None = None,
    database_file: DatabaseFile = None,
    secrets_key_file: SecretsKeyFile = None,
    url: str | None = None,
    linger: str = "1.5s",
    keep: KeepOptions = _KEEP,
    outputs: OutputOptions = _OUTPUTS,
    logs: LogOptions = _LOGS,
    bucket: BucketOptions = _BUCKET,
    ship: ShipOptions = _SHIP,
    services: ServiceOptions = _SERVICES,
    log_level: Annotated[LogLevel, Parameter(env_var="FAIRLEAD_LOG_LEVEL")] = "info",
) -> int:
    """Start a controller and serve until it is stopped.

    Parameters
    ----------
    data
        The folder of its database, logs and keys; it is created if it is missing.
    listen
        HOST:PORT of the API.
    join
        HOST:PORT at which nodes that boot with user-data tell their address, over TLS.
    config
        A YAML file with limits, defaults and networks (docs/controller.md).
    database
        postgresql://USER@HOST/DATABASE, without a password; default: FAIRLEAD_DATABASE_URL, else a
        file in the folder.
    url
        http[s]://HOST:PORT at which other controllers of the same database reach this one. This
        controller waits while another one leads, and passes requests on to the leader.
    linger
        With --url: how long a stopped controller still answers. Meanwhile GET /v1/health says 503,
        so that load balancers send requests elsewhere.
    log_level
        The lowest level of log lines, which go to standard error.
    """
    host, port = parse_listen(listen)
    operating = Operating() if config is None else read_config(config)
    peers = None if url is None else parse_peers(url)
    options = Options(
        data=data,
        host=host,
        port=port,
        tls=tls.files(),
        allowed_origins=tuple(parse_origin(one) for one in allowed_origin),
        join=None if join is None else parse_listen(join, "--join"),
        defaults=jobs.defaults(operating, max_outputs=outputs.most),
        max_upload=uploads.most,
        max_uploads_of_user=uploads.most_of_user,
        node_failure=operating.node_failure,
        cluster_networks=operating.cluster_networks,
        database=find_database(data, database, database_file, os.environ, peers),
        peers=peers,
        linger=parse_keep(linger, "--linger"),
        providers=operating.providers,
        spending=operating.spending,
        secrets_key=secrets_key_file,
        max_outputs=outputs.most,
        outputs_bucket=outputs.bucket(),
        outputs_bucket_above=outputs.bucket_above,
        bucket=bucket.parse(),
        logs_bucket=logs.bucket() or bucket.parse(),
        receivers=ship.receivers(),
        keep=keep.times(),
        proxy=services.settings(),
    )
    _serve(options, log_level)
    return 0


def _serve(options: Options, log_level: LogLevel) -> None:
    """Run the controller. Raises CliError."""
    logging.basicConfig(
        level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for chatty in ("alembic", "asyncssh"):
        # At INFO they write several lines for each connection of a node.
        logging.getLogger(chatty).setLevel(logging.WARNING)
    # The data folder has keys and secrets; whoever started the controller may have another umask.
    os.umask(0o077)
    prepare_for_many_nodes()
    try:
        make_folder(options.data)
        uvloop.run(serving.serve(options, _say_ready))
    except (CannotStart, StoreError) as error:
        raise CliError(str(error)) from None
    except OSError as error:
        raise CliError(f"--data {options.data}: {error.strerror or error}") from None


def make_folder(data: Path) -> None:
    """Raises CliError, OSError."""
    try:
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (FileExistsError, NotADirectoryError):
        raise CliError(
            f"--data {data}: it, or a folder above it, is not a folder", EXIT_USAGE
        ) from None


def prepare_for_many_nodes() -> None:
    """Prepare the process for many connections and many long-lived objects.

    Each node and each job keeps connections open. A garbage collection after every few hundred new
    objects would cost more than it frees. The event loop must get control back soon from the
    threads that write.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    gc.collect()
    # What is loaded so far lives as long as the process: collections pass it over from now on.
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_SECONDS)


def _say_ready(url: str) -> None:
    output.emit(f"the controller serves on {url}")
