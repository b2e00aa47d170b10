"""The user's git repository, which is only read: new files are compared through an own index and
object store."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from fairlead.files.ignored import IsIgnored

_SCP_LIKE = re.compile(r"(?:(?P<user>[\w.-]+)@)?(?P<host>[\w.-]+):(?P<path>.+)")
_SECONDS = 120.0


class GitError(Exception):
    """git failed; the message is a sentence for the user."""


class GitFolder(msgspec.Struct, frozen=True):
    """A git repository. `commit`: the newest commit that the remote has too; None (like `url`)
    without one."""

    root: Path
    url: str | None
    commit: str | None


def look_at_git(folder: Path) -> GitFolder | None:
    """Return the repository; None when git does not track the folder, or is not installed. Raises
    GitError."""
    if shutil.which("git") is None:
        return None
    top = _git(folder, "rev-parse", "--show-toplevel", may_fail=True)
    if top is None:
        return None
    root = Path(top)
    remote = _remote(root)
    if remote is None or root.resolve() != folder.resolve():
        return GitFolder(root, None, None)
    url = _git(root, "remote", "get-url", remote)
    commit = _newest_common(root, remote)
    return GitFolder(root, _without_login(url or ""), commit)


def git_files(folder: Path, is_ignored: IsIgnored | None = None) -> list[str]:
    """Return the files below `folder`, tracked or new, without ignored ones. Raises GitError."""
    listed = _git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return _kept(listed, is_ignored)


def _kept(listed: str | None, is_ignored: IsIgnored | None) -> list[str]:
    # A set: a file in a merge conflict is listed once for each stage (git-ls-files(1)).
    names = sorted({name for name in (listed or "").split("\0") if name})
    return [name for name in names if is_ignored is None or not is_ignored(name)]


def difference(root: Path, commit: str, is_ignored: IsIgnored | None = None) -> bytes:
    """Return the diff from the commit to the folder's content, new files included. What is ignored
    stays as it is in the commit. Raises GitError."""
    with tempfile.TemporaryDirectory(prefix="fairlead-git-") as own:
        objects = _git(root, "rev-parse", "--git-path", "objects") or ""
        (Path(own) / "objects").mkdir()
        env = {
            "GIT_INDEX_FILE": str(Path(own) / "index"),
            "GIT_OBJECT_DIRECTORY": str(Path(own) / "objects"),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": str((root / objects).resolve()),
        }
        if is_ignored is None:
            _git(root, "read-tree", "HEAD", env=env)
            _git(root, "add", "--all", "--", ".", env=env)
        else:
            _git(root, "read-tree", commit, env=env)
            _add_kept(root, commit, is_ignored, Path(own) / "names", env)
        # The user's configuration (diff.external, diff.noprefix) must not make a diff that the
        # node's `git apply` refuses.
        options = ("--binary", "--full-index", "--no-color", "--no-ext-diff", "--no-textconv")
        prefixes = ("--no-renames", "--src-prefix=a/", "--dst-prefix=b/")
        unit = ("--ignore-submodules=all", "--cached", commit, "--")
        return _run(root, ("diff", *options, *prefixes, *unit), env).stdout


def _add_kept(
    root: Path, commit: str, is_ignored: IsIgnored, names: Path, env: Mapping[str, str]
) -> None:
    """Bring the index of `env`, which is at the commit, to the folder's content."""
    before = _kept(_git(root, "ls-tree", "-r", "-z", "--name-only", commit), is_ignored)
    # The user's index lists files that were deleted since, and git refuses to add those.
    now = (name for name in git_files(root, is_ignored) if os.path.lexists(root / name))
    # A repository within this one is listed as `NAME/`; git would add it as a submodule.
    added = sorted({*before, *(name for name in now if not name.endswith("/"))})
    if added:
        names.write_bytes(b"".join(os.fsencode(name) + b"\0" for name in added))
        chosen = (f"--pathspec-from-file={names}", "--pathspec-file-nul")
        # Else names with * or a leading colon are patterns (gitglossary(7), pathspec).
        literal = {**env, "GIT_LITERAL_PATHSPECS": "1"}
        _git(root, "add", "--all", "--force", *chosen, env=literal)


