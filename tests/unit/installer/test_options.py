"""The operator's options are checked in words, and kept where they are not named again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from installer.options import Docker, JobMetadata, Options, load, merge
from installer.system import InstallError

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA controller"
OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAB another"


def merged(before: Options | None = None, has_docker: bool = True, **wishes: Any) -> Options:
    nothing = {"docker": None, "tunnel_keys": (), "volume_prefixes": (), "registry_mirror": None}
    return merge(before, has_docker=has_docker, **{**nothing, **wishes})


def test_an_option_that_is_not_named_keeps_its_earlier_value() -> None:
    first = merged(tunnel_keys=[KEY], volume_prefixes=["/data"], registry_mirror="https://m")
    assert merged(first) == first
    assert merged(first, volume_prefixes=["/srv"]).volume_prefixes == ("/srv",)
    assert merged(first, volume_prefixes=["/srv"]).tunnel_keys == (KEY,)


def test_the_file_of_keys_counts_where_it_differs_from_the_last_wish() -> None:
    first = merged(tunnel_keys=[KEY])
    assert merged(first, standing_keys=[OTHER]).tunnel_keys == (OTHER,)
    assert merged(first, standing_keys=[]).tunnel_keys == ()
    assert merged(standing_keys=None).tunnel_keys is None


def test_a_second_controller_is_refused_with_the_key_of_the_first() -> None:
    with pytest.raises(InstallError, match=r"SHA256:\S+ \(controller\) may log in.*--takeover"):
        merged(standing_keys=[KEY], tunnel_keys=[OTHER])
    renamed = KEY.replace(" controller", " the same key")
    assert merged(standing_keys=[KEY], tunnel_keys=[renamed]).tunnel_keys == (KEY,)


def test_a_takeover_lets_both_in_and_a_repetition_by_either_keeps_both() -> None:
    both = merged(standing_keys=[KEY], tunnel_keys=[OTHER], takeover=True).tunnel_keys
    assert both == (KEY, OTHER)
    for key in both:
        assert merged(standing_keys=both, tunnel_keys=[key]).tunnel_keys == both


def test_others_lose_their_access_only_by_name_of_those_who_keep_it() -> None:
    assert merged(standing_keys=[KEY], tunnel_keys=[OTHER], revoke_others=True).tunnel_keys == (
        OTHER,
    )
    with pytest.raises(InstallError, match="name with --tunnel-key who may log in"):
        merged(standing_keys=[KEY], revoke_others=True)


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"tunnel_keys": ["AAAA"]}, "--tunnel-key"),
        ({"tunnel_keys": [f"{KEY}\ncommand=x"]}, "--tunnel-key"),
        ({"tunnel_keys": [f'command="x" {KEY}']}, "--tunnel-key"),
        ({"volume_prefixes": ["data"]}, "--volume-prefix"),
        ({"volume_prefixes": ["/data/../etc"]}, "--volume-prefix"),
        ({"volume_prefixes": ["/data --allow-privileged"]}, "--volume-prefix"),
        ({"registry_mirror": "mirror"}, "--registry-mirror"),
    ],
)
def test_a_wish_that_cannot_be_granted_names_its_option(wishes: Any, words: str) -> None:
    with pytest.raises(InstallError, match=words):
        merged(**wishes)


def test_without_an_engine_the_operator_has_to_choose() -> None:
    with pytest.raises(InstallError, match=r"--docker install .* --engine process"):
        merged(has_docker=False)
    assert merged(has_docker=False, docker="none").docker is Docker.NONE


def test_an_engine_that_was_here_before_is_used_and_not_made_ours() -> None:
    assert merged(has_docker=True, docker="install").docker is Docker.USE
    ours = merged(has_docker=False, docker="install")
    assert merged(ours, has_docker=True, docker="install").docker is Docker.INSTALL


def test_the_shim_gets_its_options_from_the_wishes() -> None:
    wishes = merged(docker="none", volume_prefixes=["/a", "/b"])
    assert wishes.shim_options().endswith("--engine process --volume-prefix /a --volume-prefix /b")


def test_a_damaged_file_of_wishes_is_named(tmp_path: Path) -> None:
    assert load(tmp_path / "install.json") is None
    (tmp_path / "install.json").write_text("{")
    with pytest.raises(InstallError, match=r"install\.json"):
        load(tmp_path / "install.json")


def test_the_metadata_service_is_closed_to_jobs_until_the_operator_opens_it() -> None:
    assert merged().job_metadata is JobMetadata.CLOSED
    opened = merged(job_metadata="open")
    assert merged(opened).job_metadata is JobMetadata.OPEN
    assert merged(opened, job_metadata="closed").job_metadata is JobMetadata.CLOSED


@pytest.mark.parametrize(("docker", "engine"), [("podman", "podman"), ("none", "process")])
def test_a_node_without_docker_tells_its_shim_which_engine_it_has(docker: str, engine: str) -> None:
    wanted = merged(has_docker=False, docker=docker)
    assert wanted.shim_options().endswith(f"--engine {engine}")
    assert merged(wanted).docker is Docker(docker)
