"""The program that writes one file to a bucket: an `Upload` on stdin, an `Uploaded` on stdout."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from controller.outputs.bucket import BucketError, Upload, Uploaded, put_file


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Upload)
    try:
        done = Uploaded(length=put_file(Path(order.path), order.place))
    except BucketError as error:
        done = Uploaded(error=str(error))
    sys.stdout.buffer.write(msgspec.json.encode(done))


if __name__ == "__main__":
    main()
