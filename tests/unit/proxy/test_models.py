"""The OpenAI-compatible endpoint."""

from typing import Any

import aiohttp
import pytest

from tests.support.replicas import an_app, echo
from tests.unit.proxy.bed import KEY, Bed, a_bed, as_user


async def error_of(answer: aiohttp.ClientResponse) -> tuple[int, dict[str, Any]]:
    body = await answer.json()
    assert body["error"].keys() == {"message", "type", "param", "code"}
    return answer.status, body["error"]


def serve(bed: Bed, port: int) -> None:
    bed.serve(port, auth=True, model="llama")


@pytest.mark.parametrize("path", ["chat/completions", "embeddings", "responses?stream=1"])
async def test_a_request_goes_to_the_service_of_its_model(path: str) -> None:
    async with a_bed() as bed, an_app(echo) as port:
        serve(bed, port)
        async with bed.client.post(
            f"/models/v1/{path}", json={"model": "llama", "n": 1}, headers=as_user("ada")
        ) as answer:
            seen = await answer.json()
    assert (seen["path"], seen["body"]) == (f"/v1/{path}", '{"model": "llama", "n": 1}')
    assert "authorization" not in dict(seen["headers"])


async def test_a_form_names_its_model_too() -> None:
    form = aiohttp.FormData()
    form.add_field("file", b"\x00\xff", filename="a.wav")
    form.add_field("model", "llama")
    async with a_bed() as bed, an_app(echo) as port:
        serve(bed, port)
        async with bed.client.post(
            "/models/v1/audio/transcriptions", data=form, headers=as_user("ada")
        ) as answer:
            assert (await answer.json())["path"] == "/v1/audio/transcriptions"


async def test_the_list_has_the_models_that_the_caller_may_use() -> None:
    async with a_bed() as bed, an_app(echo) as port:
        serve(bed, port)
        bed.serve(port, name="open", run_id="run-open", model="free")
        for headers, ids in (
            (as_user("ada"), ["free", "llama"]),
            ({"Authorization": f"Bearer {KEY}"}, ["free", "llama"]),
            (as_user("bob"), ["free"]),
        ):
            async with bed.client.get("/models/v1/models", headers=headers) as answer:
                body = await answer.json()
                assert [entry["id"] for entry in body["data"]] == ids
        async with bed.client.get("/models/v1/models/llama", headers=as_user("ada")) as answer:
            assert (await answer.json())["owned_by"] == "ada"


async def test_a_model_of_two_services_is_listed_once() -> None:
    async with a_bed() as bed, an_app(echo) as port:
        serve(bed, port)
        bed.serve(port, name="second", run_id="run-second", auth=True, model="llama")
        async with bed.client.get("/models/v1/models", headers=as_user("ada")) as answer:
            assert [entry["id"] for entry in (await answer.json())["data"]] == ["llama"]


async def test_a_user_without_models_gets_an_empty_list() -> None:
    async with a_bed() as bed, an_app(echo) as port:
        serve(bed, port)
        async with bed.client.get("/models/v1/models", headers=as_user("bob")) as answer:
            assert (answer.status, (await answer.json())["data"]) == (200, [])


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer fl_unknown"}])
async def test_an_unknown_token_is_refused_without_the_names_of_services(
    headers: dict[str, str],
) -> None:
    async with a_bed() as bed, an_app(echo) as port:
        bed.serve(port, name="hidden", run_id="run-hidden", auth=True, model="llama")
        async with bed.client.get("/models/v1/models", headers=headers) as answer:
            listed = await error_of(answer)
        for model in ("llama", "gpt"):
            async with bed.client.post(
                "/models/v1/chat/completions", json={"model": model}, headers=headers
            ) as answer:
                assert await error_of(answer) == listed
    assert listed[0] == 401
    assert "hidden" not in listed[1]["message"]


async def test_refusals_have_the_shape_that_clients_of_the_api_read() -> None:
    async with a_bed() as bed, an_app(echo) as port:
        serve(bed, port)
        post, url = bed.client.post, "/models/v1/chat/completions"
        async with post(url, json={"model": "llama"}) as answer:
            assert (await error_of(answer))[0] == 401
        for headers, model in ((as_user("bob"), "llama"), (as_user("ada"), "gpt")):
            async with post(url, json={"model": model}, headers=headers) as answer:
                status, error = await error_of(answer)
                assert (status, error["code"]) == (404, "model_not_found")
        async with post(url, data=b"{", headers=as_user("ada")) as answer:
            status, error = await error_of(answer)
            assert (status, error["param"]) == (400, "model")
        bed.services.put_replicas("api")
        async with post(url, json={"model": "llama"}, headers=as_user("ada")) as answer:
            status, error = await error_of(answer)
            assert (status, error["type"]) == (503, "server_error")