def is_ssh(url: str) -> bool:
    return urlsplit(url).scheme == "ssh" or ("://" not in url and ":" in url)


def as_https(url: str) -> str:
    """Return the URL of the same repository for hosts with tokens."""
    match = _SCP_LIKE.fullmatch(url)
    if "://" not in url and match is not None:
        return f"https://{match['host']}/{match['path'].lstrip('/')}"
    parts = urlsplit(url)
    return f"https://{parts.hostname}{parts.path}"


def known_hosts(url: str) -> str | None:
    """Return the keys by which this machine knows the host."""
    host = _host(url)
    program = shutil.which("ssh-keygen")
    if host is None or program is None:
        return None
    found = subprocess.run(
        # It finds hashed names, too, as Debian's ssh writes them (ssh_config(5), HashKnownHosts).
        [program, "-F", host],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    lines = [line for line in found.stdout.splitlines() if line and not line.startswith("#")]
    return "".join(f"{line}\n" for line in lines) or None


def _host(url: str) -> str | None:
    if "://" not in url:
        match = _SCP_LIKE.fullmatch(url)
        return None if match is None else match["host"]
    parts = urlsplit(url)
    return f"[{parts.hostname}]:{parts.port}" if parts.port else parts.hostname


def _remote(root: Path) -> str | None:
    """Return the remote of the current branch, else `origin`, else the only one."""
    branch = _git(root, "symbolic-ref", "--short", "-q", "HEAD", may_fail=True)
    if branch:
        chosen = _git(root, "config", f"branch.{branch}.remote", may_fail=True)
        # `.`: the branch follows another one of this repository (git-config(1),
        # branch.<name>.remote).
        if chosen and chosen != ".":
            return chosen
    remotes = (_git(root, "remote") or "").split()
    return "origin" if "origin" in remotes else (remotes[0] if len(remotes) == 1 else None)


def _newest_common(root: Path, remote: str) -> str | None:
    if _git(root, "rev-parse", "--verify", "-q", "HEAD", may_fail=True) is None:
        return None
    there = f"--remotes={remote}"
    if not _git(root, "for-each-ref", f"refs/remotes/{remote}"):
        return None
    own = _git(root, "rev-list", "--boundary", "--date-order", "HEAD", "--not", there) or ""
    if not own:
        return _git(root, "rev-parse", "HEAD")
    # `--boundary` marks the commits that the remote has with a `-` (git-rev-list(1)).
    shared = [line[1:] for line in own.splitlines() if line.startswith("-")]
    return shared[0] if shared else None


def _without_login(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        return url
    # Some keep a token in the URL of a remote; a run's configuration can be shown.
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _git(
    folder: Path, *arguments: str, may_fail: bool = False, env: Mapping[str, str] | None = None
) -> str | None:
    done = _run(folder, arguments, env or {}, may_fail=may_fail)
    return None if done.returncode else os.fsdecode(done.stdout).rstrip("\n")


def _run(
    folder: Path, arguments: tuple[str, ...], env: Mapping[str, str], *, may_fail: bool = False
) -> subprocess.CompletedProcess[bytes]:
    argv = ["git", "-C", str(folder), "-c", "core.quotePath=true", *arguments]
    # Without optional locks, a git command that the user gives meanwhile does not fail (git(1)).
    whole = {**os.environ, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", **env}
    try:
        done = subprocess.run(argv, capture_output=True, timeout=_SECONDS, env=whole, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GitError(f"git failed in {folder}: {error}") from None
    if done.returncode and not may_fail:
        lines = os.fsdecode(done.stderr).strip().splitlines()
        raise GitError(f"git failed in {folder}: {lines[-1] if lines else arguments[0]}")
    return done
