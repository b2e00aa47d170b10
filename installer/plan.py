"""The parts of a node, in the order in which they are made."""

from __future__ import annotations

import dataclasses
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

import msgspec

from installer import direct, docker
from installer.keys import Keys
from installer.options import Docker, Options
from installer.steps import (
    Command,
    File,
    Folder,
    Group,
    Link,
    NoFile,
    Step,
    Tree,
    Unit,
    User,
    at,
)
from installer.system import InstallError, System, must

HOME = "/opt/fairlead"
OPTIONS = "/etc/fairlead/install.json"
_CURRENT = f"{HOME}/current"
_SNIPPET = "/etc/ssh/sshd_config.d/fairlead.conf"
KEYS = "/etc/ssh/fairlead_authorized_keys"
_ENVIRONMENT = "/etc/fairlead/node.env"
_UNITS = "/etc/systemd/system"
_SYSCTL = "/etc/sysctl.d/60-fairlead.conf"
_SSH_LIMITS = "/etc/security/limits.d/60-fairlead.conf"
_MORE_FILES = """\
# sshd serves all channels of a login in one process, which has the 1024 open files of its unit:
# with 1,019 requests under way to a node, the next ones failed. pam_limits reads this file.
fairlead - nofile 65536
fairlead-gateway - nofile 65536
"""
_SHIM, _FIREWALL = "fairlead-shim.service", "fairlead-firewall.service"
_RULES = {name: f"/etc/fairlead/{name}" for name in ("firewall.nft", "firewall-jobs.nft")}
_PODMAN = "podman.socket"
"""The package's own unit: it starts Podman's service at the first request."""
_CHANGED_RULES = "/etc/fairlead/firewall.d"
_OPENED = f"{_CHANGED_RULES}/job-metadata.nft"
_OPENS = """\
# --job-metadata open: jobs reach the metadata service of a cloud.
flush chain inet fairlead metadata
"""
_ALL_RULES = (*_RULES.values(), _OPENED, direct.RULES)
_JOIN = "fairlead-join.service"
GATEWAY_UNIT = "fairlead-gateway.service"
_OF_USER_DATA = (
    *(f"{_UNITS}/{_JOIN}", "/etc/fairlead/join.json", "/etc/fairlead/join.py"),
    "/etc/fairlead/node.yaml",
)
_SHIM_CHANGES = f"{_UNITS}/{_SHIM}.d"
_LIMITS = f"{_SHIM_CHANGES}/processes.conf"
_NO_LIMITS = """\
# Jobs are processes of this unit: its limits would be theirs, all together.
[Service]
MemoryMax=infinity
TasksMax=infinity
LimitNOFILE=524288
"""
_DATA = "/var/lib/fairlead"
_PROGRAMS = {
    "sshd": "openssh-server",
    "ssh-keygen": "openssh-client",
    "nft": "nftables",
    "useradd": "passwd",
    "systemctl": "systemd",
}


class Manifest(msgspec.Struct, frozen=True):
    version: str
    architecture: str
    machine: str
    runtime: str


def manifest(bundle: Path) -> Manifest:
    return msgspec.json.decode((bundle / "manifest.json").read_bytes(), type=Manifest)


def problems(system: System, options: Options) -> list[str]:
    """Why this machine cannot become a node, with what to do about each."""
    found = []
    if at(system, f"{_UNITS}/{GATEWAY_UNIT}").exists():
        found.append("this machine is a gateway; a node needs a machine of its own")
    missing = [package for name, package in _PROGRAMS.items() if not system.has_program(name)]
    if missing:
        found.append(f"programs are missing; install the packages: {' '.join(missing)}")
    if options.docker is Docker.PODMAN and not system.has_program("podman"):
        found.append("--engine podman: no Podman is here; install the packages podman and netavark")
    if options.gateway_port is not None and not system.has_program("haproxy"):
        found.append("--gateway-port: no HAProxy is here; install the package haproxy")
    if options.docker is Docker.USE and not system.has_program("dockerd"):
        found.append("--docker use: no Docker engine is here; --docker install brings it")
    return found


