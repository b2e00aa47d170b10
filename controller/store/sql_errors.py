"""What an error of SQLAlchemy or of a driver means for the store."""

from __future__ import annotations

import time

import msgspec
import sqlalchemy as sa

from controller.store.errors import StoreError, StoreRefused, StoreUnavailable, StoreUnusable

_VALUES, _RULES, _LIMITS = "22", "23", "54"
"""Classes of SQLSTATE: what a value is, what a constraint says, what is too large for an index."""
AT_ONCE_SECONDS = 1.0
"""A session that is lost later than this after the beginning of its work has hung."""
_UNTAKEN = (ValueError, TypeError, OverflowError, NotImplementedError, msgspec.MsgspecError)
"""Errors of drivers and encoders about a value, before the database has seen it."""


def is_about_values(error: Exception) -> bool:
    """Return whether the statement fails because of its values: with the same values it would fail
    forever."""
    if not isinstance(error, sa.exc.DBAPIError):
        return isinstance(error, (*_UNTAKEN, sa.exc.StatementError))
    if error.connection_invalidated:
        return False
    state = getattr(error.orig, "sqlstate", None)
    if state is not None:
        return state[:2] in (_VALUES, _RULES, _LIMITS)
    # sqlite3 has no SQLSTATE, and its versions differ in the class for a value that can't be bound.
    bound = (sa.exc.DataError, sa.exc.IntegrityError, sa.exc.InterfaceError)
    return isinstance(error, (*bound, sa.exc.ProgrammingError, sa.exc.NotSupportedError))


def has_just_ended(error: Exception, began: float) -> bool:
    """Return whether the server has ended the session of what began then (`time.monotonic`), so
    that a new one is worth a try at once: not when it has hung."""
    is_lost = isinstance(error, sa.exc.DBAPIError) and error.connection_invalidated
    return is_lost and time.monotonic() - began < AT_ONCE_SECONDS


def as_store_error(error: Exception) -> StoreError:
    if is_about_values(error):
        return StoreRefused(f"the database refuses a value: {sentence(error)}")
    connection_lost = isinstance(error, sa.exc.DBAPIError) and error.connection_invalidated
    if isinstance(error, sa.exc.OperationalError) or connection_lost:
        return StoreUnavailable(f"the database can't be used now: {sentence(error)}")
    return StoreUnusable(f"the database refuses: {sentence(error)}")


def sentence(error: Exception) -> str:
    """Return the error as one line, without the statement and its values, which may be secret."""
    if isinstance(error, StoreError):
        return str(error)
    original = getattr(error, "orig", None)
    text = str(original if original is not None else type(error).__name__)
    if "unsupported startup parameter" in text:
        return "a pool (PgBouncer) takes no settings of sessions: give the server's own address"
    # PostgreSQL's further lines (DETAIL, CONTEXT) quote values of the row.
    return next(iter(text.splitlines()), "")
