"""What the controller's log says of strangers."""

from __future__ import annotations

import logging

import pytest
from aiohttp.http_exceptions import BadStatusLine

from controller.cli.commands.serve import is_our_failure


@pytest.mark.parametrize(
    ("error", "is_kept"), [(BadStatusLine("\x16\x03\x01"), False), (ValueError("ours"), True)]
)
def test_bytes_that_are_no_http_bring_no_traceback_into_the_log(
    error: Exception, is_kept: bool
) -> None:
    info = (type(error), error, None)
    record = logging.LogRecord("aiohttp.server", logging.ERROR, "", 0, "failed", (), info)
    assert is_our_failure(record) is is_kept
