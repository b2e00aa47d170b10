"""Try several learning rates at once and keep the best one: one run each, awaited together."""

from __future__ import annotations

import asyncio
import sys

from fairlead import AsyncClient, RunFailed, Task

RATES = ("0.1", "0.01", "0.001")
TRAIN = """awk -v rate="$RATE" 'BEGIN { print "loss", (rate - 0.01) ^ 2 }'"""


async def main() -> None:
    image = sys.argv[1] if len(sys.argv) > 1 else "ubuntu:24.04"
    async with AsyncClient() as client:
        losses = await asyncio.gather(*(loss_of(client, image, rate) for rate in RATES))
    print(f"best rate: {min(zip(losses, RATES, strict=True))[1]}")


async def loss_of(client: AsyncClient, image: str, rate: str) -> float:
    run = await client.submit(Task(image=image, commands=[TRAIN], env={"RATE": rate}))
    try:
        await run.wait()
    except RunFailed as error:
        print(error, file=sys.stderr)
        return float("inf")
    output = "".join([piece.text async for piece in run.logs()])
    return float(output.split()[-1])


if __name__ == "__main__":
    asyncio.run(main())
