"""Makes a run independent of this machine: what its `repos` and `files` name becomes uploads.

An archive is made the same way every time, so that what has not changed is not sent again. Nothing
is changed here but a copy of the configuration; what cannot be packed is refused before anything is
sent.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import posixpath
import stat
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec

from controller.cli import gitfolder
from controller.cli.gitfolder import GitError
from controller.configuration.errors import ConfigurationError
from controller.configuration.schema import FileFields, RepoFields, TaskConfiguration

_PIECE = 1 << 20
_LEVEL = 6


class Packed(msgspec.Struct):
    """`uploads`: files (of the folder given to `pack`) by their sha256."""

    configuration: dict[str, Any]
    uploads: dict[str, Path]


def pack(
    written: dict[str, Any],
    parsed: TaskConfiguration,
    base: Path,
    environ: Mapping[str, str],
    scratch: Path,
) -> Packed:
    """Paths are relative to `base`. Raises ConfigurationError."""
    packer = _Packer(base, environ, scratch)
    filled = dict(written)
    if parsed.repos:
        filled["repos"] = [
            packer.repo(repo, f"repos[{number}]") for number, repo in enumerate(parsed.repos)
        ]
    if parsed.files:
        filled["files"] = [
            packer.file(file, f"files[{number}]") for number, file in enumerate(parsed.files)
        ]
    return Packed(filled, packer.uploads)


class _Packer:
    def __init__(self, base: Path, environ: Mapping[str, str], scratch: Path) -> None:
        self._base = base
        self._environ = environ
        self._scratch = scratch
        self.uploads: dict[str, Path] = {}

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
            folder, members = place, _tree(local, f"{field}.local_path")
        else:
            folder, name = posixpath.split(place.rstrip("/"))
            members = [(name, local)]
        digest = self._archive(members, f"{field}.local_path")
        shown = {"local_path": file.local_path, "path": place}
        return {**shown, "uploaded": [digest, folder or "."]}

    def _folder(self, folder: Path, field: str) -> dict[str, Any]:
        try:
            found = gitfolder.look_at(folder)
            if found is None:
                return {"archive": self._archive(_tree(folder, field), field)}
            if found.url is None or found.commit is None:
                members = [(name, folder / name) for name in gitfolder.files(folder)]
                present = [(n, p) for n, p in members if p.is_symlink() or p.is_file()]
                return {"archive": self._archive(present, field)}
            diff = gitfolder.difference(found.root, found.commit)
        except GitError as error:
            raise ConfigurationError(f"{field}.local_path", str(error)) from None
        uploaded = {"url": found.url, "hash": found.commit}
        return uploaded | ({"diff": self._blob(diff)} if diff else {})

    def _keys(self, repo: RepoFields, field: str, url: str | None) -> dict[str, Any]:
        keys: dict[str, Any] = {}
        if repo.token_env is not None:
            if repo.token_env not in self._environ:
                raise ConfigurationError(
                    f"{field}.token_env", f"{repo.token_env!r} is not set in your environment"
                )
            keys["token"] = self._environ[repo.token_env]
            if url is not None and gitfolder.is_ssh(url):
                keys["url"] = gitfolder.as_https(url)
        if repo.key_file is not None:
            path = self._local(repo.key_file, f"{field}.key_file")
            try:
                keys["private_key"] = path.read_text("utf-8")
            except (OSError, UnicodeDecodeError):
                raise ConfigurationError(f"{field}.key_file", f"{path} can't be read") from None
        if url is not None and gitfolder.is_ssh(url) and repo.token_env is None:
            keys |= {"known_hosts": known} if (known := gitfolder.known_hosts(url)) else {}
        return keys

    def _local(self, text: str, field: str) -> Path:
        try:
            return self._base / Path(text).expanduser()
        except RuntimeError:
            raise ConfigurationError(field, "there is no home folder for `~`") from None

    def _place(self, local: str, field: str) -> str:
        """Where a file goes that was given no place: the same path below the working folder."""
        if os.path.isabs(local):
            return local
        place = posixpath.normpath(local)
        if local.startswith("~") or place.startswith(".."):
            raise ConfigurationError(
                field, f"say where in the container it goes: {local}:/some/path"
            )
        return place

    def _archive(self, members: Iterable[tuple[str, Path]], field: str) -> str:
        path = self._scratch / f"archive-{len(os.listdir(self._scratch))}"
        with (
            path.open("wb") as file,
            _gzip(file) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for name, source in members:
                _add(archive, name, source, field)
        with path.open("rb") as made:
            digest = hashlib.file_digest(made, "sha256").hexdigest()
        self.uploads[digest] = path
        return digest

    def _blob(self, content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        path = self._scratch / digest
        path.write_bytes(content)
        self.uploads[digest] = path
        return digest


def _gzip(file: IO[bytes]) -> gzip.GzipFile:
    """Without a time and a name in it: the same content makes the same bytes."""
    return gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=_LEVEL, mtime=0)


def _add(archive: tarfile.TarFile, name: str, source: Path, field: str) -> None:
    try:
        found = source.lstat()
        info = tarfile.TarInfo(name)
        info.mode, info.mtime = stat.S_IMODE(found.st_mode) & 0o777, int(found.st_mtime)
        if stat.S_ISLNK(found.st_mode):
            info.type, info.linkname = tarfile.SYMTYPE, os.readlink(source)
            if _leaves(name, info.linkname):
                raise ConfigurationError(
                    field, f"{source} is a link that leads out of what is sent; leave it out"
                )
            archive.addfile(info)
        elif stat.S_ISDIR(found.st_mode):
            info.type = tarfile.DIRTYPE
            archive.addfile(info)
        elif stat.S_ISREG(found.st_mode):
            with source.open("rb") as content:
                info.size = os.fstat(content.fileno()).st_size
                archive.addfile(info, content)
        else:
            raise ConfigurationError(field, f"{source} is neither a file nor a folder nor a link")
    except OSError as error:
        raise ConfigurationError(field, f"{source} can't be read: {error.strerror}") from None


def _leaves(name: str, target: str) -> bool:
    """The node takes only links that go up first, and not further than the folder that is sent."""
    steps = [step for step in target.split("/") if step not in ("", ".")]
    ups = next((at for at, step in enumerate(steps) if step != ".."), len(steps))
    depth = len(posixpath.normpath(name).split("/"))
    return target.startswith("/") or ups >= depth or ".." in steps[ups:]


def _tree(folder: Path, field: str) -> list[tuple[str, Path]]:
    """All below it but git's own folder; of a git repository what git would not ignore."""
    if gitfolder.look_at(folder) is not None:
        names = gitfolder.files(folder)
        return [(name, folder / name) for name in names if _is_there(folder / name)]
    found: list[tuple[str, Path]] = []
    for path, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != ".git")
        for name in sorted([*folders, *files]):
            source = Path(path, name)
            found.append((source.relative_to(folder).as_posix(), source))
    return found


def _is_there(path: Path) -> bool:
    return path.is_symlink() or path.is_file()
