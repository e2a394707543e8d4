"""Many topics in one asyncio program: `async for` over one, callbacks for another."""

import asyncio

import rgaps


async def show(sub: rgaps.Subscriber) -> None:
    async for sample in sub:
        print(f"{sample.topic}: {sample.tobytes().decode()}")


async def main() -> None:
    with rgaps.subscriber("news") as news, rgaps.subscriber("alarms") as alarms:
        # Called in a thread of its own.
        alarms.listen(lambda sample: print("ALARM", sample.tobytes().decode()))
        reader = asyncio.create_task(show(news))
        with rgaps.publisher("news") as pub, rgaps.publisher("alarms") as siren:
            for number in range(5):
                pub.put(f"item {number}".encode())
                await asyncio.sleep(0.1)
            siren.put(b"that was all")
            await asyncio.sleep(0.1)
        news.close()
        await reader


if __name__ == "__main__":
    asyncio.run(main())
