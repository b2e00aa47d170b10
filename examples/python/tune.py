"""Look for the best parameters with Optuna: it asks for some at a time, and is told what they gave.

    pip install fairlead optuna
    python tune.py [IMAGE]      # python tune.py "" where nodes have no containers

Each round of trials is a sweep, and its jobs run at once. A job writes its loss to its output
folder; `run.results()` yields the trials as they end, and a job that failed is told as such.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fairlead import Client, Run, Task
from fairlead.task import TaskFields

ROUNDS, AT_ONCE = 4, 8
SPACE = {"lr": (1e-5, 1e-1), "width": (1, 64)}
TRAIN = (
    # your training program, which writes what is to become small
    "awk -v lr=${{ params.lr }} -v width=${{ params.width }} "
    "'BEGIN { print (log(lr) + 5) ^ 2 + (width - 20) ^ 2 / 100 }' "
    '> "$FAIRLEAD_OUTPUT_DIR/loss"'
)

Ask = Callable[[], Mapping[str, float]]
"""Returns the parameters of one more trial."""
Tell = Callable[[int, float | None], None]
"""Takes the loss of the trial that was asked for as the Nth of its round; None: it failed."""


def main() -> None:
    import optuna  # type: ignore[import-not-found]

    image = sys.argv[1] if len(sys.argv) > 1 else "ubuntu:24.04"
    study = optuna.create_study()
    with Client() as client:
        for _ in range(ROUNDS):
            trials: list[Any] = []

            def ask(trials: list[Any] = trials) -> Mapping[str, float]:
                trials.append(study.ask())
                return {
                    "lr": trials[-1].suggest_float("lr", *SPACE["lr"], log=True),
                    "width": trials[-1].suggest_int("width", *SPACE["width"]),
                }

            def tell(number: int, loss: float | None, trials: list[Any] = trials) -> None:
                failed = optuna.trial.TrialState.FAIL
                study.tell(trials[number], loss, state=failed if loss is None else None)

            one_round(client, image, AT_ONCE, ask, tell)
    print(f"best: {study.best_params} with {study.best_value:.3f}")


def one_round(client: Client, image: str, trials: int, ask: Ask, tell: Tell) -> None:
    """Run so many trials at once, and tell the loss of each as it ends."""
    asked = [dict(ask()) for _ in range(trials)]
    fields: TaskFields = {"commands": [TRAIN], "resources": {"cpu": 0.1, "memory": "128MB"}}
    if image:
        fields["image"] = image
    task = Task(**fields)
    run = client.sweep(task, asked)
    for number, loss in losses(run):
        tell(number, loss)


def losses(run: Run) -> Iterator[tuple[int, float | None]]:
    """Yield the number and the loss of each trial, as they end."""
    for result in run.results():
        if result.exit_code != 0 or result.job is None:
            yield result.number, None
            continue
        with tempfile.TemporaryDirectory() as folder:
            (pulled,) = run.pull_outputs(folder, result.job, progress=False)
            yield result.number, float((Path(pulled) / "loss").read_text())


if __name__ == "__main__":
    main()
