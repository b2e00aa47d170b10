"""Steps on a folder that stands for the node: each changes once, and is taken away whole."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from installer.docker import CONFIGURATION, EnginePackage, EngineSettings, require_package
from installer.keys import Keys, keys_of
from installer.plan import Current, OldVersions
from installer.steps import File, Folder, Link, NoFile, Step, Tree, User
from installer.system import Done, InstallError, ProcessUse

NOTHING: frozenset[str] = frozenset()
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA controller"
OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAB another"


class FolderSystem:
    """A node whose programs answer as `answers` says, and are noted in `asked`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.answers: dict[tuple[str, ...], Done] = {}
        self.asked: list[tuple[str, ...]] = []
        self.used: Sequence[ProcessUse] = ()
        self.missing: set[str] = set()

    def run(self, *argv: str) -> Done:
        self.asked.append(argv)
        return self.answers.get(argv) or self.answers.get(argv[:2], Done(0, ""))

    def has_program(self, name: str) -> bool:
        return name not in self.missing

    def is_booted(self) -> bool:
        return False

    def processes(self) -> Sequence[ProcessUse]:
        return self.used


@pytest.fixture
def system(tmp_path: Path) -> FolderSystem:
    return FolderSystem(tmp_path / "node")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    (folder / "python").mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    (folder / "python/file").write_text("shared")
    os.link(folder / "python/file", folder / "python/same")
    return folder


def test_each_step_changes_once_and_is_taken_away(system: FolderSystem, bundle: Path) -> None:
    steps: list[Step] = [
        File("/etc/a", "text", 0o600),
        Folder("/var/lib/b"),
        Link("/usr/c", "target"),
        Tree(bundle, "/opt/fairlead/1"),
        Keys("/etc/keys", (KEY,)),
        EngineSettings({"live-restore": True}),
    ]
    for step in steps:
        assert step.leftover(system) is None
        assert step.difference(system, NOTHING) is not None
        step.apply(system)
        assert step.difference(system, NOTHING) is None
        assert step.leftover(system) is not None
        step.undo(system)
        assert step.leftover(system) is None


def test_a_file_that_other_options_brought_is_removed_once(system: FolderSystem) -> None:
    step = NoFile("/etc/a")
    assert step.difference(system, NOTHING) is None
    File("/etc/a", "text").apply(system)
    assert step.difference(system, NOTHING) == "removed"
    step.apply(system)
    assert step.difference(system, NOTHING) is None


def test_a_file_with_other_rights_is_written_anew(system: FolderSystem) -> None:
    step = File("/etc/a", "text", 0o600)
    step.apply(system)
    (system.root / "etc/a").chmod(0o644)
    assert step.difference(system, NOTHING) == "mode 600"


def test_files_that_are_one_stay_one(system: FolderSystem, bundle: Path) -> None:
    Tree(bundle, "/opt/fairlead/1").apply(system)
    copied = system.root / "opt/fairlead/1/python"
    assert (copied / "file").samefile(copied / "same")
    assert not (copied / "file").samefile(bundle / "python/file")


def test_a_locked_user_is_opened_for_keys(system: FolderSystem) -> None:
    step = User("fairlead", "fairlead", "/var/lib/fairlead")
    system.answers[("id", "-gn", "fairlead")] = Done(0, "fairlead\n")
    system.answers[("getent", "shadow", "fairlead")] = Done(0, "fairlead:!:1::::::\n")
    assert step.difference(system, NOTHING) == "unlocked for keys"
    step.apply(system)
    assert system.asked[-1][0] == "usermod"
    system.answers[("getent", "shadow", "fairlead")] = Done(0, "fairlead:*:1::::::\n")
    assert step.difference(system, NOTHING) is None


def test_the_engines_other_settings_stay_and_come_back(system: FolderSystem) -> None:
    path = system.root / CONFIGURATION.lstrip("/")
    path.parent.mkdir(parents=True)
    path.write_text('{"dns": ["10.0.0.1"]}')
    step = EngineSettings({"live-restore": True})
    step.apply(system)
    assert json.loads(path.read_text()) == {"dns": ["10.0.0.1"], "live-restore": True}
    EngineSettings({"live-restore": True, "registry-mirrors": ["https://m"]}).apply(system)
    step.undo(system)
    assert path.read_text() == '{"dns": ["10.0.0.1"]}'


def test_settings_of_the_engine_that_were_changed_since_are_left(system: FolderSystem) -> None:
    path = system.root / CONFIGURATION.lstrip("/")
    step = EngineSettings({"live-restore": True})
    step.apply(system)
    path.write_text('{"live-restore": true, "dns": []}')
    step.undo(system)
    assert json.loads(path.read_text()) == {"live-restore": True, "dns": []}


