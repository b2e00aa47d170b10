"""The operator's own program as a provider: each call is one JSON object on its standard input, the
answer one on its standard output, as Slurm's ResumeProgram does it for nodes.

docs/machines.md has the calls. The program is started anew for each of them, so it keeps
nothing in memory; what it writes to standard error is shown when the call fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec

from controller.clouds.base import (
    Abilities,
    CloudAway,
    CloudError,
    Created,
    Described,
    KnownOffers,
    NoCapacity,
    Order,
    QuotaReached,
    Refused,
    Throttled,
    Unauthorized,
)
from controller.lifecycle.machines.life import Place
from controller.lifecycle.machines.model import GpuOffer, Offer, Reach
from controller.lifecycle.machines.reconcile import Found, Traits
from fairlead.wire.decoders import decoder_of

VERSION = 1
DEFAULT_TIMEOUT_SECONDS = 300.0
_MAX_ANSWER = 16 << 20
_MAX_COMPLAINTS = 64 << 10
_CHUNK = 64 << 10
_PATTERN = re.compile(r"matching regex '.*'")
_SECRET_WORD = re.compile(r"[A-Za-z0-9+/=_]{20,}")
_MAX_SHOWN = 300
_MAX_MESSAGE = 500
_MAX_BEGINNING = 80
_RIGHT = "it must answer with one JSON object (docs/machines.md)"
_GIB = 1 << 30
T = TypeVar("T")
_Price = Annotated[float, msgspec.Meta(ge=0, lt=1e6)]
"""A price below 0 would make room in each budget."""
_Amount = Annotated[float, msgspec.Meta(ge=0, le=1e7)]
_LINE = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*\Z"
"""One line without control characters: `$` would also match before a line feed at the end."""
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=100, pattern=_LINE)]
"""It becomes an attribute of a node, and is shown in terminals."""
_Words = Annotated[str, msgspec.Meta(max_length=253, pattern=_LINE)]
_Id = Annotated[str, msgspec.Meta(min_length=1, max_length=500, pattern=_LINE)]
_Time = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
"""Unix seconds; milliseconds would say that an orphan is never to end."""


class _GpuAnswer(msgspec.Struct, frozen=True, kw_only=True):
    name: _Name
    count: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    memory_gib: _Amount


class _OfferAnswer(msgspec.Struct, frozen=True, kw_only=True):
    instance_type: _Name
    region: _Name
    zone: _Name | None = None
    spot: bool = False
    price: _Price
    cpu: _Amount
    memory_gib: _Amount
    disk_gib: _Amount
    gpus: Annotated[tuple[_GpuAnswer, ...], msgspec.Meta(max_length=16)] = ()
    reservation: _Name | None = None


class _OffersAnswer(msgspec.Struct, frozen=True, kw_only=True):
    offers: Annotated[tuple[_OfferAnswer, ...], msgspec.Meta(max_length=10_000)]
    """Each look at the queue goes through all of them."""


class _MachineAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`machine`, `fleet`, `installation`: what `create` was given, of a list, as are the traits."""

    id: _Id
    installation: _Words | None = None
    machine: _Words | None = None
    fleet: _Words | None = None
    created_at: _Time = 0.0
    instance_type: _Name | None = None
    region: _Name | None = None
    zone: _Name | None = None
    spot: bool = False
    host: _Words | None = None
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 22
    user: _Words | None = None
    socket: _Words | None = None

    def place(self) -> Place | None:
        if self.host is None and self.socket is None:
            return None
        return Place(host=self.host, port=self.port, user=self.user, socket=self.socket)


class _MachinesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    machines: tuple[_MachineAnswer, ...]


class _GoneAnswer(msgspec.Struct, frozen=True, kw_only=True):
    gone: bool


class _ConsoleAnswer(msgspec.Struct, frozen=True, kw_only=True):
    text: str | None


class _ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    error: str
    message: str = ""
    reach: Reach = Reach.OFFER
    """Of `refused`: which offers would be refused for the same cause."""
    after: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 5.0


_ERRORS: Mapping[str, type[CloudError]] = {
    "no_capacity": NoCapacity,
    "quota": QuotaReached,
    "unauthorized": Unauthorized,
}


