"""Object storage on the loopback: moto's server, and before it a proxy that disturbs.

The proxy speaks Google's dialect too: generations of objects, and writes on condition of them.
"""

import http.client
import json
import logging
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from urllib.parse import quote, unquote, urlsplit

import pytest
from moto.server import ThreadedMotoServer

BUSY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
SIGNED = "AWS4-HMAC-SHA256 Credential=someone/20260101/us-east-1/s3/aws4_request, Signature=0"
"""What moto is told of clients of Google's: it does not check it."""
KINDS = ("500", "503", "throttled", "torn", "lost", "cut")


class Generations:
    """Which version of each object there is, counted as Google does.

    Attributes:
        changing: Held while an object is checked and changed.
    """

    def __init__(self) -> None:
        self.changing, self._known, self._last = threading.RLock(), dict[str, int](), 0

    def allows(self, path: str, wanted: str | None) -> bool:
        return wanted is None or int(wanted) == self._known.get(_object(path), 0)

    def note(self, command: str, path: str, status: int) -> dict[str, str]:
        """Take note of an answer of the server; return what Google adds to it."""
        name = _object(path)
        if command in ("PUT", "POST") and status == 200 and "partNumber" not in path:
            self._last += 1
            self._known[name] = self._last
        if command == "DELETE":
            self._known.pop(name, None)
        return {"x-goog-generation": str(self._known[name])} if name in self._known else {}


def _object(path: str) -> str:
    return unquote(urlsplit(path).path)


def _plain(path: str) -> str:
    name, mark, query = path.partition("?")
    return quote(unquote(name)) + mark + query


class Weather:
    """What goes wrong between a client and its bucket.

    Attributes:
        share: Of the requests that fail, each by one of ``KINDS``: an error of the server, a rate
            limit, an upload that breaks off, an answer that is lost after the request took effect,
            and an answer that breaks off.
        away: Whether nothing answers at all.
        seen: Kinds of faults that came, and requests that did not fail.
        log: Method and path of every request.
    """

    def __init__(self) -> None:
        self.share, self.away, self.random = 0.0, False, Random(0)
        self.seen: dict[str, int] = {}
        self.log: list[str] = []

    def next(self) -> str:
        kind = "away" if self.away else ""
        if not kind and self.random.random() < self.share:
            kind = self.random.choice(KINDS)
        self.seen[kind] = self.seen.get(kind, 0) + 1
        return kind


def _handler(weather: Weather, port: int) -> type[BaseHTTPRequestHandler]:
    google = Generations()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None: ...

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            weather.log.append(f"{self.command} {self.path}")
            kind = weather.next()
            if kind in ("away", "torn"):
                if kind == "torn":
                    self._send_half(body)
                self._hang_up()
                return
            if kind in ("500", "503", "throttled"):
                code = {"500": 500, "503": 503, "throttled": 429}[kind]
                self._answer(code, {"Content-Type": "application/xml"}, BUSY)
                return
            with google.changing:
                if not google.allows(self.path, self.headers.get("x-goog-if-generation-match")):
                    self._answer(412, {}, b"")
                    return
                server = http.client.HTTPConnection("127.0.0.1", port)
                given = {name.lower(): value for name, value in self.headers.items()}
                if not given.get("authorization", "").startswith("AWS"):
                    given["authorization"] = SIGNED
                server.request(self.command, _plain(self.path), body, given)
                answer = server.getresponse()
                content, headers = answer.read(), dict(answer.getheaders())
                server.close()
                headers |= google.note(self.command, self.path, answer.status)
            if kind == "lost":
                self._hang_up()
                return
            self._answer(answer.status, headers, content, cut=kind == "cut" and len(content) > 1)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on

        def _send_half(self, body: bytes) -> None:
            """Break off in the middle of an upload: the server hears half of it."""
            server = http.client.HTTPConnection("127.0.0.1", port)
            server.putrequest(self.command, self.path, skip_host=True)
            for name, value in self.headers.items():
                server.putheader(name, value)
            server.endheaders()
            server.send(body[: len(body) // 2])
            server.close()

        def _answer(
            self, code: int, headers: dict[str, str], content: bytes, cut: bool = False
        ) -> None:
            self.send_response(code)
            length = headers.get("Content-Length", str(len(content)))
            dropped = ("content-length", "connection", "transfer-encoding", "date", "server")
            for name, value in headers.items():
                if name.lower() not in dropped:
                    self.send_header(name, value)
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content[: len(content) // 2] if cut else content)
            if cut:
                self._hang_up()

        def _hang_up(self) -> None:
            self.close_connection = True
            self.connection.close()

    return Handler


class _Proxy(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Say nothing of connections that either end broke off."""


@contextmanager
def disturbed_buckets() -> Iterator[tuple[str, Weather]]:
    """Yield the address of a server of object storage, and its weather."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    weather = Weather()
    proxy = _Proxy(("127.0.0.1", 0), _handler(weather, moto.get_host_and_port()[1]))
    thread = threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{proxy.server_port}", weather
    finally:
        proxy.shutdown()
        proxy.server_close()
        moto.stop()


def make_bucket(server: str) -> str:
    """Make a fresh bucket; return its name."""
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    place = http.client.HTTPConnection(server.removeprefix("http://"))
    place.request("PUT", f"/{name}")
    assert place.getresponse().status == 200
    return name


def log_in(server: str, patch: pytest.MonkeyPatch) -> None:
    """Say in the environment where the server is, and who asks."""
    key = {"gcs_base_url": server, "disable_oauth": True}
    key |= dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    for name, value in {
        "AWS_ACCESS_KEY_ID": "someone",
        "AWS_SECRET_ACCESS_KEY": "a-secret-that-nobody-prints",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": server,
        "GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(key),
    }.items():
        patch.setenv(name, value)


def impatient(patch: pytest.MonkeyPatch, **more: float) -> None:
    """Shorten what waits for a bucket; ``more`` are by the names of their modules' values."""
    for place, value in {
        "trainables.store.bucket.PAUSES": (0.01,) * 6,
        "trainables.store.cache.LONGEST_PAUSE": 0.2,
        "trainables.store.locks.LOOK_SECONDS": 0.1,
        **more,
    }.items():
        patch.setattr(place, value)


def wait_until(happened: object, seconds: float = 30.0) -> bool:
    """Return True as soon as a function does, False after so many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if callable(happened) and happened():
            return True
        time.sleep(0.05)
    return False
