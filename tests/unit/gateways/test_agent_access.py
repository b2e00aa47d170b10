"""Admission at a gateway: the controller is asked once a minute, and its absence changes little."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from common.proxy.view import Service
from common.refusals import Forbidden, Unauthenticated, Unavailable
from common.tokens import digest
from fairlead.wire.gateway import Answer
from gateway.access import AWAY_SECONDS, REMEMBERED_SECONDS, AskingAccess, ControllerAway

SERVICE = Service(run_id="r", name="web", owner="ada")
TOKEN = "fl_secret"


class PlayedController:
    """Answers with `answer`; None: it is away."""

    def __init__(self) -> None:
        self.answer: Answer | None = Answer(id=0, allowed=True)
        self.asked: list[tuple[str, str, bool]] = []
        self.meanwhile: Callable[[], None] = lambda: None
        """What happens before an answer arrives."""

    async def ask(self, run_id: str, digest: str, *, is_key: bool) -> Answer:
        self.asked.append((run_id, digest, is_key))
        answer = self.answer
        self.meanwhile()
        if answer is None:
            raise ControllerAway
        return answer


class Bed:
    def __init__(self) -> None:
        self.now = 0.0
        self.controller = PlayedController()
        self.admitted: list[tuple[str, str]] = []
        self.access = AskingAccess(
            self.controller.ask,
            lambda: self.now,
            lambda run_id, proof: self.admitted.append((run_id, proof)),
        )

    async def admit(self, token: str = TOKEN, service: Service = SERVICE) -> None:
        await self.access.admit(service, f"Bearer {token}")


@pytest.fixture
def bed() -> Bed:
    return Bed()


async def test_the_controller_hears_the_digest_of_a_token_and_is_asked_once_a_minute(
    bed: Bed,
) -> None:
    for _ in range(3):
        await bed.admit()
    assert bed.controller.asked == [("r", digest(TOKEN), False)]
    bed.now = REMEMBERED_SECONDS
    await bed.admit("flk_key")
    await bed.admit()
    assert [is_key for _, _, is_key in bed.controller.asked] == [False, True, False]


@pytest.mark.parametrize(("status", "error"), [(401, Unauthenticated), (403, Forbidden)])
async def test_a_refusal_says_what_the_controller_says(
    bed: Bed, status: int, error: type[Exception]
) -> None:
    bed.controller.answer = Answer(id=0, allowed=False, status=status, message="because")
    with pytest.raises(error, match="because"):
        await bed.admit()


async def test_while_the_controller_is_away_a_known_token_goes_on_and_another_is_refused(
    bed: Bed,
) -> None:
    await bed.admit()
    bed.controller.answer = None
    bed.now = AWAY_SECONDS - 1
    await bed.admit()
    with pytest.raises(Unavailable, match="does not know the token"):
        await bed.admit("fl_other")
    bed.now = AWAY_SECONDS
    with pytest.raises(Unavailable):
        await bed.admit()


async def test_a_token_that_was_refused_is_not_let_in_while_the_controller_is_away(
    bed: Bed,
) -> None:
    bed.controller.answer = Answer(id=0, allowed=False, status=401)
    with pytest.raises(Unauthenticated):
        await bed.admit()
    bed.controller.answer = None
    bed.now = REMEMBERED_SECONDS
    with pytest.raises(Unavailable):
        await bed.admit()


async def test_a_revoked_token_ends_its_streams_and_is_asked_about_anew(bed: Bed) -> None:
    admission = await bed.access.admit(SERVICE, f"Bearer {TOKEN}")
    ended: list[str] = []
    with bed.access.while_admitted(admission, lambda: ended.append("stream")):
        bed.access.revoke(digest(TOKEN))
    assert ended == ["stream"]
    await bed.admit()
    assert len(bed.controller.asked) == 2


async def test_an_open_service_asks_nobody_and_hides_our_tokens_alone(bed: Bed) -> None:
    service = Service(run_id="r", name="web", owner="ada", auth=False)
    ours = await bed.access.admit(service, f"Bearer {TOKEN}")
    theirs = await bed.access.admit(service, "Bearer of-the-app")
    assert [set(one.secret_headers) for one in (ours, theirs)] == [{"authorization"}, set()]
    assert bed.controller.asked == []


async def test_who_was_let_in_is_told_once_a_minute(bed: Bed) -> None:
    for _ in range(3):
        await bed.admit()
    assert bed.admitted == [("r", digest(TOKEN))]
    bed.now = REMEMBERED_SECONDS
    await bed.admit()
    assert len(bed.admitted) == 2
    bed.controller.answer = Answer(id=0, allowed=False, status=401)
    with pytest.raises(Unauthenticated):
        await bed.admit("fl_other")
    assert len(bed.admitted) == 2


async def test_an_answer_that_a_revocation_overtook_lets_nobody_in(bed: Bed) -> None:
    def revoke() -> None:
        bed.controller.answer = Answer(id=0, allowed=False, status=401)
        bed.controller.meanwhile = lambda: None
        bed.access.revoke(digest(TOKEN))

    bed.controller.meanwhile = revoke
    with pytest.raises(Unauthenticated):
        await bed.admit()
    assert bed.admitted == []
    assert len(bed.controller.asked) == 2


async def test_a_token_that_is_revoked_while_the_controller_goes_away_is_not_let_in(
    bed: Bed,
) -> None:
    await bed.admit()
    bed.now = REMEMBERED_SECONDS
    bed.controller.answer = None
    bed.controller.meanwhile = lambda: bed.access.revoke(digest(TOKEN))
    with pytest.raises(Unavailable):
        await bed.admit()
    assert bed.admitted == [("r", digest(TOKEN))]
