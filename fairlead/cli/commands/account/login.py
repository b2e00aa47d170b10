"""Commands that save which controller to use: `login`, `logout`, `use`, `whoami`."""

from __future__ import annotations

import getpass
import sys
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from fairlead import settings
from fairlead.cli import output
from fairlead.cli.commands.options import Json
from fairlead.cli.errors import EXIT_USAGE, CliError
from fairlead.connections.addresses import Addresses
from fairlead.documents.accounts import CallerView
from fairlead.errors import ConnectionLost, NotLoggedIn
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
        The controller, such as https://fairlead.example.com. If several controllers share a
        database, give all their URLs, separated by commas.
    name
        Your name for this controller; default: its host's name.
    token_file
        Take the token from this file; - reads standard input.
    """
    addresses = Addresses(url, field="URL")
    url = ",".join(one.url for one in addresses.all)
    token = _asked(token_file)
    me = _known_at_all(addresses, token)
    name = name or addresses.all[0].host
    for one in addresses.all:
        if not one.is_secure and not _is_loopback(one.host):
            output.note(f"{one.url} is not encrypted: every host on the way can read the token")
    saved = settings.load()
    controllers = saved.controllers | {name: SavedController(url=url, token=token)}
    settings.save(SavedControllers(current=name, controllers=controllers))
    output.emit(f"logged in to {name} ({url}) as {me.name} (role {me.role}){_until(me)}")
    return 0


def _known_at_all(addresses: Addresses, token: str) -> CallerView:
    """Return the user of the token, who must be the same everywhere. An address that is away is
    told, as long as another one answers. Raises ApiError, ConnectionLost, CliError."""
    known: CallerView | None = None
    lost: ConnectionLost | None = None
    for address in addresses.all:
        try:
            me = decode(ControllerClient(address.url, token).get(_ME), CallerView)
        # One of several addresses may be a controller that is being replaced: the others still log
        # in.
        except ConnectionLost as error:
            if not addresses.are_several:
                raise
            lost = error
            output.note(f"{address.url} is saved, but it is not a controller now: {error.why}")
        except NotLoggedIn as error:
            if not addresses.are_several:
                raise
            raise CliError(
                f"{address.url} does not know the token ({error}): give only URLs of controllers "
                "that share a database"
            ) from None
        else:
            known = known or me
    if known is None:
        assert lost is not None, "there is at least one address"
        raise lost
    return known


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
        The controller's name, as the list shows it.
    """
    saved = settings.load()
    if name is not None:
        settings.named(saved, name)
        saved = SavedControllers(current=name, controllers=saved.controllers)
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
    # A host name, and not an address.
    except ValueError:
        return host == "localhost"
