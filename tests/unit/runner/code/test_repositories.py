"""Repositories come to their commit with their diff, by the image's git and by our own alike."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fairlead.files.git import difference, look_at_git
from fairlead.wire.job import IfFolderExists, Repo, RepoCredentials, SubmitRequest
from runner.code.git import Git, ImageGit, RuntimeGit
from runner.code.helper import Helpers
from runner.code.prepare import Brought, CodePreparer
from runner.code.store import CodeStore
from runner.errors import CannotStart
from runner.processes.scratch import Scratch
from runner.processes.spawn import Children
from runner.validation import wanted_blobs
from tests.support.git_server import GitServer, commit, git, serving
from tests.support.waiting import LONG
from tests.unit.runner.code.hostile import file, tar
from tests.unit.runner.harness import a_job

TOKEN = "token-3f9c2a"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[GitServer]:
    async with serving(GitServer(tmp_path / "served")) as running:
        yield running


@pytest.fixture
async def work(server: GitServer, tmp_path: Path) -> Path:
    """A clone with two commits that are on the server."""
    server.make("project")
    folder = tmp_path / "work"
    folder.mkdir()
    await asyncio.to_thread(_fill, folder, server)
    return folder


def _fill(folder: Path, server: GitServer) -> None:
    git(folder, "init", "-q")
    (folder / "train.py").write_text("print(1)\n")
    (folder / "model.bin").write_bytes(bytes(range(256)))
    (folder / "old.txt").write_text("old\n")
    (folder / "run.sh").write_text("echo\n")
    (folder / ".gitignore").write_text("*.log\n")
    commit(folder, "first")
    (folder / "train.py").write_text("print(1)\nprint(2)\n")
    commit(folder, "second")
    git(folder, "push", "-q", str(server.root / "project"), "main")
    git(folder, "remote", "add", "origin", server.url("project"))
    git(folder, "fetch", "-q", str(server.root / "project"), "main:refs/remotes/origin/main")


@pytest.fixture
def helpers() -> Helpers:
    return Helpers(Children(), dict(os.environ), None)


@pytest.fixture(params=["image", "runtime"])
def my_git(request: pytest.FixtureRequest, helpers: Helpers, scratch: Scratch) -> Git:
    program = shutil.which("git")
    assert program is not None
    if request.param == "image":
        return ImageGit(program, shutil.which("ssh"), helpers, scratch)
    return RuntimeGit(shutil.which("ssh"), helpers, scratch)


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    (tmp_path / "memory").mkdir()
    return Scratch("a1", None, (tmp_path / "memory",))


async def _pieces(*pieces: bytes) -> AsyncIterable[bytes]:
    for piece in pieces:
        yield piece


async def prepared(
    tmp_path: Path,
    my_git: Git,
    repo: Repo,
    blobs: tuple[bytes, ...] = (),
    keys: RepoCredentials | None = None,
) -> Path:
    (tmp_path / "task").mkdir(exist_ok=True)
    store = CodeStore(tmp_path / "task")
    job = a_job("true", repos=[repo]).job
    request = SubmitRequest(job=job, repo_credentials={repo.path: keys} if keys else {})
    store.expect(wanted_blobs(job))
    for blob in blobs:
        await store.receive(hashlib.sha256(blob).hexdigest(), _pieces(blob))
    await CodePreparer(store, my_git, str(tmp_path / "job"), None).prepare(request)
    return tmp_path / "job" / repo.path


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    found = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = (0o120000, os.fsencode(os.readlink(path)))
        elif path.is_file() and not name.startswith(".git/"):
            found[name] = (path.stat().st_mode & 0o111, path.read_bytes())
    return found


async def test_the_folder_is_as_it_is_on_the_users_machine(
    server: GitServer, work: Path, my_git: Git, tmp_path: Path
) -> None:
    """Text, binary, new, deleted, renamed and executable files, links, names with odd letters,
    files without a last newline, and a commit that the server does not have."""
    (work / "committed.txt").write_text("only here\n")
    await asyncio.to_thread(commit, work, "not pushed")
    (work / "train.py").write_text("print(1)\nprint(3)")
    (work / "model.bin").write_bytes(bytes(reversed(range(256))) * 40)
    (work / "new.bin").write_bytes(os.urandom(5000))
    (work / "Ümläut name.txt").write_text("x\n")
    (work / "empty").touch()
    (work / "old.txt").unlink()
    (work / "run.sh").chmod(0o755)
    (work / "link").symlink_to("train.py")
    (work / "noise.log").write_text("ignored")
    found = await asyncio.to_thread(look_at_git, work)
    assert found is not None
    assert found.url == server.url("project")
    assert found.commit == git(work, "rev-parse", "origin/main")
    diff = await asyncio.to_thread(difference, found.root, found.commit)
    digest = hashlib.sha256(diff).hexdigest()
    repo = Repo(path="repo", url=found.url, commit=found.commit, diff=digest)
    made = await prepared(tmp_path, my_git, repo, (diff,))
    expected = contents(work)
    del expected["noise.log"]
    assert contents(made) == expected
    assert git(made, "rev-parse", "HEAD") == found.commit


def push(work: Path, server: GitServer) -> None:
    commit(work, "third")
    git(work, "push", "-q", str(server.root / "project"), "main")


async def changed(work: Path, server: GitServer, my_git: Git, tmp_path: Path, *how: str) -> Path:
    """A repository at the server's commit, with what `git diff HOW` says of the folder."""
    options = ("--cached", "--binary", "--full-index", *how, "HEAD")
    git(work, "add", "--all")
    argv = ["git", "-C", str(work), "diff", *options]
    diff = (await asyncio.to_thread(subprocess.run, argv, capture_output=True)).stdout
    digest = hashlib.sha256(diff).hexdigest()
    repo = Repo(path="r", url=server.url("project"), branch="main", diff=digest)
    return await prepared(tmp_path, my_git, repo, (diff,))


