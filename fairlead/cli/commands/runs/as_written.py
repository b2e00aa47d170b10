"""`apply` of a plain task's file: its text is sent as it is written, and the controller reads it.

Until the request is sent, nothing is loaded that it does not need: the libraries for YAML and JSON
and the types of answers took more than half of the command's time before it. What the answer needs
is loaded while the controller works. What comes of any failure is up to `applying`, so there is one
way to each error and to its line. It begins again with the same client key, unless the controller
has refused what the text says: that it would refuse again.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from functools import partial

from fairlead import settings
from fairlead.cli import quick
from fairlead.errors import ApiError, ConnectionLost, FairleadError
from fairlead.files.ssh_keys import public_keys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from fairlead.rest import ControllerClient
# The modules that these two are of load msgspec.
MAX_BYTES = 16 << 10
"""A controller takes no longer text (`MAX_CHARACTERS` of `fairlead.configuration.text.plain`)."""
OF_DSTACK = (".dstack.yml", ".dstack.yaml")
"""The ends of names of files of dstack (`fairlead.configuration.text.dstack`)."""
_OF_THIS_MACHINE = frozenset(("repos", "files", "secrets", "registry_auth", "sweep", "groups"))
"""Fields in which something of this machine may be meant. A file with one of them is not sent in
vain: the controller would refuse it, and a round trip would be lost."""
_KEPT, _MADE = 200, 201
_OF_THE_TEXT = frozenset(("not_plain", "invalid_yaml"))
"""Codes of refusals (`docs/api.md`) that the content may not meet."""
_NO_SUCH_ROUTE = (404, 405)
_ESCAPES = {code: f"\\u{code:04x}" for code in (*range(32), *map(ord, '"\\'))}
"""Of a string in JSON (RFC 8259, 7)."""


def apply(
    file: str,
    *,
    detach: bool = False,
    name: str | None = None,
    env: tuple[str, ...] = (),
    if_exists: Literal["error", "keep", "replace"] = "error",
    parent: str | None = None,
    json: bool = False,
    watch: bool = False,
) -> int:
    """Submit the file's run (or fleet, or gateway) and follow it. Return the exit status."""
    client_key, lost, refused = os.urandom(16).hex(), None, None
    home = os.path.expanduser("~")
    # A user without a home, of whose keys `applying` cannot know either, gets its words.
    text = None if env or watch or home == "~" else plain_text(file)
    if text is not None:
        wish = {"name": name, "if_exists": if_exists, "parent": parent, "client_key": client_key}
        try:
            client = settings.client()
            client.meanwhile(partial(_load, detach=detach))
            keys = public_keys(os.environ, home)
            data, status = client.submit_yaml(encoded({"source": text, **wish}, keys))
        except ConnectionLost as error:
            # What nobody has received may be sent at once.
            lost = None if error.refused else error
        except ApiError as error:
            refused = error if is_of_the_content(error) else None
        except (FairleadError, UnicodeEncodeError):
            pass
        else:
            if status in (_KEPT, _MADE):
                return _go_on(client, data, kept=status == _KEPT, detach=detach, json=json)
    quick.load("fairlead.cli.commands.runs.applying")
    from pathlib import Path

    from fairlead.cli.commands.runs import applying

    return applying.apply(
        Path(file),
        detach=detach,
        name=name,
        env=env,
        if_exists=if_exists,
        parent=parent,
        json=json,
        watch=watch,
        client_key=client_key,
        lost=lost,
        refused=refused,
    )


def is_of_the_content(error: ApiError) -> bool:
    """Return whether the controller would refuse the file's content as it has refused the text."""
    # An older controller has no such route, and names no field of the body then.
    is_unknown = error.status in _NO_SUCH_ROUTE and error.field is None
    return error.status < 500 and not is_unknown and error.code not in _OF_THE_TEXT


def plain_text(file: str) -> str | None:
    """Return the text if the controller can probably read it alone; None: `applying` must."""
    if file.endswith(OF_DSTACK):
        return None
    try:
        # What comes through a pipe can be read once.
        if not stat.S_ISREG(os.stat(file).st_mode):
            return None
        with open(file, "rb") as content:
            data = content.read(MAX_BYTES + 1)
        text = data.decode()
    except (OSError, ValueError):
        return None
    # Not of the text: of a longer file, that is a beginning, which may have fewer characters.
    return text if len(data) <= MAX_BYTES and _may_be_plain(text.splitlines()) else None


def _may_be_plain(lines: Iterable[str]) -> bool:
    """Return whether it looks like a task without a field, and without a variable, that needs this
    machine. The controller decides: it knows YAML."""
    is_task = in_env = False
    for line in lines:
        if line[:1] not in ("", " ", "\t", "-", "#"):
            field = line.partition(":")[0]
            if field in _OF_THIS_MACHINE:
                return False
            is_task |= line.rstrip() == "type: task"
            in_env = field == "env"
            names_variables = in_env and "[" in line
        else:
            names_variables = in_env and line.lstrip().startswith("-") and "=" not in line
        if names_variables:
            return False
    return is_task


def encoded(fields: dict[str, str | None], keys: Iterable[str]) -> bytes:
    """Return the fields, and the keys as `ssh_keys`, as JSON. Raises UnicodeEncodeError."""
    members = [f'"{name}":{_string(text)}' for name, text in fields.items() if text is not None]
    members.append(f'"ssh_keys":[{",".join(map(_string, keys))}]')
    return f"{{{','.join(members)}}}".encode()


def _string(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"'


def _load(*, detach: bool) -> None:
    """Load what the answer needs, and what follows a run."""
    quick.load("fairlead.cli.commands.runs.attaching")
    if not detach:
        for name in ("documents.runs", "cli.follow", "connections.websocket", "wire.frames"):
            quick.load(f"fairlead.{name}")


def _go_on(client: ControllerClient, data: bytes, *, kept: bool, detach: bool, json: bool) -> int:
    from fairlead.cli.commands.runs.attaching import go_on

    return go_on(client, data, kept=kept, detach=detach, json=json)
