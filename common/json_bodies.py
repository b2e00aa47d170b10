"""JSON in the body of a request."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from fairlead.wire.decoders import decoder_of
from fairlead.wire.errors import Refused

_MISSING = re.compile(r"missing required field `([^`]+)`")
_T = TypeVar("_T")


def decode_body(raw: bytes, kind: type[_T], whole: str | None = None) -> _T:
    """Return the body; no body is an empty object.

    Raises Refused (400) with the field, or with `whole` when no single field is wrong.
    """
    try:
        return decoder_of(kind).decode(raw or b"{}")
    except msgspec.ValidationError as error:
        # msgspec tells the place only at the end of its message; the error has no attribute for it.
        message, _, path = str(error).partition(" - at `$.")
        missing = _MISSING.search(message)
        names = (path.rstrip("`"), missing[1] if missing else "")
        field = ".".join(filter(None, names)) or whole
        raise Refused(400, "invalid", message, field) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(400, "invalid", f"the body is not valid JSON: {error}", whole) from None
    # An attacker needs only some kilobytes of `[` for this.
    except RecursionError:
        raise Refused(400, "invalid", "the body is nested too deeply", whole) from None
