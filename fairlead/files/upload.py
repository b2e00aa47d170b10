"""Uploads make a run independent of this machine: its `repos` and `files` become blobs.

An archive is made in the same way every time, of parts that do not depend on each other, so
unchanged content is not sent again, and of changed content only the parts with changed files. The
user's repository is only read: new files are compared through an own index and object store.
Content that cannot be packed is refused before anything is sent.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import posixpath
import re
import shutil
import stat
import subprocess
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import msgspec

from fairlead.configuration.convert import ConfigurationError
from fairlead.configuration.parse import parse
from fairlead.configuration.runs.common import RunFields
from fairlead.configuration.values.files import FileFields, RepoFields
from fairlead.errors import ApiError
from fairlead.files.ignored import IsIgnored, ignored_in
from fairlead.rest import ControllerClient
from fairlead.wire.blobs import MAX_PARTS, Part

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
        [program, "-F", host], capture_output=True, text=True, timeout=_SECONDS, check=False
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
    shared = [line[1:] for line in own.splitlines() if line.startswith("-")]
    return shared[0] if shared else None


def _without_login(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        return url
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


_LEVEL = 6
MIN_PART_BYTES, MAX_PART_BYTES = 64 << 10, 256 << 10
"""A part has so many bytes of whole files, before they are packed; a larger file is a part of its
own."""
_ENDS_A_PART = 8
"""About one file in this number ends a part, chosen by its name: then parts around a file that came
or went stay as they were."""


class Upload(msgspec.Struct, frozen=True):
    """A file to upload. `parts`: all of its bytes, so that only what is new of them is sent; none:
    it is sent whole."""

    file: Path
    parts: tuple[Part, ...] = ()


class Packed(msgspec.Struct):
    """A packed configuration. `uploads`: by their sha256, in the folder given to `pack`. `notes`:
    what its user may not have meant."""

    configuration: dict[str, Any]
    uploads: dict[str, Upload]
    notes: list[str]


def pack(
    written: dict[str, Any],
    parsed: RunFields,
    base: Path,
    environ: Mapping[str, str],
    scratch: Path,
    also_ignored: IsIgnored | None = None,
) -> Packed:
    """Pack a configuration's code. Paths are relative to `base`. Raises ConfigurationError."""
    packer = _Packer(base, environ, scratch, also_ignored)
    return Packed(_filled(written, parsed, packer), packer.uploads, packer.notes)


def _filled(written: dict[str, Any], parsed: RunFields, packer: _Packer) -> dict[str, Any]:
    filled = dict(written)
    if parsed.repos:
        filled["repos"] = [
            packer.repo(repo, f"repos[{number}]") for number, repo in enumerate(parsed.repos)
        ]
    if parsed.files:
        filled["files"] = [
            packer.file(file, f"files[{number}]") for number, file in enumerate(parsed.files)
        ]
    return filled


