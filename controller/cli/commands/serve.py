"""`controller`: the process that all other commands talk to."""

from __future__ import annotations

import gc
import logging
import os
import re
import resource
import sys
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import uvloop
from cyclopts import Parameter

from common.object_storage import BucketUrlInvalid
from controller import daemon
from controller.cli import output
from controller.cli.database_url import find_database
from controller.cli.errors import EXIT_USAGE, CliError
from controller.configuration.images import IMAGE_ALLOWED, default_image_name
from controller.configuration.plan import Defaults
from controller.configuration.server_config import Operating
from controller.configuration.server_config import load as load_operating
from controller.configuration.source import SourceError
from controller.configuration.units import (
    DURATION_ALLOWED,
    SIZE_ALLOWED,
    parse_duration,
    parse_size,
)
from controller.outputs.bucket import Bucket
from controller.proxy.entry import Settings
from controller.proxy.forwarding import ProxyLimits
from controller.proxy.site import Site
from controller.retention import RetentionTimes
from controller.service.errors import Invalid
from controller.service.ssh_keys import user_keys
from controller.store.base import StoreError
from controller.tls import CertificateFiles

LogLevel = Literal["debug", "info", "warning", "error"]
GC_THRESHOLDS = (1_000, 10, 800)
"""A collection of young objects takes some milliseconds, during which everything else waits. A full
collection runs only after millions of objects."""
SWITCH_SECONDS = 0.001


DefaultImage = Annotated[
    str | None,
    Parameter(
        help="The image of runs that name none; {python} in it is a job's version of Python."
    ),
]
UploadLimit = Annotated[str, Parameter(help="The largest size of one upload (`repos`, `files`).")]
UserUploadLimit = Annotated[
    str | None,
    Parameter(help="The largest size of all uploads of one user (default: ten of the largest)."),
]
ProjectKeys = Annotated[
    Path | None,
    Parameter(help="A file of public keys, one on each line, with SSH access to every run."),
]
TlsCertificate = Annotated[
    Path | None, Parameter(help="A PEM file: the API is served with TLS, renewed when it changes.")
]
TlsKey = Annotated[Path | None, Parameter(help="The PEM file of the certificate's private key.")]
AllowedOrigin = Annotated[
    tuple[str, ...],
    Parameter(
        help="An origin, such as https://lab.example.com, whose pages may use the API; repeatable.",
        negative=(),
    ),
]
DatabaseFile = Annotated[
    Path | None, Parameter(help="A file with the database's URL, password included.")
]
KeepRuns = Annotated[str, Parameter(help="How long ended runs are kept.")]
SecretsKeyFile = Annotated[
    Path | None,
    Parameter(
        help="The file with the key of stored secrets; it is made if it is missing"
        " (default: secrets.key in the data folder)."
    ),
]
OutputsLimit = Annotated[
    str, Parameter(help="The largest size of the outputs that are kept of one attempt.")
]
OutputsBucket = Annotated[
    str | None,
    Parameter(
        help="s3://BUCKET/PREFIX that takes large outputs; its keys come from AWS_ACCESS_KEY_ID and"
        " AWS_SECRET_ACCESS_KEY, or from the machine's role."
    ),
]
OutputsEndpoint = Annotated[
    str | None, Parameter(help="https://HOST of an object storage that is not AWS.")
]
OutputsBucketAbove = Annotated[
    str, Parameter(help="Outputs of more than this size go to the bucket.")
]
KeepOutputs = Annotated[str, Parameter(help="How long outputs are kept.")]
KeepLogs = Annotated[str, Parameter(help="How long logs are kept.")]
ServiceDomain = Annotated[
    str | None, Parameter(help="Services answer at NAME.DOMAIN alone (DNS *.DOMAIN leads here).")
]
PublicUrl = Annotated[
    str | None,
    Parameter(
        help="Where browsers find the dashboard, such as https://fairlead.example.com: services"
        " lead to it for a login, and its scheme holds behind a reverse proxy."
    ),
]
AllowPlainHttp = Annotated[
    bool,
    Parameter(
        help="Let browsers log in without TLS from other machines: whoever is on the way can read"
        " and change everything.",
        negative=(),
    ),
]
ServiceTimeout = Annotated[
    str, Parameter(help="How long a service may think before its answer begins.")
]
ServiceHold = Annotated[str, Parameter(help="How long a request waits for a sleeping service.")]
ServiceBody = Annotated[str, Parameter(help="The largest body of a request to a service.")]
_DOMAIN = re.compile(r"[a-z0-9-]{1,63}(\.[a-z0-9-]{1,63})*", re.ASCII)

