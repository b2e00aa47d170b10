"""What `node install` refuses before it asks or changes a host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from controller.cli.commands.install import install
from controller.cli.errors import EXIT_USAGE, CliError
from controller.cli.hosts.bundle import Bundle
from controller.cli.hosts.connection import HostError, Target
from controller.cli.hosts.install import HostPlan, NodesApi
from fairlead.errors import ApiError
from fairlead.rest import ControllerClient

BUNDLE = Bundle(file=Path("b.tar"), version="1.0", arch="amd64")


class PlayedController(ControllerClient):
    """Answers with one fleet and no node."""

    def get(self, path: str, **params: Any) -> bytes:
        if path != "/v1/fleets":
            raise ApiError(404, "not_found", "there is no such node", "node")
        fleet: dict[str, Any] = {
            "name": "default",
            "placement": None,
            "attributes": {},
            "nodes": [],
        }
        return msgspec.json.encode({"fleets": [fleet]})


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"name": "GPU 1"}, "--name"),
        ({"volume_prefix": ["data"]}, "--volume-prefix"),
        ({"registry_mirror": "ftp://mirror"}, "--registry-mirror"),
        ({"upgrade": True, "uninstall": True}, "--upgrade or --uninstall"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], field: str) -> None:
    with pytest.raises(CliError, match=field) as caught:
        install("root@127.0.0.1:1", **{"name": "n1", **options})
    assert caught.value.exit_status == EXIT_USAGE


def test_a_port_that_is_none_is_named() -> None:
    with pytest.raises(CliError, match=r"target: '10\.0\.0\.5:99999' is not"):
        install("root@10.0.0.5:99999")


def plan(fleet: str | None) -> HostPlan:
    return HostPlan(
        target=Target(host="10.0.0.5"),
        name="n1",
        address=("10.0.0.5", 22),
        host_key="ssh-ed25519 AAAA",
        bundle=BUNDLE,
        fleet=fleet,
    )


def test_a_fleet_that_is_missing_is_told_with_the_command_that_makes_it() -> None:
    api = NodesApi(PlayedController("http://127.0.0.1:1", None))
    assert api.require_joinable(plan("default")) is None
    with pytest.raises(HostError, match="`fairlead fleet add big` makes it"):
        api.require_joinable(plan("big"))