class _Packer:
    def __init__(
        self,
        base: Path,
        environ: Mapping[str, str],
        scratch: Path,
        also_ignored: IsIgnored | None = None,
    ) -> None:
        self._base = base
        self._environ = environ
        self._scratch = scratch
        self._also_ignored = also_ignored
        self.uploads: dict[str, Upload] = {}
        self.notes: list[str] = []

    def repo(self, repo: RepoFields, field: str) -> dict[str, Any]:
        uploaded: dict[str, Any] = {}
        if repo.local_path is not None:
            folder = self._local(repo.local_path, f"{field}.local_path")
            if not folder.is_dir():
                raise ConfigurationError(f"{field}.local_path", f"{folder} is not a folder")
            uploaded = self._folder(folder, field)
        uploaded |= self._keys(repo, field, uploaded.get("url") or repo.url)
        shown = {
            name: value
            for name, value in msgspec.structs.asdict(repo).items()
            if value is not None and name != "uploaded"
        }
        return {**shown, "uploaded": uploaded}

    def file(self, file: FileFields, field: str) -> dict[str, Any]:
        local = self._local(file.local_path, f"{field}.local_path")
        place = file.path or self._place(file.local_path, field)
        if not local.exists():
            raise ConfigurationError(f"{field}.local_path", f"{local} does not exist")
        if local.is_dir():
            folder, members = place, self._tree(local, field)
        else:
            folder, name = posixpath.split(place.rstrip("/"))
            members = [(name, local)]
        digest = self._archive(members, f"{field}.local_path")
        shown = {"local_path": file.local_path, "path": place}
        return {**shown, "uploaded": [digest, folder or "."]}

    def _folder(self, folder: Path, field: str) -> dict[str, Any]:
        try:
            found = look_at_git(folder)
            if found is None or found.url is None or found.commit is None:
                members = self._tree(folder, field)
                if found is None:
                    self.notes.append(_without_git(folder, len(members), field))
                return {"archive": self._archive(members, field)}
            is_ignored = ignored_in(folder, f"{field}.local_path", self._also_ignored)
            diff = difference(found.root, found.commit, is_ignored)
        except GitError as error:
            raise ConfigurationError(f"{field}.local_path", str(error)) from None
        uploaded = {"url": found.url, "hash": found.commit}
        return uploaded | ({"diff": self._blob(diff)} if diff else {})

    def _tree(self, folder: Path, field: str) -> list[tuple[str, Path]]:
        return _tree(folder, f"{field}.local_path", self._also_ignored)

    def _keys(self, repo: RepoFields, field: str, url: str | None) -> dict[str, Any]:
        keys: dict[str, Any] = {}
        if repo.token_env is not None:
            if repo.token_env not in self._environ:
                raise ConfigurationError(
                    f"{field}.token_env", f"{repo.token_env!r} is not set in your environment"
                )
            keys["token"] = self._environ[repo.token_env]
        has_token = repo.token_env is not None or repo.token is not None
        if has_token and url is not None and is_ssh(url):
            keys["url"] = as_https(url)
        if repo.key_file is not None:
            path = self._local(repo.key_file, f"{field}.key_file")
            try:
                keys["private_key"] = path.read_text("utf-8")
            except (OSError, UnicodeDecodeError):
                raise ConfigurationError(f"{field}.key_file", f"{path} can't be read") from None
        if url is not None and is_ssh(url) and not has_token:
            keys |= {"known_hosts": known} if (known := known_hosts(url)) else {}
        return keys

    def _local(self, text: str, field: str) -> Path:
        try:
            return self._base / Path(text).expanduser()
        except RuntimeError:
            raise ConfigurationError(field, "there is no home folder for `~`") from None

    def _place(self, local: str, field: str) -> str:
        """Return where a file without a given path goes: the same path below the working folder."""
        if os.path.isabs(local):
            return local
        place = posixpath.normpath(local)
        if local.startswith("~") or place.startswith(".."):
            raise ConfigurationError(field, f"give its path in the container: {local}:/some/path")
        return place

    def _archive(self, members: Iterable[tuple[str, Path]], field: str) -> str:
        path = self._scratch / f"archive-{len(os.listdir(self._scratch))}"
        with path.open("wb") as file:
            parts = _Parts(file)
            with tarfile.open(fileobj=parts, mode="w", format=tarfile.PAX_FORMAT) as archive:
                for name, source in members:
                    parts.begin(name)
                    _add(archive, name, source, field)
                parts.end()  # the padding depends on all files, so it is a part of its own
            parts.end()
        with path.open("rb") as made:
            digest = hashlib.file_digest(made, "sha256").hexdigest()
        self.uploads[digest] = Upload(path, tuple(parts.made))
        return digest

    def _blob(self, content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        path = self._scratch / digest
        path.write_bytes(content)
        self.uploads[digest] = Upload(path)
        return digest


class _Parts(io.RawIOBase):
    """A packed file of parts, each of which is a gzip member: together they are one gzip file.

    Whole files of the archive make a part, so the same files are the same bytes in each archive.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.made: list[Part] = []
        self._file = _Hashed(file)
        self._packed: gzip.GzipFile | None = None
        self._size = 0
        self._written = 0
        self._may_end = False

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._written

    def begin(self, name: str) -> None:
        """The next member of the archive is this."""
        ended_by_name, self._may_end = self._may_end, _ends_a_part(name)
        if self._size >= MAX_PART_BYTES or (ended_by_name and self._size >= MIN_PART_BYTES):
            self.end()

    def write(self, data: Any) -> int:
        if self._packed is None:
            self._packed = _gzip(self._file)
        self._size += len(data)
        self._written += len(data)
        return self._packed.write(data)

    def end(self) -> None:
        """End the part."""
        if self._packed is not None:
            self._packed.close()
            self._packed = None
            self.made.append(self._file.cut())
            self._size = 0


def _ends_a_part(name: str) -> bool:
    return zlib.crc32(os.fsencode(name)) % _ENDS_A_PART == 0


class _Hashed(io.RawIOBase):
    """Names what is written to a file, between two cuts."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash, self._size = hashlib.sha256(), 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._hash.update(data)
        self._size += len(data)
        return self._file.write(data)

    def cut(self) -> Part:
        part = Part(sha256=self._hash.hexdigest(), size=self._size)
        self._hash, self._size = hashlib.sha256(), 0
        return part


def _gzip(file: _Hashed) -> gzip.GzipFile:
    """Return a gzip file without time and name, so that the same content makes the same bytes."""
    return gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=_LEVEL, mtime=0)


