"""A run's repositories, files and secrets, from the user's folder to the job, through all parts."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.docker_daemon import DockerDaemon
from tests.support.git_server import GitServer, commit, git, serving
from tests.support.images import busybox_root
from tests.support.lab import UNTIL_ASKED, RunLab
from tests.support.planted_secrets import leaks
from tests.support.processes import CommandResult, run_cli
from tests.support.waiting import LONG

pytestmark = pytest.mark.e2e

TOKEN = "canary-token-8d41c7"


class _ServedInThread:
    """The tests here block; the server has a loop of its own."""

    def __init__(self, server: GitServer, host: str) -> None:
        self._server, self._host = server, host
        self._loop = asyncio.new_event_loop()
        self._ready, self._stop = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    def __enter__(self) -> GitServer:
        self._thread.start()
        assert self._ready.wait(LONG)
        return self._server

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(LONG)
        self._loop.close()

    async def _run(self) -> None:
        async with serving(self._server, self._host):
            self._ready.set()
            await self._stop.wait()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GitServer]:
    """Where containers can reach it, too."""
    with _ServedInThread(GitServer(tmp_path / "served"), "0.0.0.0") as running:
        yield running


@pytest.fixture
def project(lab: RunLab, server: GitServer, here: str) -> Path:
    """Beside the task's file: one pushed commit, and changes that are not."""
    server.make("project")
    folder = lab.folder / f"project-{os.urandom(4).hex()}"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "train.sh").write_text("echo pushed\n")
    (folder / "gone").write_text("x")
    commit(folder)
    git(folder, "push", "-q", str(server.root / "project"), "main")
    git(folder, "remote", "add", "origin", server.url("project", here))
    git(folder, "fetch", "-q", str(server.root / "project"), "main:refs/remotes/origin/main")
    (folder / "train.sh").write_text("echo changed\n")
    (folder / "data.bin").write_bytes(bytes(range(256)))
    (folder / "gone").unlink()
    return folder


def apply(
    lab: RunLab, name: str, *options: str, environ: dict[str, str] | None = None, **fields: Any
) -> CommandResult:
    env = {**lab.controller.env, **(environ or {})}
    return run_cli("apply", "-f", lab.write(**fields), "-n", name, *options, env=env)


def test_a_folder_of_the_user_arrives_with_its_changes(lab: RunLab, project: Path) -> None:
    look = ["pwd", "sh train.sh", "ls", "sha256sum < data.bin", 'echo "$FAIRLEAD_REPO_DIR"']
    result = lab.apply("changed", repos=[project.name], commands=look).succeeded()
    digest = hashlib.sha256(bytes(range(256))).hexdigest()
    expected = ["/workflow", "changed", "data.bin", "train.sh", f"{digest}  -", "/workflow"]
    assert result.output.splitlines() == expected


@pytest.fixture(scope="module")
def image_with_git(dockerd: DockerDaemon, testbed_folder: Path) -> str:
    """busybox with this machine's git, all that it needs, and a user anna."""
    root = busybox_root(testbed_folder / "git")
    core = Path(git(root, "--exec-path"))
    programs = [Path("/usr/bin/git"), core / "git-remote-http", core / "git-sh-setup"]
    for source in {*programs, *_libraries(programs[0]), *_libraries(programs[1])}:
        target = root / str(source).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nanna:x:1234:1235::/:/bin/sh\n")
    return dockerd.import_image("git:e2e", root, "--change", "USER anna")


def _libraries(program: Path) -> set[Path]:
    listed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True)
    return {Path(word) for word in listed.stdout.split() if word.startswith("/")}


def test_the_image_s_own_git_is_used_where_there_is_one(
    lab: RunLab, image_with_git: str, project: Path, server: GitServer
) -> None:
    look = ["id -u", "sh train.sh", "git status --short", "stat -c %u train.sh .git/index"]
    fields = {"image": image_with_git, "working_dir": "/work", "repos": [project.name]}
    result = lab.apply("own-git", commands=look, **fields).succeeded()
    changes = ["D", "gone", "M", "train.sh", "??", "data.bin"]
    assert result.output.split() == ["1234", "changed", *changes, "1234", "1234"]
    assert any("git/2" in agent for agent in server.agents)


def test_a_private_repository_opens_with_the_users_token_and_nothing_shows_it(
    lab: RunLab, project: Path, server: GitServer, here: str
) -> None:
    server.token = TOKEN
    private = {"url": server.url("project", here), "token_env": "T", "path": "/code"}
    commands = ["cat /code/train.sh", "env", "cat /code/.git/config", "ls -a /dev/shm"]
    result = apply(lab, "private", environ={"T": TOKEN}, repos=[private], commands=commands)
    assert "echo pushed" in result.succeeded().output
    assert TOKEN not in result.output + result.errors
    assert TOKEN not in str(lab.inspect("private"))
    refused = apply(lab, "refused", environ={"T": "wrong"}, repos=[private], commands=["true"])
    assert refused.status == 1
    assert "cannot be fetched" in refused.errors