def steps(bundle: Path, options: Options, *, linked: bool = False) -> list[Step]:
    version = manifest(bundle).version
    return [
        Group("fairlead"),
        User("fairlead", "fairlead", _DATA),
        User("fairlead-jump", "nogroup", "/nonexistent"),
        Folder("/var/lib/fairlead-jump"),
        Group("fairlead-gateway"),
        User("fairlead-gateway", "fairlead-gateway", "/nonexistent"),
        Folder("/var/lib/fairlead-gateway"),
        Folder("/etc/fairlead", is_kept=True),
        Folder(_CHANGED_RULES, is_kept=True),
        *_engine(options),
        Tree(bundle, f"{HOME}/{version}", linked=linked),
        *_files(bundle, options),
        *direct.files(options.gateway_port),
        Current(_CURRENT, version),
        OldVersions(version),
        Link("/usr/local/bin/fairlead-shim", f"{_CURRENT}/bin/fairlead-shim"),
        Command("sshd", "reloaded", frozenset({_SNIPPET}), reload_sshd),
        Command("kernel settings", "loaded", frozenset({_SYSCTL}), _load_kernel_settings),
        Unit(
            _FIREWALL, frozenset({f"{_UNITS}/{_FIREWALL}", *_RULES.values(), _OPENED, direct.RULES})
        ),
        Unit(
            _SHIM,
            frozenset({f"{_UNITS}/{_SHIM}", _LIMITS, _ENVIRONMENT, _CURRENT}),
            lambda system: other_program(system, version),
        ),
        *direct.units(options.gateway_port, _ENVIRONMENT),
    ]


def _engine(options: Options) -> list[Step]:
    if options.docker is Docker.PODMAN:
        return [Unit(_PODMAN, frozenset())]
    if options.docker is Docker.NONE:
        return []
    changed = frozenset({docker.CONFIGURATION})
    settings = docker.EngineSettings(
        docker.settings(options), with_crun=options.docker is Docker.INSTALL
    )
    reload = Command("docker.service", "reloaded", changed, docker.reload_engine)
    if options.docker is not Docker.INSTALL:
        return [settings, reload]
    # A new engine begins with its settings. Its package brings crun, which they then name.
    again = dataclasses.replace(settings, is_undone=False)
    return [settings, docker.EnginePackage(), again, reload]


def _files(bundle: Path, options: Options) -> list[Step]:
    def of_bundle(name: str, target: str) -> Step:
        return File(target, (bundle / "system" / name).read_text())

    keys: list[Step] = []
    if options.tunnel_keys is not None:
        keys.append(Keys(KEYS, options.tunnel_keys))
    written = "# Written by `install`; further options of the shim go into shim.env.\n"
    return [
        File(OPTIONS, msgspec.json.format(msgspec.json.encode(options)).decode() + "\n", 0o600),
        File(_ENVIRONMENT, f"{written}FAIRLEAD_NODE_OPTIONS={options.shim_options()}\n"),
        *keys,
        *(of_bundle(name, target) for name, target in _RULES.items()),
        File(_OPENED, _OPENS) if options.opens_metadata else NoFile(_OPENED),
        of_bundle("sshd_fairlead.conf", _SNIPPET),
        File(_SSH_LIMITS, _MORE_FILES),
        of_bundle("sysctl.conf", _SYSCTL),
        of_bundle(_FIREWALL, f"{_UNITS}/{_FIREWALL}"),
        of_bundle(_SHIM, f"{_UNITS}/{_SHIM}"),
        File(_LIMITS, _NO_LIMITS) if options.docker is Docker.NONE else NoFile(_LIMITS),
    ]


def steps_to_undo(bundle: Path, options: Options, *, purge: bool) -> list[Step]:
    """In the order in which they are undone. Raises nothing for what is not there."""
    ours = [each for each in steps(bundle, options) if not isinstance(each, Command)]
    # A node that never told its address still has what its user-data brought for that.
    first: list[Step] = [Unit(_JOIN, frozenset()), *map(NoFile, _OF_USER_DATA)]
    last: list[Step] = [
        Folder(_SHIM_CHANGES, is_kept=True),
        NoFile(KEYS),
        Folder("/run/fairlead"),
        Folder("/run/fairlead-exposed"),
        Folder(direct.FOLDER),
        Folder(HOME, is_kept=False),
        Command("sshd", "reloaded", frozenset(), reload_sshd_unit),
        Command("systemd", "reloaded", frozenset(), _reload_systemd),
    ]
    if options.docker.is_docker:
        reload = docker.reload_engine
        last.append(Command("docker.service", "reloaded", frozenset(), reload))
    if purge:
        last += [Folder(_DATA), Folder("/etc/fairlead")]
    return [*first, *reversed(ours), *last]


