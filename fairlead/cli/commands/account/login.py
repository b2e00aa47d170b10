"""Commands that save which controller to use: `login`, `logout`, `use`, `whoami`."""

from __future__ import annotations

import getpass
import sys
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from cyclopts import Parameter

from fairlead import settings
from fairlead.cli import output
from fairlead.cli.commands.options import Json
from fairlead.cli.errors import EXIT_USAGE, CliError
from fairlead.documents import CallerView
from fairlead.rest import ControllerClient, decode
from fairlead.settings import SavedController, SavedControllers

_ME = "/v1/me"


def login(
    url: str = settings.DEFAULT_URL,
    /,
    *,
    name: Annotated[str | None, Parameter(name=["-n", "--name"])] = None,
    token_file: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
) -> int:
    """Log in to a controller: ask for a token, check it, and save both for later commands.

    Parameters
    ----------
    url
        The controller, such as https://fairlead.example.com.
    name
        Your name for this controller; default: its host's name.
    token_file
        Take the token from this file; - reads standard input.
    """
    url = url.rstrip("/")
    token = _asked(token_file)
    client = ControllerClient(url, token)
    me = decode(client.get(_ME), CallerView)
    host = urlsplit(url).hostname or url
    name = name or host
    if url.startswith("http://") and not _is_loopback(host):
        output.note(f"{url} is not encrypted: every host on the way can read the token")
    saved = settings.load()
    controllers = saved.controllers | {name: SavedController(url=url, token=token)}
    settings.save(SavedControllers(current=name, controllers=controllers))
    output.emit(f"logged in to {name} ({url}) as {me.name} (role {me.role}){_until(me)}")
    return 0


def logout(name: str | None = None, /) -> int:
    """Forget a controller and its token here. The token still holds: `fairlead token revoke` ends
    it.

    Parameters
    ----------
    name
        As `fairlead use` lists it; default: the current one.
    """
    saved = settings.load()
    name = name or saved.current
    if name is None:
        raise CliError("you are not logged in to any controller")
    settings.named(saved, name)
    rest = {other: one for other, one in saved.controllers.items() if other != name}
    current = None if saved.current == name else saved.current
    settings.save(SavedControllers(current=current, controllers=rest))
    output.emit(f"forgot {name}")
    return 0


def use(name: str | None = None, /, *, json: Json = False) -> int:
    """Let later commands talk to another controller that you are logged in to; without a name, list
    them.

    Parameters
    ----------
    name
        As the list names it.
    """
    saved = settings.load()
    if name is not None:
        settings.named(saved, name)
        saved = msgspec.structs.replace(saved, current=name)
        settings.save(saved)
        output.emit(f"commands now talk to {name} ({saved.controllers[name].url})")
        return 0
    rows = [(one, saved.controllers[one].url) for one in sorted(saved.controllers)]
    if json:
        shown = [{"name": one, "url": url, "current": one == saved.current} for one, url in rows]
        output.emit_json(msgspec.json.encode({"controllers": shown}))
        return 0
    output.emit_table(
        ("CURRENT", "NAME", "URL"),
        [("yes" if one == saved.current else "-", one, url) for one, url in rows],
    )
    return 0


def whoami(*, json: Json = False) -> int:
    """Show which controller commands talk to, and as which user."""
    client = settings.client()
    data = client.get(_ME)
    if json:
        output.emit_json(data)
        return 0
    me = decode(data, CallerView)
    output.emit(f"{me.name} (role {me.role}) at {client.url}{_until(me)}")
    return 0


def _until(me: CallerView) -> str:
    return "" if me.token.expires_at is None else f", until {me.token.expires_at}"


def _asked(token_file: Path | None) -> str:
    if token_file is not None and str(token_file) != "-":
        token = settings.read_token(token_file, "--token-file")
    elif token_file is not None:
        token = settings.clean_token(sys.stdin.readline(), "standard input")
    elif sys.stdin.isatty():
        token = settings.clean_token(getpass.getpass("Token: "), "what you typed")
    else:
        raise CliError(
            "there is no terminal to ask for the token: give --token-file FILE, or - for standard"
            " input",
            EXIT_USAGE,
        )
    if token is None:
        raise CliError("the token is empty", EXIT_USAGE)
    return token


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
