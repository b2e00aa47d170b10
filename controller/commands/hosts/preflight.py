"""Judges, from a host's facts alone, whether it can become a node and what would change.

`facts.sh` collects the facts; nothing here touches a host.
"""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Literal

import msgspec

FACTS_SCRIPT = (Path(__file__).parent / "facts.sh").read_text()
DockerChoice = Literal["install", "use", "podman", "none"]
_MIN_OPT = 1 << 20
_MIN_DATA = 1 << 20
_ADVISED_DATA = 20 << 20
_MIN_TMP = 1 << 19
"""KiB."""
_MAX_CLOCK_OFF = 60.0
_ADVISED_CLOCK_OFF = 5.0
_MIN_TOOLKIT = (1, 19, 1)
_TOOLKIT_FAULT = "CVE-2026-24260, a race by which a container gains rights on the node"
_MIN_DOCKER = (25,)
_MIN_PODMAN = (4, 3)
_UNREACHABLE = "unreachable"
"""Instead of Docker's version: its client is there, and its engine does not answer."""
_ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
_WITH_APT = frozenset({"debian", "ubuntu"})
_FAMILIES = ("debian", "ubuntu", "rhel", "fedora", "centos")


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The host's facts. Sizes are in KiB; an empty string means that there is none."""

    clock: float
    uid: int
    arch: str = ""
    kernel: str = ""
    os_id: str = ""
    os_like: str = ""
    os_name: str = ""
    systemd: str = ""
    cgroup: str = ""
    disk_opt: int = 0
    disk_data: int = 0
    disk_tmp: int | None = None
    """Of /var/tmp, where a bundle is uploaded and unpacked."""
    memory: int = 0
    cpus: int = 0
    nft: str = ""
    docker: str = ""
    docker_refused: str = ""
    """Why the system's packages have no Docker; empty: they have it, or that is not known."""
    podman: str = ""
    gpus: int = 0
    driver: str = ""
    secure_boot: str = ""
    """1: the firmware loads only modules whose keys it knows."""
    toolkit: str = ""
    allow_users: str = ""
    allow_groups: str = ""
    ssh_ports: str = ""
    sshd_includes: str = ""
    tunnel_group: str = ""
    shim: str = ""
    installed: str = ""
    """The version in /opt/fairlead/current."""
    chosen: str = ""
    """What the last installation was told about Docker."""
    controllers: str = ""
    """Fingerprints of the controllers that may log in."""


class BadFacts(ValueError):
    """The script did not reach its end on the host."""


def read_facts(text: str) -> Facts:
    """Return the facts. Raises BadFacts."""
    found = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    if found.pop("facts", None) != "complete":
        raise BadFacts("the host gave no answer to the questions; does it have /bin/sh?")
    filled = {name: value.strip() for name, value in found.items() if value.strip()}
    try:
        return msgspec.convert(filled, Facts, strict=False)
    except msgspec.ValidationError as error:
        raise BadFacts(f"the host gave an unexpected answer: {error}") from None


class Level(StrEnum):
    OK = "ok"
    CHANGE = "change"
    """A change that an installation will make."""
    WARNING = "warning"
    ERROR = "error"
    """A fault that must be repaired first."""


class HostFinding(msgspec.Struct, frozen=True, kw_only=True):
    subject: str
    level: Level
    message: str
    fix: str | None = None


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """The wanted state of the host. `version` names the bundle's content; `now` is the Unix time
    when the host's clock was read."""

    version: str
    arch: str
    docker: DockerChoice | None
    """None: as the last installation was told; at the first one, Docker is installed."""
    now: float
    has_root: bool
    upgrade: bool = False
    controller: str | None = None
    """The fingerprint of the key that is to log in; None: no other one than before."""
    takeover: bool = False


def preflight(facts: Facts, wish: Wish) -> list[HostFinding]:
    """Return one finding for each subject, in reading order."""
    return [
        _system(facts),
        _architecture(facts, wish),
        _rights(wish),
        _docker(facts, wish),
        _disk(facts, wish),
        *_gpus(facts),
        _clock(facts, wish),
        _sshd(facts),
        _firewall(facts),
        _fairlead(facts, wish),
        *_controllers(facts, wish),
    ]


def docker_choice(facts: Facts, wish: Wish) -> str:
    return wish.docker or facts.chosen or "install"


def is_installed(facts: Facts, wish: Wish) -> bool:
    """Return whether this very bundle is installed: its version names its content."""
    return facts.installed == wish.version


def changes(findings: list[HostFinding]) -> list[str]:
    return [finding.message for finding in findings if finding.level is Level.CHANGE]


def errors(findings: list[HostFinding]) -> list[HostFinding]:
    return [finding for finding in findings if finding.level is Level.ERROR]


def _ok(subject: str, message: str) -> HostFinding:
    return HostFinding(subject=subject, level=Level.OK, message=message)


