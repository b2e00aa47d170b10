from __future__ import annotations

import random

import pytest

from fairlead.configuration.values.names import ADJECTIVES, NOUNS, generate_name, is_run_name


@pytest.mark.parametrize(
    "name", ["a", "train", "wise-otter-1", "a" + "-9" * 20, "abcdef012345678", "abcdefg123456789"]
)
def test_names_of_small_letters_digits_and_hyphens_are_right(name: str) -> None:
    assert is_run_name(name)


@pytest.mark.parametrize(
    "name", ["", "A", "1a", "-a", "a_b", "a" * 42, "a\n", "ä", "abcdef0123456789"]
)
def test_other_names_are_wrong(name: str) -> None:
    assert not is_run_name(name)


def test_a_generated_name_is_right_and_its_number_is_the_first_free_one() -> None:
    taken = {f"{ADJECTIVES[3]}-{NOUNS[3]}-{number}" for number in (1, 2)}

    assert generate_name(lambda size: 3, taken.__contains__) == f"{ADJECTIVES[3]}-{NOUNS[3]}-3"


def test_the_same_seed_gives_the_same_names_and_all_are_right() -> None:
    one, other = random.Random(1), random.Random(1)
    names = [generate_name(one.randrange, lambda name: False) for _ in range(200)]

    assert names == [generate_name(other.randrange, lambda name: False) for _ in range(200)]
    assert all(map(is_run_name, names))


def test_every_word_makes_a_name() -> None:
    longest = max(ADJECTIVES, key=len), max(NOUNS, key=len)

    assert all(is_run_name(word) for word in (*ADJECTIVES, *NOUNS))
    assert is_run_name("-".join((*longest, "999999")))
    assert len(set(ADJECTIVES)) == len(ADJECTIVES)
    assert len(set(NOUNS)) == len(NOUNS)
