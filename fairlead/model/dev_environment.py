"""The nouns of a dev environment as immutable values, and the service of an IDE in the browser."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from fairlead.model.service import ReplicaGroup, ServicePolicy


class Ide(StrEnum):
    VSCODE = "vscode"
    CURSOR = "cursor"
    WINDSURF = "windsurf"
    ZED = "zed"
    JUPYTER = "jupyter"
    CODE_SERVER = "code-server"


BROWSER_PORTS = {Ide.JUPYTER: 8888, Ide.CODE_SERVER: 8443}
"""The IDEs that open in the browser, and the ports on which they listen in the job."""
GROUP = "main"


class DevEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """`ide` None: it is reached by SSH alone. `folder`: where an IDE opens. `inactivity_duration`:
    seconds without any use after which the run is stopped; None: never."""

    ide: Ide | None = None
    folder: str
    inactivity_duration: float | None = None


def browser_service(wanted: DevEnvironment | None) -> ServicePolicy | None:
    """Return the service that the proxy offers for the IDE; None: it does not open in the browser.

    JupyterLab knows the prefix of its URLs; code-server's links are relative.
    """
    if wanted is None or wanted.ide not in BROWSER_PORTS:
        return None
    return ServicePolicy(
        port=BROWSER_PORTS[wanted.ide],
        groups=(ReplicaGroup(name=GROUP),),
        strip_prefix=wanted.ide is not Ide.JUPYTER,
    )