def test_a_token_for_git_is_nowhere_while_the_job_runs_and_after(
    lab: RunLab, project: Path, server: GitServer, here: str
) -> None:
    server.token = token = f"canary-{secrets.token_hex(8)}"
    private = {"url": server.url("project", here), "token_env": "T", "path": "/code"}
    halves = f"'{token[:9]}''{token[9:]}'"
    search = f"grep -rl {halves} /code /dev/shm /tmp /run /root /etc /proc/self/environ"
    commands = [f"({search}) 2>/dev/null && exit 4; echo clean; {UNTIL_ASKED}"]
    apply(lab, "canary", "-d", environ={"T": token}, repos=[private], commands=commands)
    lab.wait_for_log("canary", b"clean")
    assert leaks(lab, "canary", token) == []
    lab.let_go("canary")
    lab.wait_for("canary", "done")
    assert leaks(lab, "canary", token) == []


def test_files_of_the_user_replace_those_of_the_image(lab: RunLab, tmp_path: Path) -> None:
    (lab.folder / "motd").write_text("from the user\n")
    commands = ["cat /etc/motd sub/motd"]
    files = ["motd:/etc/motd", "motd:sub/motd"]
    result = lab.apply("files", files=files, commands=commands, working_dir="/w")
    assert result.succeeded().output == "from the user\n" * 2


def test_code_belongs_to_the_jobs_user(lab: RunLab, image_with_users: str, project: Path) -> None:
    fields = {"image": image_with_users, "working_dir": "/work", "repos": [project.name]}
    commands = ["id -u", "stat -c %u . train.sh .git", "touch mine", "echo new > train.sh"]
    result = lab.apply("owned", commands=commands, **fields).succeeded()
    assert result.output.split() == ["1234", "1234", "1234", "1234"]


def test_code_that_was_uploaded_survives_the_controllers_restart(lab: RunLab) -> None:
    (lab.folder / "kept").write_text("kept\n")
    lab.submit("kept", files=["kept:/kept"], commands=["cat /kept"], resources={"cpu": "2"})
    lab.controller.restart()
    lab.wait_for("kept", "done")
    assert lab.log("kept") == b"kept\n"


def test_secrets_reach_the_job_and_read_as_stars(lab: RunLab) -> None:
    commands = [
        'test "$TOKEN" = "$(cat $FAIRLEAD_SECRETS_DIR/TOKEN)" && echo same',
        "echo it is $TOKEN",
        "grep -c ' /dev/shm tmpfs ' /proc/mounts",
        "exit 4",
    ]
    result = apply(lab, "secret", environ={"TOKEN": TOKEN}, secrets=["TOKEN"], commands=commands)
    assert (result.status, result.output) == (4, "same\nit is ***\n1\n")
    assert TOKEN not in str(lab.inspect("secret"))


def test_a_job_has_its_user_s_groups_also_with_code(lab: RunLab, image_with_users: str) -> None:
    (lab.folder / "mine").write_text("mine\n")
    fields = {"image": image_with_users, "user": "anna", "files": ["mine:/srv/deep/mine"]}
    result = lab.apply("groups", commands=["id -G", "stat -c %u:%g /srv/deep/mine"], **fields)
    assert result.succeeded().output == "1235 44\n1234:1235\n"


def test_a_job_may_have_a_terminal(lab: RunLab) -> None:
    commands = ["test -t 1 && echo terminal", "cat", "read x < /dev/tty || echo nobody"]
    result = lab.apply("terminal", tty=True, commands=commands).succeeded()
    assert result.output == "terminal\nnobody\n"


def test_scripts_of_others_find_their_variables(lab: RunLab) -> None:
    commands = ["echo $DSTACK_RUN_NAME $MASTER_ADDR $NNODES $YT_JOB_COUNT"]
    styles = ["dstack", "torch", "ytsaurus"]
    result = lab.apply("styled", env_style=styles, commands=commands).succeeded()
    assert result.output == "styled 127.0.0.1 1 1\n"


def test_a_link_out_of_the_folder_is_refused_before_anything_is_sent(lab: RunLab) -> None:
    folder = lab.folder / "leaving"
    folder.mkdir()
    (folder / "out").symlink_to("/etc/passwd")
    result = lab.apply("leaving", files=["leaving:/x"], commands=["true"])
    assert result.status == 2
    assert "files[0].local_path" in result.errors
    assert "is a link to outside of what is sent" in result.errors