async def test_files_become_folders_and_links_and_the_other_way_round(
    server: GitServer, work: Path, my_git: Git, tmp_path: Path
) -> None:
    (work / "folder" / "deep").mkdir(parents=True)
    (work / "folder" / "deep" / "file").write_text("1\n")
    (work / "link").symlink_to("folder")
    await asyncio.to_thread(push, work, server)
    shutil.rmtree(work / "folder")
    (work / "folder").write_text("no folder any more\n")
    (work / "link").unlink()
    (work / "link").mkdir()
    (work / "link" / "file").write_text("no link any more\n")
    (work / "old.txt").unlink()
    (work / "old.txt").symlink_to("train.py")
    made = await changed(work, server, my_git, tmp_path)
    assert contents(made) == contents(work)


async def test_renamed_and_copied_files_in_folders_are_found(
    server: GitServer, work: Path, my_git: Git, tmp_path: Path
) -> None:
    text = "".join(f"{number}\n" for number in range(50))
    for folder in ("here", "there"):
        (work / folder).mkdir()
    for name in ("a", "b", "c"):
        (work / "here" / name).write_text(text.replace("7", name))
    await asyncio.to_thread(push, work, server)
    (work / "here" / "a").rename(work / "there" / "a")
    (work / "there" / "b").write_text((work / "here" / "b").read_text() + "more\n")
    (work / "here" / "b").unlink()
    shutil.copy(work / "here" / "c", work / "there" / "c")
    made = await changed(work, server, my_git, tmp_path, "-M", "-C", "--find-copies-harder")
    assert contents(made) == contents(work)


async def test_only_a_line_feed_ends_a_line(
    server: GitServer, work: Path, my_git: Git, tmp_path: Path
) -> None:
    before, after = b"one\rtwo\r\nthree\nfour\r", b"one\rTWO\r\nthree\nFOUR\r"
    (work / "lines").write_bytes(before)
    await asyncio.to_thread(push, work, server)
    (work / "lines").write_bytes(after)
    made = await changed(work, server, my_git, tmp_path)
    assert (made / "lines").read_bytes() == after


