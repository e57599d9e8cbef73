"""Protects the pages: a token for access, and headers that restrict the browser."""

import secrets
from urllib.parse import urlsplit

from starlette.datastructures import URL, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # With "no-referrer" our own forms would send no origin.
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
UNKNOWN = "Open the whole address that `calsweep ui` has printed: it ends with a token."


FOREIGN = "Only pages of `calsweep ui` itself can change notes."
READ = ("GET", "HEAD")


class Guard:
    """Requires the token: first in the URL, then in a cookie.

    Requests that change something must come from the server's own pages.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse or redirect a request, or pass it to the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        request = Request(scope)
        await (self._refusal(request) or self._app)(scope, receive, send_guarded)

    def _refusal(self, request: Request) -> Response | None:
        # Cookies ignore ports, so two servers on one machine need two names.
        cookie = f"calsweep-{request.url.port or 0}"
        token = request.query_params.get("token")
        if token is not None and self._is_token(token):
            address = request.url.remove_query_params("token")
            path = URL(path="/" + address.path.lstrip("/"), query=address.query)
            response = RedirectResponse(str(path), 303)
            response.set_cookie(cookie, self._token, httponly=True, samesite="lax")
            return response
        if not self._is_token(request.cookies.get(cookie, "")):
            return PlainTextResponse(UNKNOWN, 403)
        origin = urlsplit(request.headers.get("origin", "")).netloc
        # Browsers send the cookie also from pages of other servers on this machine (same site).
        if request.method not in READ and origin != request.headers.get("host"):
            return PlainTextResponse(FOREIGN, 403)
        return None

    def _is_token(self, text: str) -> bool:
        return secrets.compare_digest(text.encode(), self._token.encode())