class ExecCloud:
    """A provider behind a program. `timeout`: seconds that one call may take. `account`: what the
    operator calls the account that the program uses. `rate`: of the currency of its prices."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        abilities: Abilities,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        account: str | None = None,
        rate: float = 1.0,
    ) -> None:
        self.abilities = abilities
        self._name = name
        self._command = tuple(command)
        self._timeout = timeout
        self._account = account
        self._rate = rate

    async def account(self) -> str | None:
        return self._account

    async def offers(self) -> KnownOffers:
        answer = await self._call(_OffersAnswer, "offers")
        return KnownOffers(offers=tuple(map(self._offer, answer.offers))).at(self._rate)

    def _offer(self, offered: _OfferAnswer) -> Offer:
        return Offer(
            provider=self._name,
            instance_type=offered.instance_type,
            region=offered.region,
            zone=offered.zone,
            spot=offered.spot,
            price=offered.price,
            cpu=offered.cpu,
            memory=int(offered.memory_gib * _GIB),
            disk=int(offered.disk_gib * _GIB),
            gpus=tuple(
                GpuOffer(name=gpu.name, count=gpu.count, memory=int(gpu.memory_gib * _GIB))
                for gpu in offered.gpus
            ),
            reservation=offered.reservation,
        )

    async def create(self, order: Order) -> Created:
        offer = order.offer
        made = await self._call(
            _MachineAnswer,
            "create",
            hides=order.user_data,
            machine=order.machine_id,
            name=order.name,
            token=order.token,
            installation=order.installation,
            fleet=order.fleet,
            instance_type=offer.instance_type,
            region=offer.region,
            zone=offer.zone,
            spot=offer.spot,
            reservation=offer.reservation,
            max_price=order.offer.bid,
            user_data=order.user_data,
        )
        return Created(instance_id=made.id, place=made.place())

    async def describe(self, instance_ids: Sequence[str]) -> Mapping[str, Described]:
        answer = await self._call(_MachinesAnswer, "describe", ids=list(instance_ids))
        return {one.id: Described(place=one.place()) for one in answer.machines}

    async def terminate(self, instance_id: str) -> bool:
        return (await self._call(_GoneAnswer, "terminate", id=instance_id)).gone

    async def list_tagged(self, installation: str) -> Sequence[Found]:
        answer = await self._call(_MachinesAnswer, "list", installation=installation)
        return [
            Found(
                instance_id=one.id,
                machine_id=one.machine,
                fleet=one.fleet,
                created_at=one.created_at,
                place=one.place(),
                traits=Traits(
                    instance_type=one.instance_type,
                    region=one.region,
                    zone=one.zone,
                    spot=one.spot,
                ),
            )
            for one in answer.machines
            # A program may list all that its account has, and what is another's must not end.
            if one.installation in (None, installation)
        ]

    async def console(self, instance_id: str) -> str | None:
        return (await self._call(_ConsoleAnswer, "console", id=instance_id)).text

    # -- the program ------------------------------------------------------------------------

    async def _call(self, type_: type[T], call: str, hides: str = "", **arguments: object) -> T:
        """`hides`: what no message may show."""
        wish = msgspec.json.encode({"version": VERSION, "call": call, **arguments})
        status, answer, complaints = await self._run(call, wish)
        try:
            content: Any = msgspec.json.decode(answer)
            if isinstance(content, dict) and "error" in content:
                raise _error(decoder_of(_ErrorAnswer).decode(answer), hides)
            if status == 0:
                return decoder_of(type_).decode(answer)
        # A program can print anything, also a thousand nested lists.
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            if status == 0:
                why = _wrong(error, answer, hides)
                raise CloudAway(f"{self._shown(call)} {why}; {_RIGHT}") from None
        raise CloudAway(f"{self._shown(call)} {_ended(status, complaints, hides)}")

    async def _run(self, call: str, wish: bytes) -> tuple[int, bytes, bytes]:
        """Return the exit status, the standard output, and the end of the standard error."""
        # Else the failed start would wait for its child in the event loop.
        if not os.access(self._command[0], os.X_OK):
            raise CloudAway(f"{self._shown(call)}, {self._command[0]}, cannot be run")
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                # A group of its own: the kill at the limit takes what the program has started, too.
                start_new_session=True,
            )
        except OSError as error:
            raise CloudAway(f"{self._shown(call)} cannot be started: {error.strerror}") from None
        try:
            async with asyncio.timeout(self._timeout):
                answer, complaints = await _exchanged(process, wish)
                status = await process.wait()
        except TimeoutError:
            limit = f"{self._timeout:g} s (`providers.{self._name}.timeout`)"
            raise CloudAway(f"{self._shown(call)} took more than {limit}") from None
        except _TooLong:
            raise CloudAway(f"{self._shown(call)} answers more than {_MAX_ANSWER} bytes") from None
        finally:
            if process.returncode is None:
                # With what it has started itself, which holds its standard output open.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await _end(process)
        return status, answer, complaints

    def _shown(self, call: str) -> str:
        return f"the program of `providers.{self._name}` ({call})"


class _TooLong(Exception):
    """The program writes more than any answer has."""


async def _exchanged(process: asyncio.subprocess.Process, wish: bytes) -> tuple[bytes, bytes]:
    """Write the wish, and return the standard output and the end of the standard error. A program
    that never ceases to write must not fill the controller's memory. Raises _TooLong."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    answer = asyncio.create_task(_whole(process.stdout))
    complaints = asyncio.create_task(_end_of(process.stderr))
    try:
        # A program may answer, or end, before it has read everything. uvloop raises RuntimeError
        # where the pipe was closed before the first byte.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, RuntimeError):
            process.stdin.write(wish)
            await process.stdin.drain()
        process.stdin.close()
        return await asyncio.gather(answer, complaints)
    finally:
        await _cancel(answer, complaints)


