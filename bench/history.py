"""What the releases were measured at, and what is worse now.

`bench/releases/VERSION.json` has the figures of a release. A bench compares its own with the last
one that has a file, and `docs/performance.md` shows them all: `python -m bench.history` writes its
table, and a test compares it with the files. A ratio says more than seconds, because machines and
their load differ; where there is only an absolute figure, read the machine that stands with it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

FOLDER = Path(__file__).parent / "releases"
PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- releases -->\n", "<!-- end of releases -->\n"
TOLERATED = 0.10
"""The share by which a figure may be worse before it is told."""


class Kind(msgspec.Struct, frozen=True):
    """One figure that each release is asked for. `more_is_better`: a rate."""

    name: str
    what: str
    unit: str = ""
    more_is_better: bool = False


KINDS = (
    Kind("start.command", "`fairlead apply` → first line, in times of `docker run`", "x"),
    Kind("start.api", "`POST /v1/runs` → first line, in times of `docker run`", "x"),
    Kind("start.final", "`fairlead apply` → all cleaned up, in times of `docker run --rm`", "x"),
    Kind("command.apply", "`fairlead apply`: CPU, in times of `python -c pass`", "x"),
    Kind("memory.shim", "shim, idle", "MiB"),
    Kind("memory.runner", "runner, idle", "MiB"),
    Kind("memory.controller", "controller, idle", "MiB"),
    Kind("logs.websocket", "job's stdout → WebSocket client", "MiB/s", more_is_better=True),
    Kind("logs.copied", "the same of a job that copies a file", "MiB/s", more_is_better=True),
    Kind("logs.cpu", "the same: CPU of the controller for each MiB", "ms"),
    Kind("logs.command", "job's stdout → `fairlead logs -f`", "MiB/s", more_is_better=True),
    Kind("submissions.one", "a run submitted by itself: CPU of the controller", "ms"),
    Kind("submissions.batch", "a run submitted in a batch: CPU of the controller", "ms"),
    Kind("takeover.stopped", "several controllers, the leader stopped: a client waits", "s"),
    Kind("takeover.killed", "several controllers, the leader killed: a client waits", "s"),
    Kind("leads.kept", "a lead that is over: memory that its process keeps of it", "KiB"),
    Kind("scale.cpu", "5,000 jobs run: CPU of the controller, of a core", "%"),
    Kind("scale.node", "memory of the controller for each node", "KiB"),
    Kind("scale.ssh_node", "the same by SSH", "KiB"),
    Kind("scale.commits", "runs decided, placed, committed", "/s", more_is_better=True),
    Kind("scale.submit", "runs submitted and placed beside the nodes", "/s", more_is_better=True),
    Kind("scale.exit", "a job's end → in the API, p99", "ms"),
    Kind("scale.gang", "a gang of 200 → RUNNING", "s"),
    Kind("scale.reconnect", "1,000 nodes back at once: a request, p99", "ms"),
    Kind("scale.pass", "one scheduling pass, 5,000 jobs and nodes", "ms"),
)
_BY_NAME = {kind.name: kind for kind in KINDS}


class Release(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The figures of a version by the names in `KINDS`; `machine` with the load before."""

    version: str
    measured_at: str
    machine: str
    figures: dict[str, float]


def releases(folder: Path = FOLDER) -> list[Release]:
    """Return the releases that have figures, oldest first."""
    found = [msgspec.json.decode(file.read_bytes(), type=Release) for file in folder.glob("*.json")]
    return sorted(found, key=lambda one: tuple(map(int, one.version.split("."))))


def with_figures(release: Release, folder: Path = FOLDER) -> None:
    """Write the release's file; figures that another bench wrote there stay."""
    file = folder / f"{release.version}.json"
    known: dict[str, float] = {}
    if file.exists():
        known = msgspec.json.decode(file.read_bytes(), type=Release).figures
    every = known | release.figures
    written = msgspec.structs.replace(
        release, figures={kind.name: every[kind.name] for kind in KINDS if kind.name in every}
    )
    file.write_bytes(msgspec.json.format(msgspec.json.encode(written), indent=2) + b"\n")


def add_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--release", metavar="VERSION", help="write the figures to bench/releases")


def conclude(figures: dict[str, float], version: str | None, machine: str) -> None:
    """Print the figures beside those of the last release; write them for `version`, if given."""
    print(comparison(figures))
    if version:
        today = datetime.now(UTC).date().isoformat()
        with_figures(Release(version=version, measured_at=today, machine=machine, figures=figures))


def change(kind: Kind, before: float, now: float) -> float:
    """Return by which share the figure is worse; negative: it is better."""
    if before <= 0 or now <= 0:
        return 0.0
    return (before / now if kind.more_is_better else now / before) - 1.0


def worse(before: Mapping[str, float], now: Mapping[str, float]) -> list[str]:
    """Return a sentence for each figure that is worse by more than is tolerated."""
    return [
        f"{kind.what}: {_shown(now[kind.name], kind)} instead of "
        f"{_shown(before[kind.name], kind)}, worse by {lost:.0%}"
        for kind in KINDS
        if kind.name in before and kind.name in now
        if (lost := change(kind, before[kind.name], now[kind.name])) > TOLERATED
    ]


def comparison(now: Mapping[str, float], known: Sequence[Release] | None = None) -> str:
    """Return, as Markdown, these figures beside those of the last release, and what is worse."""
    past = releases() if known is None else known
    if not past:
        return "There is no release with figures to compare with.\n"
    last = past[-1]
    rows = [
        (kind.what, _shown(last.figures.get(kind.name), kind), _shown(now[kind.name], kind))
        for kind in KINDS
        if kind.name in now
    ]
    lost = worse(last.figures, now)
    verdict = [f"- {sentence}" for sentence in lost] or ["Nothing is worse by more than 10 %."]
    table = _table(("", last.version, "now"), rows)
    return "\n".join((f"Beside {last.version} ({last.machine}):\n", table, "", *verdict)) + "\n"


def history(known: Sequence[Release] | None = None) -> str:
    """Return the table of all releases, and where they were measured."""
    past = releases() if known is None else known
    rows = [
        (kind.what, *(_shown(one.figures.get(kind.name), kind) for one in past)) for kind in KINDS
    ]
    machines = "\n".join(f"- {one.version}, {one.measured_at[:10]}: {one.machine}" for one in past)
    return f"{_table(('', *(one.version for one in past)), rows)}\n\n{machines}\n"


def page(text: str, known: Sequence[Release] | None = None) -> str:
    """Return the text of the page with the present table between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{history(known)}\n{END}{after}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ("---", *("---:" for _ in head[1:])), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _shown(value: float | None, kind: Kind) -> str:
    if value is None:
        return "-"
    digits = 0 if value >= 20 else 1 if value >= 3 else 2
    return f"{value:,.{digits}f} {kind.unit}".strip()


def main() -> None:
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
