"""The outputs of jobs, brought here: one tar of each attempt, resumed after a cut and unpacked."""

from __future__ import annotations

import os
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from fairlead.documents.jobs import OutputsAnswer, OutputsView
from fairlead.errors import ConnectionLost, OutputsMissing, UsageError
from fairlead.model.statuses import OutputsState
from fairlead.rest import CUT_WAITS, ControllerClient, decode, run_path

Show = Callable[[str], None]
_SHOWN_BYTES = 4 << 20
_SHOW_SECONDS = 1.0


class Pulled(msgspec.Struct, frozen=True, kw_only=True):
    """The outputs of one attempt that are in `folder` now."""

    outputs: OutputsView
    folder: Path


def read(rest: ControllerClient, run: str, **query: object) -> bytes:
    """Return the list of outputs as JSON; `job` and `attempt` limit it."""
    return rest.get(run_path(run, "outputs"), **query)


def listed(data: bytes) -> tuple[OutputsView, ...]:
    return decode(data, OutputsAnswer).outputs


def pull(
    rest: ControllerClient, run: str, found: tuple[OutputsView, ...], folder: Path, show: Show
) -> Iterator[Pulled]:
    """Bring what there is, each job's in turn; of several jobs each gets a folder of its own.

    Raises OutputsMissing, after the others, when a job's were there and cannot be brought.
    """
    missing = []
    for one in found:
        if one.state is OutputsState.NONE:
            continue
        if one.archive_size is None:
            missing.append(_why_missing(one))
            continue
        target = folder if len(found) == 1 else folder / f"{one.group}-{one.cookie}"
        _download(rest, run, one, target, show)
        yield Pulled(outputs=one, folder=target)
    if missing:
        raise OutputsMissing("; ".join(missing))


def left_out(one: OutputsView) -> str | None:
    """Return the sentence about outputs that are lost."""
    if not one.left_out:
        return None
    return (
        f"{one.left_out} entries ({one.left_out_size} bytes) of job {one.group}/{one.cookie} were "
        f"left out: beyond the limit of outputs, or no files, folders or links within"
    )


def _why_missing(one: OutputsView) -> str:
    state = "removed: they have expired" if one.removed else one.state.value
    return f"the outputs of job {one.group}/{one.cookie} are {state}"


def _download(rest: ControllerClient, run: str, one: OutputsView, target: Path, show: Show) -> None:
    """Bring the tar beside its place, going on where an earlier try stopped, then unpack it."""
    path = run_path(run, "outputs/archive")
    arriving = target / f".fairlead-{one.attempt_id}.tar"
    heard = Arriving(one, show, time.monotonic)
    try:
        target.mkdir(parents=True, exist_ok=True)
        waits, have = iter(CUT_WAITS), 0
        while True:
            try:
                rest.download(path, arriving, heard, attempt=one.attempt_id)
                break
            # `download` goes on from what has arrived, so another try costs only the rest.
            except ConnectionLost:
                arrived = arriving.stat().st_size if arriving.exists() else 0
                # A long download may outlast several controllers.
                waits, have = (iter(CUT_WAITS) if arrived > have else waits), arrived
                if (wait := next(waits, None)) is None:
                    raise
                time.sleep(wait)
        with tarfile.open(arriving, "r:") as archive:
            # The job chose the names in it: the filter refuses ways out of the folder (PEP 706).
            archive.extractall(target, filter="data")
        arriving.unlink()
    except tarfile.TarError as error:
        # Another try goes on behind what has arrived, so it would keep the damage.
        arriving.unlink(missing_ok=True)
        raise OutputsMissing(f"the outputs came damaged ({error}); pull them again") from None
    except OSError as error:
        path = os.fspath(error.filename or target)
        raise UsageError(f"{path}: {error.strerror or error}") from None


class Arriving:
    """Shows at most once a second how much of a large download is here."""

    def __init__(self, one: OutputsView, show: Show, monotonic: Callable[[], float]) -> None:
        self._job = f"{one.group}/{one.cookie}"
        self._total = one.archive_size or 0
        self._show = show
        self._monotonic = monotonic
        self._shown_at = monotonic()

    def __call__(self, have: int) -> None:
        now = self._monotonic()
        is_end = have >= self._total
        if self._total >= _SHOWN_BYTES and (is_end or now - self._shown_at >= _SHOW_SECONDS):
            self._shown_at = now
            mib = f"{have >> 20} of {self._total >> 20} MiB"
            self._show(f"{mib} of the outputs of job {self._job} are here")
