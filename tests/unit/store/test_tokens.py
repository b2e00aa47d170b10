from __future__ import annotations

from common.tokens import digest, new_token
from controller.store.accounts import StoredToken, matching

TOKEN = new_token(lambda size: b"\x01" * size)


def stored(token: str, id_: str = "t") -> StoredToken:
    return StoredToken(id=id_, user="ada", digest=digest(token), created_at=1.0)


def test_a_token_has_256_random_bits_and_a_recognisable_prefix() -> None:
    assert TOKEN == "fl_" + "01" * 32


def test_a_token_matches_what_was_stored_of_it_and_nothing_else() -> None:
    kept = [stored("other", "o"), stored(TOKEN)]

    assert matching(TOKEN, kept) == kept[1]
    assert matching(TOKEN + "0", kept) is None
    assert matching("", kept) is None


def test_a_stored_record_does_not_hold_the_token() -> None:
    assert TOKEN not in repr(stored(TOKEN))


def test_a_token_of_bytes_that_are_no_text_matches_nothing() -> None:
    assert matching("fl_\udcff", [stored(TOKEN)]) is None