@dataclass(frozen=True)
class Current:
    """Which version the node runs; the one before stays as `previous`, for the way back."""

    name: str
    version: str

    def difference(self, system: System, earlier: Set[str]) -> str | None:
        return self._link.difference(system, earlier)

    def apply(self, system: System) -> None:
        before = at(system, self.name)
        if before.is_symlink():
            Link(f"{HOME}/previous", str(before.readlink())).apply(system)
        self._link.apply(system)

    def leftover(self, system: System) -> str | None:
        return self._link.leftover(system)

    def undo(self, system: System) -> None:
        self._link.undo(system)

    @property
    def _link(self) -> Link:
        return Link(self.name, self.version)


@dataclass(frozen=True)
class OldVersions:
    """Versions that nothing uses any more; a container keeps the runtime that it began with."""

    version: str
    name: str = "old versions"

    def difference(self, system: System, earlier: Set[str]) -> str | None:
        if _CURRENT in earlier and not self._is_current(system):
            return None  # which one becomes the previous one is known once the link is set
        unused = self._unused(system)
        return f"removed {', '.join(path.name for path in unused)}" if unused else None

    def apply(self, system: System) -> None:
        for path in self._unused(system):
            Tree(path, f"{HOME}/{path.name}").undo(system)

    def leftover(self, system: System) -> str | None:
        return None

    def undo(self, system: System) -> None:
        """They go with their folder."""

    def _is_current(self, system: System) -> bool:
        return Link(_CURRENT, self.version).difference(system, frozenset()) is None

    def _unused(self, system: System) -> list[Path]:
        home = at(system, HOME)
        links = [path for path in home.glob("*") if path.is_symlink()]
        kept = {self.version, *(str(link.readlink()) for link in links)}
        return [
            path
            for path in sorted(home.glob("*"))
            if path.is_dir()
            and not path.is_symlink()
            and (path / "manifest.json").exists()
            and path.name not in kept
            and not users_of(system, path.name)
        ]


def users_of(system: System, version: str) -> list[int]:
    """Processes that run from a version's folder, or have it mounted."""
    own = shim_process(system)
    return [
        process.pid
        for process in system.processes()
        if process.pid != own
        and (
            process.program.startswith(f"{HOME}/{version}/")
            or any(f"/{version}/runtime" in mount for mount in process.mounts)
        )
    ]


def users_of_any(system: System) -> list[int]:
    versions = [path.parent.name for path in at(system, HOME).glob("*/manifest.json")]
    return sorted({pid for version in versions for pid in users_of(system, version)})


def shim_process(system: System) -> int | None:
    if not system.is_booted():
        return None
    shown = system.run("systemctl", "show", "--property=MainPID", "--value", _SHIM)
    text = shown.output.strip()
    # MainPID is 0 while the unit has no process.
    return int(text) if text.isdecimal() and text != "0" else None


def other_program(system: System, version: str) -> str | None:
    """The running shim's program when it is not this version's."""
    pid = shim_process(system)
    programs = [each.program for each in system.processes() if each.pid == pid]
    return next((p for p in programs if not p.startswith(f"{HOME}/{version}/")), None)


def reload_sshd(system: System) -> None:
    """Only with settings that sshd understands and heeds; else they are taken away again."""
    try:
        must(system, "sshd", "-t")
        shown = must(system, "sshd", "-T", "-C", "user=fairlead,host=fairlead,addr=127.0.0.1")
        if "forcecommand /usr/sbin/nologin" not in shown.lower():
            raise InstallError(
                "sshd does not read /etc/ssh/sshd_config.d: add the line `Include "
                "/etc/ssh/sshd_config.d/*.conf` at the beginning of /etc/ssh/sshd_config"
            )
    except InstallError:
        # An sshd that refuses its configuration does not start again, and nobody could log in.
        at(system, _SNIPPET).unlink(missing_ok=True)
        raise
    reload_sshd_unit(system)


def reload_sshd_unit(system: System) -> None:
    # Debian's name for sshd's unit, and that of other distributions.
    for unit in ("ssh.service", "sshd.service"):
        if system.run("systemctl", "cat", unit).status == 0:
            # `try-`: where a socket of systemd starts sshd, as in Ubuntu since 22.10, no unit may
            # run.
            must(system, "systemctl", "try-reload-or-restart", unit)
            return


def _reload_systemd(system: System) -> None:
    must(system, "systemctl", "daemon-reload")


def _load_kernel_settings(system: System) -> None:
    """A container that boots may not set all of them; a machine may."""
    system.run("sysctl", "-q", "-p", _SYSCTL)
