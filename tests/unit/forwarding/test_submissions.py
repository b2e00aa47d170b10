"""Submissions through a follower: given to the leader with others, and answered as by it."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import aiohttp
import pytest

from controller.api.runs.runs import view_of
from controller.forwarding.follower_links import SUBMISSIONS_PATH
from controller.forwarding.submissions.admitting import Admitting
from fairlead.configuration.runs.plan import Defaults
from fairlead.model.needs import Resources
from tests.support.waiting import eventually
from tests.unit.api.conftest import ADMIN_TOKEN, USER_TOKEN
from tests.unit.cli.conftest import PlayedNode
from tests.unit.forwarding.submitting import TASK, Bed, both, on_the_way, waiting_at


async def test_a_submission_is_given_to_the_leader_and_answered_as_by_it(submitted: Bed) -> None:
    leader = await submitted.leader()
    follower = await submitted.follower(leader)
    status, run, headers = await follower.submit(name="one", client_key="a")
    there = await leader.submit(name="two", client_key="b")
    assert (status, headers) == (there[0], there[2]) == (201, headers)
    assert run.keys() == there[1].keys()
    assert (run["name"], run["user"], run["configuration"]) == ("one", "ada", TASK)
    assert (len(leader.messages), leader.passed_on.total()) == (1, 0)


async def test_those_that_come_while_one_is_on_its_way_go_together(submitted: Bed) -> None:
    leader, follower = await both(submitted)
    first = await on_the_way(leader, follower, name="first", client_key="first")
    others = [
        asyncio.create_task(follower.submit(name=f"run-{number}", client_key=f"key-{number}"))
        for number in range(5)
    ]
    await eventually(lambda: waiting_at(follower) == 5)
    leader.goes_on.set()
    assert (await first)[1]["name"] == "first"
    answers = [await one for one in others]
    assert [(one[0], one[1]["name"]) for one in answers] == [
        (201, f"run-{number}") for number in range(5)
    ]
    assert [len(one.asked) for one in leader.messages] == [1, 5]
    assert [len(one.plans) for one in leader.messages] == [1, 1]


async def test_thirty_users_at_once_get_their_own_answers_though_some_are_refused(
    submitted: Bed,
) -> None:
    leader, follower = await both(submitted)
    tokens = []
    for number in range(30):
        made = await leader.post("/v1/users", {"name": f"user-{number}"}, ADMIN_TOKEN)
        tokens.append(made[1]["token"]["token"])
    assert (await leader.submit(name="taken"))[0] == 201
    first = await on_the_way(leader, follower)

    def named(number: int) -> str:
        return "taken" if number == 7 else f"of-{number}"

    asked = [
        asyncio.create_task(
            follower.post("/v1/runs", {"configuration": TASK, "name": named(number)}, token)
        )
        for number, token in enumerate(tokens)
    ]
    await eventually(lambda: waiting_at(follower) == 30)
    leader.goes_on.set()
    await first
    answers = [await one for one in asked]
    assert [one[0] for one in answers] == [409 if n == 7 else 201 for n in range(30)]
    assert answers[7][1]["error"]["code"] == "name_taken"
    owners = [one[1]["user"] for one in answers if one[0] == 201]
    assert owners == [f"user-{number}" for number in range(30) if number != 7]
    assert [len(one.asked) for one in leader.messages] == [1, 30]


async def test_a_token_that_is_revoked_between_follower_and_leader_opens_nothing(
    submitted: Bed,
) -> None:
    leader, follower = await both(submitted)
    sending = await on_the_way(leader, follower, name="late")
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {USER_TOKEN}"}) as session:
        async with session.get(leader.url + "/v1/tokens") as listed:
            (token,) = (await listed.json())["tokens"]
        async with session.delete(f"{leader.url}/v1/tokens/{token['id']}") as removed:
            assert removed.status == 200
    leader.goes_on.set()
    refused = await sending
    assert refused == await leader.submit(name="late")
    assert refused[0] == 401


async def test_a_new_token_and_one_that_was_revoked_count_at_once(submitted: Bed) -> None:
    leader, follower = await both(submitted)
    made = await leader.post("/v1/users", {"name": "eve"}, ADMIN_TOKEN)
    body = {"configuration": TASK}
    status, run, _ = await follower.post("/v1/runs", body, made[1]["token"]["token"])
    assert (status, run["user"]) == (201, "eve")
    assert len(leader.messages) == 1


async def test_a_token_that_has_expired_is_refused_at_the_follower(
    submitted: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = await both(submitted)
    made = await leader.post("/v1/tokens", {"expires_in": 60.0})
    body, token = {"configuration": TASK}, made[1]["token"]
    assert (await follower.post("/v1/runs", body, token))[0] == 201
    leader.messages.clear()
    clock = submitted.controller.service.clock
    late = clock.now() + 61.0
    monkeypatch.setattr(type(clock), "now", lambda _: late)
    refused = await follower.post("/v1/runs", body, token)
    assert refused == await leader.post("/v1/runs", body, token)
    assert refused[1]["error"]["code"] == "token_expired"
    assert (leader.messages, leader.passed_on.total()) == ([], 0)


REFUSED: list[tuple[str, object]] = [
    ("/v1/runs", b"{"),
    ("/v1/runs", b"\xff"),
    ("/v1/runs", {}),
    ("/v1/runs", {"configuration": TASK, "colour": "red"}),
    ("/v1/runs", {"configuration": TASK, "if_exists": "perhaps"}),
    ("/v1/runs", {"configuration": TASK, "client_key": ""}),
    ("/v1/runs", {"configuration": {**TASK, "type": "none"}}),
    ("/v1/runs", {"configuration": {**TASK, "resources": {"cpu": "many"}}, "client_key": "new"}),
    ("/v1/runs", {"configuration": TASK, "ssh_keys": ["none"]}),
    ("/v1/runs", {"configuration": {**TASK, "band": "production"}}),
    ("/v1/runs", {"configuration": {**TASK, "start_before": "2020-01-01T00:00:00Z"}}),
    ("/v1/runs", {"configuration": {**TASK, "env": {"A": "${{ secrets.none }}"}}}),
    ("/v1/runs:yaml", {"source": "type: [task"}),
    ("/v1/runs:yaml", {"source": "type: task\nfiles: [a.py]\n"}),
    ("/v1/runs:yaml", {"source": "type: none"}),
    ("/v1/runs:batch", {"runs": []}),
    ("/v1/runs:batch", {"runs": [{"configuration": TASK, "colour": "red"}]}),
]


@pytest.mark.parametrize("token", [USER_TOKEN, "unknown", None])
async def test_what_can_be_refused_at_the_follower_has_the_leaders_words(
    submitted: Bed, token: str | None
) -> None:
    leader, follower = await both(submitted)
    for path, body in REFUSED:
        refused = await follower.post(path, body, token)
        assert refused == await leader.post(path, body, token), (path, body)
        assert 400 <= refused[0] < 500
    assert (leader.messages, leader.passed_on.total()) == ([], 0)


PASSED_ON: list[tuple[str, object, dict[str, str]]] = [
    ("/v1/runs?colour=red", {"configuration": TASK}, {}),
    ("/v1/runs", {"configuration": TASK}, {"Content-Encoding": "gzip"}),
    ("/v1/runs", {"configuration": TASK}, {"Origin": "https://page.example"}),
    ("/v1/runs", {"configuration": {**TASK, "env": {"A": "a" * 70_000}}}, {}),
    ("/v1/runs:batch", {"runs": [{"configuration": {**TASK, "colour": "red"}}]}, {}),
    ("/v1/runs:batch", {"runs": [{"configuration": TASK, "client_key": "a"}] * 2}, {}),
]


@pytest.mark.parametrize(("path", "body", "headers"), PASSED_ON)
async def test_what_is_odd_is_passed_on_as_it_came(
    submitted: Bed, path: str, body: object, headers: dict[str, str]
) -> None:
    leader, follower = await both(submitted)
    there = await leader.post(path, body, **headers)
    here = await follower.post(path, body, **headers)
    assert here[::2] == there[::2]
    assert (leader.messages, leader.passed_on.total()) == ([], 1)


@pytest.mark.parametrize("is_older", [True, False])
async def test_a_leader_that_reads_otherwise_gets_each_one_as_it_came(
    submitted: Bed, *, is_older: bool
) -> None:
    if is_older:
        leader = await submitted.leader(knows_messages=False)
    else:
        leader = await submitted.leader(defaults=Defaults(resources=Resources(cpu=3.0)))
    follower = await submitted.follower(leader)
    assert (await follower.submit(name="one"))[0] == 201
    assert leader.passed_on == {"/v1/runs": 1, SUBMISSIONS_PATH: 0}
    assert (await follower.submit(name="two"))[0] == 201
    assert (await follower.post("/v1/runs", {}))[0] == 400
    assert leader.passed_on == {"/v1/runs": 3, SUBMISSIONS_PATH: 0}
    # The next one may read as this one does.
    second = await submitted.leader("two")
    await follower.lead_to(second)
    assert (await follower.submit(name="three"))[0] == 201
    assert len(second.messages) == 1


KINDS: list[dict[str, Any]] = [
    {"configuration": {**TASK, "sweep": {"matrix": {"x": [1, 2, 3]}}}},
    {"configuration": {"type": "dev-environment", "image": "busybox", "ide": "vscode"}},
    {"configuration": {**TASK, "after": ["before"]}},
    {"configuration": {**TASK, "after": ["none"]}},
    {"configuration": {**TASK, "nodes": 2, "gang": True}},
    {"configuration": {**TASK, "schedule": "0 3 * * *"}},
    {"configuration": {**TASK, "env": {"A": "${{ secrets.there }}", "B": "ä\u2028"}}},
    {"configuration": TASK, "parent": "before"},
    {"configuration": TASK, "parent": "none"},
    {"configuration": TASK, "starts_again": True},
    {"configuration": TASK, "name": "Not A Name"},
    {"configuration": TASK, "name": ""},
    {"configuration": TASK, "name": "before"},
    {"configuration": {**TASK, "name": "before"}, "if_exists": "keep"},
    {"configuration": {**TASK, "fleets": ["none"]}},
    {"configuration": {**TASK, "priority": 10**30}},
]


@pytest.mark.parametrize("body", KINDS)
@pytest.mark.parametrize("is_keyed", [True, False])
async def test_each_kind_of_run_is_the_same_as_at_the_leader(
    submitted: Bed, body: dict[str, Any], *, is_keyed: bool
) -> None:
    leader, follower = await both(submitted)
    assert (await leader.submit(name="before"))[0] == 201
    secret = {"value": "12345678"}
    assert (await leader.put("/v1/secrets/there", secret))[0] == 200
    answers = []
    for at, key in ((follower, "a"), (leader, "b")):
        given = {**body, "client_key": key} if is_keyed else body
        answers.append(await at.post("/v1/runs", given))
        if not answers[-1][1].get("error") and answers[-1][1]["name"] != "before":
            # The other one may want its name.
            await leader.post(f"/v1/runs/{answers[-1][1]['id']}/stop", {})
    here, there = answers
    assert (here[0], plain(here[1]), here[2]) == (there[0], plain(there[1]), there[2])
    assert leader.passed_on.total() == 0


def plain(shown: dict[str, Any]) -> str:
    """Return a document without what differs between two runs."""
    name = shown.get("name", "")
    text = json.dumps({**shown, "name": ""})
    text = re.sub(r"\b[0-9a-f]{16}\b", "ID", text.replace(f'"{name}"', '""'))
    return re.sub(r"\d{4}-\d\d-\d\dT[0-9:.]+Z", "TIME", text)


async def test_the_text_of_a_file_is_read_at_the_follower(submitted: Bed) -> None:
    leader, follower = await both(submitted)
    source = "type: task\nname: from-text\nimage: busybox\ncommands: ['true']\n"
    status, run, _ = await follower.post("/v1/runs:yaml", {"source": source, "client_key": "a"})
    assert (status, run["name"], run["configuration"]["image"]) == (201, "from-text", "busybox")
    again = await leader.post("/v1/runs:yaml", {"source": source, "client_key": "a"})
    assert again[:2] == (201, run)
    assert (len(leader.messages), leader.passed_on.total()) == (1, 0)


async def test_several_runs_of_one_request_have_an_answer_each(submitted: Bed) -> None:
    leader, follower = await both(submitted)
    assert (await leader.submit(name="taken"))[0] == 201
    runs = [
        {"configuration": TASK, "name": "one", "client_key": "one"},
        {"configuration": {**TASK, "image": "debian"}, "name": "taken"},
        {"configuration": TASK, "name": "two"},
        {"configuration": {**TASK, "band": "production"}, "name": "three"},
    ]
    first = await on_the_way(leader, follower, name="first")
    several = asyncio.create_task(follower.post("/v1/runs:batch", {"runs": runs}))
    other = asyncio.create_task(follower.submit(name="other"))
    await eventually(lambda: waiting_at(follower) == 2)
    leader.goes_on.set()
    await first
    status, found, headers = await several
    assert [one["status"] for one in found["results"]] == [201, 409, 201, 422]
    assert (await other)[0] == 201
    message = leader.messages[-1]
    assert ([len(one.submissions) for one in message.asked], len(message.plans)) == ([4, 1], 3)
    there = await leader.post("/v1/runs:batch", {"runs": runs})
    assert (status, headers) == (there[0], there[2])
    # The one with a key is the same run again.
    assert [there[1]["results"][n] for n in (0, 1, 3)] == [found["results"][n] for n in (0, 1, 3)]


async def test_a_request_of_which_one_run_is_wrong_is_answered_by_the_leader_alone(
    submitted: Bed,
) -> None:
    leader, follower = await both(submitted)
    runs = [{"configuration": {**TASK, "colour": "red"}}, {"configuration": TASK, "name": "one"}]
    _, found, _ = await follower.post("/v1/runs:batch", {"runs": runs})
    assert [one["status"] for one in found["results"]] == [400, 201]
    assert leader.passed_on == {"/v1/runs:batch": 1, SUBMISSIONS_PATH: 0}


async def test_a_request_with_one_name_or_key_twice_is_judged_by_the_leader_alone(
    submitted: Bed,
) -> None:
    leader, follower = await both(submitted)
    for twice in ({"name": "one"}, {"client_key": "a"}):
        runs = [{"configuration": TASK, **twice} for _ in range(2)]
        _, found, _ = await follower.post("/v1/runs:batch", {"runs": runs})
        statuses = [one["status"] for one in found["results"]]
        assert statuses == ([201, 409] if "name" in twice else [201, 201])
    assert leader.passed_on == {"/v1/runs:batch": 2, SUBMISSIONS_PATH: 0}


async def test_a_run_that_must_wait_for_the_end_of_another_one_is_answered_so(
    submitted: Bed,
) -> None:
    _, follower = await both(submitted)
    live = (await follower.submit(name="same"))[1]
    node = PlayedNode(submitted.controller)
    await node.runs("same")
    asked = {"configuration": {**TASK, "priority": 9}, "name": "same", "if_exists": "replace"}
    for _ in range(2):
        status, run, _ = await follower.submit(**asked, client_key="a")
        assert (status, run["id"], run["status"]) == (202, live["id"], "terminating")
    # Its name is kept for who replaces it, also from others that come in messages.
    status, refused, _ = await follower.submit(name="same", if_exists="keep")
    assert (status, refused["error"]["code"]) == (409, "name_taken")
    await node.ends("same", 0)
    status, run, _ = await follower.submit(**asked, client_key="a")
    assert status == 201
    assert run["id"] != live["id"]


async def test_long_names_of_some_are_no_reason_to_refuse_the_others(
    submitted: Bed,
) -> None:
    leader, follower = await both(submitted)
    first = await on_the_way(leader, follower)
    long = [asyncio.create_task(follower.submit(name="a" * 60_000)) for _ in range(40)]
    await eventually(lambda: waiting_at(follower) == 40)
    other = asyncio.create_task(follower.submit(name="other"))
    await eventually(lambda: waiting_at(follower) == 41)
    leader.goes_on.set()
    await first
    assert (await other)[0] == 201
    assert {(await one)[0] for one in long} == {400}


async def test_an_error_about_one_of_a_message_is_the_answer_to_that_one_alone(
    submitted: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = await both(submitted)
    first = await on_the_way(leader, follower)
    names = ("unread", "broken", "unshown", "fine")
    asked = [
        asyncio.create_task(follower.submit(configuration={**TASK, "env": {"A": name}}, name=name))
        for name in names
    ]
    await eventually(lambda: waiting_at(follower) == 4)
    submissions = type(submitted.controller.service.runs.submissions)
    planned, ready = Admitting._plan_of, submissions._ready

    def read(self: Admitting, data: bytes) -> Any:
        return planned(self, data[:-1] if b"unread" in data else data)

    async def checked(self: Any, submission: Any, *more: Any, **named: Any) -> Any:
        if submission.name == "broken":
            raise KeyError("a fault of the controller")
        return await ready(self, submission, *more, **named)

    def shown(service: Any, state: Any) -> Any:
        if state.run.name == "unshown":
            raise KeyError("a fault of the controller")
        return view_of(service, state)

    monkeypatch.setattr(Admitting, "_plan_of", read)
    monkeypatch.setattr(submissions, "_ready", checked)
    monkeypatch.setattr("controller.forwarding.submissions.admitting.view_of", shown)
    leader.goes_on.set()
    await first
    answers = {name: await one for name, one in zip(names, asked, strict=True)}
    # What can't be read in a message is passed on as it came.
    assert leader.passed_on == {"/v1/runs": 1, SUBMISSIONS_PATH: 0}
    assert {name: one[0] for name, one in answers.items()} == {
        "unread": 201,
        "broken": 500,
        "unshown": 500,
        "fine": 201,
    }
    assert answers["broken"][1]["error"]["code"] == "internal"


async def test_runs_without_names_are_never_refused_for_the_names_that_they_get(
    submitted: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = await both(submitted)
    # Of thousands of pairs of words, one is chosen: here always the same one.
    names = submitted.controller.service.runs.submissions._names
    monkeypatch.setattr(names, "_pick", lambda _: 0)
    first = await on_the_way(leader, follower)
    single = [asyncio.create_task(follower.submit()) for _ in range(3)]
    runs = {"runs": [{"configuration": TASK}] * 3}
    several = asyncio.create_task(follower.post("/v1/runs:batch", runs))
    await eventually(lambda: waiting_at(follower) == 4)
    leader.goes_on.set()
    await first
    assert [(await one)[0] for one in single] == [201] * 3
    found = [one["status"] for one in (await several)[1]["results"]]
    there = await leader.post("/v1/runs:batch", runs)
    assert found == [one["status"] for one in there[1]["results"]] == [201] * 3
    assert (len(leader.messages), leader.passed_on.total()) == (2, 0)


async def test_the_file_of_a_token_that_was_revoked_is_not_looked_at(submitted: Bed) -> None:
    leader, follower = await both(submitted)
    made = await leader.post("/v1/tokens", {})
    token, id = made[1]["token"], made[1]["id"]
    assert (await follower.post("/v1/runs", {"configuration": TASK}, token))[0] == 201
    assert (await leader.post(f"/v1/tokens/{id}", {}, method="DELETE"))[0] == 200
    refused = await follower.post("/v1/runs", {"configuration": {"type": "none"}}, token)
    assert refused == await leader.post("/v1/runs", {"configuration": {"type": "none"}}, token)
    assert refused[0] == 401
