"""`python -m installer.bundle`: pack the bundle, print its path."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from entrypoint.runtime.errors import BuildError
from installer.bundle.build import BundleBuilder
from installer.bundle.packing import write_deb, write_tar


def main() -> int:
    parser = argparse.ArgumentParser(prog="dev bundle", description="Pack what a node needs.")
    parser.add_argument("--out", type=Path, default=Path(".build/bundles"), metavar="DIR")
    parser.add_argument("--deb", action="store_true", help="a Debian package, too")
    parser.add_argument("--force", action="store_true", help="build even if no input changed")
    options = parser.parse_args()
    try:
        bundle = BundleBuilder(Path.cwd(), Path(".build").absolute()).build(force=options.force)
        options.out.mkdir(parents=True, exist_ok=True)
        print(write_tar(bundle, options.out))  # noqa: T201
        if options.deb:
            print(write_deb(bundle, options.out))  # noqa: T201
    except BuildError as error:
        print(f"dev bundle: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
