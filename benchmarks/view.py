"""Milliseconds in which a page of ``calsweep ui`` answers, for a sweep of many trials.

Run it as ``python benchmarks/view.py [TRIALS]``: real requests to a server in a process of its own,
while another trial is written into the journal before each.
"""

from __future__ import annotations

import multiprocessing
import random
import resource
import statistics
import sys
import tempfile
import time
import urllib.request
from multiprocessing.connection import Connection
from pathlib import Path

import journal as journals
import psutil

from orchestrator.storage.journal import Journal
from orchestrator.storage.storage import Storage
from orchestrator.ui import Book, serve

REPEATS = 15
PLACES = {
    "all sweeps": "/",
    "a sweep": "/sweeps/bench",
    "a study": "/sweeps/bench/studies/0",
    "its trials": "/sweeps/bench/trials?study=0",
    "all trials": "/sweeps/bench/trials",
    "two sweeps": "/compare?sweep=bench&sweep=other",
}


def run_server(storage: Path, told: Connection) -> None:
    """Serve a storage, and say where."""
    book = Book(Storage(storage))
    started = time.perf_counter()
    book.read_on()
    told.send(_ms(started))
    serve(book, "127.0.0.1", 0, lambda address: told.send(address.url))


def measure(storage: Path, studies: int) -> None:
    """Print the median and the slowest answer of each page."""
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=run_server, args=(storage, there))
    server.start()
    read, url = here.recv(), here.recv()
    print(f"| {studies} | reading all at the start | {read:.0f} | | |")
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    started = time.perf_counter()
    opener.open(url).read()
    print(f"| {studies} | the first page | {_ms(started):.0f} | | |")
    numbers = random.Random(1)
    with Journal(storage / "sweeps/bench/journal.jsonl") as journal:
        for name, place in PLACES.items():
            seconds, spent, size = [], [], 0
            for number in range(REPEATS):
                key = f"{numbers.getrandbits(256):064x}"
                study = f"{journals.TASK}|m0+ts"
                journals._write_trial(journal, study, 10**6 + number, key, numbers)
                started, before = time.perf_counter(), _spent(server.pid)
                size = len(opener.open(url.partition("/?")[0] + place).read())
                seconds.append(_ms(started))
                spent.append(1000 * (_spent(server.pid) - before))
            figures = f"{_median(seconds)} | {max(seconds):.0f} | {_median(spent)}"
            print(f"| {studies} | {name}, {size / 1000:.0f} kB | {figures} |")
    server.terminate()
    server.join()
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"| {studies} | memory of the server at its peak, MB | {peak:.0f} | | |", flush=True)


def _spent(process: int | None) -> float:
    times = psutil.Process(process).cpu_times()
    return times.user + times.system


def _ms(started: float) -> float:
    return 1000 * (time.perf_counter() - started)


def _median(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.0f}"


def main() -> None:
    """Write sweeps of many studies and of one, and measure each."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    print(f"{trials} trials, {journals.EPOCHS} epochs each\n")
    print(
        "| studies | page | median, ms | slowest | processor |\n| ---: | --- | ---: | ---: | ---: |"
    )
    for studies in (20, 1):
        with tempfile.TemporaryDirectory() as folder:
            journals.STUDIES = studies
            for name, count in (("bench", trials), ("other", trials // 10)):
                journals.write(Path(folder) / "sweeps" / name / "journal.jsonl", count)
            measure(Path(folder), studies)


if __name__ == "__main__":
    main()
