"""Lists of the API that come in pages, as one document."""

from __future__ import annotations

import msgspec

from fairlead.rest import ControllerClient, decode


class _Page(msgspec.Struct):
    next_cursor: str | None = None


def whole_list(client: ControllerClient, path: str, entries: str, **query: object) -> bytes:
    """Return the list at `path` as if it had one page; `entries`: the field that has them."""
    data = client.get(path, **query)
    if (cursor := decode(data, _Page).next_cursor) is None:
        return data
    found = _entries(data, entries)
    while cursor is not None:
        data = client.get(path, cursor=cursor, **query)
        found += _entries(data, entries)
        cursor = decode(data, _Page).next_cursor
    return msgspec.json.encode({entries: found, "next_cursor": None})


def _entries(data: bytes, field: str) -> list[msgspec.Raw]:
    return decode(decode(data, dict[str, msgspec.Raw])[field], list[msgspec.Raw])
