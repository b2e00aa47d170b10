"""A program as a provider: what it is asked, and what becomes of its answers."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

from controller.clouds import exec as exec_cloud
from controller.clouds.base import (
    Abilities,
    CloudAway,
    CloudError,
    NoCapacity,
    Order,
    QuotaReached,
    Refused,
    Throttled,
    Unauthorized,
)
from controller.clouds.exec import ExecCloud, _exchanged
from controller.lifecycle.machines.life import Place
from controller.lifecycle.machines.model import GpuOffer, Reach
from tests.support.cloud_contract import CloudContract, installation
from tests.support.waiting import LONG
from tests.unit.machines.parts import GIB, NOW, offer

__all__ = ["installation"]
# From its first loop on, libuv keeps a pipe for signals, which would look like a leak of a test.
uvloop.new_event_loop().close()

ORDER = Order(
    machine_id="m1",
    name="burst-m1",
    installation="here",
    fleet="burst",
    offer=offer(),
    token="token",
    user_data="#cloud-config\n",
)


PROGRAM = f"""
import json, pathlib, sys
wish = json.load(sys.stdin)
call, state = wish["call"], pathlib.Path(__file__).with_name("state.json")
machines, fails = json.loads(state.read_text()) if state.exists() else ({{}}, {{}})
planned = fails.pop(call, None)

def end(answer):
    state.write_text(json.dumps([machines, fails]))
    sys.exit(print(json.dumps(answer)))

if planned and planned != "lost":
    end({{"error": planned, "message": "eight are enough"}})
if call == "offers":
    size = {{"cpu": 4, "memory_gib": 16, "disk_gib": 100}}
    end({{"offers": [{{"instance_type": "small", "region": "north", "zone": "north-1",
                      "price": 1.0, **size}}]}})
if call == "create":
    machines.setdefault(wish["token"], {{"id": "i-" + wish["token"], "machine": wish["machine"],
        "fleet": wish["fleet"], "installation": wish["installation"], "created_at": {NOW},
        "host": "10.0.0.1"}})
    end({{"error": "away"}} if planned else machines[wish["token"]])
if call == "terminate":
    end({{"gone": machines.pop(wish["id"][2:], None) is None}})
if call == "console":
    end({{"text": None}})
end({{"machines": [one for one in machines.values()
    if one["installation"] == wish.get("installation") or one["id"] in wish.get("ids", ())]}})
