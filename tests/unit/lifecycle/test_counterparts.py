"""Sets of two sweeps with the same parameters, whatever their numbers (docs/rules.md 11.13)."""

from __future__ import annotations

import random

from controller.lifecycle.counterparts import (
    counterpart_of,
    counterparts,
    in_pieces,
    own_numbers,
)
from controller.lifecycle.predecessors import SetFacts
from controller.lifecycle.ranges import in_ranges, numbers_in
from controller.lifecycle.runs.dependencies import own_sets_for
from fairlead.model.sweep import ParameterSets
from tests.unit.lifecycle.test_waiting_sweeps import begun, learns, prepare, waiting


def test_sets_are_equal_by_their_values_in_any_order_of_names() -> None:
    own = ParameterSets.of(["lr", "seed"], [[0.1, 1], [0.2, 2], [0.1, 2]])
    theirs = ParameterSets.of(["seed", "lr"], [[2, 0.1], [1, 0.1], [True, 0.2]])
    assert counterparts(own, theirs) == {0: 1, 2: 0}


def test_one_true_and_a_string_are_no_number() -> None:
    own = ParameterSets.of(["seed"], [[1]])
    assert counterparts(own, ParameterSets.of(["seed"], [[True], ["1"], [1.0]])) == {}
    assert counterparts(own, ParameterSets.of(["other"], [[1]])) == {}


def test_pieces_tell_the_same_as_the_numbers_one_by_one() -> None:
    for seed in range(300):
        chance = random.Random(seed)
        theirs = chance.sample(range(12), 12)
        found = {own: theirs[own] for own in range(12) if chance.random() < 0.7}
        if chance.random() < 0.5:
            found = {own: own + 3 for own in found}
        pieces = in_pieces(found)
        assert [counterpart_of(own, pieces) for own in found] == list(found.values())
        told = {number for number in range(15) if chance.random() < 0.5}
        expected = {own for own, other in found.items() if other in told}
        if pieces:
            assert set(numbers_in(own_numbers(in_ranges(told), pieces))) == expected


def test_consecutive_sets_are_one_piece() -> None:
    assert in_pieces({number: number + 5 for number in range(5_000)}) == ((0, 4_999, 5),)
    assert in_pieces({number: number for number in range(5_000)}) == ()


def test_a_set_that_has_waited_before_needs_nothing_of_its_predecessor() -> None:
    one = prepare()
    one = type(one)(
        run_id=one.run_id, name=one.name, job=one.job, met_for=((0, 1),), counterparts=((2, 2, 0),)
    )
    assert own_sets_for(one, SetFacts(over=((0, 3),))) == (((0, 1),), ((2, 2),))
    assert own_sets_for(one, SetFacts(done=((0, 0),), over=((0, 0),))) == (((0, 2),), ())


def test_a_set_begins_once_the_set_with_its_parameters_is_done() -> None:
    one = prepare()
    one = type(one)(
        run_id=one.run_id, name=one.name, job=one.job, met_for=((1, 1),), counterparts=((0, 0, 2),)
    )
    play = waiting(one, sets=2)
    assert begun(play) == [1]
    assert begun(learns(play, done=[0, 1], over=[0, 1])) == [1]
    assert begun(learns(play, done=[2], over=[2])) == [0, 1]
