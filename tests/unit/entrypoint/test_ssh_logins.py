"""A visitor's identity in images that say much, little or nothing about users."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from entrypoint.ssh.logins import Login, NothingToRun, locked_users, login_as
from entrypoint.ssh.openssh import set_env
from runner.processes.identity import Identity


def an_image(root: Path, *programs: str, passwd: str = "") -> Path:
    for program in programs:
        path = root / program[1:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        path.chmod(0o755)
    if passwd:
        (root / "etc").mkdir(parents=True, exist_ok=True)
        (root / "etc/passwd").write_text(passwd)
    return root


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


@pytest.mark.usefixtures("as_root")
def test_an_account_has_its_own_shell_or_the_images_when_it_may_have_none(tmp_path: Path) -> None:
    passwd = "anna:x:1:2::/home/anna:/bin/zsh\nweb:x:3:4::/srv:/usr/sbin/nologin\n"
    root = an_image(tmp_path, "/bin/zsh", "/bin/sh", "/usr/sbin/nologin", passwd=passwd)
    anna, web = login_as("anna", root), login_as("web", root)
    assert anna is not None
    assert (anna.shell, anna.identity.uid, anna.change) == ("/bin/zsh", 1, True)
    assert web is not None
    assert web.shell == "/bin/sh"


@pytest.mark.usefixtures("as_root")
def test_root_exists_in_every_image_and_nobody_else_is_made_up(tmp_path: Path) -> None:
    root = login_as("root", tmp_path)
    assert root is not None
    assert (root.identity.uid, root.shell, root.change) == (0, None, False)
    assert login_as("anna", tmp_path) is None


def test_without_roots_rights_everybody_is_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    login = login_as("whoever", tmp_path)
    assert login is not None
    assert login.identity.uid == os.getuid()
    assert not login.change


def test_without_a_shell_words_are_split_and_found_in_the_path(tmp_path: Path) -> None:
    an_image(tmp_path, "/tool")
    login = a_login(shell=None)
    program = str(tmp_path / "tool")
    assert login.argv("tool 'a b'", {"PATH": str(tmp_path)}) == (program, ["tool", "a b"])
    with pytest.raises(NothingToRun, match="no shell"):
        login.argv(None, {})
    with pytest.raises(NothingToRun, match="no program"):
        login.argv("missing", {"PATH": str(tmp_path)})


def test_a_shell_is_a_login_shell_and_a_command_is_not() -> None:
    login = a_login(shell="/bin/bash")
    assert login.argv(None, {}) == ("/bin/bash", ["-bash"])
    assert login.argv("echo hi", {}) == ("/bin/bash", ["bash", "-c", "echo hi"])


def test_another_user_does_not_get_roots_home_but_all_else_of_the_image() -> None:
    image = {"HOME": "/root", "USER": "root", "CUDA_HOME": "/cuda"}
    anna = a_login(change=True).environment(image)
    root = a_login(change=False).environment(image)
    assert (anna["HOME"], anna["USER"], anna["CUDA_HOME"]) == ("/home/anna", "anna", "/cuda")
    assert root["HOME"] == "/root"
    assert "/usr/bin" in anna["PATH"]


def a_login(*, shell: str | None = "/bin/sh", change: bool = False) -> Login:
    identity = Identity(uid=1, gid=2, name="anna", home="/home/anna")
    return Login(identity=identity, shell=shell, change=change)


def test_sshd_gets_the_images_variables_but_those_that_its_syntax_cannot_hold() -> None:
    variables = {"A": "b c", "HOME": "/root", "QUOTED": 'a"b', "LINES": "a\nPermitRootLogin yes"}
    assert set_env(variables) == 'SetEnv "A=b c"\n'
    assert set_env({}) == ""


def test_users_whom_openssh_would_refuse_are_those_with_a_shell_and_a_locked_password(
    tmp_path: Path,
) -> None:
    passwd = (
        "root:x:0:0::/root:/bin/bash\nanna:x:1:2::/home/anna:/bin/zsh\n"
        "web:x:3:4::/srv:/usr/sbin/nologin\nold:x:5:5::/:/bin/sh\nbroken\n"
    )
    root = an_image(tmp_path, passwd=passwd)
    assert locked_users(root) == []
    (root / "etc/shadow").write_text("root:*:1::::::\nanna:!:1::::::\nweb:!*:1::::::\nold:$6$x:1\n")
    assert locked_users(root) == ["anna"]
    (root / "etc/shadow").write_text("root:!locked::0:99999:7:::\n")
    assert locked_users(root) == ["root"]
