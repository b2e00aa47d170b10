"""No cut in the stream of a job's output lets a secret through."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.logs.output import Masker

SECRETS = ("hunter2", "hunter2-long", "aXaXb", "p@ss.w*rd")


def masked(pieces: list[bytes], *secrets: str) -> bytes:
    masker = Masker(secrets)
    return b"".join(map(masker.feed, pieces)) + masker.rest()


def cut(data: bytes, *places: int) -> list[bytes]:
    edges = [0, *sorted(places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@pytest.mark.parametrize("place", range(len("my hunter2 is")))
def test_a_secret_is_masked_wherever_it_is_cut(place: int) -> None:
    assert masked(cut(b"my hunter2 is", place), "hunter2") == b"my *** is"


def test_a_secret_that_comes_byte_by_byte_is_masked() -> None:
    data = b"xhunter2hunter2y hunterx hunter"
    assert masked([bytes([b]) for b in data], "hunter2") == b"x******y hunterx hunter"


def test_output_that_cannot_be_a_secret_is_shown_at_once() -> None:
    masker = Masker(["hunter2"])
    assert masker.feed(b"progress 10 %") == b"progress 10 %"
    assert masker.feed(b"name: hun") == b"name: "
    assert masker.feed(b"gry") == b"hungry"


def test_the_longer_of_two_secrets_that_begin_alike_is_masked() -> None:
    pieces = [b"hunter2", b"-lo", b"ng and hunter2", b"-short"]
    assert masked(pieces, "hunter2", "hunter2-long") == b"*** and ***-short"


def test_each_line_of_a_key_is_masked() -> None:
    key = "-----BEGIN KEY-----\nc2VjcmV0\nbGluZXM\n-----END KEY-----\n"
    assert masked([b"first: c2Vj", b"cmV0, then bGluZXM\n"], key) == b"first: ***, then ***\n"


def test_a_secret_of_a_few_letters_is_not_looked_for() -> None:
    assert masked([b"a is in almost all words"], "a", "", "  ") == b"a is in almost all words"


@given(
    st.lists(st.sampled_from([*SECRETS, "a", "X", "hunter", "-long", "\n", "b", "2"]), max_size=30),
    st.lists(st.integers(0, 200), max_size=12),
)
def test_cuts_change_nothing(words: list[str], places: list[int]) -> None:
    data = "".join(words).encode()
    pieces = cut(data, *(min(place, len(data)) for place in places))
    assert masked(pieces, *SECRETS) == masked([data], *SECRETS)
    assert not [secret for secret in SECRETS if secret.encode() in masked(pieces, *SECRETS)]


def test_a_long_secret_costs_nothing_where_it_does_not_begin() -> None:
    """The runner does nothing else while it masks: not each place of the output is compared."""
    compared = []

    class Counting(Masker):
        def may_begin(self, data: bytes, at: int) -> bool:
            compared.append(at)
            return super().may_begin(data, at)

    lines = [f"line {number} of a certificate, as long as they are" for number in range(2000)]
    masker = Counting(["\n".join(lines)])
    quiet = b"step 1234: loss 0.1234\n" * 10_000
    assert masker.feed(quiet) == quiet
    assert len(compared) < len(SECRETS[0])
    assert masked([b"<", lines[7].encode(), b">"], "\n".join(lines)) == b"<***>"
