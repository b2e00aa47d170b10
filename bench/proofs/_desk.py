"""Where the proofs of IDEs in the browser run: a controller with one node of the process engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.processes import ControllerProcess, ShimProcess


@contextmanager
def controller_with_a_node(folder: Path, *options: str | Path) -> Iterator[ControllerProcess]:
    with ExitStack() as stack:
        shim = ShimProcess(folder / "n", "process")
        stack.callback(shim.close)
        controller = ControllerProcess(folder / "controller", *options)
        stack.callback(controller.close)
        shim.start()
        controller.start()
        controller.cli("node", "add", "here", "--local", shim.socket).succeeded()
        yield controller