async def test_line_ends_that_the_repository_asks_for_do_not_hinder_its_changes(
    server: GitServer, work: Path, my_git: Git, tmp_path: Path
) -> None:
    (work / ".gitattributes").write_text("*.bat text eol=crlf\n")
    (work / "run.bat").write_bytes(b"one\r\ntwo\r\n")
    await asyncio.to_thread(push, work, server)
    (work / "run.bat").write_bytes(b"one\r\nTWO\r\n")
    made = await changed(work, server, my_git, tmp_path)
    assert (made / "run.bat").read_bytes() == b"one\r\nTWO\r\n"


async def test_large_files_that_lie_elsewhere_stay_pointers_and_nobody_is_asked_for_them(
    server: GitServer, work: Path, my_git: Git, tmp_path: Path
) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 12345\n"
    (work / ".gitattributes").write_text("*.pt filter=lfs diff=lfs merge=lfs -text\n")
    (work / "old.pt").write_text(pointer.format("a" * 64))
    (work / "model.pt").write_text(pointer.format("b" * 64))
    await asyncio.to_thread(push, work, server)
    (work / "model.pt").write_text(pointer.format("c" * 64))
    made = await changed(work, server, my_git, tmp_path)
    assert contents(made) == contents(work)
    assert [request for request in server.requests if "lfs" in request] == []


