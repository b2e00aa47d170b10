"""Keep files that a job writes, bring them here when it has ended, and read them."""

from __future__ import annotations

import sys
from pathlib import Path

from fairlead import Client, Task

TRAIN = "mkdir -p ckpt; echo 0.25 > ckpt/loss.txt; echo big > ckpt/cache.bin"  # your program


def main() -> None:
    image = sys.argv[1] if len(sys.argv) > 1 else "ubuntu:24.04"
    folder = Path(sys.argv[2] if len(sys.argv) > 2 else "results")
    task = Task(image=image, commands=[TRAIN], working_dir="/tmp/work", outputs=["ckpt/*.txt"])
    with Client() as client:
        run = client.submit(task).wait()
        run.pull_outputs(folder)
        kept = [file.name for one in run.outputs() for file in one.files or ()]
    print(f"kept {', '.join(kept)}: loss {(folder / 'ckpt/loss.txt').read_text().strip()}")


if __name__ == "__main__":
    main()