async def _cancel(*tasks: asyncio.Task[bytes]) -> None:
    for one in tasks:
        one.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Wait until the process that was killed has ended. asyncio tells that only once its output was
    read, and stops reading when a program has written faster than was read."""
    assert process.stdout is not None
    assert process.stderr is not None
    rest = [asyncio.create_task(_end_of(one)) for one in (process.stdout, process.stderr)]
    try:
        await process.wait()
    finally:
        await _cancel(*rest)


async def _whole(stream: asyncio.StreamReader) -> bytes:
    found = bytearray()
    while chunk := await stream.read(_CHUNK):
        found += chunk
        if len(found) > _MAX_ANSWER:
            raise _TooLong
    return bytes(found)


async def _end_of(stream: asyncio.StreamReader) -> bytes:
    found = b""
    while chunk := await stream.read(_CHUNK):
        found = (found + chunk)[-_MAX_COMPLAINTS:]
    return found


def _wrong(error: Exception, answer: bytes, hides: str) -> str:
    """Return what is wrong with an answer. A pattern says less than its meaning."""
    if not answer.strip():
        return "wrote nothing to its standard output"
    why = _PATTERN.sub("of one line without control characters", str(error))
    # The cut comes last: half of a key would not be found.
    begins = _hidden(answer[:_MAX_COMPLAINTS].decode(errors="replace"), hides).strip()
    # What is valid JSON is best told by what is wrong with it.
    is_json = begins.startswith(("{", "["))
    shown = "" if is_json else f" (it begins with {begins[:_MAX_BEGINNING]!r})"
    return f"gave a wrong answer: {why}{shown}"


def _ended(status: int, complaints: bytes, hides: str) -> str:
    """Return how a program ended that gave no answer."""
    lines = complaints.decode(errors="replace").strip().splitlines()
    last = _hidden(lines[-1], hides)[:_MAX_SHOWN] if lines else "it wrote nothing to standard error"
    how = f"ended with status {status}" if status >= 0 else f"was killed by signal {-status}"
    return f"{how}: {last}"


def _hidden(text: str, secret: str) -> str:
    """Return the text without the long words of the secret, such as keys: a program's traceback may
    show what the program was given. Nor has it what moves a terminal's cursor, or breaks a line of
    the log."""
    for word in set(_SECRET_WORD.findall(secret)):
        text = text.replace(word, "***")
    return "".join(one if one.isprintable() else " " for one in text)


def _error(answer: _ErrorAnswer, hides: str) -> CloudError:
    # It is stored with the machine and with each job that waits.
    message = _hidden(answer.message or answer.error, hides)[:_MAX_MESSAGE]
    if answer.error == "throttled":
        return Throttled(message, answer.after)
    if answer.error == "refused":
        return Refused(message, answer.reach)
    return _ERRORS.get(answer.error, CloudAway)(message)