def _add(archive: tarfile.TarFile, name: str, source: Path, field: str) -> None:
    info = _member(name, source, field)
    try:
        if not info.isreg():
            archive.addfile(info)
            return
        with source.open("rb") as content:
            # The file may have changed since lstat(2), and the header must say what follows.
            info.size = os.fstat(content.fileno()).st_size
            archive.addfile(info, content)
    except OSError as error:
        raise ConfigurationError(
            field, f"{source} can't be read: {error.strerror or error}"
        ) from None


def _member(name: str, source: Path, field: str) -> tarfile.TarInfo:
    """Return the archive's entry for a file. Raises ConfigurationError for what cannot be sent."""
    try:
        found = source.lstat()
        info = tarfile.TarInfo(name)
        info.mode, info.mtime = stat.S_IMODE(found.st_mode) & 0o777, int(found.st_mtime)
        if stat.S_ISLNK(found.st_mode):
            info.type, info.linkname = tarfile.SYMTYPE, os.readlink(source)
        elif stat.S_ISDIR(found.st_mode):
            info.type = tarfile.DIRTYPE
        elif not stat.S_ISREG(found.st_mode):
            raise ConfigurationError(field, f"{source} is neither a file nor a folder nor a link")
    except OSError as error:
        raise ConfigurationError(field, f"{source} can't be read: {error.strerror}") from None
    if info.issym() and _leaves(name, info.linkname):
        raise ConfigurationError(
            field, f"{source} is a link to outside of what is sent; leave it out"
        )
    return info


def _leaves(name: str, target: str) -> bool:
    """Return whether a link leads out of the folder.

    The node accepts only links that go up first, and not beyond the folder that is sent.
    """
    steps = [step for step in target.split("/") if step not in ("", ".")]
    ups = next((at for at, step in enumerate(steps) if step != ".."), len(steps))
    depth = len(posixpath.normpath(name).split("/"))
    return target.startswith("/") or ups >= depth or ".." in steps[ups:]


def _tree(folder: Path, field: str, also_ignored: IsIgnored | None) -> list[tuple[str, Path]]:
    """Return all files below the folder except git's own; in a git repository those that git does
    not ignore. What `.fairleadignore` names stays behind. Raises ConfigurationError."""
    is_ignored = ignored_in(folder, field, also_ignored)
    try:
        if look_at_git(folder) is not None:
            names = git_files(folder, is_ignored)
            return [(name, folder / name) for name in names if _is_there(folder / name)]
    except GitError as error:
        raise ConfigurationError(field, str(error)) from None
    found: list[tuple[str, Path]] = []
    for path, folders, files in os.walk(folder):
        below = Path(path).relative_to(folder)
        folders[:] = [
            name
            for name in sorted(folders)
            if name != ".git"
            and not (is_ignored and is_ignored(_folder_name(folder, below / name)))
        ]
        for name in sorted([*folders, *files]):
            source = below / name
            if name in folders or not (is_ignored and is_ignored(source.as_posix())):
                found.append((source.as_posix(), folder / source))
    return found


def _without_git(folder: Path, count: int, field: str) -> str:
    """Return what to tell of a folder of `repos` that is sent as it is."""
    has_git = shutil.which("git") is not None
    why = f"{folder.resolve()} is in no git repository" if has_git else "git is not installed here"
    files = "its one entry is" if count == 1 else f"all its {count} entries are"
    return f"{field}: {why}: {files} sent; a file .fairleadignore leaves out what it names"


def _folder_name(root: Path, below: Path) -> str:
    """Return the path of a folder as patterns see it: a link to a folder is no folder."""
    return below.as_posix() + ("" if (root / below).is_symlink() else "/")


def _is_there(path: Path) -> bool:
    return path.is_symlink() or path.is_file()


def as_if_sent(configuration: object, base: Path, environ: Mapping[str, str]) -> object:
    """Return what `send_code` would return, with digests of nothing. Nothing is packed or sent.
    Raises ConfigurationError as `send_code` does."""
    parsed = parse(configuration)
    if not isinstance(configuration, dict) or not (parsed.repos or parsed.files):
        return configuration
    return _filled(configuration, parsed, _Checker(base, environ, Path()))


