"""`outputs`: when a job has ended, what its paths name is copied to its output folder.

The copying is a program of its own, which runs as the job's user: it reads what the job may read,
and no more. Links are never followed out of the working folder, and below a folder not at all. It
prints the lines for the job's log.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from runner.code.helper import Helpers, own_program
from runner.errors import CannotStart

COPY_SECONDS = 600.0
_PART = ".part-of-output"
_MAX_FAILURES = 10


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """`limit`: the most bytes that are copied; None: all."""

    working_dir: str
    target: str
    paths: tuple[str, ...]
    limit: int | None = None


async def copy(helpers: Helpers, order: Order, seconds: float = COPY_SECONDS) -> list[str]:
    """Copy as the user of the helpers, and return the lines for the log."""
    return await lines_of("outputs", "runner.job.outputs", order, helpers, seconds)


async def lines_of(
    what: str, module: str, order: msgspec.Struct, helpers: Helpers, seconds: float
) -> list[str]:
    """Run a copying program of ours with its order, and return the lines for the log; the ones
    about its own failure begin with `what`."""
    argv = (*own_program(module), msgspec.json.encode(order).decode())
    try:
        async with asyncio.timeout(seconds):
            done = await helpers.run(argv, cwd="/")
    except TimeoutError:
        return [f"{what}: copying took more than {seconds:g} s; the rest is left out"]
    except CannotStart as error:
        return [f"{what}: nothing could be copied: {error}"]
    lines = [line for line in done.output.splitlines() if line.strip()]
    if done.code != 0:
        return [f"{what}: copying failed: {lines[-1] if lines else f'exit code {done.code}'}"]
    return lines


class Copier:
    """Copies what an order names. `lines` is for the job's log. Blocking."""

    def __init__(self, order: Order) -> None:
        self.lines: list[str] = []
        self._root = Path(order.working_dir)
        self._target = Path(order.target)
        self._paths = order.paths
        self._left = order.limit
        self._left_out = self._left_out_size = self._failures = 0
        self._seen: set[Path] = set()

    def run(self) -> None:
        for text in self._paths:
            try:
                self._keep(text)
            # Path.glob refuses patterns such as `**x` (ValueError).
            except (OSError, ValueError, NotImplementedError) as error:
                self._fail(text, error)
        if self._failures > _MAX_FAILURES:
            self.lines.append(f"outputs: {self._failures - _MAX_FAILURES} more cannot be copied")
        if self._left_out:
            self.lines.append(
                f"outputs: {self._left_out} files ({self._left_out_size} bytes) were left out:"
                f" beyond the limit of outputs"
            )

    def _keep(self, text: str) -> None:
        root = Path("/") if os.path.isabs(text) else self._root
        pattern = os.path.normpath(text).lstrip("/")
        matches = [root] if pattern in (".", "") else sorted(root.glob(pattern))
        if not matches:
            self.lines.append(f"outputs: {text}: there is no such file or folder")
        whole = root.resolve()
        for source in matches:
            if not source.resolve().is_relative_to(whole):
                self.lines.append(f"outputs: {text}: {source} leads out of the working folder")
            elif source.is_dir():
                self._copy_folder(source.resolve(), self._target / source.relative_to(root))
            else:
                self._copy_file(source.resolve(), self._target / source.relative_to(root))

    def _copy_folder(self, folder: Path, target: Path) -> None:
        for path, folders, files in os.walk(folder, onerror=self._cannot):
            at = Path(path)
            folders[:] = sorted(name for name in folders if at / name != self._target)
            into = target / at.relative_to(folder)
            into.mkdir(parents=True, exist_ok=True)
            # os.walk lists a link to a folder among the folders, and does not enter it.
            for name in sorted([*files, *(one for one in folders if (at / one).is_symlink())]):
                self._copy_file(at / name, into / name)

    def _copy_file(self, source: Path, target: Path) -> None:
        """Copy a plain file or a link; other things are not outputs. Each is copied once, however
        many paths name it."""
        if target in self._seen:
            return
        self._seen.add(target)
        try:
            found = source.lstat()
            if stat.S_ISLNK(found.st_mode):
                target.unlink(missing_ok=True)
                target.symlink_to(os.readlink(source))
            elif stat.S_ISREG(found.st_mode) and self._fits(found.st_size):
                target.parent.mkdir(parents=True, exist_ok=True)
                if target.exists():
                    self.lines.append(
                        f"outputs: {source} takes the place of a file of that name in the output "
                        f"folder"
                    )
                copy_whole(source, target)
        except OSError as error:
            self._cannot(error)

    def _fits(self, size: int) -> bool:
        if self._left is not None and size > self._left:
            self._left_out += 1
            self._left_out_size += size
            return False
        self._left = None if self._left is None else self._left - size
        return True

    def _cannot(self, error: OSError) -> None:
        self._fail(str(error.filename), error)

    def _fail(self, name: str, error: Exception) -> None:
        self._failures += 1
        if self._failures <= _MAX_FAILURES:
            why = error.strerror if isinstance(error, OSError) else None
            self.lines.append(f"outputs: {name}: {why or error}")


def copy_whole(source: Path, target: Path, copy: Callable[..., object] = shutil.copy2) -> None:
    """Copy the file whole, or leave nothing of it."""
    # A name has at most 255 bytes (NAME_MAX).
    part = target.with_name(os.fsdecode(os.fsencode(target.name)[:200]) + _PART)
    try:
        copy(source, part, follow_symlinks=False)
        os.replace(part, target)
    except OSError:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        # On a full disk (ENOSPC) the part must go: it takes the room of all that follows.
        raise


def print_lines(lines: Iterable[str]) -> None:
    """Print them, also names in them that are not UTF-8."""
    sys.stdout.buffer.writelines(os.fsencode(f"{line}\n") for line in lines)


def main() -> None:
    copier = Copier(msgspec.json.decode(sys.argv[1], type=Order))
    copier.run()
    print_lines(copier.lines)


if __name__ == "__main__":
    main()
