"""HTTP/1.1 and WebSockets on the runner's socket, by httptools and asyncio alone.

`messages` has requests and answers as values, `connection` reads and writes them on one connection,
`websocket` follows when a request asks for it. A library that does all of this costs each job more
than its runner: CPU time until the first request is answered and memory afterwards were 154 ms and
30 MiB with aiohttp, 84 ms and 21 MiB with websockets, 72 ms and 18 MiB with h11 and wsproto, and
59 ms and 17 MiB with httptools (without what else the runner loads, Python 3.11).
"""
