"""The verdict on a host before anything is changed there: a function of facts alone."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from controller.commands.hosts.preflight import (
    FACTS_SCRIPT,
    BadFacts,
    Facts,
    HostFinding,
    Level,
    Wish,
    changes,
    errors,
    preflight,
    read_facts,
)

GIB = 1 << 20
GOOD = Facts(
    clock=1000.0,
    uid=0,
    arch="x86_64",
    kernel="6.1",
    os_id="debian",
    os_name="Debian 12",
    systemd="yes",
    cgroup="2",
    disk_opt=50 * GIB,
    disk_data=50 * GIB,
    memory=64 * GIB,
    cpus=8,
    nft="yes",
    docker="28.0.1",
    sshd_includes="yes",
    ssh_ports="22",
)
WISH = Wish(version="0.2", arch="amd64", docker="install", now=1000.0, has_root=True)


def found(level: Level, wish: Wish = WISH, /, **facts: object) -> list[HostFinding]:
    told = preflight(msgspec.structs.replace(GOOD, **facts), wish)
    return [finding for finding in told if finding.level is level]


def wanting(**more: object) -> Wish:
    return msgspec.structs.replace(WISH, **more)


def test_a_good_host_has_one_change_and_nothing_to_repair() -> None:
    told = preflight(GOOD, WISH)
    assert errors(told) == []
    assert len(changes(told)) == 1
    assert "/opt/fairlead" in changes(told)[0]
    assert found(Level.WARNING) == []


@pytest.mark.parametrize(
    ("facts", "subject", "fix"),
    [
        ({"systemd": ""}, "system", "boots with it"),
        ({"arch": "aarch64"}, "architecture", "bundle for aarch64"),
        ({"docker": "unreachable"}, "docker", "systemctl start docker"),
        ({"disk_opt": 1000}, "disk", "1.0 GiB free in /opt"),
        ({"disk_data": 1000}, "disk", "free in /var/lib"),
        ({"clock": 1061.0}, "clock", "timedatectl"),
        ({"sshd_includes": ""}, "sshd", "Include /etc/ssh/sshd_config.d"),
        ({"allow_users": "root anna"}, "sshd", "AllowUsers"),
        ({"allow_groups": "staff"}, "sshd", "AllowGroups"),
        ({"tunnel_group": "users"}, "sshd", "rename that user"),
        ({"nft": ""}, "firewall", "nftables"),
        ({"installed": "0.1"}, "fairlead", "--upgrade"),
    ],
)
def test_each_error_of_a_host_has_a_fix(facts: dict[str, object], subject: str, fix: str) -> None:
    (error,) = found(Level.ERROR, **facts)
    assert error.subject == subject
    assert fix in (error.fix or "")


@pytest.mark.parametrize(
    ("facts", "subject", "message"),
    [
        ({"os_id": "arch"}, "system", "not Debian"),
        ({"cgroup": ""}, "system", "version 1"),
        ({"gpus": 8}, "GPU", "8 NVIDIA GPUs without a driver"),
        ({"gpus": 1, "driver": "550.1"}, "toolkit", "is missing"),
        ({"gpus": 1, "driver": "550.1", "toolkit": "1.17.8"}, "toolkit", "CVE-2026-24260"),
        ({"clock": 1010.0}, "clock", "10 s off"),
        ({"disk_data": 5 * GIB}, "disk", "5.0 GiB free"),
        ({"docker": "20.10.24"}, "docker", "20.10.24"),
        ({"allow_users": "root fairlead"}, "sshd", "excludes gateways"),
    ],
)
def test_a_finding_that_keeps_no_host_from_being_a_node_is_a_warning(
    facts: dict[str, object], subject: str, message: str
) -> None:
    (warning,) = found(Level.WARNING, **facts)
    assert warning.subject == subject
    assert message in warning.message
    assert warning.fix


def test_a_host_with_secure_boot_is_told_what_that_means_for_its_driver() -> None:
    (warning,) = found(Level.WARNING, gpus=8, secure_boot="1")
    assert "Secure Boot must be off" in (warning.fix or "")
    assert found(Level.WARNING, gpus=8, secure_boot="1", driver="580.1", toolkit="1.19.1") == []


def test_a_host_like_rhel_with_gpus_is_good() -> None:
    facts: dict[str, object] = {"os_id": "rocky", "os_like": "rhel centos fedora", "gpus": 8}
    facts |= {"driver": "550.1", "toolkit": "1.19.1"}
    assert found(Level.ERROR, **facts) == []
    assert found(Level.WARNING, **facts) == []


def test_without_docker_it_is_installed_required_or_done_without() -> None:
    assert "installs Docker" in found(Level.CHANGE, docker="")[0].message
    assert found(Level.ERROR, wanting(docker="use"), docker="")[0].subject == "docker"
    (warning,) = found(Level.WARNING, wanting(docker="none"), docker="")
    assert "without isolation" in warning.message


def test_a_host_whose_packages_have_no_docker_is_refused_before_the_upload() -> None:
    facts: dict[str, object] = {"docker": "", "docker_refused": "no package 'docker.io'"}
    (error,) = found(Level.ERROR, **facts)
    assert error.message == "the system's packages have no Docker: no package 'docker.io'"
    assert "apt-get update" in (error.fix or "")
    assert found(Level.ERROR, wanting(docker="none"), **facts) == []


def test_the_script_asks_apt_whether_it_could_install_docker(tmp_path: Path) -> None:
    apt = tmp_path / "apt-get"
    apt.write_text('#!/bin/sh\nfor last; do :; done\necho "E: no package $last" >&2\nexit 100\n')
    apt.chmod(0o755)
    script = FACTS_SCRIPT.replace("/var/lib/apt/lists", str(tmp_path))
    script = script.replace("has docker || has dockerd", "false")
    path = f"{tmp_path}:{os.environ['PATH']}"
    assert "docker_refused" not in said_by(script, PATH=path)
    (tmp_path / "a_Packages.lz4").touch()
    assert "docker_refused=no package docker.io\n" in said_by(script, PATH=path)


def said_by(script: str, **env: str) -> str:
    return subprocess.run(
        ["sh"], input=script, env=os.environ | env, capture_output=True, text=True, check=True
    ).stdout


def test_podman_is_required_where_it_is_asked_for_and_docker_is_not() -> None:
    wish = wanting(docker="podman")
    assert found(Level.ERROR, wish, docker="")[0].fix == "install the packages podman, netavark"
    assert found(Level.ERROR, wish, docker="", podman="4.3.1") == []
    assert "3.4.4 was not tried" in found(Level.WARNING, wish, podman="3.4.4")[0].message


def test_what_is_not_said_about_docker_stays_as_it_was_said_before() -> None:
    silent = wanting(docker=None)
    assert "installs Docker" in found(Level.CHANGE, silent, docker="")[0].message
    (warning,) = found(Level.WARNING, silent, docker="", chosen="none")
    assert "plain processes" in warning.message
    (error,) = found(Level.ERROR, silent, docker="", chosen="use")
    assert "Docker is not installed" in error.message


def test_the_node_of_another_controller_is_refused_and_taken_over_with_a_warning() -> None:
    ours, facts = wanting(controller="SHA256:ours"), {"controllers": "SHA256:theirs"}
    (error,) = found(Level.ERROR, ours, **facts)
    assert (error.subject, "SHA256:theirs" in error.message) == ("controller", True)
    assert "--takeover" in (error.fix or "")
    taken = msgspec.structs.replace(ours, takeover=True)
    assert found(Level.ERROR, taken, **facts) == []
    for wish, fingerprints in ((taken, "SHA256:theirs"), (ours, "SHA256:theirs SHA256:ours")):
        (warning,) = found(Level.WARNING, wish, controllers=fingerprints)
        assert "as if it were alone" in warning.message
    assert found(Level.WARNING, ours, controllers="SHA256:ours") == []


def test_a_full_var_tmp_is_named_before_anything_is_uploaded() -> None:
    (error,) = found(Level.ERROR, disk_tmp=10)
    assert (error.subject, "/var/tmp has 0.0 GiB free" in error.message) == ("disk", True)
    assert found(Level.ERROR, disk_tmp=10, installed="0.2") == []


def test_docker_is_installed_on_debian_and_ubuntu_alone() -> None:
    assert found(Level.CHANGE, docker="", os_id="mint", os_like="ubuntu debian")
    (error,) = found(Level.ERROR, docker="", os_id="rocky", os_like="rhel centos fedora")
    assert "docker-ce" in (error.fix or "")


def test_a_user_without_root_is_refused() -> None:
    (error,) = found(Level.ERROR, wanting(has_root=False))
    assert (error.subject, "sudoers" in (error.fix or "")) == ("rights", True)


def test_the_same_bundle_again_changes_nothing() -> None:
    assert found(Level.CHANGE, installed="0.2") == []


def test_another_version_is_replaced_when_that_is_wished() -> None:
    (change,) = found(Level.CHANGE, wanting(upgrade=True), installed="0.1")
    assert change.message == "replaces version 0.1 by 0.2"


def test_the_script_finds_out_all_that_is_judged() -> None:
    facts = read_facts(said_by(FACTS_SCRIPT))
    assert facts.cpus > 0
    assert facts.memory > 0
    assert facts.disk_data > 0
    assert facts.disk_tmp
    assert facts.arch
    assert preflight(facts, WISH)


@pytest.mark.parametrize(
    "said", ["", "clock=1\nuid=0\n", "clock=soon\nuid=0\nfacts=complete\n", "facts=complete\n"]
)
def test_an_answer_that_is_cut_off_or_strange_is_refused(said: str) -> None:
    with pytest.raises(BadFacts):
        read_facts(said)


def test_lines_that_a_login_prints_are_no_facts() -> None:
    assert read_facts("Welcome = here\nclock=1\nuid=0\nfacts=complete\n").uid == 0
