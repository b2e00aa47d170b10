"""The Docker engine of a node: its package, and the settings that Fairlead depends on."""

from __future__ import annotations

import json
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from installer.options import Docker, Options
from installer.steps import at, write
from installer.system import InstallError, System, must

CONFIGURATION = "/etc/docker/daemon.json"
_BEFORE = "/etc/fairlead/docker-before.json"
_PACKAGES = ("docker.io", "iptables", "iproute2")
_CRUN = "crun"
_WHOLE: dict[str, Any] = {
    # systemd would take a container's GPU devices away at each `systemctl daemon-reload`.
    "exec-opts": ["native.cgroupdriver=cgroupfs"],
    "log-driver": "local",
    "log-opts": {"max-size": "10m", "max-file": "3"},
    # 25 to 27 hand GPUs by CDI only when told; older ones ignore it, newer ones do it anyway.
    "features": {"cdi": True},
}


def settings(options: Options) -> dict[str, Any]:
    """An engine that was here before keeps its own settings but for what jobs cannot do without:
    they go on while the engine is restarted."""
    wanted: dict[str, Any] = {"live-restore": True}
    if options.registry_mirror:
        wanted["registry-mirrors"] = [options.registry_mirror]
    return {**wanted, **_WHOLE} if options.docker is Docker.INSTALL else wanted


@dataclass(frozen=True)
class EngineSettings:
    """Our keys of `daemon.json`; the others stay. Undone only as long as the file is as written."""

    wanted: dict[str, Any]
    name: str = CONFIGURATION
    with_crun: bool = False
    """The engine knows crun, if this machine has it; its other OCI runtimes stay."""
    is_undone: bool = True
    """False: another step with the same file is."""

    def difference(self, system: System, earlier: Set[str]) -> str | None:
        before = _settings(at(system, self.name))
        wanted = self._wanted(system, before)
        keys = [key for key, value in wanted.items() if before.get(key) != value]
        return f"sets {', '.join(keys)}" if keys else None

    def apply(self, system: System) -> None:
        path = at(system, self.name)
        known = _read(at(system, _BEFORE))
        original = json.loads(known)["original"] if known else _read(path)
        before = _settings(path)
        text = json.dumps({**before, **self._wanted(system, before)}, indent=2) + "\n"
        kept = json.dumps({"original": original, "written": text}) + "\n"
        # First: after a crash in between, the operator's own file is still known.
        write(at(system, _BEFORE), kept, 0o600)
        write(path, text, 0o644)

    def _wanted(self, system: System, before: dict[str, Any]) -> dict[str, Any]:
        if not (self.with_crun and system.has_program(_CRUN)):
            return self.wanted
        # By its name: the engine looks for it on its PATH. A path of the operator's own stays.
        runtimes = {_CRUN: {"path": _CRUN}, **(before.get("runtimes") or {})}
        return {**self.wanted, "runtimes": runtimes}

    def leftover(self, system: System) -> str | None:
        known = _read(at(system, _BEFORE)) if self.is_undone else None
        if known is None:
            return None
        is_ours = _read(at(system, self.name)) == json.loads(known)["written"]
        return "as it was before" if is_ours else "left, since it was changed after the install"

    def undo(self, system: System) -> None:
        path, before = at(system, self.name), at(system, _BEFORE)
        known = json.loads(before.read_text())
        if _read(path) == known["written"]:
            if known["original"] is None:
                path.unlink()
            else:
                write(path, known["original"], 0o644)
        before.unlink()


@dataclass(frozen=True)
class EnginePackage:
    """The release's own engine. It stays after an uninstall: others may use it by then."""

    name: str = "Docker engine"

    def difference(self, system: System, earlier: Set[str]) -> str | None:
        return None if system.has_program("dockerd") else f"installed ({_PACKAGES[0]})"

    def apply(self, system: System) -> None:
        _with_package_lists(system, "-y", *_packages())
        # Older releases have no such package, and runc starts containers as well.
        system.run("apt-get", "install", "-q", "--no-install-recommends", "-y", _CRUN)

    def leftover(self, system: System) -> str | None:
        return None

    def undo(self, system: System) -> None:
        """See the class."""


def require_package(system: System) -> None:
    """Raise InstallError if the engine would have to be installed and cannot be: asked before the
    first step, so that a refusal leaves nothing on the machine."""
    if system.has_program("dockerd"):
        return
    if not system.has_program("apt-get"):
        raise InstallError(
            "--docker install knows Debian's and Ubuntu's packages only; install the engine as "
            "its makers describe for this system, then use --docker use"
        )
    _with_package_lists(system, "--simulate", *_packages())


def _packages() -> list[str]:
    # Where the kernel has AppArmor, the engine needs its parser to start a container.
    has_apparmor = Path("/sys/kernel/security/apparmor").exists()
    return [*_PACKAGES, "apparmor"] if has_apparmor else [*_PACKAGES]


def _with_package_lists(system: System, *arguments: str) -> None:
    """Let apt-get install these, with new package lists if the present ones do not do."""
    command = ("apt-get", "install", "-q", "--no-install-recommends", *arguments)
    if not system.run(*command).status:
        return
    # A machine from an image may have no package lists, or old ones.
    must(system, "apt-get", "update", "-q")
    again = system.run(*command)
    if again.status:
        lines = again.output.splitlines()
        why = [line for line in lines if line.startswith("E: ")] or lines[-3:]
        raise InstallError(
            f"{_PACKAGES[0]} cannot be installed: {'; '.join(why)}; give this machine a "
            "package repository that has it, or install an engine yourself and give "
            "--docker use"
        )


def reload_engine(system: System) -> None:
    """Make the engine read what it can without a restart; the rest waits for the operator's."""
    if system.run("systemctl", "is-active", "docker.service").status == 0:
        must(system, "systemctl", "reload", "docker.service")


def _settings(path: Path) -> dict[str, Any]:
    text = _read(path)
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise InstallError(f"{path}: {error}; correct it first") from None
    if not isinstance(found, dict):
        raise InstallError(f"{path}: expected a JSON object; correct it first")
    return found


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None
