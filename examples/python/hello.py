"""Submit a task, show its output as it comes, and end with its exit status."""

from __future__ import annotations

import sys

from fairlead import Client, Task


def main() -> int:
    image = sys.argv[1] if len(sys.argv) > 1 else "ubuntu:24.04"
    task = Task(image=image, commands=["echo hello from $(hostname)", 'echo "seed $SEED"'])
    with Client() as client:
        run = client.submit(task, env={"SEED": "7"})
        print(f"submitted {run.name}", file=sys.stderr)
        run.print_logs()
        run.wait(check=False)
        print(f"{run.name}: {run.status}: {run.why}", file=sys.stderr)
        return run.exit_status or 0


if __name__ == "__main__":
    sys.exit(main())