def _error(subject: str, message: str, fix: str) -> HostFinding:
    return HostFinding(subject=subject, level=Level.ERROR, message=message, fix=fix)


def _warning(subject: str, message: str, fix: str) -> HostFinding:
    return HostFinding(subject=subject, level=Level.WARNING, message=message, fix=fix)


def _change(subject: str, message: str) -> HostFinding:
    return HostFinding(subject=subject, level=Level.CHANGE, message=message)


def _system(facts: Facts) -> HostFinding:
    name = facts.os_name or facts.os_id or "an unknown system"
    if not facts.systemd:
        return _error("system", f"{name} does not run systemd", "use a host that boots with it")
    if not facts.cgroup:
        return _warning(
            "system",
            f"{name} uses cgroups of version 1",
            "boot it with systemd.unified_cgroup_hierarchy=1",
        )
    if not {facts.os_id, *facts.os_like.split()} & set(_FAMILIES):
        return _warning(
            "system",
            f"{name} is not Debian, Ubuntu or similar to RHEL; it may work",
            "try it with one host first",
        )
    return _ok("system", f"{name}, kernel {facts.kernel}")


def _architecture(facts: Facts, wish: Wish) -> HostFinding:
    has, needs = (_ARCHITECTURES.get(arch, arch) for arch in (facts.arch, wish.arch))
    if has != needs:
        return _error(
            "architecture",
            f"the host is {has}, the bundle is for {needs}",
            f"give a bundle for {has} (--bundle)",
        )
    return _ok("architecture", f"{has}, {facts.cpus} CPUs, {facts.memory >> 20} GiB of memory")


def _rights(wish: Wish) -> HostFinding:
    if wish.has_root:
        return _ok("rights", "root")
    return _error(
        "rights",
        "the user is not root and sudo asks for a password",
        "log in as root, or give the user a NOPASSWD rule in /etc/sudoers.d",
    )


def _docker(facts: Facts, wish: Wish) -> HostFinding:
    choice = docker_choice(facts, wish)
    if choice == "none":
        return _warning(
            "docker",
            "no engine is used: jobs are plain processes, without isolation",
            "leave out --docker none",
        )
    if choice == "podman":
        return _podman(facts)
    if not facts.docker:
        if choice == "install" and not {facts.os_id, *facts.os_like.split()} & _WITH_APT:
            return _error(
                "docker",
                "Docker is installed automatically only on Debian and Ubuntu",
                "install docker-ce, then give --docker use",
            )
        if choice == "install" and facts.docker_refused:
            return _error(
                "docker",
                f"the system's packages have no Docker: {facts.docker_refused}",
                "run apt-get update there, add a package repository that has docker.io, or install "
                "an engine and give --docker use",
            )
        if choice == "install":
            return _change("docker", "installs Docker from the system's packages")
        return _error("docker", "Docker is not installed", "install it, or give --docker install")
    if facts.docker == _UNREACHABLE:
        return _error("docker", "Docker does not answer", "start it: systemctl start docker")
    if _version(facts.docker) < _MIN_DOCKER:
        return _warning(
            "docker", f"Docker {facts.docker} gives GPUs only by its old hook", "use Docker 25"
        )
    return _ok("docker", f"Docker {facts.docker}")


def _podman(facts: Facts) -> HostFinding:
    if not facts.podman:
        return _error("podman", "Podman is not installed", "install the packages podman, netavark")
    if _version(facts.podman) < _MIN_PODMAN:
        return _warning("podman", f"Podman {facts.podman} was not tried", "use Podman 4.3 or newer")
    return _ok("podman", f"Podman {facts.podman}")


def _disk(facts: Facts, wish: Wish) -> HostFinding:
    filesystems = [("/opt", facts.disk_opt, _MIN_OPT), ("/var/lib", facts.disk_data, _MIN_DATA)]
    if facts.disk_tmp is not None and not is_installed(facts, wish):
        filesystems.append(("/var/tmp", facts.disk_tmp, _MIN_TMP))
    for path, free, least in filesystems:
        if free < least:
            return _error(
                "disk", f"{path} has {_gib(free)} free", f"make {_gib(least)} free in {path}"
            )
    if facts.disk_data < _ADVISED_DATA:
        return _warning(
            "disk",
            f"/var/lib has {_gib(facts.disk_data)} free, for images and logs",
            f"make {_gib(_ADVISED_DATA)} free, or mount a disk there",
        )
    return _ok("disk", f"{_gib(facts.disk_data)} free in /var/lib")


