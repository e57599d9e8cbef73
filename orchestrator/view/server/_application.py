"""The ASGI application: the addresses and their pages."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from orchestrator.storage import notes
from orchestrator.storage.ledger import FollowedSweep, Ledger, Study, Trial
from orchestrator.storage.status import SweepStatus, status_of, title
from orchestrator.view import LIVE, environment
from orchestrator.view.server import _pages
from orchestrator.view.server._book import Book
from orchestrator.view.server._details import Details
from orchestrator.view.server._differences import Chosen, differences_page
from orchestrator.view.server._guard import Guard
from orchestrator.view.server._requests import choice, form_text, metrics, number
from orchestrator.view.server._row_pages import Measured, RowPages
from trainables.charts.bundle import bundle
from trainables.common.errors import InputError

LIVE_SECONDS, STILL_SECONDS = 5, 60  # Time between two updates of a page.
FOLLOW_SECONDS = 2.0
NOTED = ("/sweeps/{name}", "/sweeps/{name}/studies/{index:int}", "/sweeps/{name}/trials/{key}")


def application(book: Book, token: str) -> Starlette:
    """Return the application that shows the sweeps of a storage to users with the token."""
    view = _View(book)
    return Starlette(
        routes=[
            *(Route(path, answer, methods=["GET"]) for path, answer in view.routes().items()),
            *(Route(f"{path}/note", view.note, methods=["POST"]) for path in NOTED),
        ],
        middleware=[Middleware(Guard, token=token)],
        exception_handlers={HTTPException: view.refused, InputError: view.failed},
        lifespan=view.follow,
    )


class _View:
    """Answers requests from the journals."""

    def __init__(self, book: Book) -> None:
        self._book, self._row_pages = book, RowPages(book.storage)
        self._details = Details(frozen=bool(book.storage.lacks))
        self._templates = environment(served=True)
        own = {"title": title, "reason_or_parameters": _pages.reason_or_parameters}
        self._templates.globals |= own

    def routes(self) -> dict[str, Callable[[Request], Response]]:
        return {
            "/": self._sweeps,
            "/compare": self._compare,
            "/differences": self._differences,
            "/sweeps/{name}": self._sweep,
            "/sweeps/{name}/studies/{index:int}": self._study,
            "/sweeps/{name}/studies/{index:int}/rows": self._rows,
            "/sweeps/{name}/tasks/{task:int}/rows/{row:int}": self._row,
            "/sweeps/{name}/trials": self._trials,
            "/sweeps/{name}/trials/{key}": self._trial,
            "/style.css": self._asset("style_css", "text/css"),
            "/script.js": self._asset("script_js", "text/javascript"),
            "/vega.js": _vega,
        }

    @asynccontextmanager
    async def follow(self, _: Starlette) -> AsyncIterator[None]:
        """Read growing journals in the background, so that pages are fast."""

        async def read_on() -> None:
            await anyio.sleep(FOLLOW_SECONDS)
            await anyio.to_thread.run_sync(self._compile)
            while True:
                with suppress(InputError):  # Pages report a storage that does not answer.
                    await anyio.to_thread.run_sync(self._book.read_on)
                await anyio.sleep(FOLLOW_SECONDS)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read_on)
            yield
            tasks.cancel_scope.cancel()

    def _compile(self) -> None:
        """Compile all templates, which would delay the first page by a third of a second."""
        for name in self._templates.list_templates(["html"]):
            self._templates.get_template(name)

    def _asset(self, name: str, kind: str) -> Callable[[Request], Response]:
        text = str(self._templates.globals[name])
        return lambda request: Response(text, media_type=kind)

    def _page(self, template: str, content: dict[str, Any], status: int = 200) -> Response:
        if "statuses" in content:
            content["statuses"] = list(map(self._book.with_job, content["statuses"]))
        elif "status" in content:
            content["status"] = self._book.with_job(content["status"])
            content["live"] = content["live"] or content["status"].state in LIVE
        if self._book.storage.lacks:
            content["note_at"] = ""
        seconds = LIVE_SECONDS if content.get("live") else STILL_SECONDS
        text = self._templates.get_template(template).render(seconds=seconds, **content)
        return HTMLResponse(text, status)

    def refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        first = f"?{request.url.remove_query_params('page').query}"
        paged = "page" in request.query_params
        return self._problem(error.detail, error.status_code, first if paged else "")

    def failed(self, request: Request, error: Exception) -> Response:
        status = 400 if isinstance(error, notes.TooLongError) else 500
        return self._problem(str(error), status)

    def _problem(self, text: str, status: int, first: str = "") -> Response:
        return self._page("problem.html", {"text": text, "first": first}, status)

    def _followed(self, name: str) -> FollowedSweep:
        sweep = self._book.sweeps().get(name)
        if sweep is None:
            raise HTTPException(404, f"This storage has no sweep {name!r}.")
        return sweep

    def _named(self, request: Request) -> FollowedSweep:
        return self._followed(request.path_params["name"])

    def _status(self, sweep: FollowedSweep, ledger: Ledger) -> SweepStatus:
        return self._book.with_job(status_of(sweep.folder, ledger))

    def _sweeps(self, request: Request) -> Response:
        listed = []
        for sweep in self._book.sweeps().values():
            with sweep.ledger() as ledger:
                status = self._status(sweep, ledger)
                listed.append((status, sweep.problem))
        return self._page("sweeps.html", _pages.sweeps_page(listed, self._book.note))

    def _sweep(self, request: Request) -> Response:
        sweep = self._named(request)
        with sweep.ledger() as ledger:
            status = self._status(sweep, ledger)
            columns = metrics(request.query_params.get("metrics", ""))
            content = _pages.sweep_page(sweep.folder, ledger, status, self._details, columns)
            return self._page("sweep.html", {**content, "problem": sweep.problem})

    def _study(self, request: Request) -> Response:
        sweep = self._named(request)
        with sweep.ledger() as ledger:
            study = _study_at(ledger, request.path_params["index"])
            status = self._status(sweep, ledger)
            found = self._details.of(sweep.folder, ledger, status)
            content = _pages.study_page(sweep.folder, ledger, study, status, found)
            return self._page("study.html", content)

    def _rows(self, request: Request) -> Response:
        sweep = self._named(request)
        with sweep.ledger() as ledger:
            study = _study_at(ledger, request.path_params["index"])
            measured = Measured.of(sweep.folder, ledger)
            common = _pages.common(sweep.folder, ledger)
        # The first read of many rows is slow, so the ledger is not locked here.
        rows = self._row_pages.rows(measured, study, request.query_params)
        return self._page("rows.html", {**common, **rows})

    def _row(self, request: Request) -> Response:
        sweep, parts = self._named(request), request.path_params
        with sweep.ledger() as ledger:
            measured = Measured.of(sweep.folder, ledger)
            common = _pages.common(sweep.folder, ledger)
        row = self._row_pages.row(measured, parts["task"], parts["row"])
        return self._page("row.html", {**common, **row})

    def _trials(self, request: Request) -> Response:
        sweep, query = self._named(request), request.query_params
        state = query.get("state", "")
        if state:
            choice("state", state, _pages.STATES)
        if order := query.get("sort.trials", ""):
            choice("sort.trials", order, _pages.ORDERS)
        with sweep.ledger() as ledger:
            index = query.get("study")
            study = _study_at(ledger, number("study", index)) if index else None
            page = number("page", query.get("page") or "1")
            text = query.get("filter.trials", "")
            content = _pages.trials_page(sweep.folder, ledger, study, state, order, text, page)
            return self._page("trials.html", content)

    def _trial(self, request: Request) -> Response:
        sweep, key = self._named(request), request.path_params["key"]
        with sweep.ledger() as ledger:
            content = _pages.trial_page(sweep.folder, ledger, _trial_at(ledger, key))
            return self._page("trial.html", content)

    async def note(self, request: Request) -> Response:
        """Store the note of a form, and show its page again."""
        text = await form_text(request)
        await anyio.to_thread.run_sync(self._keep, request, text)
        return RedirectResponse(f"{request.url.path.removesuffix('/note')}#notes", 303)

    def _keep(self, request: Request, text: str) -> None:
        sweep, parts = self._named(request), request.path_params
        if self._book.storage.lacks:
            raise HTTPException(404, "Notes can be kept in a storage, not in a .calsweep file.")
        with sweep.ledger() as ledger:
            about = notes.SWEEP
            if "index" in parts:
                about = f"study {_study_at(ledger, parts['index']).name}"
            elif "key" in parts:
                about = f"trial {_trial_at(ledger, parts['key']).key}"
        notes.write_note(sweep.folder, about, text)

    def _compare(self, request: Request) -> Response:
        names = request.query_params.getlist("sweep")
        if len(names) != 2 or names[0] == names[1]:
            raise HTTPException(404, "Choose two sweeps.")
        first, second = map(self._followed, sorted(names))
        with first.ledger() as one, second.ledger() as other:
            content = _pages.compare_page([(first.folder, one), (second.folder, other)])
            return self._page("compare.html", content)

    def _differences(self, request: Request) -> Response:
        places = [place.partition("/") for place in request.query_params.getlist("trial")]
        if len(places) != 2:
            raise HTTPException(404, "Choose two trials.")
        first, second = (self._followed(sweep) for sweep, _, _ in places)
        with first.ledger() as one, second.ledger() as other:
            sweeps = ((first.folder, one), (second.folder, other))
            pair = [
                Chosen(folder, ledger, _trial_at(ledger, key))
                for (folder, ledger), (_, _, key) in zip(sweeps, places, strict=True)
            ]
            return self._page("differences.html", differences_page(*pair))


def _vega(request: Request) -> Response:
    """Return the chart library; browsers cache it for an hour."""
    headers = {"Content-Encoding": "gzip", "Cache-Control": "private, max-age=3600"}
    return Response(bundle(), media_type="text/javascript", headers=headers)


def _trial_at(ledger: Ledger, key: str) -> Trial:
    if key not in ledger.trials:
        raise HTTPException(404, f"This sweep has no trial {key!r}.")
    return ledger.trials[key]


def _study_at(ledger: Ledger, index: int) -> Study:
    studies = list(ledger.studies.values())
    if not 0 <= index < len(studies):
        raise HTTPException(404, f"This sweep has no study {index}.")
    return studies[index]
