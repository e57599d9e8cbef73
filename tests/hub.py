"""The part of the Hugging Face Hub's API that the client calls, on the loopback, in memory."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_right_token"


def commit_of(files: dict[str, bytes]) -> str:
    content = b"".join(name.encode() + body for name, body in sorted(files.items()))
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


@dataclass
class Hub:
    """Repositories by ``datasets/ORG/NAME`` or ``models/ORG/NAME``, then by revision."""

    url: str = ""
    repos: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    cards: dict[str, dict[str, Any]] = field(default_factory=dict)
    private: set[str] = field(default_factory=set)
    faults: list[tuple[str, int]] = field(default_factory=list)  # Pattern of a path, and status.
    calls: list[str] = field(default_factory=list)

    def put(self, name: str, files: dict[str, bytes], revision: str = "main") -> str:
        commit = commit_of(files)
        self.repos.setdefault(name, {}).update({revision: files, commit: files})
        return commit


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def reply(self, status: int, body: object = b"", **headers: str) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def handle_any(self) -> None:
        path, sent = unquote(urlsplit(self.path).path), self.body()
        self.hub.calls.append(f"{self.command} {path}")
        for fault in self.hub.faults:
            if re.search(fault[0], f"{self.command} {path}"):
                self.hub.faults.remove(fault)
                return self.reply(fault[1], {"error": "fault"})
        login = self.headers.get("Authorization")
        if login not in (None, f"Bearer {TOKEN}"):
            told = "Invalid credentials in Authorization header"
            return self.reply(401, {"error": told}, X_Error_Message=told)
        for pattern, answer in ROUTES:
            if found := re.fullmatch(pattern, f"{self.command} {path}"):
                return answer(self, sent, **found.groupdict())
        return self.reply(404, {"error": path})

    do_GET = do_HEAD = do_POST = do_PUT = handle_any

    def files(self, name: str, revision: str) -> dict[str, bytes] | None:
        """Return the files of a revision, or reply that there are none."""
        login = self.headers.get("Authorization")
        if name not in self.hub.repos or (name in self.hub.private and login is None):
            self.reply(404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
            return None
        if revision not in self.hub.repos[name]:
            self.reply(404, {"error": "Invalid rev id"}, X_Error_Code="RevisionNotFound")
            return None
        return self.hub.repos[name][revision]

    def info(self, sent: bytes, name: str, revision: str = "main") -> None:
        files = self.files(name, revision)
        if files is not None:
            repo = name.partition("/")[2]
            fields = {"id": repo, "sha": commit_of(files), "cardData": self.hub.cards.get(name)}
            siblings = [{"rfilename": each} for each in sorted(files)]
            self.reply(200, {**fields, "siblings": siblings, "tags": [], "private": False})

    def tree(self, sent: bytes, name: str, revision: str) -> None:
        files = self.files(name, revision)
        if files is not None:
            oids = {name: hashlib.sha1(body, usedforsecurity=False) for name, body in files.items()}
            sizes = {name: len(body) for name, body in files.items()}
            rows = [
                {"type": "file", "path": each, "size": sizes[each], "oid": oids[each].hexdigest()}
                for each in sorted(files)
            ]
            self.reply(200, rows)

    def resolve(self, sent: bytes, name: str, revision: str, file: str) -> None:
        name = name if name.startswith("datasets/") else f"models/{name}"
        files = self.files(name, revision)
        if files is None:
            return
        if file not in files:
            self.reply(404, {"error": "Entry not found"}, X_Error_Code="EntryNotFound")
            return
        etag = hashlib.sha1(files[file], usedforsecurity=False).hexdigest()
        self.reply(200, files[file], ETag=f'"{etag}"', X_Repo_Commit=commit_of(files))

    def create(self, sent: bytes) -> None:
        fields = json.loads(sent)
        name = f"{fields['type']}s/{fields['organization']}/{fields['name']}"
        if self.headers.get("Authorization") is None:
            return self.reply(401, {"error": "Invalid username or password."})
        known = name in self.hub.repos
        self.hub.repos.setdefault(name, {"main": {}})
        return self.reply(409 if known else 200, {"url": f"{self.hub.url}/{name}"})

    def approve(self, sent: bytes) -> None:
        self.reply(200, {"errors": [], "warnings": []})

    def preupload(self, sent: bytes, name: str) -> None:
        rows = [
            {"path": each["path"], "uploadMode": "regular", "shouldIgnore": False}
            for each in json.loads(sent)["files"]
        ]
        self.reply(200, {"files": rows})

    def commit(self, sent: bytes, name: str) -> None:
        files = dict(self.hub.repos[name]["main"])
        for line in map(json.loads, sent.splitlines()):
            if line["key"] == "file":
                files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        commit = self.hub.put(name, files)
        self.reply(
            200, {"commitUrl": f"{self.hub.url}/{name}/commit/{commit}", "commitOid": commit}
        )


REPO = r"(?P<name>(?:datasets|models)/[^/]+/[^/]+)"
ROUTES = [
    (r"POST /api/repos/create", _Handler.create),
    (r"POST /api/validate-yaml", _Handler.approve),
    (rf"POST /api/{REPO}/preupload/main", _Handler.preupload),
    (rf"POST /api/{REPO}/commit/main", _Handler.commit),
    (rf"GET /api/{REPO}", _Handler.info),
    (rf"GET /api/{REPO}/revision/(?P<revision>.+)", _Handler.info),
    (rf"GET /api/{REPO}/tree/(?P<revision>.+)", _Handler.tree),
    (
        r"(?:GET|HEAD) /(?P<name>(?:datasets/)?[^/]+/[^/]+)"
        r"/resolve/(?P<revision>[^/]+)/(?P<file>.+)",
        _Handler.resolve,
    ),
]


@contextmanager
def served() -> Iterator[Hub]:
    """Serve an empty Hub on the loopback."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
