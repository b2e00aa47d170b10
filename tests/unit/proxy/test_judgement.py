"""The controller's proxy judges odd requests as a gateway does: by one table."""

import pytest

from controller.proxy.judgement import may_hold_a_token
from tests.support.odd_requests import ODD_REQUESTS, Odd, ask, check, echo
from tests.unit.proxy.bed import a_bed, a_server


@pytest.mark.parametrize("odd", ODD_REQUESTS, ids=lambda odd: odd.name)
async def test_the_controllers_proxy_judges_it_by_the_table(odd: Odd) -> None:
    async with a_bed() as bed, a_server(echo) as port:
        bed.serve(port)
        assert bed.client.port is not None
        status, head = await ask(bed.client.port, odd, "localhost")
    check(odd, "localhost", status, head)


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