"""
KINDS = {NoCapacity: "no_capacity", QuotaReached: "quota"}


class ExecWorld:
    """A program that keeps its machines in a file next to it."""

    def __init__(self, folder: Path) -> None:
        program = folder / "rent.py"
        program.write_text(PROGRAM)
        self.offer = offer()
        # -I -S: the interpreter starts for each call.
        command = [sys.executable, "-I", "-S", str(program)]
        self.cloud = ExecCloud("lab", command, abilities=Abilities(idempotent=True))
        self._state = folder / "state.json"

    def refuse(self, error: type[CloudError]) -> None:
        self._plan("create", KINDS.get(error) or error.__name__.lower())

    def lose(self) -> None:
        self._plan("create", "lost")

    def cut(self) -> None:
        self._plan("list", "a page is missing")

    def _plan(self, call: str, failure: str) -> None:
        machines = json.loads(self._state.read_text())[0] if self._state.exists() else {}
        self._state.write_text(json.dumps([machines, {call: failure}]))


@pytest.fixture
def world(tmp_path: Path) -> ExecWorld:
    return ExecWorld(tmp_path)


class TestContract(CloudContract):
    pass


def cloud(tmp_path: Path, body: str, timeout: float = 30.0) -> ExecCloud:
    program = tmp_path / "program.py"
    program.write_text(f"import json, sys, time\nwish = json.load(sys.stdin)\n{body}\n")
    return ExecCloud("lab", [sys.executable, str(program)], abilities=Abilities(), timeout=timeout)


def answering(tmp_path: Path, answer: Any) -> ExecCloud:
    return cloud(tmp_path, f"print({json.dumps(json.dumps(answer))})")


async def test_a_machine_is_made_of_everything_that_the_order_has(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    body = f"open({str(seen)!r}, 'w').write(json.dumps(wish)); print('{{\"id\": \"i-1\"}}')"
    made = await cloud(tmp_path, body).create(ORDER)
    assert (made.instance_id, made.place) == ("i-1", None)
    assert json.loads(seen.read_text()) == {
        "version": 1,
        "call": "create",
        "machine": "m1",
        "name": "burst-m1",
        "token": "token",
        "installation": "here",
        "fleet": "burst",
        "instance_type": "small",
        "region": "north",
        "zone": "north-1",
        "spot": False,
        "reservation": None,
        "max_price": None,
        "user_data": "#cloud-config\n",
    }


async def test_offers_become_ours(tmp_path: Path) -> None:
    told = {
        "instance_type": "p5",
        "region": "eu",
        "price": 40.0,
        "cpu": 192,
        "memory_gib": 2048,
        "disk_gib": 100,
        "gpus": [{"name": "NVIDIA H100", "count": 8, "memory_gib": 80}],
    }
    (found,) = (await answering(tmp_path, {"offers": [told]}).offers()).offers
    assert (found.provider, found.memory, found.spot) == ("lab", 2048 * GIB, False)
    assert found.gpus == (GpuOffer(name="NVIDIA H100", count=8, memory=80 * GIB),)


async def test_lists_have_places_and_ids(tmp_path: Path) -> None:
    machines = [{"id": "i-1", "machine": "m1", "created_at": 5, "host": "10.0.0.1", "port": 2222}]
    lab = answering(tmp_path, {"machines": machines})
    (found,) = await lab.list_tagged("here")
    assert (found.machine_id, found.place) == ("m1", Place(host="10.0.0.1", port=2222))
    assert (await lab.describe(["i-1"]))["i-1"].place == found.place


async def test_a_machine_that_is_told_to_be_of_another_installation_is_left_out(
    tmp_path: Path,
) -> None:
    machines = [{"id": f"i-{of}", "installation": of} for of in ("here", "there", None)]
    listed = await answering(tmp_path, {"machines": machines}).list_tagged("here")
    assert [one.instance_id for one in listed] == ["i-here", "i-None"]


async def test_the_end_is_what_the_program_says(tmp_path: Path) -> None:
    assert await answering(tmp_path, {"gone": True}).terminate("i-1")
    assert not await answering(tmp_path, {"gone": False}).terminate("i-1")


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("no_capacity", NoCapacity),
        ("quota", QuotaReached),
        ("refused", Refused),
        ("throttled", Throttled),
        ("unauthorized", Unauthorized),
        ("something else", CloudAway),
    ],
)
async def test_a_refusal_keeps_its_kind_and_words(
    tmp_path: Path, kind: str, error: type[CloudError]
) -> None:
    lab = answering(tmp_path, {"error": kind, "message": "eight are enough", "after": 9})
    with pytest.raises(error, match="eight are enough") as caught:
        await lab.create(ORDER)
    assert getattr(caught.value, "after", 9) == 9


async def test_a_refusal_holds_for_what_the_program_says(tmp_path: Path) -> None:
    wrong = {"error": "refused", "message": "there is no such image"}
    for told, reach in (({}, Reach.OFFER), ({"reach": "region"}, Reach.REGION)):
        with pytest.raises(Refused) as caught:
            await answering(tmp_path, wrong | told).create(ORDER)
        assert caught.value.reach is reach
    with pytest.raises(CloudAway, match=r"gave a wrong answer: .*'world'"):
        await answering(tmp_path, wrong | {"reach": "world"}).create(ORDER)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (
            "print('no json')",
            r"^the program of `providers\.lab` \(create\) gave a wrong answer: JSON is malformed: "
            r"invalid character \(byte \d\) \(it begins with 'no json'\); it must answer with one "
            r"JSON object \(docs/machines\.md\)$",
        ),
        ("print(); sys.exit(0)", r"\(create\) wrote nothing to its standard output; it must"),
        ("sys.exit(0)", r"\(create\) wrote nothing to its standard output; it must"),
        ("print('null')", r"Expected `object`, got `null` .*\(it begins with 'null'\)"),
        (
            "import os; os.kill(os.getpid(), 9)",
            "was killed by signal 9: it wrote nothing to standard error$",
        ),
        (r"""print('{"id": "i\\n1"}')""", r"of one line without control characters - at `\$\.id`"),
        ("print('{}')", "missing required field `id`"),
        ("sys.exit('the account is closed')", "ended with status 1: the account is closed"),
        ('print(\'{"id": "i-1"}\'); sys.exit(3)', "ended with status 3"),
    ],
)
async def test_an_answer_that_makes_no_sense_leaves_the_outcome_open(
    tmp_path: Path, body: str, why: str
) -> None:
    with pytest.raises(CloudAway, match=why):
        await cloud(tmp_path, body).create(ORDER)


@pytest.mark.parametrize(
    "wrong",
    [
        {"price": -1.0},
        {"price": 1e300},
        {"memory_gib": -1},
        {"memory_gib": 1e300},
        {"region": "\x1b[31mnorth"},
        {"region": "north\n"},
        {"region": "\x9b31mnorth"},
        {"instance_type": "x" * 101},
        {"gpus": [{"name": "L4", "count": 0, "memory_gib": 24}]},
        {"gpus": [{"name": "L4", "count": 10**9, "memory_gib": 24}]},
    ],
)
async def test_an_offer_that_no_machine_can_have_is_no_offer(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    size = {"price": 1.0, "cpu": 4, "memory_gib": 16, "disk_gib": 100}
    one = {"instance_type": "small", "region": "north", **size, **wrong}
    with pytest.raises(CloudAway, match=r"gave a wrong answer: .*\$\.offers"):
        await answering(tmp_path, {"offers": [one]}).offers()


@pytest.mark.parametrize("created_at", [1.7e12, 1e300, -1.0])
async def test_a_machine_was_made_at_a_time_of_this_age(tmp_path: Path, created_at: float) -> None:
    machines = [{"id": "i-1", "created_at": created_at}]
    with pytest.raises(CloudAway, match=r"gave a wrong answer: .*\$\.machines"):
        await answering(tmp_path, {"machines": machines}).list_tagged("here")


async def test_a_long_message_is_cut_and_a_long_wait_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(NoCapacity) as caught:
        await answering(tmp_path, {"error": "no_capacity", "message": "x" * 9999}).offers()
    assert len(str(caught.value)) == 500
    with pytest.raises(CloudAway, match=r"wrong answer: .*\$\.after"):
        await answering(tmp_path, {"error": "throttled", "after": 1e9}).offers()


@pytest.mark.parametrize(
    "body", ["print('[' * 200_000)", "sys.stdout.buffer.write(b'{\"\\xff\"}')"]
)
async def test_an_answer_that_cannot_be_read_is_a_wrong_one(tmp_path: Path, body: str) -> None:
    with pytest.raises(CloudAway, match="gave a wrong answer"):
        await cloud(tmp_path, body).offers()


async def test_an_answer_that_is_no_json_shows_its_beginning_alone(tmp_path: Path) -> None:
    with pytest.raises(CloudAway) as caught:
        await cloud(tmp_path, "print(chr(27) + 'x' * 10_000_000)").offers()
    assert f"(it begins with '{'x' * 80}')" in str(caught.value)


async def test_a_beginning_shows_no_half_of_a_key(tmp_path: Path) -> None:
    secret = "k" * 70
    order = msgspec.structs.replace(ORDER, user_data=f"#cloud-config\nkey: {secret}\n")
    with pytest.raises(CloudAway) as caught:
        await cloud(tmp_path, "print('it has got this: ' + wish['user_data'])").create(order)
    assert "it has got this: #cloud-config key: ***" in str(caught.value)


async def test_more_offers_than_the_queue_can_be_looked_at_with_are_a_wrong_answer(
    tmp_path: Path,
) -> None:
    size = {"price": 1.0, "cpu": 4, "memory_gib": 16, "disk_gib": 100}
    one = {"instance_type": "small", "region": "north", **size}
    with pytest.raises(CloudAway, match=r"wrong answer: .*length <= 10000"):
        await answering(tmp_path, {"offers": [one] * 10_001}).offers()


async def test_a_program_that_never_ceases_to_write_is_ended(tmp_path: Path) -> None:
    body = "while True: print('x' * 2**20)"
    with pytest.raises(CloudAway, match="answers more than 16777216 bytes"):
        await cloud(tmp_path, body).offers()


async def test_a_program_that_writes_faster_than_is_read_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def too_long(stream: asyncio.StreamReader) -> bytes:
        # asyncio reads no more then, and without the end of the output tells no end of the process.
        while not vars(stream)["_paused"]:  # noqa: ASYNC110 (the transport tells nobody)
            await asyncio.sleep(0.001)
        raise exec_cloud._TooLong

    monkeypatch.setattr(exec_cloud, "_whole", too_long)
    body = "while True: sys.stdout.write('x' * 65536)"
    with pytest.raises(CloudAway, match="answers more than"):
        async with asyncio.timeout(LONG):
            await cloud(tmp_path, body).offers()


async def test_of_a_long_complaint_the_end_is_shown(tmp_path: Path) -> None:
    body = "sys.stderr.write('x' * 2**20 + chr(10) + 'no money'); sys.exit(1)"
    with pytest.raises(CloudAway, match="ended with status 1: no money"):
        await cloud(tmp_path, body).offers()


async def test_a_program_may_answer_before_it_reads(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("print('{\"machines\": []}')")
    lab = ExecCloud("lab", [sys.executable, str(program)], abilities=Abilities())
    assert await lab.describe(["i" * 100] * 20_000) == {}


@pytest.mark.parametrize(
    "body",
    [
        "sys.exit(wish['user_data'].replace(chr(10), ' '))",
        "print(json.dumps({'error': 'refused', 'message': wish['user_data']}))",
    ],
)
async def test_no_message_shows_a_key_that_the_program_was_given(tmp_path: Path, body: str) -> None:
    key = "b3BlbnNzaC1rZXktdjEAAAAABG5vbmU"
    order = msgspec.structs.replace(ORDER, user_data=f"#cloud-config\nkey: {key}\n")
    with pytest.raises(CloudError) as caught:
        await cloud(tmp_path, body).create(order)
    assert key not in str(caught.value)
    assert "***" in str(caught.value)


async def test_a_program_that_is_not_there_is_said(tmp_path: Path) -> None:
    lab = ExecCloud("lab", [str(tmp_path / "none")], abilities=Abilities())
    with pytest.raises(
        CloudAway, match=r"the program of `providers\.lab` \(offers\), .* cannot be run"
    ):
        await lab.offers()


async def test_a_program_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    body = "import subprocess; subprocess.run(['sleep', '600'])"
    async with asyncio.timeout(LONG):
        with pytest.raises(CloudAway, match=r"took more than 0\.5 s \(`providers\.lab\.timeout`\)"):
            await cloud(tmp_path, body, timeout=0.5).offers()


async def test_prices_are_told_in_the_currency_of_the_installation(tmp_path: Path) -> None:
    told = {
        "instance_type": "s",
        "region": "here",
        "price": 0.5,
        "cpu": 1,
        "memory_gib": 1,
        "disk_gib": 1,
    }
    lab = answering(tmp_path, {"offers": [told]})
    lab._rate = 1.08
    (found,) = (await lab.offers()).offers
    assert (found.price, found.rate) == (0.54, 1.08)


def test_what_a_program_answers_without_reading_counts() -> None:
    # A controller runs in uvloop, which tells a closed pipe in another way than asyncio.
    async def answered() -> tuple[bytes, bytes]:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            "/bin/echo", "{}", stdin=pipe, stdout=pipe, stderr=pipe
        )
        assert process.stdin is not None
        await process.stdin.wait_closed()
        try:
            answer, complaints = await _exchanged(process, b"a wish")
            return answer, complaints
        finally:
            await process.wait()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(answered()) == (b"{}\n", b"")
