"""The seam to a provider of machines: seven calls, the refusals that they may raise, and what a
provider can do. Callers ask for abilities and never for a provider's name.

Every call may raise Throttled, Unauthorized and CloudAway. Times are Unix seconds.
"""

from __future__ import annotations

import asyncio
import logging
import stat
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

import msgspec

from controller.clouds.catalog import CannotKeep, Catalog, Reading
from controller.lifecycle.machines.life import Place
from controller.lifecycle.machines.model import Offer, Reach
from controller.lifecycle.machines.reconcile import Found

log = logging.getLogger(__name__)
T = TypeVar("T")


class Abilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider can do."""

    idempotent: bool = False
    """`create` with a token that is known returns the machine that it made before."""
    visible_after: float = 60.0
    """Seconds after a `create` from which a list has the machine, if it made one."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A machine to make. Each try of the same order is equal, byte for byte."""

    machine_id: str
    name: str
    installation: str
    fleet: str
    offer: Offer
    token: str
    user_data: str
    """cloud-init's. Secret: it has the machine's private host key."""


class Created(msgspec.Struct, frozen=True, kw_only=True):
    """The provider's id of the machine; `place`: its address, where that is known already."""

    instance_id: str
    place: Place | None = None


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that exists; `place` None: it has no address yet."""

    place: Place | None = None


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """The provider makes the machine, and tells later whether it could. `outcome` waits for that,
    and raises what `create` raises."""

    outcome: Callable[[], Awaitable[Created]]


class KnownOffers(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider rents out, as far as it tells. `unknown`: why the offers of a region or zone
    are not known, by its name."""

    offers: tuple[Offer, ...]
    unknown: Mapping[str, str] = {}

    def at(self, rate: float) -> KnownOffers:
        """Return the offers with prices in the currency of the installation."""
        if rate == 1.0:
            return self
        offers = (
            msgspec.structs.replace(one, price=one.price * rate, rate=rate) for one in self.offers
        )
        return msgspec.structs.replace(self, offers=tuple(offers))


class Cloud(Protocol):
    """One provider."""

    abilities: Abilities

    async def account(self) -> str | None:
        """Return the account, project or folder in which all other calls find their machines; None:
        the provider does not tell it."""

    async def offers(self) -> KnownOffers:
        """Return what the provider rents out, with prices. Raises when it tells nothing at all."""

    async def create(self, order: Order) -> Created | Accepted:
        """Make the machine with the tags of installation, machine and fleet.

        Raises NoCapacity, QuotaReached, Refused: no machine was made. Any other error: it is not
        known whether one was made.
        """

    async def describe(self, instance_ids: Sequence[str]) -> Mapping[str, Described]:
        """Return those of the machines that the provider shows now."""

    async def terminate(self, instance_id: str) -> bool:
        """Ask for the end of the machine; True: it does not exist any more."""

    async def list_tagged(self, installation: str) -> Sequence[Found]:
        """Return all machines with the tag of this installation that exist. Raises when the list
        would not be whole."""

    async def console(self, instance_id: str) -> str | None:
        """Return the latest output of the machine's console; None: there is none."""


@runtime_checkable
class Closes(Protocol):
    """A provider that holds threads or connections until it is closed."""

    async def close(self) -> None:
        """Give them back. No call follows."""


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """A thing that was tried at a provider. `fault`: what is wrong with it, and the fix. `note`:
    what an operator should know of it, without being a fault."""

    what: str
    fault: str | None = None
    note: str | None = None


@runtime_checkable
class Examines(Protocol):
    """A provider that can try what an order needs without making a machine."""

    async def examine(self) -> Sequence[Examined]:
        """Try it. What goes wrong is an answer and no error."""


@runtime_checkable
class Refreshes(Protocol):
    """A provider whose prices are in a catalog, which can be read from its API."""

    @property
    def catalog(self) -> Catalog:
        """Return the catalog that its offers are made of."""
        ...

    async def refresh(self) -> None:
        """Read the catalog from the provider's API, and use it from now on."""


class CloudError(Exception):
    """A call failed; the message is a sentence for operators. `reach`: which offers would be
    refused for the same cause."""

    reach: Reach = Reach.OFFER


class NoCapacity(CloudError):
    """The offer is not to be had now. No machine was made."""