async def test_a_folder_of_somebody_else_can_be_filled(
    server: GitServer,
    work: Path,
    my_git: Git,
    helpers: Helpers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as a volume. git itself, which asks the kernel, is told to take it for one."""
    monkeypatch.setattr(Helpers, "uid", os.getuid() + 1)
    helpers.env["GIT_TEST_ASSUME_DIFFERENT_OWNER"] = "1"
    (work / "train.py").write_text("print(3)\n")
    made = await changed(work, server, my_git, tmp_path)
    assert (made / "train.py").read_text() == "print(3)\n"


async def test_an_older_commit_can_be_asked_for(
    server: GitServer, work: Path, my_git: Git, tmp_path: Path
) -> None:
    first = git(work, "rev-parse", "HEAD~1")
    repo = Repo(path="r", url=server.url("project"), commit=first)
    made = await prepared(tmp_path, my_git, repo)
    assert git(made, "rev-parse", "HEAD") == first
    assert (made / "train.py").read_text() == "print(1)\n"
    assert git(made, "status", "--porcelain") == ""


@asynccontextmanager
async def an_old_server(repository: Path) -> AsyncIterator[str]:
    """Its URL. It gives what a branch or tag is at, and no single commits, as git behind an sshd
    that passes no variables on."""

    answering: list[asyncio.Task[None] | None] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.append(asyncio.current_task())
        await reader.readexactly(int(await reader.readexactly(4), 16) - 4)
        pipe = asyncio.subprocess.PIPE
        program = await asyncio.create_subprocess_exec(
            "git", "upload-pack", repository, stdin=pipe, stdout=pipe
        )
        assert program.stdin is not None
        assert program.stdout is not None
        asking = asyncio.create_task(_copy(reader, program.stdin))
        await _copy(program.stdout, writer)
        asking.cancel()
        await asyncio.gather(asking, program.wait(), return_exceptions=True)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"git://127.0.0.1:{server.sockets[0].getsockname()[1]}/project"
        await asyncio.gather(*filter(None, answering))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


async def test_a_server_that_gives_no_single_commits_is_asked_for_everything(
    server: GitServer, work: Path, my_git: Git, tmp_path: Path
) -> None:
    first = git(work, "rev-parse", "HEAD~1")
    async with an_old_server(server.root / "project") as url:
        made = await prepared(tmp_path, my_git, Repo(path="r", url=url, commit=first))
    assert git(made, "rev-parse", "HEAD") == first
    assert (made / "train.py").read_text() == "print(1)\n"
    assert git(made, "status", "--porcelain") == ""


@pytest.mark.parametrize("branch", ["main", "v1", None])
async def test_a_branch_a_tag_or_the_default_is_found(
    server: GitServer, work: Path, my_git: Git, tmp_path: Path, branch: str | None
) -> None:
    git(work, "tag", "v1")
    git(work, "push", "-q", str(server.root / "project"), "v1")
    repo = Repo(path="r", url=server.url("project"), branch=branch)
    made = await prepared(tmp_path, my_git, repo)
    assert git(made, "rev-parse", "HEAD") == git(work, "rev-parse", "HEAD")
    assert (made / "train.py").read_text() == "print(1)\nprint(2)\n"


async def test_a_token_opens_a_private_repository_and_is_gone_afterwards(
    server: GitServer, work: Path, my_git: Git, tmp_path: Path, scratch: Scratch
) -> None:
    server.token = TOKEN
    repo = Repo(path="r", url=server.url("project"), branch="main")
    made = await prepared(tmp_path, my_git, repo, keys=RepoCredentials(token=TOKEN))
    assert (made / "train.py").exists()
    assert list(scratch.folder.iterdir()) == []
    for path in (tmp_path / "job").rglob("*"):
        assert not path.is_file() or TOKEN.encode() not in path.read_bytes()
    assert not [request for request in server.requests if TOKEN in request]


@pytest.mark.parametrize("token", [None, "wrong-7c21"])
async def test_without_the_right_token_it_is_refused_and_nothing_is_left(
    server: GitServer, work: Path, my_git: Git, tmp_path: Path, token: str | None
) -> None:
    server.token = TOKEN
    repo = Repo(path="r", url=server.url("project"), branch="main")
    keys = None if token is None else RepoCredentials(token=token)
    with pytest.raises(CannotStart, match="cannot be fetched") as caught:
        await prepared(tmp_path, my_git, repo, keys=keys)
    assert (token or TOKEN) not in str(caught.value)
    assert list((tmp_path / "job" / "r").iterdir()) == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"commit": "e" * 40}, "cannot be fetched: it has no commit e+ .is it pushed"),
        ({"branch": "nowhere"}, "cannot be fetched"),
        ({"url": "http://127.0.0.1:1/gone"}, "cannot be fetched"),
        ({"url": "ext::sh -c touch% /tmp/made"}, "is not a URL"),
        ({"url": "--upload-pack=/bin/sh"}, "is not a URL"),
        ({"branch": "--upload-pack=x"}, "is not the name of a branch"),
        ({"commit": "HEAD"}, "is not a full commit id"),
    ],
)
async def test_a_repository_that_cannot_be_fetched_is_told_in_a_sentence(
    server: GitServer,
    work: Path,
    my_git: Git,
    tmp_path: Path,
    fields: dict[str, str],
    words: str,
) -> None:
    repo = Repo(**{"path": "r", "url": server.url("project"), **fields})  # type: ignore[arg-type]
    with pytest.raises(CannotStart, match=words) as caught:
        await prepared(tmp_path, my_git, repo)
    assert "Traceback" not in str(caught.value)


async def test_the_query_of_a_url_is_in_no_message(
    server: GitServer, work: Path, my_git: Git, tmp_path: Path
) -> None:
    for url in ("http://127.0.0.1:1/gone", server.url("nowhere")):
        repo = Repo(path="r", url=f"{url}?token=canary-3f", branch="main")
        with pytest.raises(CannotStart, match="cannot be fetched") as caught:
            await prepared(tmp_path, my_git, repo)
        assert "canary" not in str(caught.value)


async def test_a_diff_that_does_not_fit_is_refused(
    server: GitServer, work: Path, my_git: Git, tmp_path: Path
) -> None:
    diff = (
        b"diff --git a/train.py b/train.py\n--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-no\n+x\n"
    )
    digest = hashlib.sha256(diff).hexdigest()
    repo = Repo(path="r", url=server.url("project"), branch="main", diff=digest)
    with pytest.raises(CannotStart, match="local changes cannot be applied"):
        await prepared(tmp_path, my_git, repo, (diff,))


async def test_a_diff_cannot_write_outside_of_the_repository(
    server: GitServer, work: Path, my_git: Git, tmp_path: Path
) -> None:
    diff = (
        b"diff --git a/../../outside b/../../outside\nnew file mode 100644\n"
        b"--- /dev/null\n+++ b/../../outside\n@@ -0,0 +1 @@\n+x\n"
    )
    digest = hashlib.sha256(diff).hexdigest()
    repo = Repo(path="r", url=server.url("project"), branch="main", diff=digest)
    with pytest.raises(CannotStart, match="local changes cannot be applied"):
        await prepared(tmp_path, my_git, repo, (diff,))
    assert "outside" not in os.listdir(tmp_path) + os.listdir(tmp_path.parent)


async def test_a_folder_that_is_not_empty_is_refused_or_left_alone(
    server: GitServer, work: Path, my_git: Git, tmp_path: Path
) -> None:
    (tmp_path / "job" / "r").mkdir(parents=True)
    (tmp_path / "job" / "r" / "mine").write_text("mine")
    url = server.url("project")
    with pytest.raises(CannotStart, match="is not empty"):
        await prepared(tmp_path, my_git, Repo(path="r", url=url, branch="main"))
    skipped = Repo(path="r", url=url, branch="main", if_exists=IfFolderExists.SKIP)
    made = await prepared(tmp_path, my_git, skipped)
    assert contents(made) == {"mine": (0, b"mine")}
    assert server.requests == []


async def test_an_archive_is_a_repository_too(my_git: Git, tmp_path: Path) -> None:
    blob = tar(file("a/b.txt", b"1"))
    repo = Repo(path="r", archive=hashlib.sha256(blob).hexdigest())
    made = await prepared(tmp_path, my_git, repo, (blob,))
    assert (made / "a/b.txt").read_bytes() == b"1"


async def test_a_hostile_archive_leaves_nothing_behind(my_git: Git, tmp_path: Path) -> None:
    blob = tar(file("fine"), file("../evil"))
    repo = Repo(path="r", archive=hashlib.sha256(blob).hexdigest())
    with pytest.raises(CannotStart, match="leaves the archive"):
        await prepared(tmp_path, my_git, repo, (blob,))
    assert list((tmp_path / "job" / "r").iterdir()) == []


async def test_a_fetch_that_hangs_ends_when_the_job_is_stopped(my_git: Git, tmp_path: Path) -> None:
    came, enough = asyncio.Event(), asyncio.Event()

    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set()
        await enough.wait()
        writer.close()

    silent = await asyncio.start_server(hang, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}/x"
    fetching = asyncio.create_task(prepared(tmp_path, my_git, Repo(path="r", url=url)))
    async with asyncio.timeout(LONG):
        await came.wait()
        fetching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetching
        enough.set()
        silent.close()
        await silent.wait_closed()
    assert _children_of_this_process() == []


def _children_of_this_process() -> list[str]:
    done = subprocess.run(
        ["ps", "-o", "args=", "--ppid", str(os.getpid())],
        capture_output=True,
        text=True,
        check=False,
    )
    return [line for line in done.stdout.splitlines() if "git" in line or "fetching" in line]


async def test_other_changes_come_in_the_place_of_earlier_ones_and_what_a_job_made_stays(
    server: GitServer, work: Path, my_git: Git, tmp_path: Path
) -> None:
    """The image's git alone takes changes back; our own says that it cannot."""
    store = CodeStore(tmp_path / "task")
    (tmp_path / "task").mkdir()

    async def version() -> SubmitRequest:
        found = await asyncio.to_thread(look_at_git, work)
        assert found is not None
        assert found.commit is not None
        diff = await asyncio.to_thread(difference, found.root, found.commit)
        digest = hashlib.sha256(diff).hexdigest()
        store.expect((digest,))
        await store.receive(digest, _pieces(diff))
        return a_job(
            "true", repos=[Repo(path="r", url=found.url, commit=found.commit, diff=digest)]
        )

    (work / "train.py").write_text("print(1)\nprint(3)\n")
    (work / "new.bin").write_bytes(bytes(range(256)))
    first = await version()
    preparer = CodePreparer(store, my_git, str(tmp_path / "job"), None, Brought())
    await preparer.prepare(first)
    made = tmp_path / "job" / "r"
    (made / "cache").write_text("of the job")
    (work / "train.py").write_text("print(4)\n")
    (work / "new.bin").unlink()
    (work / "other").write_text("new\n")
    second = await version()
    if isinstance(my_git, RuntimeGit):
        with pytest.raises(CannotStart, match="the image has no git"):
            await preparer.renew(second, first)
        return
    await preparer.renew(second, first)
    (made / "cache").unlink()
    assert contents(made) == contents(work)
