"""How agents talk: small signed HTTP messages on the private network.

Every message carries an HMAC-SHA256 of itself with the group's secret. An answer is signed together with the nonce of
its request, so that nobody who takes the head's port while its agent is away can give orders; a report or a command has
to quote a challenge out of an earlier answer, each of which is good for one time, so that a recorded one is worth
nothing. The secret itself never travels.
"""

import asyncio
import contextlib
import hashlib
import hmac
import json
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import h11

MAX_BODY = 32 * 1024
_MAX_HEADERS = 8 * 1024
_MAX_CONNECTIONS = 32
_TIMEOUT_S = 5.0

JsonObject = dict[str, Any]
Handler = Callable[[str, JsonObject], Awaitable[JsonObject]]


class NotReached(Exception):
    """No answer. `refused`: the machine is there, and nobody listens on it."""

    def __init__(self, text: str, *, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused


class NotTrusted(Exception):
    """An answer that is not signed with this group's secret, or no message of ours."""


class Challenges:
    """Single-use numbers, a bounded count of them."""

    def __init__(self, limit: int = 256) -> None:
        self._open: OrderedDict[str, None] = OrderedDict()
        self._limit = limit

    def issue(self) -> str:
        challenge = secrets.token_hex(16)
        self._open[challenge] = None
        while len(self._open) > self._limit:
            self._open.popitem(last=False)
        return challenge

    def take(self, challenge: object) -> bool:
        if not isinstance(challenge, str) or challenge not in self._open:
            return False
        del self._open[challenge]
        return True


def _signature(secret: bytes, *parts: bytes) -> str:
    # Lengths in front: no two lists of parts look the same.
    text = b"".join(b"%d:" % len(part) + part for part in parts)
    return hmac.new(secret, text, hashlib.sha256).hexdigest()


async def ask(address: str, port: int, path: str, body: Mapping[str, Any], secret: bytes, timeout: float) -> JsonObject:
    """POST `body` and return the answer. Raises NotReached or NotTrusted."""
    try:
        async with asyncio.timeout(timeout):
            return await _ask(address, port, path, body, secret)
    except ConnectionRefusedError:
        raise NotReached(f"{address}:{port}: nobody listens", refused=True) from None
    except TimeoutError:
        raise NotReached(f"{address}:{port}: no answer within {timeout:g} s") from None
    except (OSError, EOFError) as error:
        raise NotReached(f"{address}:{port}: {getattr(error, 'strerror', None) or error or 'closed'}") from None
    except h11.ProtocolError as error:
        raise NotTrusted(f"{address}:{port} speaks no HTTP: {error}") from None


async def _ask(address: str, port: int, path: str, body: Mapping[str, Any], secret: bytes) -> JsonObject:
    reader, writer = await asyncio.open_connection(address, port)
    try:
        nonce = secrets.token_hex(16)
        data = json.dumps(body).encode()
        connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEADERS)
        headers = [
            ("host", "group"),
            ("connection", "close"),
            ("content-type", "application/json"),
            ("content-length", str(len(data))),
            ("coderack-nonce", nonce),
            ("coderack-signature", _signature(secret, b"request", path.encode(), nonce.encode(), data)),
        ]
        for event in (h11.Request(method="POST", target=path, headers=headers), h11.Data(data), h11.EndOfMessage()):
            writer.write(connection.send(event) or b"")
        await writer.drain()
        head, answer = await _message(connection, reader)
    finally:
        writer.close()
    if not isinstance(head, h11.Response):
        raise EOFError("closed without an answer")
    seal = dict(head.headers).get(b"coderack-signature", b"").decode(errors="replace")
    if not hmac.compare_digest(seal, _signature(secret, b"answer", nonce.encode(), answer)):
        raise NotTrusted(
            f"{address}:{port} answered {head.status_code} without the group's signature; is the secret the same?"
        )
    return _object(answer)


async def serve(address: str, port: int, secret: bytes, handler: Handler, log: Callable[[str], None]) -> asyncio.Server:
    """Listen; `handler` gets the path and the body of messages that are signed, and returns the body of the answer."""
    room = asyncio.Semaphore(_MAX_CONNECTIONS)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if not room.locked():  # who comes when it is full is turned away
                async with room, asyncio.timeout(_TIMEOUT_S):
                    await _serve_one(reader, writer, secret, handler, log)
        except (OSError, EOFError, h11.ProtocolError, TimeoutError):
            pass  # a client that hangs up, dawdles or speaks no HTTP
        finally:
            writer.close()
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(1):
                    await writer.wait_closed()

    return await asyncio.start_server(connected, address, port, limit=_MAX_HEADERS)


async def _serve_one(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    secret: bytes,
    handler: Handler,
    log: Callable[[str], None],
) -> None:
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEADERS)
    head, data = await _message(connection, reader)
    if not isinstance(head, h11.Request):
        return
    headers = dict(head.headers)
    nonce = headers.get(b"coderack-nonce", b"")
    wanted = _signature(secret, b"request", bytes(head.target), nonce, data)
    if not hmac.compare_digest(headers.get(b"coderack-signature", b"").decode(errors="replace"), wanted):
        peer = (writer.get_extra_info("peername") or ("?",))[0]
        log(f"refused a message from {peer}: it is not signed with this group's secret")
        status, body, seal = 401, b"{}", ""
    else:
        try:
            status, answer = 200, await handler(head.target.decode(errors="replace"), _object(data))
        except NotTrusted as error:
            status, answer = 400, {"error": str(error)}
        body = json.dumps(answer).encode()
        seal = _signature(secret, b"answer", nonce, body)
    answered = [
        ("content-type", "application/json"),
        ("content-length", str(len(body))),
        ("connection", "close"),
        ("coderack-signature", seal),
    ]
    for event in (h11.Response(status_code=status, headers=answered), h11.Data(body), h11.EndOfMessage()):
        writer.write(connection.send(event) or b"")
    await writer.drain()


async def _message(
    connection: h11.Connection, reader: asyncio.StreamReader
) -> tuple[h11.Request | h11.Response | None, bytes]:
    head: h11.Request | h11.Response | None = None
    body = b""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(4096))
        elif isinstance(event, (h11.Request, h11.Response)):
            head = event
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
            if len(body) > MAX_BODY:
                raise EOFError(f"more than {MAX_BODY} bytes")
        elif isinstance(event, (h11.EndOfMessage, h11.ConnectionClosed)) or event is h11.PAUSED:
            return head, body


def _object(data: bytes) -> JsonObject:
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise NotTrusted("the message is no JSON") from None
    if not isinstance(body, dict):
        raise NotTrusted("the message is no JSON object")
    return body
