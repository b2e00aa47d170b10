"""A job's code in two versions: what must change in its container before it starts again there.

Pure. The controller asks whether it is possible, the runner what is to be done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from fairlead.wire.runner import Files, Repo


class CodeChanges(msgspec.Struct, frozen=True, kw_only=True):
    """The difference of two versions. What an unchanged folder holds is neither sent nor
    touched."""

    repos: tuple[tuple[Repo, Repo], ...] = ()
    """Repositories before and after."""
    removed: tuple[Files, ...] = ()
    """All that was unpacked into folders of which something changes, in its order."""
    files: tuple[Files, ...] = ()
    """All that is unpacked there now."""

    @property
    def blobs(self) -> tuple[str, ...]:
        """What the runner needs for it, each once. A repository's earlier changes are among it:
        they are taken back first."""
        of_repos = (one for pair in self.repos for one in (pair[0].diff, *_brought(pair[1])))
        named = (*of_repos, *(one.archive for one in self.files))
        return tuple(dict.fromkeys(one for one in named if one is not None))


Code = tuple[Sequence[Repo], Sequence[Files]]
"""The repositories and the files of a job."""


def code_changes(before: Code, after: Code) -> CodeChanges:
    """Return what changes. `why_not_in_place` has found nothing."""
    pairs = zip(before[0], after[0], strict=True)
    repos = tuple((old, new) for old, new in pairs if old != new)
    # Files may lie in a repository's folder, over its own.
    all_paths = frozenset(one.path for one in (*before[1], *after[1]))
    paths = all_paths if repos else _changed_paths(before[1], after[1])
    return CodeChanges(
        repos=repos,
        removed=tuple(one for one in before[1] if one.path in paths),
        files=tuple(one for one in after[1] if one.path in paths),
    )


def why_not_in_place(before: Code, after: Code) -> str | None:
    """Return why the code of a job cannot change in its container, as a sentence; None: it can."""
    if [one.path for one in before[0]] != [one.path for one in after[0]]:
        return "its repositories are in other folders"
    # A folder that is made later could be made through a link that the job has put there.
    if {one.path for one in before[1]} != {one.path for one in after[1]}:
        return "its files are in other folders"
    for old, new in zip(before[0], after[0], strict=True):
        if _place(old) != _place(new):
            return f"another commit of the repository in {new.path!r} must be fetched"
    return None


def _place(repo: Repo) -> tuple[object, ...]:
    return (repo.url, repo.branch, repo.commit, repo.archive is None, repo.if_exists)


def _brought(repo: Repo) -> tuple[str | None, str | None]:
    return repo.archive, repo.diff


def _changed_paths(before: Iterable[Files], after: Iterable[Files]) -> frozenset[str]:
    # Two archives may hold the same name, and the later one wins: so the folder is one thing.
    old, new = _by_path(before), _by_path(after)
    return frozenset(path for path in {*old, *new} if old.get(path) != new.get(path))


def _by_path(files: Iterable[Files]) -> dict[str, list[Files]]:
    found: dict[str, list[Files]] = {}
    for one in files:
        found.setdefault(one.path, []).append(one)
    return found
