"""Links between the pages lead to files and headings that exist, and every page can be found."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
_LINK = re.compile(r"\[[^\]\[]*(?:\[[^\]]*\][^\]\[]*)*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)


def pages() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(set(listed.stdout.split()))


def text_of(page: str | Path) -> str:
    return _FENCE.sub("", (CHECKOUT / page).read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page, made of its headings as GitHub makes them."""
    text = text_of(page)
    found = set(re.findall(r'<a id="([^"]+)"', text))
    for heading in re.findall(r"^#{1,6} (.+)$", text, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        found.add(re.sub(r"[^\w\- ]", "", words.strip().lower()).replace(" ", "-"))
    return found


def dead_links(page: str, text: str) -> list[str]:
    dead = []
    for link in _LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (CHECKOUT / page).parent / path if path else CHECKOUT / page
        has_anchor = target.suffix != ".md" or not anchor
        if not target.exists() or not (has_anchor or anchor in anchors(target)):
            dead.append(link)
    return dead


@pytest.mark.parametrize("page", pages())
def test_each_link_leads_somewhere(page: str) -> None:
    assert dead_links(page, text_of(page)) == []


def test_dead_links_are_found() -> None:
    text = "[one](nowhere.md), [two](glossary.md#no-such-word), [three](#no-such-heading)"
    assert len(dead_links("docs/README.md", text)) == 3


def of_docs() -> set[str]:
    return {page.removeprefix("docs/") for page in pages() if page.startswith("docs/")}


def test_every_page_of_docs_is_in_the_list_of_pages() -> None:
    listed = set(_LINK.findall(text_of("docs/README.md")))
    assert of_docs() - {"README.md"} <= {link.partition("#")[0] for link in listed}


def test_every_page_of_docs_is_in_the_sites_navigation() -> None:
    navigation = (CHECKOUT / "docs/mkdocs.yml").read_text().partition("\nnav:\n")[2]
    assert of_docs() <= set(re.findall(r"^ +- (\S+\.md)$", navigation, re.MULTILINE))
