"""The proxy's figures for Prometheus."""

from tests.support.replicas import an_app, echo
from tests.unit.proxy.bed import a_bed


async def test_requests_are_counted_for_each_group_with_their_result_and_time() -> None:
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port)
        for _ in range(3):
            async with bed.client.get("/services/api/"):
                pass
        page = bed.proxy.figures.page().decode()
    of = 'group="main"'
    assert f'fairlead_service_requests_total{{{of},result="ok",service="api"}} 3.0' in page
    assert f'fairlead_service_requests_in_flight{{{of},service="api"}} 0.0' in page
    assert f'fairlead_service_request_seconds_count{{{of},service="api"}} 3.0' in page
