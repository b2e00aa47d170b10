"""Files of the user's machine become uploads, the same way every time, or a sentence."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from controller.lifecycle.model import JobSpec
from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.parse import parse
from fairlead.configuration.runs.masking import public
from fairlead.configuration.runs.plan import Defaults, to_run
from fairlead.files.git import GitError, git_files
from fairlead.files.ignored import is_left_by_tools
from fairlead.files.packing import Packed, pack
from fairlead.files.upload import UploadProgress, as_if_sent
from runner.code.tree import unpack
from tests.support.git_server import commit, git

BASE = {"type": "task", "commands": ["true"]}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    return folder


def packed(base: Path, environ: dict[str, str] | None = None, **fields: Any) -> Packed:
    written = {**BASE, **fields}
    scratch = base.parent / f"scratch-{len(os.listdir(base.parent))}"
    scratch.mkdir()
    return pack(written, parse(written), base, environ or {}, scratch)


def spec_of(made: Packed) -> JobSpec:
    return to_run(parse(made.configuration), made.configuration, Defaults()).specs[0]


def unpacked(made: Packed, digest: str, target: Path) -> dict[str, bytes]:
    target.mkdir()
    unpack(made.uploads[digest].file, target)
    found = (path for path in target.rglob("*") if path.is_file())
    return {path.relative_to(target).as_posix(): path.read_bytes() for path in found}


def a_project(base: Path, name: str = "project") -> Path:
    """On a branch that is on its remote."""
    remote, folder = base.parent / f"{name}.git", base / name
    for path in (remote, folder):
        path.mkdir()
    git(remote, "init", "-q", "--bare")
    git(folder, "init", "-q")
    (folder / "train.py").write_text("1\n")
    (folder / ".gitignore").write_text("*.log\n")
    commit(folder)
    git(folder, "remote", "add", "origin", f"file://{remote}")
    git(folder, "push", "-q", "-u", "origin", "main")
    return folder


def test_a_file_goes_to_the_same_place_below_the_working_folder(base: Path, tmp_path: Path) -> None:
    (base / "conf").mkdir()
    (base / "conf/a.json").write_text("{}")
    made = packed(base, files=["conf/a.json"])
    (files,) = spec_of(made).files
    assert files.path == "conf"
    assert unpacked(made, files.archive, tmp_path / "out") == {"a.json": b"{}"}


def test_a_file_may_have_another_name_there(base: Path, tmp_path: Path) -> None:
    (base / "a.json").write_text("{}")
    made = packed(base, files=["a.json:/etc/app/b.json"])
    (files,) = spec_of(made).files
    assert files.path == "/etc/app"
    assert unpacked(made, files.archive, tmp_path / "out") == {"b.json": b"{}"}


def test_a_folder_goes_whole_with_links_and_modes(base: Path, tmp_path: Path) -> None:
    folder = base / "data"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub/run").write_text("x")
    (folder / "sub/run").chmod(0o755)
    (folder / "link").symlink_to("sub/run")
    (folder / "none").mkdir()
    made = packed(base, files=["data:/data"])
    (files,) = spec_of(made).files
    assert files.path == "/data"
    out = unpacked(made, files.archive, tmp_path / "out")
    assert out == {"sub/run": b"x", "link": b"x"}
    assert (tmp_path / "out/sub/run").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "out/none").is_dir()


def test_the_same_content_makes_the_same_upload(base: Path) -> None:
    (base / "a").write_text("x")
    assert packed(base, files=["a"]).uploads.keys() == packed(base, files=["a"]).uploads.keys()


def test_a_folder_of_a_repository_leaves_behind_what_git_ignores(
    base: Path, tmp_path: Path
) -> None:
    folder = a_project(base)
    (folder / "noise.log").write_text("x")
    (folder / "new.py").write_text("2\n")
    made = packed(base, files=["project:/p"])
    (files,) = spec_of(made).files
    names = unpacked(made, files.archive, tmp_path / "out").keys()
    assert names == {"train.py", ".gitignore", "new.py"}


def test_a_clean_repository_is_only_a_commit(base: Path) -> None:
    folder = a_project(base)
    made = packed(base, repos=["project:/code"])
    (repo,) = spec_of(made).repos
    assert made.uploads == {}
    assert (repo.path, repo.commit, repo.diff) == ("/code", git(folder, "rev-parse", "HEAD"), None)
    assert repo.url == f"file://{base.parent}/project.git"


def test_changes_and_commits_that_are_not_pushed_become_a_diff(base: Path) -> None:
    folder = a_project(base)
    pushed = git(folder, "rev-parse", "HEAD")
    (folder / "train.py").write_text("2\n")
    commit(folder)
    (folder / "new.bin").write_bytes(bytes(range(256)))
    before = git(folder, "status", "--porcelain"), git(folder, "count-objects")
    made = packed(base, repos=["project"])
    (repo,) = spec_of(made).repos
    assert repo.commit == pushed
    assert repo.diff is not None
    diff = made.uploads[repo.diff].file.read_bytes()
    assert b"GIT binary patch" in diff
    assert b"+2\n" in diff
    assert (git(folder, "status", "--porcelain"), git(folder, "count-objects")) == before


def test_a_repository_without_a_remote_is_sent_as_files(base: Path, tmp_path: Path) -> None:
    folder = base / "mine"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "a").write_text("1")
    commit(folder)
    made = packed(base, repos=["mine"])
    (repo,) = spec_of(made).repos
    assert repo.archive is not None
    assert unpacked(made, repo.archive, tmp_path / "out") == {"a": b"1"}


def test_a_folder_that_is_no_repository_is_sent_as_files(base: Path, tmp_path: Path) -> None:
    (base / "plain").mkdir()
    (base / "plain/a").write_text("1")
    made = packed(base, repos=["plain"])
    (repo,) = spec_of(made).repos
    assert repo.archive is not None
    assert unpacked(made, repo.archive, tmp_path / "out") == {"a": b"1"}


IGNORED = "# what the job does not need\ndata/\n*.ckpt\n!best.ckpt\n/top\n"


def fill(folder: Path) -> None:
    """Lay files into the folder, of which a job needs three and the ignore file."""
    for name in (
        "train.py",
        "top",
        "sub/top",
        "a.ckpt",
        "best.ckpt",
        "data/best.ckpt",
        "sub/data/x",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("2\n")
    (folder / ".fairleadignore").write_text(IGNORED)


NEEDED = {"train.py", "sub/top", "best.ckpt", ".fairleadignore"}


@pytest.mark.parametrize("is_tracked", [False, True])
@pytest.mark.parametrize("is_repository", [False, True])
def test_what_fairleadignore_names_stays_behind_of_a_folder(
    base: Path, tmp_path: Path, is_repository: bool, is_tracked: bool
) -> None:
    folder = base / "code"
    folder.mkdir()
    if is_repository:
        git(folder, "init", "-q")
    fill(folder)
    if is_repository and is_tracked:
        commit(folder)
    (files,) = spec_of(packed(base, files=["code:/c"])).files
    (repo,) = spec_of(made := packed(base, repos=["code"])).repos
    assert repo.archive == files.archive
    assert unpacked(made, files.archive, tmp_path / "out").keys() == NEEDED


def test_a_diff_leaves_what_fairleadignore_names_as_it_is_in_the_commit(base: Path) -> None:
    folder = a_project(base)
    (folder / "old.ckpt").write_text("1\n")
    (folder / "gone.py").write_text("1\n")
    (folder / "forced.log").write_text("1\n")
    git(folder, "add", "--force", "forced.log")
    commit(folder)
    git(folder, "push", "-q")
    fill(folder)
    (folder / "old.ckpt").write_text("2\n")
    commit(folder)
    (folder / "gone.py").unlink()
    (folder / "forced.log").write_text("2\n")
    (folder / "noise.log").write_text("2\n")
    (folder / "late.py").write_text("2\n")
    before = git(folder, "status", "--porcelain"), git(folder, "count-objects")
    made = packed(base, repos=["project"])
    (repo,) = spec_of(made).repos
    assert repo.diff is not None
    diff = made.uploads[repo.diff].file.read_text()
    changed = {line.split(" b/")[-1] for line in diff.splitlines() if line.startswith("diff --git")}
    assert changed == NEEDED | {"late.py", "forced.log", "gone.py"}
    assert (git(folder, "status", "--porcelain"), git(folder, "count-objects")) == before


def test_what_tools_left_stays_behind_of_a_diff_if_asked(base: Path) -> None:
    folder = a_project(base)
    git(folder, "push", "-q")
    (folder / "train.py").write_text("2\n")
    for name in (".train.py.swp", "train.py~", "pkg/__pycache__/a.cpython-311.pyc", "pkg/a.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("2\n")
    written = {**BASE, "repos": ["project"]}
    scratch = base.parent / "own-scratch"
    scratch.mkdir()
    made = pack(written, parse(written), base, {}, scratch, is_left_by_tools)
    (repo,) = spec_of(made).repos
    assert repo.diff is not None
    diff = made.uploads[repo.diff].file.read_text()
    changed = {line.split(" b/")[-1] for line in diff.splitlines() if line.startswith("diff --git")}
    assert changed == {"train.py", "pkg/a.py"}


@pytest.mark.parametrize(
    "name",
    [
        *(".a.py.swp", "sub/.a.py.swo", ".a.py.swx", ".a.py.swpx", "a.py~", ".#a.py", "#a.py#"),
        *(".goutputstream-X1Y2Z3", "a.py___jb_tmp___", "__pycache__/", "sub/__pycache__/a.pyc"),
    ],
)
def test_what_an_editor_or_python_leaves_is_known(name: str) -> None:
    assert is_left_by_tools(name)


@pytest.mark.parametrize(
    "name",
    [
        "a.py",
        ".env",
        ".a.svg",
        "a.swp",
        "sub~/a.py",
        "#notes",
        "a#b#c",
        "4913",
        "a.pyc",
        ".gitignore",
    ],
)
def test_what_a_program_may_need_is_none_of_it(name: str) -> None:
    assert not is_left_by_tools(name)


def test_a_wrong_line_of_fairleadignore_is_named(base: Path) -> None:
    (base / "code").mkdir()
    (base / "code/.fairleadignore").write_text("!\n")
    with pytest.raises(ConfigurationError, match=r"\.fairleadignore: Invalid git pattern"):
        packed(base, files=["code:/c"])


def test_keys_are_read_here_and_never_shown(base: Path) -> None:
    (base / "key").write_text("-----BEGIN-----\ncanary-key\n")
    private = {"url": "https://git.example.com/a/b.git", "token_env": "TOKEN", "key_file": "key"}
    made = packed(base, {"TOKEN": "canary-token"}, repos=[private])
    (repo,) = spec_of(made).repos
    assert (repo.token, repo.private_key) == ("canary-token", "-----BEGIN-----\ncanary-key\n")
    shown = str(public(made.configuration)) + repr(repo) + repr(parse(made.configuration))
    assert "canary" not in shown


def test_a_token_goes_by_https_also_where_the_folder_says_ssh(base: Path) -> None:
    folder = a_project(base)
    git(folder, "remote", "set-url", "origin", "git@git.example.com:team/x.git")
    made = packed(base, {"T": "t"}, repos=[{"local_path": "project", "token_env": "T"}])
    assert spec_of(made).repos[0].url == "https://git.example.com/team/x.git"


def test_a_login_in_the_remotes_url_stays_here(base: Path) -> None:
    folder = a_project(base)
    git(folder, "remote", "set-url", "origin", "https://me:canary@git.example.com/team/x.git")
    made = packed(base, repos=["project"])
    assert spec_of(made).repos[0].url == "https://git.example.com/team/x.git"


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"files": ["gone"]}, "files[0].local_path", "does not exist"),
        ({"files": ["../outside"]}, "files[0]", "give its path in the container"),
        ({"files": ["pipe"]}, "files[0].local_path", "neither a file nor a folder"),
        ({"files": ["tree:/t"]}, "files[0].local_path", "link to outside"),
        ({"repos": ["gone"]}, "repos[0].local_path", "is not a folder"),
        ({"repos": ["pipe"]}, "repos[0].local_path", "is not a folder"),
        (
            {"repos": [{"url": "https://h/r", "token_env": "NOT_SET"}]},
            "repos[0].token_env",
            "not set",
        ),
        ({"repos": [{"url": "git@h:r", "key_file": "gone"}]}, "repos[0].key_file", "can't be read"),
    ],
)
def test_a_path_that_cannot_be_packed_is_told_with_its_field(
    base: Path, fields: dict[str, Any], field: str, words: str
) -> None:
    os.mkfifo(base / "pipe")
    (base.parent / "outside").write_text("x")
    (base / "tree").mkdir()
    (base / "tree/link").symlink_to("/etc/passwd")
    with pytest.raises(ConfigurationError, match=words) as caught:
        packed(base, **fields)
    with pytest.raises(ConfigurationError) as of_a_plan:
        as_if_sent({**BASE, **fields}, base, {})
    assert caught.value.field == field
    assert str(of_a_plan.value) == str(caught.value)


def test_a_plan_sees_the_jobs_that_would_be_submitted_and_no_secret(base: Path) -> None:
    a_project(base)
    (base / "key").write_text("canary-key")
    git_host = {"url": "https://h/r", "token": "${{ secrets.GIT }}", "path": "/b"}
    own = {"local_path": "project", "token_env": "T", "key_file": "key"}
    fields: dict[str, Any] = {"files": ["key", "project:/c"], "repos": [git_host, own]}
    sent = as_if_sent({**BASE, **fields}, base, {"T": "canary-token"})
    assert isinstance(sent, dict)
    seen = to_run(parse(sent), sent, Defaults()).specs[0]
    submitted = spec_of(packed(base, {"T": "canary-token"}, **fields))

    assert seen.repos[0] == submitted.repos[0]
    assert (seen.repos[1].url, seen.repos[1].commit) == (
        submitted.repos[1].url,
        submitted.repos[1].commit,
    )
    assert [file.path for file in seen.files] == [file.path for file in submitted.files]
    assert "canary" not in str(sent)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"repos": "."}, "repos"),
        ({"repos": [3]}, "repos[0]"),
        ({"repos": [{}]}, "repos[0]"),
        ({"repos": [{"local_path": ".", "url": "https://h/r"}]}, "repos[0]"),
        ({"repos": [{"url": "not a url"}]}, "repos[0].url"),
        ({"repos": [{"url": "ext::sh -c x"}]}, "repos[0].url"),
        ({"repos": [{"url": "https://h/r", "hash": "HEAD"}]}, "repos[0].hash"),
        ({"repos": [{"url": "https://h/r", "branch": "-x"}]}, "repos[0].branch"),
        ({"repos": [{"local_path": ".", "branch": "main"}]}, "repos[0].branch"),
        ({"repos": [{"url": "https://h/r", "if_exists": "mix"}]}, "repos[0].if_exists"),
        ({"repos": [{"url": "https://h/r", "brunch": "x"}]}, "repos[0].brunch"),
        ({"repos": ["https://h/a", "https://h/b"]}, "repos[1].path"),
        (
            {"repos": [{"local_path": ".", "uploaded": {"archive": "a" * 64, "diff": "b" * 64}}]},
            "repos[0].uploaded.diff",
        ),
        ({"files": {"a": "b"}}, "files"),
        ({"files": [{"path": "/x"}]}, "files[0].local_path"),
        ({"files": [{"local_path": "a", "uploaded": ["x", "/"]}]}, "files[0].uploaded"),
        ({"secrets": {"not-a-name": "x"}}, "secrets"),
        ({"secrets": {"NAME": 3}}, "secrets.NAME"),
        ({"tty": "maybe"}, "tty"),
        ({"env_style": ["mpi"]}, "env_style[0]"),
    ],
)
def test_a_malformed_value_is_told_with_its_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse({**BASE, **fields})
    assert caught.value.field == field


@pytest.mark.parametrize("short", [True, False])
def test_a_login_in_a_url_is_refused_without_being_repeated(short: bool) -> None:
    url = "https://me:canary@h/r.git"
    with pytest.raises(ConfigurationError, match="use token_env") as caught:
        parse({**BASE, "repos": [url if short else {"url": url}]})
    assert "canary" not in caught.value.sentence()


def test_a_configuration_that_was_not_packed_is_refused_by_the_controller() -> None:
    for field, written in (("repos[0]", {"repos": ["."]}), ("files[0]", {"files": ["a"]})):
        data = {**BASE, **written}
        with pytest.raises(ConfigurationError, match="was not uploaded") as caught:
            to_run(parse(data), data, Defaults())
        assert caught.value.field == field


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://h/r.git", ("https://h/r.git", ".")),
        ("https://h:8443/r.git:/code", ("https://h:8443/r.git", "/code")),
        ("git@h:team/r.git", ("git@h:team/r.git", ".")),
        ("git@h:team/r.git:code", ("git@h:team/r.git", "code")),
        ("ssh://git@h:2222/r", ("ssh://git@h:2222/r", ".")),
    ],
)
def test_short_forms_of_urls_are_understood(text: str, expected: tuple[str, str]) -> None:
    repos = parse({**BASE, "repos": [text]}).repos
    assert repos is not None
    assert (repos[0].url, repos[0].path) == expected


def test_archives_say_nothing_about_this_machine(base: Path) -> None:
    (base / "a").write_text("x")
    (upload,) = packed(base, files=["a"]).uploads.values()
    with tarfile.open(upload.file) as archive:
        (info,) = archive.getmembers()
    assert (info.uid, info.gid, info.uname, info.gname) == (0, 0, "", "")


def test_git_that_fails_is_no_traceback(base: Path) -> None:
    folder = a_project(base)
    (folder / ".git/index").write_bytes(b"broken")
    with pytest.raises(GitError, match="git failed"):
        git_files(folder)


def test_a_machine_without_git_can_send_files(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_project(base)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError):
        subprocess.run(["git"], check=False)
    made = packed(base, files=["project/train.py"])
    assert len(made.uploads) == 1


def test_a_folder_of_repos_without_git_is_told(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it is sent, secrets and data too, which nothing ignores."""
    (base / "plain").mkdir()
    (base / "plain/a.py").write_text("1")
    (base / "plain/b.py").write_text("1")
    ignored = "a file .fairleadignore leaves out what it names"
    where = f"{base.resolve() / 'plain'} is in no git repository"
    told = [f"repos[0]: {where}: all its 2 entries are sent; {ignored}"]
    assert packed(base, repos=["plain"]).notes == told
    a_project(base)
    assert packed(base, repos=["project"], files=["plain"]).notes == []
    monkeypatch.setenv("PATH", str(tmp_path))
    (note,) = packed(base, repos=["plain"]).notes
    assert "git is not installed here" in note


def test_a_long_upload_tells_its_progress_every_few_seconds() -> None:
    told: list[str] = []
    seconds = iter((0.0, 1.0, 3.5, 4.0, 9.0))
    progress = UploadProgress(100 << 20, told.append, lambda: next(seconds))
    for sent in (10, 40, 50, 100):
        progress(sent << 20)
    assert told == ["sending 100 MiB of code", "40 of 100 MiB of code are sent"]
