"""The controller's proxy judges odd requests as a gateway does: by one table."""

from functools import partial

import pytest

from common.proxy.judgement import may_hold_a_token
from tests.support.odd_requests import (
    KEPT_OF_IT,
    ODD_ANSWER,
    ODD_REQUESTS,
    OWN_COOKIE,
    Odd,
    answer_odd,
    ask,
    check,
    echo,
    headers_of,
)
from tests.support.replicas import a_server
from tests.unit.proxy.bed import a_bed


@pytest.mark.parametrize("odd", ODD_REQUESTS, ids=lambda odd: odd.name)
async def test_the_controllers_proxy_judges_it_by_the_table(odd: Odd) -> None:
    async with a_bed() as bed, a_server(echo) as port:
        bed.serve(port)
        assert bed.client.port is not None
        status, head = await ask(bed.client.port, odd, "localhost")
    check(odd, "localhost", status, head)


async def test_what_would_outlive_the_service_or_reach_others_is_taken_out_of_answers() -> None:
    for answer, kept in ((ODD_ANSWER, KEPT_OF_IT), (OWN_COOKIE, {b"content-length: 0"})):
        sent = partial(answer_odd, answer=answer.replace(b"DOMAIN", b"localhost"))
        async with a_bed() as bed, a_server(sent) as port:
            bed.serve(port)
            assert bed.client.port is not None
            found = await headers_of(bed.client.port, "localhost")
        assert found <= kept
        assert len(found) == (5 if kept is KEPT_OF_IT else 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Authorization", "Bearer of-the-app"),
        ("Authorization", "Basic YTpi"),
        ("Authorization", "Bearer eyJ.sl_flk.fl-x"),
        ("Cookie", "fl_lang=en; wtfl_x=1"),
    ],
)
def test_what_is_the_apps_own_is_no_token_of_ours(name: str, value: str) -> None:
    assert not may_hold_a_token(name, value)