class _Checker(_Packer):
    """Goes through what would be packed, and packs nothing."""

    def _folder(self, folder: Path, field: str) -> dict[str, Any]:
        try:
            found = look_at_git(folder)
        except GitError as error:
            raise ConfigurationError(f"{field}.local_path", str(error)) from None
        if found is not None and found.url is not None and found.commit is not None:
            return {"url": found.url, "hash": found.commit}
        return {"archive": self._archive(self._tree(folder, field), field)}

    def _keys(self, repo: RepoFields, field: str, url: str | None) -> dict[str, Any]:
        keys = super()._keys(repo, field, url)
        return keys | {name: "-" for name in ("token", "private_key") if name in keys}

    def _archive(self, members: Iterable[tuple[str, Path]], field: str) -> str:
        for name, source in members:
            info = _member(name, source, field)
            if info.isreg() and not os.access(source, os.R_OK):
                raise ConfigurationError(field, f"{source} can't be read: Permission denied")
        return "0" * 64


_WORTH_TELLING = 4 << 20
_TELL_SECONDS = 3.0


def send_code(
    client: ControllerClient,
    configuration: object,
    base: Path,
    environ: Mapping[str, str],
    tell: Callable[[str], None],
    also_ignored: IsIgnored | None = None,
) -> object:
    """Upload the code and return the configuration to submit, which needs nothing of this machine.

    Paths in it are relative to `base`. Raises ConfigurationError, ApiError, ConnectionLost.
    """
    parsed = parse(configuration)
    if not isinstance(configuration, dict) or not (parsed.repos or parsed.files):
        return configuration
    with tempfile.TemporaryDirectory(prefix="fairlead-upload-") as scratch:
        packed = pack(configuration, parsed, base, environ, Path(scratch), also_ignored)
        for note in packed.notes:
            tell(note)
        for digest, upload in packed.uploads.items():
            if not client.has_upload(digest):
                _send(client, digest, upload, tell)
    sent: dict[str, Any] = packed.configuration
    return sent


def digested(
    configuration: object,
    base: Path,
    environ: Mapping[str, str],
    also_ignored: IsIgnored | None = None,
) -> object:
    """Return what `send_code` would return. Everything is packed and nothing is sent. Raises
    ConfigurationError."""
    parsed = parse(configuration)
    if not isinstance(configuration, dict) or not (parsed.repos or parsed.files):
        return configuration
    with tempfile.TemporaryDirectory(prefix="fairlead-upload-") as scratch:
        found: dict[str, Any] = pack(
            configuration, parsed, base, environ, Path(scratch), also_ignored
        ).configuration
    return found


_SENT_WHOLE_AFTER = (
    HTTPStatus.NOT_FOUND,  # an older controller
    HTTPStatus.CONFLICT,  # it has just removed an old upload
    HTTPStatus.BAD_REQUEST,  # an old upload is damaged on its disk
)


def _send(
    client: ControllerClient, digest: str, upload: Upload, tell: Callable[[str], None]
) -> None:
    """Send what no earlier upload of the user has, else all of it."""
    if 1 < len(upload.parts) <= MAX_PARTS:
        try:
            missing = client.missing_parts(digest, upload.parts)
            size = sum(part.size for part in upload.parts if part.sha256 in missing)
            progress = UploadProgress(size, tell, time.monotonic)
            client.upload_parts(digest, upload.file, upload.parts, missing, progress)
            return
        except ApiError as error:
            if error.status not in _SENT_WHOLE_AFTER:
                raise
    size = upload.file.stat().st_size
    client.upload(digest, upload.file, UploadProgress(size, tell, time.monotonic))


class UploadProgress:
    """Tells of a large upload when it begins, and every few seconds how far it is."""

    def __init__(
        self, size: int, tell: Callable[[str], None], monotonic: Callable[[], float]
    ) -> None:
        self._size = size
        self._tell = tell
        self._monotonic = monotonic
        self._told_at = monotonic()
        if size >= _WORTH_TELLING:
            tell(f"sending {_mib(size)} MiB of code")

    def __call__(self, sent: int) -> None:
        now = self._monotonic()
        if now - self._told_at >= _TELL_SECONDS and sent < self._size:
            self._told_at = now
            self._tell(f"{_mib(sent)} of {_mib(self._size)} MiB of code are sent")


def _mib(size: int) -> int:
    return round(size / (1 << 20))