def _gpus(facts: Facts) -> list[HostFinding]:
    if not facts.gpus:
        return [_ok("GPU", "no NVIDIA GPU")]
    named = f"{facts.gpus} NVIDIA GPU" + ("s" if facts.gpus > 1 else "")
    if not facts.driver:
        secure = "; Secure Boot must be off, or know the key that signs it"
        return [
            _warning(
                "GPU",
                f"{named} without a driver, so no job gets one",
                "install NVIDIA's driver and run this again"
                + (secure if facts.secure_boot == "1" else ""),
            )
        ]
    found = [_ok("GPU", f"{named}, driver {facts.driver}")]
    if not facts.toolkit:
        found.append(
            _warning(
                "toolkit",
                "the NVIDIA container toolkit is missing: images must have the driver's files",
                f"install nvidia-container-toolkit {_dotted(_MIN_TOOLKIT)} or newer",
            )
        )
    elif _version(facts.toolkit) < _MIN_TOOLKIT:
        found.append(
            _warning(
                "toolkit",
                f"NVIDIA container toolkit {facts.toolkit} has {_TOOLKIT_FAULT}",
                f"update nvidia-container-toolkit to {_dotted(_MIN_TOOLKIT)} or newer",
            )
        )
    else:
        found.append(_ok("toolkit", f"NVIDIA container toolkit {facts.toolkit}"))
    return found


def _clock(facts: Facts, wish: Wish) -> HostFinding:
    off = abs(facts.clock - wish.now)
    message = f"the clock is {off:.0f} s off from this machine's"
    fix = "set it by NTP: timedatectl set-ntp true"
    if off > _MAX_CLOCK_OFF:
        return _error("clock", message, fix)
    return _warning("clock", message, fix) if off > _ADVISED_CLOCK_OFF else _ok("clock", message)


def _sshd(facts: Facts) -> HostFinding:
    if not facts.sshd_includes:
        return _error(
            "sshd",
            "/etc/ssh/sshd_config does not include /etc/ssh/sshd_config.d",
            "put `Include /etc/ssh/sshd_config.d/*.conf` at its beginning",
        )
    if facts.allow_users and "fairlead" not in facts.allow_users.split():
        return _error(
            "sshd",
            f"AllowUsers ({facts.allow_users}) excludes the controller",
            "add fairlead, fairlead-jump and fairlead-gateway to AllowUsers",
        )
    if facts.allow_users and "fairlead-gateway" not in facts.allow_users.split():
        return _warning(
            "sshd",
            f"AllowUsers ({facts.allow_users}) excludes gateways",
            "add fairlead-gateway to AllowUsers, if services have a gateway",
        )
    if facts.allow_groups and "fairlead" not in facts.allow_groups.split():
        return _error(
            "sshd",
            f"AllowGroups ({facts.allow_groups}) excludes the controller",
            "add fairlead, and fairlead-gateway for gateways, to AllowGroups",
        )
    if facts.tunnel_group and facts.tunnel_group != "fairlead":
        return _error(
            "sshd",
            f"the user fairlead is of group {facts.tunnel_group}, and no rule would hold it",
            "remove or rename that user",
        )
    ports = facts.ssh_ports or "22"
    return _ok("ports", f"sshd on {ports}; Fairlead opens no other")


def _firewall(facts: Facts) -> HostFinding:
    if facts.nft:
        return _ok("firewall", "nftables is installed")
    return _error(
        "firewall",
        "nft is not installed, so the tunnel user could open network connections",
        "install the package nftables",
    )


def _fairlead(facts: Facts, wish: Wish) -> HostFinding:
    if is_installed(facts, wish):
        return _ok("fairlead", f"version {wish.version} is there; only what differs changes")
    if not facts.installed:
        return _change(
            "fairlead",
            f"puts version {wish.version} into /opt/fairlead, with the users fairlead, "
            "fairlead-jump and fairlead-gateway, their sshd rules, a firewall table and the "
            "service fairlead-shim",
        )
    if not wish.upgrade:
        return _error(
            "fairlead",
            f"version {facts.installed} is installed, this bundle is {wish.version}",
            "give --upgrade; running jobs go on",
        )
    return _change("fairlead", f"replaces version {facts.installed} by {wish.version}")


def _controllers(facts: Facts, wish: Wish) -> list[HostFinding]:
    others = [each for each in facts.controllers.split() if each != wish.controller]
    if wish.controller is None or not others:
        return []
    whose = f"another controller has this host as its node ({', '.join(others)} may log in)"
    if wish.controller in facts.controllers.split() or wish.takeover:
        return [
            _warning(
                "controller",
                f"{whose}: each places jobs here as if it were alone, and shows the other's as "
                "unknown tasks",
                "take one of them away: on the host, `/opt/fairlead/current/install "
                "--revoke-others --tunnel-key KEY`",
            )
        ]
    return [
        _error(
            "controller",
            whose,
            "remove the node there (`fairlead node install HOST --uninstall`), or give --takeover: "
            "then both have it",
        )
    ]


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _gib(kib: int) -> str:
    return f"{kib / (1 << 20):.1f} GiB"
