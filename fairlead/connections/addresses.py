"""The addresses of a controller, or of several that share a database, and which one is tried next.

A client begins with the address that answered last. It goes on to the next one when nothing of a
request was sent, or when the request may be sent twice; so nothing is done twice that may not be.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator

from fairlead.errors import ApiError, ConnectionLost, FairleadError, NotLoggedIn, SettingsError

Tell = Callable[[str], None]
PAUSES_SECONDS = (0.5, 1.5)
"""Before a request is tried again that no controller could do: they look for the next leader, or
their database is busy."""


class Address:
    """Where a controller answers."""

    __slots__ = ("base", "host", "is_secure", "port", "url")

    def __init__(self, url: str, is_secure: bool, host: str, port: int, base: str) -> None:
        self.url = url
        self.is_secure = is_secure
        self.host = host
        self.port = port
        self.base = base

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Address) and self.url == other.url

    def __hash__(self) -> int:
        return hash(self.url)


class Addresses:
    """Parses `URL[,URL…]`. Threads and clients may share one. Raises SettingsError, which names
    `field`."""

    def __init__(
        self,
        text: str,
        tell: Tell | None = None,
        *,
        field: str = "FAIRLEAD_URL",
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        # A dict keeps the order; an address that is given twice is tried once.
        self.all = tuple(dict.fromkeys(_parsed(one, text, field) for one in text.split(",")))
        self._tell = _to_stderr if tell is None else tell
        self.sleep = sleep
        self._current = 0
        self._passed_over: set[Address] = set()
        self._lock = threading.Lock()

    @property
    def current(self) -> Address:
        """The address that answered last; the first one before any did."""
        return self.all[self._current]

    @property
    def are_several(self) -> bool:
        return len(self.all) > 1

    def answered(self, address: Address, failures: dict[Address, FairleadError]) -> None:
        """Begin there from now on; tell once which ones were passed over, and why."""
        with self._lock:
            self._current = self.all.index(address)
            self._passed_over.discard(address)
            fresh = {one: why for one, why in failures.items() if one not in self._passed_over}
            self._passed_over |= fresh.keys()
        for one, error in fresh.items():
            self._tell(f"{one.url} is passed over: {_why(error)}; {address.url} answers")

    def leave(self, address: Address) -> None:
        """Begin with the next one, because a connection to this one broke."""
        with self._lock:
            if self.current == address:
                self._current = (self._current + 1) % len(self.all)

    def tries(self, *, repeatable: bool, waits: bool = True) -> Tries:
        """Return one try of each address, for one request; more if a controller says that it did
        nothing, or could not ask its database about what is `repeatable`, and `waits`: pauses
        block."""
        return Tries(self, repeatable=repeatable, waits=waits)


class Tries:
    """Iterate over it: call `answered` or `failed` for each address, and raise `lost()` behind the
    loop."""

    def __init__(self, addresses: Addresses, *, repeatable: bool, waits: bool = True) -> None:
        self._addresses = addresses
        self._pauses = PAUSES_SECONDS if waits else ()
        self._repeatable = repeatable
        self._failures: dict[Address, FairleadError] = {}
        self.may_go_on = False
        """Whether another address may be asked if this one takes the request and says nothing."""
        self.are_left = False
        """Whether another address may be asked if nothing was sent to this one."""

    def __iter__(self) -> Iterator[Address]:
        yield from self._each()
        for pause in self._pauses:
            # After each failure that is noted, the request may be sent again.
            if not any(map(self._passes, self._failures.values())):
                return
            self._addresses.sleep(pause)
            yield from self._each()

    def _each(self) -> Iterator[Address]:
        first = self._addresses.all.index(self._addresses.current)
        *others, last = self._addresses.all[first:] + self._addresses.all[:first]
        self.are_left, self.may_go_on = True, self._repeatable
        yield from others
        self.are_left = self.may_go_on = False
        yield last

    def answered(self, address: Address) -> None:
        self._failures.pop(address, None)
        self._addresses.answered(address, self._failures)

    def failed(self, address: Address, error: FairleadError) -> None:
        """Return when the next address is worth a try. Raises the error otherwise."""
        if isinstance(error, ConnectionLost) and not (
            self._repeatable or error.unsent or error.refused
        ):
            self._addresses.leave(address)
            raise _nobody_knows(address, error)
        if not (self._addresses.are_several or self._passes(error)):
            raise error
        if isinstance(error, ConnectionLost):
            self._addresses.leave(address)
            if not (self._repeatable or error.unsent):
                raise error
        # One of another database refuses the token before it looks at the request, and one that may
        # lead no more refuses the request.
        elif not isinstance(error, NotLoggedIn) and not self._passes(error):
            if isinstance(error, ApiError):
                self.answered(address)
            raise error
        self._failures[address] = error

    def _passes(self, error: FairleadError) -> bool:
        """Return whether the same request may be done in a moment, and sent until then."""
        if not isinstance(error, ApiError):
            return False
        from fairlead.wire.errors import LEADS_NO_MORE, STORE_UNAVAILABLE  # loads msgspec

        return error.code == LEADS_NO_MORE or (self._repeatable and error.code == STORE_UNAVAILABLE)

    def lost(self) -> FairleadError:
        """Return the error when no address answered."""
        failures = self._failures
        for error in failures.values():
            if isinstance(error, NotLoggedIn) or self._passes(error):
                return error
        why = "; ".join(f"{address.url}: {_why(error)}" for address, error in failures.items())
        lost = [error for error in failures.values() if isinstance(error, ConnectionLost)]
        statuses = [error.status for error in lost if error.status is not None]
        return ConnectionLost(
            f"cannot reach any of the controllers ({why}); is one of them running?",
            status=max(statuses) if len(statuses) == len(failures) else None,
            refused=all(error.refused for error in lost),
            unsent=all(error.unsent for error in lost),
        )


def _nobody_knows(address: Address, lost: ConnectionLost) -> ConnectionLost:
    return ConnectionLost(
        f"the controller at {address.url} took the request and gave no answer ({lost.why}): look "
        "whether it was done before you repeat it",
        why=lost.why,
    )


def _why(error: FairleadError) -> str:
    return (isinstance(error, ConnectionLost) and error.why) or str(error)


def normalized(text: str) -> str:
    """Return the addresses as they are saved and compared."""
    return ",".join(one.strip().rstrip("/") for one in text.split(","))


def _parsed(text: str, whole: str, field: str) -> Address:
    url = text.strip().rstrip("/")
    if (plain := plainly_parsed(url)) is not None:
        return plain
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        # urlsplit raises it for odd brackets, and `port` for what is no number of a port.
        parts, host, port = urlsplit(""), None, None
    # What follows the path would end up within it.
    is_root = parts.path.isascii() and parts.path.isprintable() and " " not in parts.path
    is_root = is_root and not (parts.query or parts.fragment)
    if parts.scheme not in ("http", "https") or not host or not is_root:
        among = f" (in {whole!r}; write a comma between two URLs)" if url != whole else ""
        raise SettingsError(
            f"{field}: {text.strip()!r} is not a URL like http://127.0.0.1:8700{among}"
        )
    if "@" in parts.netloc:  # not repeated here: a password may be in it
        raise SettingsError(f"{field}: holds a user or a password before '@': only a token is used")
    is_secure = parts.scheme == "https"
    return Address(url, is_secure, host, port or (443 if is_secure else 80), parts.path)


def plainly_parsed(url: str) -> Address | None:
    """Return the address of a URL of a scheme, a name and perhaps a port alone; None: urlsplit must
    look. With what it loads, that takes 4 ms of the 20 until a command has sent its request."""
    scheme, _, place = url.partition("://")
    host, colon, port = place.partition(":")
    usual = {"http": "80", "https": "443"}.get(scheme)
    letters = host.replace(".", "").replace("-", "")
    if usual is None or not (host.isascii() and letters.isalnum()):
        return None
    port = port if colon else usual
    if not (port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 1 << 16):
        return None
    return Address(url, scheme == "https", host.lower(), int(port), "")


def _to_stderr(text: str) -> None:
    sys.stderr.write(f"fairlead: {text}\n")
