"""`node user-data` announces a node before it boots; `node register` gives it its address."""

from __future__ import annotations

from email.message import Message
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from cyclopts import Parameter

from fairlead import settings
from fairlead.cli import output
from fairlead.cli.commands.nodes.inventory import show_done
from fairlead.cli.commands.options import Attributes, Json, attributes_of
from fairlead.cli.durations import seconds_of
from fairlead.cli.errors import EXIT_USAGE, CliError
from fairlead.documents.nodes import NodeView
from fairlead.rest import decode, node_path

_MERGE = "list(append)+dict(no_replace,recurse_list,recurse_dict)+str()"
"""cloud-init joins lists. If both parts give a value, it keeps the first part's: ours."""
_KINDS = {
    "#cloud-config-archive": "cloud-config-archive",
    "#cloud-config": "cloud-config",
    "#!": "x-shellscript",
    "#include": "x-include-url",
    "#cloud-boothook": "cloud-boothook",
}
_BOUNDARY = "==fairlead-user-data=="


class _Answer(msgspec.Struct):
    node: NodeView
    user_data: str


VolumePrefixes = Annotated[
    list[str] | None,
    Parameter(name="--volume-prefix", negative=(), help="A folder whose content jobs may mount."),
]
RegistryMirror = Annotated[str | None, Parameter(help="The URL of a mirror for images.")]


def user_data(
    name: str,
    /,
    *,
    fleet: str = "default",
    attribute: Attributes = None,
    provider: Literal["aws", "azure", "gcp", "openstack", "qemu"] | None = None,
    volume_prefix: VolumePrefixes = None,
    registry_mirror: RegistryMirror = None,
    job_metadata: Literal["open", "closed"] | None = None,
    expires: str = "24h",
    merge: Annotated[Path | None, Parameter(name="--user-data")] = None,
    json: Json = False,
) -> int:
    """Announce a node and print its user-data; it holds a private key and is shown only once.

    Parameters
    ----------
    fleet
        The node's fleet.
    provider
        Refuse user-data that is too long for this provider.
    job_metadata
        Whether jobs reach the metadata service of a cloud, and with it the node's credentials.
    expires
        How long the node can be registered.
    merge
        A file with your own user-data: both are printed as one multipart message.
    """
    if json and merge is not None:
        raise CliError("give either --json or --user-data: the API knows one part", EXIT_USAGE)
    own = None if merge is None else read_own(merge)
    request = {
        "name": name,
        "fleet": fleet,
        "attributes": attributes_of(attribute),
        "provider": provider,
        "volume_prefixes": volume_prefix or (),
        "registry_mirror": registry_mirror,
        "job_metadata": job_metadata,
        "expires_after": seconds_of(expires, "--expires"),
    }
    data = settings.client().post("/v1/user-data", request)
    if json:
        output.emit_json(data)
        return 0
    answer = decode(data, _Answer)
    text = answer.user_data if own is None else multipart(answer.user_data, own)
    output.emit(text.rstrip("\n"))
    output.note(
        f"node {name} is expected until {answer.node.register_until}: it {answer.node.message}"
    )
    return 0


def register(name: str, /, *, address: str, json: Json = False) -> int:
    """Give an expected node its address; the controller already knows its host key.

    Parameters
    ----------
    address
        HOST or HOST:PORT of its sshd.
    """
    host, port = parse_address(address)
    data = settings.client().post(node_path(name, "register"), {"host": host, "port": port})
    return show_done(data, json, "registered")


def parse_address(text: str, field: str = "--address") -> tuple[str, int]:
    """Return host and port of HOST, HOST:PORT, IPv6 or [IPv6]:PORT. Raises CliError."""
    # A bare IPv6 address: its last group looks like a port.
    if text.count(":") > 1 and not text.startswith("["):
        return text, 22
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, "22"
    if not host.strip("[]") or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise CliError(f"{field}: {text!r} is not HOST or HOST:PORT", EXIT_USAGE)
    return host.strip("[]"), int(port)


def read_own(file: Path) -> str:
    """Return the user's own user-data. Raises CliError."""
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not a text file"
        raise CliError(f"--user-data {file}: {why}", EXIT_USAGE) from None
    if not text.startswith(tuple(_KINDS)):
        raise CliError(
            f"--user-data {file}: its first line must begin with one of {', '.join(_KINDS)}, by "
            f"which cloud-init knows what it is",
            EXIT_USAGE,
        )
    return text


def multipart(ours: str, own: str) -> str:
    """Return one message with both parts; if both give a value, ours counts."""
    message = MIMEMultipart(boundary=_BOUNDARY)
    for name, text in (("fairlead.yaml", ours), ("own", own)):
        message.attach(_part(name, text))
    return message.as_string()


def _part(name: str, text: str) -> Message:
    kind = next(kind for begin, kind in _KINDS.items() if text.startswith(begin))
    charset = "us-ascii" if text.isascii() else "utf-8"
    part = MIMEText(text, kind, charset)
    part.add_header("Content-Disposition", "attachment", filename=name)
    part.add_header("Merge-Type", _MERGE)
    return part
