"""Finds out who this data folder was, when its own record of that is lost.

The containers know: their labels name the install, and their mounts lie in the data folder.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import docker
import docker.errors
import requests.exceptions

from shim.engines.docker_errors import unreachable

_INSTALL = "fairlead.install"
_CALL_SECONDS = 60


def find_install(data: Path) -> str | None:
    """Blocking. Raises EngineUnavailable: without the engine nobody can tell."""
    url = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    try:
        api = docker.APIClient(base_url=url, version="auto", timeout=_CALL_SECONDS)
        try:
            found = api.containers(all=True, filters={"label": _INSTALL})
        finally:
            api.close()
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        raise unreachable(url, error) from None
    installs = {one["Labels"][_INSTALL] for one in found if _is_mounted_from(one, data)}
    return min(installs, default=None)


def _is_mounted_from(container: dict[str, Any], data: Path) -> bool:
    return any(
        str(mount.get("Source", "")).startswith(f"{data}/tasks/")
        for mount in container.get("Mounts") or ()
    )