class QuotaReached(CloudError):
    """The account may have no more of this. No machine was made. The message names the quota."""


class Refused(CloudError):
    """The provider refuses the request as it is. No machine was made. If its `reach` is more than
    the offer, the message names the field of the controller's file."""

    def __init__(self, message: str, reach: Reach = Reach.OFFER) -> None:
        super().__init__(message)
        self.reach = reach


class Throttled(CloudError):
    """There were too many calls. `after`: seconds to wait."""

    def __init__(self, message: str, after: float = 5.0) -> None:
        super().__init__(message)
        self.after = after


class Unauthorized(CloudError):
    """The credentials are wrong, or do not allow the call."""


class CloudAway(CloudError):
    """The provider does not answer, or its answer makes no sense: the outcome is unknown."""


async def made_by(cloud: Cloud, order: Order) -> Created:
    """Return the machine once the provider has made it. Raises what `create` raises."""
    begun = await cloud.create(order)
    return begun if isinstance(begun, Created) else await begun.outcome()


async def known_of(
    names: Iterable[str], ask: Callable[[str], Awaitable[Iterable[Offer]]]
) -> KnownOffers:
    """Return the offers of these regions or zones. One that refuses, or is away, keeps no other
    from being rented. Raises the first error when none tells its offers."""
    offers: list[Offer] = []
    unknown: dict[str, str] = {}
    first: CloudError | None = None
    has_answer = False
    for name in names:
        try:
            offers += await ask(name)
            has_answer = True
        except CloudError as error:
            unknown[name], first = str(error), first or error
    if first is not None and not has_answer:
        raise first
    return KnownOffers(offers=tuple(offers), unknown=unknown)


async def each_region(
    regions: Iterable[str], ask: Callable[[str], Awaitable[T]]
) -> tuple[dict[str, T], dict[str, str]]:
    """Return what the regions tell, and why the others refuse, by their names. Raises the first
    error when none tells anything."""
    names = tuple(regions)
    results = await asyncio.gather(*map(ask, names), return_exceptions=True)
    answers: dict[str, T] = {}
    refused: dict[str, str] = {}
    first: CloudError | None = None
    for name, result in zip(names, results, strict=True):
        if isinstance(result, CloudError):
            refused[name], first = str(result), first or result
        elif isinstance(result, BaseException):
            raise result
        else:
            answers[name] = result
    if first is not None and not answers:
        raise first
    return answers, refused


async def keep_reading(catalog: Catalog, reading: Reading) -> None:
    """Have the catalog take what was read, from now on. Raises CloudAway: it could not be kept."""
    try:
        await catalog.replace(reading)
    except CannotKeep as error:
        raise CloudAway(f"what was read could not be kept in the database: {error}") from None


async def answer_of(provider: str, call: Awaitable[T]) -> T:
    """Return what the provider's call returns. Raises CloudError and nothing else: a fault of ours,
    or a file that changed meanwhile, must end neither the controller nor the calls about other
    machines, and its outcome is unknown."""
    try:
        return await call
    except Unauthorized as error:
        fix = f"see to the credentials of `providers.{provider}` and to their rights"
        raise Unauthorized(f"{error}: {fix}") from error
    except CloudError:
        raise
    # A cloud's library, or a program of the operator, can raise anything.
    except Exception as error:
        log.exception("internal error: provider %s", provider)
        # The text of a library's error may show what it was given: user-data, or a token.
        raise CloudAway(f"internal error ({type(error).__name__}); see the log") from error


def open_to_others(name: str, field: str, file: Path | None) -> list[Examined]:
    """Return a note if the file with credentials that this field of the provider names may be read
    by other accounts of this host."""
    try:
        is_open = file is not None and bool(file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO))
    except OSError:
        return []
    note = f"providers.{name}.{field}: others of this host may read it: chmod 600 {file}"
    return [Examined(what=f"file {file}", note=note)] if is_open else []


async def account_or_none(provider: str, cloud: Cloud) -> str | None:
    """Return the account that the provider uses; None also while it does not say."""
    try:
        return await answer_of(provider, cloud.account())
    except CloudError as error:
        # It is asked every few seconds, and what follows from it is told to users.
        log.debug("provider %s tells no account: %s", provider, error)
        return None
