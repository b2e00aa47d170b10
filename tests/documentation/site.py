"""Builds the pages of `docs/` as a site in `.build/site`: `./dev site`.

Pages keep the links that a reader of the repository follows. What they name outside of `docs/` is
copied: a page as a page, a source file as a page that shows it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import fairlead
from controller.api.app import ROUTES
from controller.api.http.openapi import document
from tests.documentation import api_reference

CHECKOUT = Path(__file__).parents[2]
PAGES = CHECKOUT / "docs"
CONFIGURATION = PAGES / "mkdocs.yml"
FOLDER = CHECKOUT / ".build" / "site"

_FIRST = ("Client", "Run", "Task", "AsyncClient", "AsyncRun")
"""What a reader of the client's reference looks for; the others follow by name."""
_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
_ELSEWHERE = r"""["']?((?:https?:)?//[^"' >]+)"""
_FETCHED = re.compile(
    rf"<(?:script|img|iframe|source)[^>]+src={_ELSEWHERE}"
    rf"|<link[^>]+rel=[\"']?(?:stylesheet|preconnect|icon)[\"']?[^>]+href={_ELSEWHERE}"
)
_BLOCK = re.compile(r"([-*]|\d+\.) |\|")
_CONTINUES = re.compile(r"([-*]|\d+\.) |\|| ")
_FENCE = re.compile(r" *(```|~~~)")
_UNREAD = re.compile(r"<(?:p|li)>[^<]*\n(?:- |\d+\. |\| )[^<]{0,40}")
_DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MOVE = re.compile(r"^ +(\S+) --> (\S+)$", re.MULTILINE)


def prepare(folder: Path) -> None:
    """Write what MkDocs reads."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(PAGES, folder, ignore=shutil.ignore_patterns("mkdocs.yml"))
    (folder / "reference").mkdir()
    reference = api_reference.page(document(ROUTES))
    (folder / "reference" / "api.md").write_text(reference, encoding="utf-8")
    (folder / "reference" / "python.md").write_text(_python_reference(), encoding="utf-8")
    for page in sorted(folder.rglob("*.md")):
        home = PAGES / page.relative_to(folder)
        text = _with_tables(page.read_text(encoding="utf-8"))
        page.write_text(_with_copies(sane(text), home, page, folder), encoding="utf-8")


def sane(text: str) -> str:
    """Write lists and tables as Python-Markdown wants them: it takes none that follows a line of
    text without a blank line, and nests by four spaces, where GitHub needs neither."""
    lines: list[str] = []
    in_fence = is_loose = False
    for line in text.splitlines():
        words = line.lstrip(" ")
        indent = len(line) - len(words)
        before = lines[-1] if lines else ""
        if not in_fence:
            if before and _BLOCK.match(words) and (is_loose or not _CONTINUES.match(before)):
                lines.append("")
            # An item of several paragraphs: what follows its last one is not taken for its text.
            is_loose = bool(words) and indent > 0 and (is_loose or not before)
        if _FENCE.match(line):
            in_fence = not in_fence
        lines.append(line if in_fence or indent == 0 else " " * (2 * indent) + words)
    return "\n".join([*lines, ""])


def _with_tables(text: str) -> str:
    """Show a diagram's moves as a table: the script that draws them would come from a network."""
    return _DIAGRAM.sub(lambda found: _moves(found[1]), text)


def _moves(diagram: str) -> str:
    targets: dict[str, list[str]] = {}
    for source, target in _MOVE.findall(diagram):
        targets.setdefault(source, []).append(target)
    named = {"[*]": "(begin)"}
    rows = [
        f"| {named.get(source, f'`{source}`')} | "
        + ", ".join("(end)" if each == "[*]" else f"`{each}`" for each in moves)
        + " |"
        for source, moves in targets.items()
    ]
    return "\n".join(["| from | to |", "|---|---|", *rows])


