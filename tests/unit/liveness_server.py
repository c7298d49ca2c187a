"""A real HTTP server on a loopback port that plays the API server of a vLLM group, each rank from a script."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

MODEL = "tiny-qwen3-moe"
OK, HANG, DROP, GARBAGE, FLOOD = "ok", "hang", "drop", "garbage", "flood"

Behaviour = str | float | tuple[int, str]


@dataclass
class Group:
    """`behaviour` of a rank: one of the words above, a whole answer as (status, body), or the seconds until a token.

    All of it may be changed at any time.
    steps: per rank, what its counter in /metrics grows by whenever that is read; `metrics` may be OK, HANG or DROP.
    """

    behaviour: dict[int, Behaviour] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)
    metrics: Behaviour = OK
    api_key: str | None = None
    seen: list[tuple[str, int | None, dict[str, object]]] = field(default_factory=list)
    together: dict[int | None, int] = field(default_factory=dict)
    most_together: int = 0
    _tokens: dict[int, int] = field(default_factory=dict)

    def asked(self, path: str) -> int:
        return sum(1 for seen, _, _ in self.seen if seen == path)

    def page(self) -> str:
        """As vLLM 0.32 writes it."""
        lines = ["# HELP vllm:generation_tokens_total Number of generation tokens processed."]
        for rank in sorted({*self.behaviour, *self.steps}):
            self._tokens[rank] = self._tokens.get(rank, 7) + self.steps.get(rank, 0)
            labels = f'{{engine="{rank}",model_name="{MODEL}"}}'
            lines.append(f"vllm:generation_tokens_total{labels} {float(self._tokens[rank])}")
            lines.append(f"vllm:num_requests_running{labels} 8.0")
        return "\n".join(lines) + "\n"


def completion(model: str = MODEL, **more: object) -> str:
    choice = {"index": 0, "text": " the", "logprobs": None, "finish_reason": "length", "stop_reason": None}
    usage = {"prompt_tokens": 1, "total_tokens": 2, "completion_tokens": 1}
    return json.dumps(
        {"id": "cmpl-1", "object": "text_completion", "model": model, "choices": [choice], "usage": usage} | more
    )


@contextmanager
def serving(group: Group, port: int = 0) -> Iterator[str]:
    """Serve `group` from a thread and yield the URL."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    begin = asyncio.start_server(_Answers(group).answer, "127.0.0.1", port)
    server = asyncio.run_coroutine_threadsafe(begin, loop).result(5)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        asyncio.run_coroutine_threadsafe(_end(server), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _end(server: asyncio.Server) -> None:
    server.close()
    for task in asyncio.all_tasks():
        if task is not asyncio.current_task():
            task.cancel()
    await asyncio.sleep(0)


class _Answers:
    def __init__(self, group: Group) -> None:
        self._group = group

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        group, rank, counted = self._group, None, False
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            path = head[0].split()[1]
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            if path == "/metrics":
                group.seen.append((path, None, {}))
                await self._act(group.metrics, group.page(), reader, writer)
                return
            rank = int(headers["x-data-parallel-rank"]) if "x-data-parallel-rank" in headers else None
            group.seen.append((path, rank, json.loads(body)))
            group.together[rank] = group.together.get(rank, 0) + 1
            counted = True
            group.most_together = max(group.most_together, group.together[rank])
            if group.api_key and headers.get("authorization") != f"Bearer {group.api_key}":
                await self._act((401, '{"error":"Unauthorized"}'), "", reader, writer)
                return
            await self._act(group.behaviour.get(rank or 0, OK), completion(), reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            if counted:
                group.together[rank] -= 1
            writer.transport.abort() if writer.transport.is_closing() else writer.close()

    async def _act(
        self, behaviour: Behaviour, good: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if behaviour == HANG:
            await reader.read()  # until the client hangs up
        elif behaviour == GARBAGE:
            writer.write(b"\x00\xff\xfeSSH-2.0-nothing\r\n" * 50)
            await writer.drain()
        elif behaviour == FLOOD:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while True:
                writer.write(b"1000\r\n" + b"x" * 0x1000 + b"\r\n")
                await writer.drain()
        elif behaviour != DROP:
            if isinstance(behaviour, float):
                await asyncio.sleep(behaviour)
            status, text = behaviour if isinstance(behaviour, tuple) else (200, good)
            data = text.encode()
            writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(data), data))
            await writer.drain()
