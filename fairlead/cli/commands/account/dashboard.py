"""`fairlead dashboard`: open the controller's pages in a browser, logged in."""

from __future__ import annotations

import webbrowser
from typing import Annotated

from cyclopts import Parameter

from fairlead import settings
from fairlead.cli import output
from fairlead.documents.accounts import LoginLinkView
from fairlead.rest import decode


def dashboard(*, print_: Annotated[bool, Parameter(name="--print", negative=())] = False) -> int:
    """Open the dashboard in a browser, logged in with your token by a link that works once.

    Parameters
    ----------
    print_
        Show the link and open no browser.
    """
    client = settings.client()
    link = decode(client.post("/v1/me/login-link", {}), LoginLinkView)
    address = f"{client.url}{link.path}"
    if not print_ and webbrowser.open(address):
        output.note(f"opened the dashboard of {client.url}")
        return 0
    output.emit(address)
    output.note("the link works once, within two minutes")
    return 0
