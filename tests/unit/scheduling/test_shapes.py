"""Shapes: rooms of one shape are alike, also after what was seen long ago is forgotten."""

from __future__ import annotations

from msgspec.structs import replace

from controller.scheduling.fitting.capacity import Shape, Shapes
from controller.scheduling.fitting.fit import room
from tests.unit.scheduling.parts import node


def of_node(shapes: Shapes, blocks: int) -> Shape:
    made = node()
    return shapes.of(room(replace(made, capacity=replace(made.capacity, blocks=blocks)), ()))


def test_rooms_of_equal_nodes_have_one_shape() -> None:
    shapes = Shapes()
    assert of_node(shapes, 1) == of_node(shapes, 1) != of_node(shapes, 2)


def test_what_was_forgotten_never_gets_the_shape_of_something_else() -> None:
    shapes = Shapes(most=3)
    seen = [of_node(shapes, blocks) for blocks in range(1, 20)]
    assert len(set(seen)) == len(seen)
    assert of_node(shapes, 20) == of_node(shapes, 20)
