"""The options of a container on a node, and the user it starts as."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.wire.container_rules import CAPABILITIES, HARMLESS
from fairlead.wire.errors import Refused
from fairlead.wire.shim import ContainerOptions, Ulimit
from shim import options
from shim.admission import container_rules
from shim.errors import StartError


def refusal(allow: bool = False, **fields: Any) -> tuple[int, str | None]:
    with pytest.raises(Refused) as caught:
        container_rules.check_options(ContainerOptions(**fields), allow_privileged=allow)
    return caught.value.status, caught.value.field


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"privileged": True}, "container.privileged"),
        ({"cap_add": ("SYS_ADMIN",)}, "container.cap_add"),
        ({"cap_add": ("ALL",)}, "container.cap_add"),
    ],
)
def test_root_of_the_node_is_given_only_where_its_operator_allows_it(
    fields: dict[str, Any], field: str
) -> None:
    assert refusal(**fields) == (403, field)
    container_rules.check_options(ContainerOptions(**fields), allow_privileged=True)


def test_harmless_wishes_are_granted_everywhere() -> None:
    wishes = ContainerOptions(
        cap_add=("SYS_PTRACE", "IPC_LOCK"),
        cap_drop=("ALL",),
        ulimits=(Ulimit(name="memlock", soft=-1, hard=-1), Ulimit(name="nofile", soft=1, hard=2)),
        pids_limit=8,
        read_only_root=True,
    )
    container_rules.check_options(wishes, allow_privileged=False)
    assert HARMLESS < CAPABILITIES


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"cap_add": ("SYS_MAGIC",)}, "container.cap_add"),
        ({"cap_drop": ("SYS_MAGIC",)}, "container.cap_drop"),
        ({"ulimits": (Ulimit(name="magic", soft=1, hard=1),)}, "container.ulimits"),
        ({"ulimits": (Ulimit(name="nofile", soft=2, hard=1),)}, "container.ulimits"),
        ({"ulimits": (Ulimit(name="nofile", soft=-1, hard=1),)}, "container.ulimits"),
        ({"ulimits": (Ulimit(name="nofile", soft=1, hard=10**30),)}, "container.ulimits"),
        ({"pids_limit": 7}, "container.pids_limit"),
        ({"pids_limit": 10**30}, "container.pids_limit"),
    ],
)
def test_an_option_that_no_node_could_give_is_refused_also_where_all_is_allowed(
    fields: dict[str, Any], field: str
) -> None:
    assert refusal(allow=True, **fields) == (400, field)


@pytest.mark.parametrize(
    ("given", "of_image", "first"),
    [
        (ContainerOptions(), "anna", "0:0"),
        (ContainerOptions(user="ben", cap_drop=("NET_RAW",)), "anna", "0:0"),
        (ContainerOptions(user="ben", cap_drop=("ALL",)), "anna", "ben"),
        (ContainerOptions(cap_drop=("SETUID",)), "anna", "anna"),
        (ContainerOptions(cap_drop=("SETGID",)), "", "0:0"),
    ],
)
def test_a_container_that_cannot_change_users_starts_as_the_jobs(
    given: ContainerOptions, of_image: str, first: str
) -> None:
    assert container_rules.first_user(given, of_image) == first


def test_proxies_are_handed_on_in_both_spellings() -> None:
    environment = {"http_proxy": "http://p:1", "NO_PROXY": "localhost", "PATH": "/bin"}
    assert options.proxy_variables(environment) == {
        "HTTP_PROXY": "http://p:1",
        "http_proxy": "http://p:1",
        "NO_PROXY": "localhost",
        "no_proxy": "localhost",
    }


def test_a_proxys_password_is_handed_to_nobody() -> None:
    with pytest.raises(StartError, match="HTTPS_PROXY contains a password") as caught:
        options.proxy_variables({"HTTPS_PROXY": "http://me:hunter2@p:1"})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("text", ["90", "70:90", "x:1", "101:5", "-1:0"])
def test_marks_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(StartError, match="--image-gc"):
        options.watermarks(text)


def test_marks_are_percent() -> None:
    assert (options.watermarks("90:70"), options.watermarks("off")) == ((0.9, 0.7), None)


@pytest.mark.parametrize("text", ["mnt", "/mnt/../etc"])
def test_prefixes_that_are_no_places_are_refused(text: str) -> None:
    with pytest.raises(StartError, match="--volume-prefix"):
        options.volume_prefixes([text])


@pytest.mark.parametrize(
    ("asked", "variable", "level"),
    [
        (None, None, "INFO"),
        (None, "", "INFO"),
        (None, "debug", "DEBUG"),
        ("error", "debug", "ERROR"),
    ],
)
def test_the_level_of_the_log_is_the_options_else_the_variables(
    asked: str | None, variable: str | None, level: str
) -> None:
    environ = {} if variable is None else {"FAIRLEAD_LOG_LEVEL": variable}
    assert options.log_level(asked, environ) == level


@pytest.mark.parametrize(
    ("asked", "environ", "named"),
    [
        ("loud", {}, "--log-level 'loud'"),
        ("", {"FAIRLEAD_LOG_LEVEL": "debug"}, "--log-level ''"),
        (None, {"FAIRLEAD_LOG_LEVEL": "INFO"}, "FAIRLEAD_LOG_LEVEL 'INFO'"),
    ],
)
def test_a_level_that_is_not_known_is_refused_by_its_source(
    asked: str | None, environ: dict[str, str], named: str
) -> None:
    with pytest.raises(StartError, match=f"^{named}: expected one of debug, info, warning, error$"):
        options.log_level(asked, environ)
