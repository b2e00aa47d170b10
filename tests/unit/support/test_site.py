"""What the site adds to the pages. `./dev site` builds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.api.app import ROUTES
from tests.documentation.site import CHECKOUT, PAGES, fetched_assets, prepare, sane, unread_blocks


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "pages"
    prepare(folder)
    return folder


def test_every_route_and_type_of_the_api_is_in_the_reference(prepared: Path) -> None:
    page = (prepared / "reference/api.md").read_text()
    missing = [route.path for route in ROUTES if f"{route.method} `{route.path}`" not in page]
    assert missing == []
    assert "### RunView" in page


def test_every_name_of_the_client_is_in_the_reference(prepared: Path) -> None:
    page = (prepared / "reference/python.md").read_text()
    assert "::: fairlead.Client\n" in page
    assert "::: fairlead.Task\n" in page


def test_a_link_out_of_the_docs_leads_to_a_copy(prepared: Path) -> None:
    page = (prepared / "nodes.md").read_text()
    assert "](source/packer/systemd/fairlead-shim.service.md)" in page
    unit = (CHECKOUT / "packer/systemd/fairlead-shim.service").read_text()
    assert unit in (prepared / "source/packer/systemd/fairlead-shim.service.md").read_text()


def test_a_diagram_becomes_a_table(prepared: Path) -> None:
    assert "```mermaid" in (PAGES / "lifecycle/run.md").read_text()
    page = (prepared / "lifecycle/run.md").read_text()
    assert "```mermaid" not in page
    assert "| from | to |" in page


def test_what_a_browser_would_fetch_elsewhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<script src="https://cdn.example/a.js"></script><img src="b.png">'
        '<link rel="stylesheet" href="//fonts.example/c.css"><a href="https://example.com">d</a>'
    )
    assert fetched_assets(tmp_path) == ["//fonts.example/c.css", "https://cdn.example/a.js"]


def test_lists_and_tables_get_the_blank_line_that_they_need() -> None:
    assert (
        sane("It needs:\n- a\n  - b\n    c\n- d\n") == "It needs:\n\n- a\n    - b\n        c\n- d\n"
    )
    assert sane("Of:\n| a |\n|---|\n") == "Of:\n\n| a |\n|---|\n"


def test_examples_are_left_as_they_are() -> None:
    text = "```yaml\na:\n- b\n  c: d\n```\n"
    assert sane(text) == text


def test_a_list_that_is_shown_as_text_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text("<p>It needs:\n- a\n- b</p><pre>text:\n- a</pre>")
    assert len(unread_blocks(tmp_path)) == 1
