"""Paths of requests: how a name is written in one, and which may be asked for twice."""

from __future__ import annotations

from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.connections.http1 import quoted
from fairlead.connections.order_keys import is_setting


@given(st.text(st.characters(exclude_categories=["Cs"])) | st.text("aZ09-._~ /%é", max_size=6))
def test_a_text_is_quoted_as_the_library_does_it(text: str) -> None:
    assert quoted(text) == quote(text, safe="")
    assert unquote(quoted(text)) == text


def test_half_of_a_character_cannot_be_sent() -> None:
    with pytest.raises(UnicodeEncodeError):
        quoted("\ud800")


@pytest.mark.parametrize("action", ["stop", "complete", "suspend", "resume", "scale"])
def test_a_setting_of_a_run_by_its_id_may_be_asked_for_twice(action: str) -> None:
    assert is_setting(f"/v1/runs/0123456789abcdef/{action}")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/runs/train/stop",
        "/v1/runs/0123456789abcdef",
        "/v1/runs/0123456789abcdef/",
        "/v1/runs/0123456789abcdef/start-again",
        "/v1/runs/0123456789abcdef/stop/",
        "/v1/runs/0123456789abcdef/stop\n",
        "/v1/runs/0123456789abcdeF/stop",
        "/v1/runs/0123456789abcde/stop",
        "/v1/runs/0123456789ghijkl/stop",
        "/v1/runs/01234567g9abcdef/stop",
        "0123456789abcdef/stop",
        "/v1/v1/runs/0123456789abcdef/stop",
    ],
)
def test_all_else_may_not(path: str) -> None:
    assert not is_setting(path)