def _with_copies(text: str, home: Path, page: Path, folder: Path) -> str:
    """Let links that lead out of `docs/` lead to copies."""

    def copied(found: re.Match[str]) -> str:
        link = found[2]
        target = (home.parent / link).resolve()
        if ":" in link or target.is_relative_to(PAGES) or not target.is_relative_to(CHECKOUT):
            return found[0]
        copy = _copy(target, folder)
        return f"{found[1]}{os.path.relpath(copy, page.parent)}{found[3]}"

    return _LINK.sub(copied, text)


def _copy(target: Path, folder: Path) -> Path:
    name = target.relative_to(CHECKOUT)
    copy = folder / "source" / (name if name.suffix == ".md" else f"{name}.md")
    if copy.exists():
        return copy
    copy.parent.mkdir(parents=True, exist_ok=True)
    if target.suffix == ".md":
        copy.touch()  # pages name each other
        text = _with_copies(sane(target.read_text(encoding="utf-8")), target, copy, folder)
        copy.write_text(_into_pages(text, target, copy, folder), encoding="utf-8")
    elif target.is_dir():
        files = "\n".join(f"- `{path.name}`" for path in sorted(target.iterdir()))
        copy.write_text(f"# {name}\n\nThis folder of the repository holds:\n\n{files}\n")
    else:
        text = target.read_text(encoding="utf-8")
        copy.write_text(f"# {name}\n\n````\n{text}\n````\n", encoding="utf-8")
    return copy


def _into_pages(text: str, target: Path, copy: Path, folder: Path) -> str:
    """Let the links of a copied page into `docs/` lead to the site's pages."""

    def led(found: re.Match[str]) -> str:
        named = (target.parent / found[2]).resolve()
        if ":" in found[2] or not named.is_relative_to(PAGES):
            return found[0]
        place = folder / named.relative_to(PAGES)
        place = place / "README.md" if named.is_dir() and (named / "README.md").exists() else place
        return f"{found[1]}{os.path.relpath(place, copy.parent)}{found[3]}"

    return _LINK.sub(led, text)


def _python_reference() -> str:
    rest = [name for name in fairlead.__all__ if name not in _FIRST]
    names = "\n".join(f"::: fairlead.{name}\n" for name in (*_FIRST, *rest))
    return (
        "# Python reference\n\n"
        "To submit a task and wait for it:\n"
        "```python\n"
        "from fairlead import Client, Task\n\n"
        'run = Client().submit(Task(commands=["echo hello"])).wait()\n'
        "```\n"
        "[Fairlead from Python](../python.md) explains how the classes belong together.\n\n"
        f"{names}"
    )


def build(folder: Path = FOLDER) -> int:
    """Build the site into `folder/html`; return the exit status."""
    prepare(folder / "pages")
    html = folder / "html"
    status = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", CONFIGURATION, "-d", html],
        cwd=CHECKOUT,
        # Material advertises its successor in each build.
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=False,
    ).returncode
    faults = [f"a reader's browser would fetch {name}" for name in fetched_assets(html)]
    faults += [f"a list or table is shown as text: {text}" for text in unread_blocks(html)]
    for fault in faults:
        sys.stderr.write(f"site: {fault}\n")
    return status or int(bool(faults))


def unread_blocks(html: Path) -> list[str]:
    """Return the places at which a page shows the marks of a list or table."""
    return [
        f"{page.name}: {found!r}"
        for page in sorted(html.rglob("*.html"))
        for found in _UNREAD.findall(page.read_text(encoding="utf-8"))
    ]


def fetched_assets(html: Path) -> list[str]:
    """Return what pages load from other hosts: scripts, styles, pictures and fonts."""
    found: set[str] = set()
    for page in html.rglob("*.html"):
        for groups in _FETCHED.findall(page.read_text(encoding="utf-8")):
            found.update(filter(None, groups))
    return sorted(found)


if __name__ == "__main__":
    sys.exit(build())