_ORIGIN = re.compile(r"https?://([a-z0-9._-]+|\[[0-9a-f:]+\])(:[0-9]{1,5})?", re.ASCII)
_USUAL_PORTS = {"http": ":80", "https": ":443"}


def controller(
    *,
    data: Path,
    listen: str = "127.0.0.1:8700",
    tls_cert: TlsCertificate = None,
    tls_key: TlsKey = None,
    allowed_origin: AllowedOrigin = (),
    join: str | None = None,
    config: Path | None = None,
    default_image: DefaultImage = None,
    upload_limit: UploadLimit = "1GiB",
    user_upload_limit: UserUploadLimit = None,
    project_keys: ProjectKeys = None,
    database: str | None = None,
    database_file: DatabaseFile = None,
    secrets_key_file: SecretsKeyFile = None,
    keep_runs: KeepRuns = "90d",
    keep_logs: KeepLogs = "30d",
    outputs_limit: OutputsLimit = "1GiB",
    keep_outputs: KeepOutputs = "30d",
    outputs_bucket: OutputsBucket = None,
    outputs_endpoint: OutputsEndpoint = None,
    outputs_bucket_above: OutputsBucketAbove = "64MiB",
    public_url: PublicUrl = None,
    allow_plain_http: AllowPlainHttp = False,
    service_domain: ServiceDomain = None,
    service_timeout: ServiceTimeout = "5m",
    service_hold: ServiceHold = "5m",
    service_body: ServiceBody = "1GiB",
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
    log_level
        The least level of log lines; they go to standard error.
    """
    host, port = parse_listen(listen)
    operating = Operating() if config is None else read_config(config)
    options = daemon.Options(
        data=data,
        host=host,
        port=port,
        tls=_tls(tls_cert, tls_key),
        allowed_origins=tuple(parse_origin(one) for one in allowed_origin),
        join=None if join is None else parse_listen(join, "--join"),
        defaults=msgspec.structs.replace(
            _defaults(operating, default_image, project_keys),
            outputs_limit=parse_limit(outputs_limit, "--outputs-limit"),
        ),
        most_upload=parse_limit(upload_limit, "--upload-limit"),
        most_uploads_of_user=(
            None
            if user_upload_limit is None
            else parse_limit(user_upload_limit, "--user-upload-limit")
        ),
        node_failure=operating.node_failure,
        cluster_networks=operating.cluster_networks,
        database=find_database(data, database, database_file, os.environ),
        secrets_key=secrets_key_file,
        most_outputs=parse_limit(outputs_limit, "--outputs-limit"),
        outputs_bucket=_bucket(outputs_bucket, outputs_endpoint),
        outputs_bucket_above=parse_limit(outputs_bucket_above, "--outputs-bucket-above"),
        keep=RetentionTimes(
            runs=parse_keep(keep_runs, "--keep-runs"),
            logs=parse_keep(keep_logs, "--keep-logs"),
            outputs=parse_keep(keep_outputs, "--keep-outputs"),
        ),
        proxy=Settings(
            domain=None if service_domain is None else parse_domain(service_domain),
            site=Site(
                public_url=(
                    None if public_url is None else parse_origin(public_url, "--public-url")
                ),
                allows_plain_http=allow_plain_http,
            ),
            limits=ProxyLimits(
                answer_seconds=parse_keep(service_timeout, "--service-timeout"),
                hold_seconds=parse_keep(service_hold, "--service-hold"),
                most_body=parse_limit(service_body, "--service-body"),
            ),
        ),
    )
    _serve(options, log_level)
    return 0


def _tls(certificate: Path | None, key: Path | None) -> CertificateFiles | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise CliError("--tls-cert and --tls-key belong together: give both", EXIT_USAGE)
    return CertificateFiles(certificate=certificate, key=key)


def _bucket(url: str | None, endpoint: str | None) -> Bucket | None:
    if url is None:
        if endpoint is not None:
            raise CliError("--outputs-endpoint belongs to --outputs-bucket: give both", EXIT_USAGE)
        return None
    try:
        return Bucket.parse(url, endpoint, os.environ.get("AWS_REGION"))
    except BucketUrlInvalid as error:
        raise CliError(f"--outputs-bucket, --outputs-endpoint: {error}", EXIT_USAGE) from None


def _defaults(operating: Operating, image: str | None, project_keys: Path | None) -> Defaults:
    keys = () if project_keys is None else read_keys(project_keys)
    defaults = msgspec.structs.replace(operating.defaults, ssh_keys=keys)
    if image is None:
        return defaults
    return msgspec.structs.replace(defaults, image=parse_image(image))


def _serve(options: daemon.Options, log_level: LogLevel) -> None:
    """Run the controller. Raises CliError."""
    logging.basicConfig(
        level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for chatty in ("alembic", "asyncssh"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    os.umask(0o077)
    prepare_for_many_nodes()
    try:
        make_folder(options.data)
        uvloop.run(daemon.serve(options, _say_ready))
    except (daemon.CannotStart, StoreError) as error:
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
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_SECONDS)


def parse_image(text: str) -> str:
    """Return the image name of an option. Raises CliError."""
    try:
        return default_image_name(text)
    except ValueError as error:
        raise CliError(f"--default-image: {error}; give {IMAGE_ALLOWED}", EXIT_USAGE) from None


def parse_limit(text: str, option: str) -> int:
    """Return the bytes of an option. Raises CliError."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise CliError(f"{option}: {error}; give {SIZE_ALLOWED}", EXIT_USAGE) from None


def parse_keep(text: str, option: str) -> float:
    """Return the seconds of an option. Raises CliError."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise CliError(f"{option}: {error}; give {DURATION_ALLOWED}", EXIT_USAGE) from None


def parse_domain(text: str) -> str:
    """Return the domain of services. Raises CliError."""
    domain = text.lower().removeprefix("*.").rstrip(".")
    if not _DOMAIN.fullmatch(domain):
        raise CliError(
            f"--service-domain: {text!r} is no domain, such as svc.example.com", EXIT_USAGE
        )
    return domain


def parse_origin(text: str, option: str = "--allowed-origin") -> str:
    """Return an origin as browsers write it. Raises CliError."""
    origin = text.lower().rstrip("/")
    if not _ORIGIN.fullmatch(origin):
        raise CliError(
            f"{option}: {text!r} is no origin, such as https://lab.example.com", EXIT_USAGE
        )
    scheme, _, host = origin.partition("://")
    return f"{scheme}://{host.removesuffix(_USUAL_PORTS[scheme])}"


def parse_listen(text: str, option: str = "--listen") -> tuple[str, int]:
    """Return host and port. Raises CliError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise CliError(f"{option}: {text!r} is not HOST:PORT, such as 127.0.0.1:8700", EXIT_USAGE)
    return host.strip("[]"), int(port)


def read_config(file: Path) -> Operating:
    """Return the operator's settings. Raises CliError."""
    try:
        return load_operating(file)
    except SourceError as error:
        raise CliError(f"--config {error}", EXIT_USAGE) from None


def read_keys(file: Path) -> tuple[str, ...]:
    """Return the public keys of a file, without empty lines and comments. Raises CliError."""
    try:
        lines = [line.strip() for line in file.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not a text file"
        raise CliError(f"--project-keys {file}: {why}", EXIT_USAGE) from None
    try:
        return user_keys([line for line in lines if line and not line.startswith("#")])
    except Invalid as error:
        raise CliError(f"--project-keys {file}: {error.message}", EXIT_USAGE) from None


def _say_ready(url: str) -> None:
    output.emit(f"the controller serves on {url}")
