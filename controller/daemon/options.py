"""What the operator chose for the controller, and the error when it cannot start with that."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Network
from pathlib import Path

import msgspec

from common.proxy.entry import Settings as ProxySettings
from controller.blobs import MAX_BYTES
from controller.lifecycle.inventory import NodeFailure, Spending
from controller.outputs.bucket import Bucket
from controller.outputs.store import DEFAULT_LIMIT
from controller.outputs.uploads import DEFAULT_ABOVE
from controller.provider_config.reading import ProviderConfig
from controller.retention import RetentionTimes
from controller.shipping.shipper import Receivers
from controller.store.peers import Peers
from controller.store.sql import Database
from controller.tls import CertificateFiles
from controller.vault import SECRETS_KEY_NAME
from fairlead.configuration.runs.plan import Defaults

LINGER_SECONDS = 1.5


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The controller's options."""

    data: Path
    host: str = "127.0.0.1"
    port: int = 8700
    tls: CertificateFiles | None = None
    """None: the API is served without TLS."""
    allowed_origins: tuple[str, ...] = ()
    """The origins whose pages may use the API from a browser, beside its own."""
    join: tuple[str, int] | None = None
    """HOST and PORT at which booted nodes tell their address; None: they do not."""
    defaults: Defaults = Defaults()
    max_upload: int = MAX_BYTES
    """The limit of one upload, in bytes."""
    max_uploads_of_user: int | None = None
    """The limit of all uploads of one user, in bytes; None: ten times that of one."""
    max_outputs: int = DEFAULT_LIMIT
    """The limit of the outputs that are kept of one attempt, in bytes."""
    outputs_bucket: Bucket | None = None
    outputs_bucket_above: int = DEFAULT_ABOVE
    """Outputs of more bytes go to the bucket, if there is one."""
    logs_bucket: Bucket | None = None
    """Where logs are stored; None: in the data folder."""
    bucket: Bucket | None = None
    """Of this installation alone, for uploads, outputs and the history of use; None: they are in
    the data folder."""
    receivers: Receivers | None = None
    """Where copies of logs and traces go; None: nowhere."""
    database: Database | None = None
    """None: a SQLite file in the data folder."""
    keep: RetentionTimes = RetentionTimes()
    node_failure: NodeFailure = NodeFailure()
    cluster_networks: tuple[IPv4Network, ...] = ()
    """The networks in which the jobs of multi-node runs reach each other, the preferred one
    first."""
    providers: Mapping[str, ProviderConfig] = {}
    """The providers of machines, by name."""
    spending: Spending = Spending()
    proxy: ProxySettings = ProxySettings()
    secrets_key: Path | None = None
    """The file with the key of stored secrets; None: one in the data folder."""
    peers: Peers | None = None
    """This controller among those of its database; None: it is the only one."""
    linger: float = LINGER_SECONDS
    """Seconds for which one among several goes on answering when it is stopped."""

    @property
    def secrets_key_file(self) -> Path:
        return self.secrets_key or self.data / SECRETS_KEY_NAME


class CannotStart(Exception):
    """The controller cannot start; the message says what the operator must change."""
