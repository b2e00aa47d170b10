"""Try several sizes at once and keep the best one: one run each, awaited together."""

from __future__ import annotations

import asyncio
import sys

from fairlead import AsyncClient, RunFailed, Task

SIZES = (4, 8, 16)
TRAIN = "echo loss $(( (SIZE - 8) * (SIZE - 8) ))"  # your training program


async def main() -> None:
    image = sys.argv[1] if len(sys.argv) > 1 else "ubuntu:24.04"
    async with AsyncClient() as client:
        losses = await asyncio.gather(*(loss_of(client, image, size) for size in SIZES))
    print(f"best size: {min(zip(losses, SIZES, strict=True))[1]}")


async def loss_of(client: AsyncClient, image: str, size: int) -> float:
    run = await client.submit(Task(image=image, commands=[TRAIN], env={"SIZE": size}))
    try:
        await run.wait()
    except RunFailed as error:
        print(error, file=sys.stderr)
        return float("inf")
    output = "".join([piece.text async for piece in run.logs()])
    return float(output.split()[-1])


if __name__ == "__main__":
    asyncio.run(main())