def test_an_old_version_stays_as_long_as_it_is_used(system: FolderSystem, bundle: Path) -> None:
    for version in ("1", "2", "3", "4"):
        Tree(bundle, f"/opt/fairlead/{version}").apply(system)
        Current("/opt/fairlead/current", version).apply(system)
    system.used = [ProcessUse(7, "/bin/sleep", ("/opt/fairlead/1/runtime",))]
    step = OldVersions("4")
    assert step.difference(system, NOTHING) == "removed 2"
    step.apply(system)
    system.used = ()
    assert step.difference(system, NOTHING) == "removed 1"
    assert str((system.root / "opt/fairlead/previous").readlink()) == "3"


def test_the_engine_knows_crun_where_the_machine_has_it(system: FolderSystem) -> None:
    path = system.root / CONFIGURATION.lstrip("/")
    path.parent.mkdir(parents=True)
    path.write_text('{"runtimes": {"kata": {"path": "/opt/kata"}}}')
    step = EngineSettings({}, with_crun=True)
    system.missing = {"crun"}
    assert step.difference(system, NOTHING) is None
    system.missing = set()
    assert step.difference(system, NOTHING) == "sets runtimes"
    step.apply(system)
    kata, crun = {"path": "/opt/kata"}, {"path": "crun"}
    assert json.loads(path.read_text()) == {"runtimes": {"kata": kata, "crun": crun}}
    assert step.difference(system, NOTHING) is None


def test_a_crun_that_the_operator_has_named_stays(system: FolderSystem) -> None:
    path = system.root / CONFIGURATION.lstrip("/")
    path.parent.mkdir(parents=True)
    path.write_text('{"runtimes": {"crun": {"path": "/opt/crun"}}}')
    assert EngineSettings({}, with_crun=True).difference(system, NOTHING) is None


def test_an_engine_is_installed_also_where_the_release_has_no_crun(system: FolderSystem) -> None:
    install = ("apt-get", "install", "-q", "--no-install-recommends", "-y")
    system.answers[*install, "crun"] = Done(100, "E: Unable to locate package crun")
    EnginePackage().apply(system)
    assert system.asked[-1] == (*install, "crun")


def test_an_engine_without_its_package_is_told_with_what_to_do(system: FolderSystem) -> None:
    system.answers["apt-get", "install"] = Done(
        100, "Reading\nE: Unable to locate package docker.io"
    )
    with pytest.raises(InstallError, match=r"package docker\.io; give this machine"):
        EnginePackage().apply(system)
    assert ("apt-get", "update", "-q") in system.asked


def test_an_engine_without_its_package_is_refused_before_anything_is_changed(
    system: FolderSystem,
) -> None:
    require_package(system)
    assert system.asked == []
    system.missing = {"dockerd"}
    require_package(system)
    system.answers["apt-get", "install"] = Done(100, "E: Unable to locate package docker.io")
    with pytest.raises(InstallError, match=r"package docker\.io; give this machine"):
        require_package(system)
    installs = [argv for argv in system.asked if argv[:2] == ("apt-get", "install")]
    assert len(installs) == 3
    assert all("--simulate" in argv for argv in installs)
    system.missing |= {"apt-get"}
    with pytest.raises(InstallError, match="Debian's and Ubuntu's packages only"):
        require_package(system)


def test_each_controller_that_is_let_in_or_shut_out_is_told(system: FolderSystem) -> None:
    file = system.root / "etc/keys"
    file.parent.mkdir(parents=True)
    file.write_text(f'from="10.0.0.1",restrict {KEY}\n')
    both = Keys("/etc/keys", (KEY, OTHER))
    said = both.difference(system, NOTHING)
    assert said is not None
    assert said.startswith("lets SHA256:")
    assert said.endswith(" (another) in")
    both.apply(system)
    text = f'from="10.0.0.1",restrict {KEY}\nrestrict,port-forwarding {OTHER}\n'
    assert file.read_text() == text
    assert both.difference(system, NOTHING) is None
    assert keys_of(text) == [KEY, OTHER]
    one = Keys("/etc/keys", (OTHER,))
    assert (one.difference(system, NOTHING) or "").endswith("(controller) in no more")
    one.apply(system)
    assert file.read_text() == f"restrict,port-forwarding {OTHER}\n"


def test_what_is_made_can_be_read_whatever_the_umask_of_root(system: FolderSystem) -> None:
    before = os.umask(0o077)
    try:
        File("/etc/a.d/b/file", "text").apply(system)
        Link("/opt/c/current", "1").apply(system)
        Folder("/var/d/e").apply(system)
    finally:
        os.umask(before)
    made = [path for path in system.root.rglob("*") if path.is_dir()]
    assert len(made) == 8
    assert {path.stat().st_mode & 0o777 for path in made} == {0o755}
