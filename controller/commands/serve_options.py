"""The options of `controller`, in groups, and how their values are read."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from common.proxy.browsers.site import Site
from common.proxy.entry import Settings
from common.proxy.forwarding import ProxyLimits
from common.refusals import Invalid
from controller import __version__
from controller.outputs.bucket import Bucket
from controller.retention import RetentionTimes
from controller.server_config import Operating
from controller.server_config import load as load_operating
from controller.service.ssh_keys import user_keys
from controller.shipping.shipper import (
    ReceiverInvalid,
    Receivers,
    parse_logs,
    parse_traces,
    read_headers,
)
from controller.store.peers import Peers
from controller.tls import CertificateFiles
from fairlead.cli.errors import EXIT_USAGE, CliError
from fairlead.configuration.runs.plan import Defaults
from fairlead.configuration.text.source import SourceError
from fairlead.configuration.values.images import IMAGE_ALLOWED, default_image_name
from fairlead.configuration.values.units import (
    DURATION_ALLOWED,
    SIZE_ALLOWED,
    parse_duration,
    parse_size,
)
from fairlead.wire.bucket_urls import BucketUrlInvalid

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
SecretsKeyFile = Annotated[
    Path | None,
    Parameter(
        help="The file with the key of stored secrets; it is made if it is missing"
        " (default: secrets.key in the data folder)."
    ),
]
_DOMAIN = re.compile(r"[a-z0-9-]{1,63}(\.[a-z0-9-]{1,63})*", re.ASCII)

_ORIGIN = re.compile(r"https?://([a-z0-9._-]+|\[[0-9a-f:]+\])(:[0-9]{1,5})?", re.ASCII)
_USUAL_PORTS = {"http": ":80", "https": ":443"}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TlsOptions:
    tls_cert: Annotated[
        Path | None,
        Parameter(help="A PEM file with the certificate; a renewed one is read without a restart."),
    ] = None
    tls_key: Annotated[
        Path | None, Parameter(help="The PEM file of the certificate's private key.")
    ] = None

    def files(self) -> CertificateFiles | None:
        if self.tls_cert is None and self.tls_key is None:
            return None
        if self.tls_cert is None or self.tls_key is None:
            raise CliError("--tls-cert and --tls-key belong together: give both", EXIT_USAGE)
        return CertificateFiles(certificate=self.tls_cert, key=self.tls_key)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class UploadOptions:
    upload_limit: Annotated[
        str, Parameter(help="The largest size of one upload (`repos`, `files`).")
    ] = "1GiB"
    user_upload_limit: Annotated[
        str | None,
        Parameter(
            help="The largest size of all uploads of one user (default: 10 times --upload-limit)."
        ),
    ] = None

    @property
    def most(self) -> int:
        return parse_limit(self.upload_limit, "--upload-limit")

    @property
    def most_of_user(self) -> int | None:
        text = self.user_upload_limit
        return None if text is None else parse_limit(text, "--user-upload-limit")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class KeepOptions:
    keep_runs: Annotated[str, Parameter(help="How long ended runs are kept.")] = "90d"
    keep_logs: Annotated[str, Parameter(help="How long logs are kept.")] = "30d"
    keep_outputs: Annotated[str, Parameter(help="How long outputs are kept.")] = "30d"

    def times(self) -> RetentionTimes:
        return RetentionTimes(
            runs=parse_keep(self.keep_runs, "--keep-runs"),
            logs=parse_keep(self.keep_logs, "--keep-logs"),
            outputs=parse_keep(self.keep_outputs, "--keep-outputs"),
        )


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    outputs_limit: Annotated[str, Parameter(help="How much of one attempt's outputs is kept.")] = (
        "1GiB"
    )
    outputs_bucket: Annotated[
        str | None,
        Parameter(
            help="s3://BUCKET/PREFIX that takes large outputs; its keys come from"
            " AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or from the machine's role."
        ),
    ] = None
    outputs_endpoint: Annotated[
        str | None, Parameter(help="https://HOST of an object storage that is not AWS.")
    ] = None
    outputs_bucket_above: Annotated[
        str, Parameter(help="Outputs of more than this size go to --outputs-bucket.")
    ] = "64MiB"

    @property
    def most(self) -> int:
        return parse_limit(self.outputs_limit, "--outputs-limit")

    @property
    def bucket_above(self) -> int:
        return parse_limit(self.outputs_bucket_above, "--outputs-bucket-above")

    def bucket(self) -> Bucket | None:
        return parse_bucket(self.outputs_bucket, self.outputs_endpoint, "outputs-")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LogOptions:
    logs_bucket: Annotated[
        str | None,
        Parameter(
            help="s3://BUCKET/PREFIX that takes all logs, so that none is lost with this machine;"
            " its keys come from the same place as those of --outputs-bucket."
        ),
    ] = None
    logs_endpoint: Annotated[
        str | None, Parameter(help="https://HOST of an object storage that is not AWS.")
    ] = None

    def bucket(self) -> Bucket | None:
        return parse_bucket(self.logs_bucket, self.logs_endpoint, "logs-")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class BucketOptions:
    bucket: Annotated[
        str | None,
        Parameter(
            help="s3://BUCKET/PREFIX that only this installation uses. It keeps what would"
            " otherwise be lost with this machine: logs, uploads, outputs and the history of use."
        ),
    ] = None
    bucket_endpoint: Annotated[
        str | None, Parameter(help="https://HOST of an object storage that is not AWS.")
    ] = None

    def parse(self) -> Bucket | None:
        return parse_bucket(self.bucket, self.bucket_endpoint, "")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ShipOptions:
    ship_logs: Annotated[
        str | None,
        Parameter(
            help="loki=URL or otlp=URL: a server for search that gets a copy of each line of logs."
        ),
    ] = None
    ship_traces: Annotated[
        str | None,
        Parameter(help="The URL of an OTLP/HTTP receiver that gets the life of each ended run."),
    ] = None
    ship_headers_file: Annotated[
        Path | None,
        Parameter(help="A file with headers for both, such as Authorization: Bearer TOKEN."),
    ] = None

    def receivers(self) -> Receivers | None:
        """Return where copies go; None: nowhere. Raises CliError."""
        option = "--ship-logs"
        try:
            logs = None if self.ship_logs is None else parse_logs(self.ship_logs)
            option = "--ship-traces"
            traces = None if self.ship_traces is None else parse_traces(self.ship_traces)
            option = "--ship-headers-file"
            file = self.ship_headers_file
            headers = {} if file is None else read_headers(file)
        except ReceiverInvalid as error:
            raise CliError(f"{option}: {error}", EXIT_USAGE) from None
        if logs is None and traces is None:
            if file is not None:
                raise CliError(f"{option} belongs to --ship-logs or --ship-traces", EXIT_USAGE)
            return None
        return Receivers(logs=logs, traces=traces, headers=headers)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    public_url: Annotated[
        str | None,
        Parameter(
            help="The dashboard's URL in a browser, such as https://fairlead.example.com. Services"
            " send visitors there to log in. With https:, a reverse proxy terminates TLS."
        ),
    ] = None
    allow_plain_http: Annotated[
        bool,
        Parameter(
            help="Let browsers on other machines log in without TLS. The network between can then"
            " read and change everything.",
            negative=(),
        ),
    ] = False
    service_domain: Annotated[
        str | None,
        Parameter(help="Serve services only at NAME.DOMAIN; DNS must lead *.DOMAIN here."),
    ] = None
    service_timeout: Annotated[
        str, Parameter(help="How long a service may take before its answer begins.")
    ] = "5m"
    service_hold: Annotated[
        str, Parameter(help="How long a request waits for a sleeping service.")
    ] = "5m"
    service_body: Annotated[str, Parameter(help="The largest body of a request to a service.")] = (
        "1GiB"
    )

    def settings(self) -> Settings:
        domain, url = self.service_domain, self.public_url
        return Settings(
            domain=None if domain is None else parse_domain(domain),
            site=Site(
                public_url=None if url is None else parse_origin(url, "--public-url"),
                allows_plain_http=self.allow_plain_http,
            ),
            limits=ProxyLimits(
                answer_seconds=parse_keep(self.service_timeout, "--service-timeout"),
                hold_seconds=parse_keep(self.service_hold, "--service-hold"),
                most_body=parse_limit(self.service_body, "--service-body"),
            ),
        )


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class JobOptions:
    default_image: Annotated[
        str | None,
        Parameter(
            help="The image of runs that name none; {python} in it is a job's version of Python."
        ),
    ] = None
    project_keys: Annotated[
        Path | None,
        Parameter(help="A file of public keys, one on each line, with SSH access to every run."),
    ] = None

    def defaults(self, operating: Operating, *, max_outputs: int) -> Defaults:
        defaults = operating.defaults
        keys = () if self.project_keys is None else read_keys(self.project_keys)
        image = defaults.image if self.default_image is None else parse_image(self.default_image)
        return msgspec.structs.replace(
            defaults, image=image, ssh_keys=keys, outputs_limit=max_outputs
        )


def parse_peers(url: str) -> Peers:
    """Raises CliError."""
    # A controller that is alone loads nothing of followers.
    from controller.relay import address_of

    try:
        address_of(url)
    except ValueError as error:
        raise CliError(f"--url {url}: {error}", EXIT_USAGE) from None
    return Peers(url=url.rstrip("/"), version=__version__)


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


def parse_bucket(url: str | None, endpoint: str | None, kind: str) -> Bucket | None:
    """Return the bucket of --KINDbucket and its endpoint. Raises CliError."""
    option, of_endpoint = f"--{kind}bucket", f"--{kind or 'bucket-'}endpoint"
    if url is None:
        if endpoint is not None:
            raise CliError(f"{of_endpoint} belongs to {option}: give both", EXIT_USAGE)
        return None
    try:
        return Bucket.parse(url, endpoint, os.environ.get("AWS_REGION"))
    except BucketUrlInvalid as error:
        raise CliError(f"{option}, {of_endpoint}: {error}", EXIT_USAGE) from None


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
