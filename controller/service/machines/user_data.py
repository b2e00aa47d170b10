"""The cloud-init user-data of an expected node, made from values, never from strings.

cloud-init/user-data.example.yaml shows the result; a test compares it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from common.refusals import Invalid

INSTALL = "/opt/fairlead/current/install"
"""The place of `./dev bundle`'s content on an image; installing it again changes only what
differs."""


_JOIN = (Path(__file__).parents[1] / "boot/join.py").read_text()
_JOIN_UNIT = """\
[Unit]
Description=Fairlead: tell the controller this node's address, once
ConditionPathExists=/etc/fairlead/join.json
Wants=network-online.target
After=network-online.target fairlead-shim.service
StartLimitIntervalSec=0

[Service]
Type=simple
# The bundle's own Python: small images and those like RHEL have no python3.
ExecStart=/bin/sh -c 'exec /opt/fairlead/current/python/bin/python3.*[0-9] -I -S \\
    /etc/fairlead/join.py'
# Once the address is told, nothing of this stays.
ExecStopPost=/bin/sh -c 'test -e /etc/fairlead/join.json || { \\
    systemctl disable fairlead-join.service; \\
    rm -f /etc/systemd/system/fairlead-join.service /etc/fairlead/join.py; }'
Restart=on-failure
RestartSec=15
RestartPreventExitStatus=2

[Install]
WantedBy=multi-user.target
"""
# --no-block: cloud-init must not wait for a unit that waits for the network and the shim.
_START_JOIN = ["systemctl", "enable", "--now", "--no-block", "fairlead-join.service"]


class Provider(StrEnum):
    """The provider of the machine; each accepts a different size of user-data."""

    AWS = "aws"
    AZURE = "azure"
    GCP = "gcp"
    OPENSTACK = "openstack"
    QEMU = "qemu"


MAX_BYTES = {
    Provider.AWS: 16 << 10,
    Provider.AZURE: 64 << 10,
    Provider.GCP: 256 << 10,
    Provider.OPENSTACK: 64 << 10,
    Provider.QEMU: 16 << 20,
}


class JoinPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The place where a node gives its address. `certificate`: hex SHA-256 of its DER, which is
    compared."""

    host: str
    port: int
    certificate: str


class UserData(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    fleet: str
    expires_at: float | None
    """None: a rented machine, whose record ends it; a time would make two tries differ."""
    host_private_key: str
    host_public_key: str
    tunnel_key: str
    """The controller's public key, with which it logs in as the tunnel user."""
    volume_prefixes: tuple[str, ...] = ()
    registry_mirror: str | None = None
    job_metadata: Literal["open", "closed"] | None = None
    leash: float | None = None
    """Seconds after which a rented machine without a controller ends itself; None: never."""
    fresh_host_key: bool = False
    """The node is to make a host key of its own."""
    join: JoinPoint | None = None
    token: str | None = None
    """The node's one-time token, needed when `join` is set."""


class _Dumper(yaml.SafeDumper):
    """Writes keys and files as blocks that people can read."""


def _represent(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent)


def render(data: UserData, provider: Provider | None = None) -> str:
    """Return the user-data. Raises Invalid when the provider accepts less."""
    head = (
        "#cloud-config\n"
        f"# Node {data.name} of Fairlead. Secret: it holds the node's private SSH host key.\n"
    )
    if data.expires_at is not None:
        until = datetime.fromtimestamp(data.expires_at, UTC).isoformat(timespec="seconds")
        head += f"# The node can be registered until {until}.\n"
    body = yaml.dump(document(data), Dumper=_Dumper, sort_keys=False, width=4096)
    text = head + body
    if provider is not None and len(text.encode()) > MAX_BYTES[provider]:
        raise Invalid(
            f"the user-data is {len(text.encode())} bytes long, and {provider} takes "
            f"{MAX_BYTES[provider]}: give fewer volume prefixes and mirrors",
            field="provider",
        )
    return text


def document(data: UserData) -> dict[str, Any]:
    name, dot, _ = data.name.partition(".")
    options = [word for prefix in data.volume_prefixes for word in ("--volume-prefix", prefix)]
    if data.registry_mirror is not None:
        options += ["--registry-mirror", data.registry_mirror]
    if data.job_metadata is not None:
        options += ["--job-metadata", data.job_metadata]
    node = {"name": data.name, "fleet": data.fleet}
    return {
        "hostname": name,
        **({"fqdn": data.name} if dot else {}),
        # An image may hold host keys that all machines made from it share.
        "ssh_deletekeys": True,
        "ssh_keys": {
            "ed25519_private": data.host_private_key,
            "ed25519_public": f"{data.host_public_key}\n",
        },
        "write_files": [
            {
                "path": "/etc/fairlead/node.yaml",
                "permissions": "0644",
                "content": yaml.safe_dump(node, sort_keys=False),
            },
            *_rented_files(data),
            *_join_files(data),
        ],
        "runcmd": [
            [INSTALL, "--tunnel-key", data.tunnel_key, *options],
            *([] if data.join is None else [_START_JOIN]),
        ],
    }


def _rented_files(data: UserData) -> list[dict[str, str]]:
    """Return the options of the shim of a rented machine; its unit reads them."""
    lines = []
    if data.leash is not None:
        lines.append(f"FAIRLEAD_RENTED_OPTIONS=--leash {data.leash:g}\n")
    if data.fresh_host_key:
        lines.append("FAIRLEAD_HOST_KEY=/etc/ssh/ssh_host_ed25519_key\n")
    if not lines:
        return []
    return [
        {
            "path": "/etc/fairlead/rented.env",
            "permissions": "0644",
            "content": "".join(lines),
        }
    ]


def _join_files(data: UserData) -> list[dict[str, str]]:
    """Return a unit that sends the node's address until it is known, also after a reboot."""
    if data.join is None:
        return []
    announcement = {**msgspec.structs.asdict(data.join), "name": data.name, "token": data.token}
    return [
        {
            "path": "/etc/fairlead/join.json",
            "permissions": "0600",
            "content": msgspec.json.encode(announcement).decode() + "\n",
        },
        {"path": "/etc/fairlead/join.py", "permissions": "0644", "content": _JOIN},
        {
            "path": "/etc/systemd/system/fairlead-join.service",
            "permissions": "0644",
            "content": _JOIN_UNIT,
        },
    ]
