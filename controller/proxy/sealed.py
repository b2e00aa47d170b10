"""Sessions of browsers with services that hold at each controller of an installation.

Such a session is in its cookie, sealed with a key that the controllers share: nobody else can make
one, nor read what it holds. So it needs no memory, and outlasts the controller that gave it. Each
request looks up what the session stands for: a key of the service, or a login at the dashboard.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re

import msgspec
from cryptography.fernet import Fernet, InvalidToken

from common.proxy.browsers.sessions import SESSION_SECONDS
from common.proxy.view import Service
from common.tokens import BROWSER_PREFIX
from controller.clock import Clock
from controller.service.accounts.users import Credential

_MAX_BYTES = 2000
_SEALED = re.compile(r"[A-Za-z0-9_-]+")


class SealedSession(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A right to the service of one run, until `until` (Unix time). It stands for `key`, a key of
    the service; if that is empty, for the login at the dashboard: `token_id` and `login`."""

    run_id: str
    until: float
    key: str = ""
    token_id: str = ""
    login: str | None = None

    def __repr__(self) -> str:
        return f"SealedSession(run_id={self.run_id!r})"


class SealedSessions:
    """Seals sessions, and opens them again. `secret`: the installation's. A `SessionBook`."""

    def __init__(self, secret: bytes, clock: Clock) -> None:
        purpose = b"fairlead: sessions of browsers with services"
        key = hmac.new(secret, purpose, hashlib.sha256).digest()
        self._fernet = Fernet(base64.urlsafe_b64encode(key))
        self._clock = clock

    def open(self, service: Service, secret: str, credential: object) -> str:
        """Return the value of a new session's cookie."""
        until = self._clock.now() + SESSION_SECONDS
        session = SealedSession(run_id=service.run_id, until=until, key=secret)
        if isinstance(credential, Credential):
            session = SealedSession(
                run_id=service.run_id,
                until=until,
                token_id=credential.token.id,
                login=credential.login,
            )
        # Without the padding: a cookie with `=` in it would be sent in quotes.
        return self._fernet.encrypt(msgspec.json.encode(session)).decode().rstrip("=")

    def secret_of(self, service: Service, value: str) -> str | None:
        """Return the secret by which a session of this service admits; None: this is none."""
        session = self.opened(value, service.run_id)
        if session is None:
            return None
        # A browser's secret may be forged: whoever admits by it opens the seal again.
        return session.key or f"{BROWSER_PREFIX}{value}"

    def granted(self, secret: str, run_id: str) -> SealedSession | None:
        """Return the login's session of this run for which a browser's secret stands, if it is
        ours."""
        session = self.opened(secret.removeprefix(BROWSER_PREFIX), run_id)
        return session if session is not None and session.token_id else None

    def opened(self, value: str, run_id: str) -> SealedSession | None:
        """Return the session with this run's service, if the seal is ours and its time not over."""
        # base64's decoder passes over other characters, and over all that follows the padding: what
        # is made of a cookie and more, as the secret of a code is, would be a session too.
        if len(value) > _MAX_BYTES or _SEALED.fullmatch(value) is None:
            return None
        try:
            opened = self._fernet.decrypt(value + "=" * (-len(value) % 4))
            session = msgspec.json.decode(opened, type=SealedSession)
        except (InvalidToken, msgspec.MsgspecError):
            return None
        is_right = session.run_id == run_id and session.until > self._clock.now()
        return session if is_right else None
