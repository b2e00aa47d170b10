"""`python -m entrypoint.runtime`: build what changed and print the folder of the current
runtime."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from entrypoint.runtime.build import Builder
from entrypoint.runtime.errors import BuildError


def main() -> int:
    parser = argparse.ArgumentParser(prog="dev runtime", description=__doc__)
    parser.add_argument("--force", action="store_true", help="build even if no input changed")
    parser.add_argument("--build", type=Path, default=Path(".build"), help="build folder")
    options = parser.parse_args()
    try:
        runtime = Builder(Path.cwd(), options.build.absolute()).build(force=options.force)
    except BuildError as error:
        print(f"dev runtime: {error}", file=sys.stderr)  # noqa: T201
        return 1
    print(runtime)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
