"""Times the upload and download of small objects in a bucket with several drivers.

Run ``python benchmarks/object_storage.py [OBJECTS] [BYTES]``. A moto server runs in another
process. Drivers that are not installed are skipped; ``pip install s3fs`` adds one. Each driver is
measured twice, in turns, in its own process with 32 parallel requests.
"""

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

from _page import load, publish, setting, table

LANES, ROUNDS = 32, 2
SERVER = """
import logging
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
input()
"""
Measured = tuple[float, float, float]


def with_threads(put: Callable[[str], object], get: Callable[[str], object], count: int) -> None:
    """Send and fetch in threads, as the local copy of a bucket does."""
    names = [f"{number:06d}" for number in range(count)]
    with ThreadPoolExecutor(LANES) as pool:
        report(lambda: list(pool.map(put, names)), lambda: list(pool.map(get, names)))


def report(send: Callable[[], object], fetch: Callable[[], object]) -> None:
    """Print the seconds of upload and download, and this process's CPU seconds."""
    began, used = time.perf_counter(), time.process_time()
    send()
    middle = time.perf_counter()
    fetch()
    print(middle - began, time.perf_counter() - middle, time.process_time() - used)


def obstore(bucket: str, count: int, content: bytes) -> None:
    """The driver that storages use."""
    from trainables.store.bucket import Bucket

    place = Bucket(f"s3://{bucket}/obstore")
    with_threads(lambda name: place.put(name, content), place.get, count)


def pyarrow(bucket: str, count: int, content: bytes) -> None:
    """Arrow's file system, which is a dependency already; it has no conditional writes."""
    from pyarrow.fs import S3FileSystem

    address = os.environ["AWS_ENDPOINT_URL"].removeprefix("http://")
    files = S3FileSystem(endpoint_override=address, scheme="http")

    def put(name: str) -> None:
        with files.open_output_stream(f"{bucket}/pyarrow/{name}") as stream:
            stream.write(content)

    def get(name: str) -> bytes:
        with files.open_input_stream(f"{bucket}/pyarrow/{name}") as stream:
            return bytes(stream.read())

    with_threads(put, get, count)


def s3fs(bucket: str, count: int, content: bytes) -> None:
    """The file system s3fs, with its calls for many files at once."""
    import fsspec

    files = fsspec.filesystem("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    names = [f"{bucket}/s3fs/{number:06d}" for number in range(count)]
    pairs = dict.fromkeys(names, content)
    report(lambda: files.pipe(pairs, batch_size=LANES), lambda: files.cat(names, batch_size=LANES))


DRIVERS = {"obstore": obstore, "pyarrow": pyarrow, "s3fs": s3fs}


def measured(driver: str, bucket: str, count: int, size: int) -> Measured:
    """Measure one driver in a new process."""
    command = [sys.executable, __file__, str(count), str(size), driver, bucket]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    sent, fetched, cpu = map(float, done.stdout.split())
    return sent, fetched, cpu


def rows(count: int, size: int) -> Iterator[tuple[object, ...]]:
    """Yield a row per driver and round."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    address = f"http://127.0.0.1:{int(server.stdout.readline())}"
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": address,
    }
    try:
        for place in range(ROUNDS):
            for driver in (name for name in DRIVERS if find_spec(name) is not None):
                bucket = f"{driver}-{place}"
                request = urllib.request.Request(f"{address}/{bucket}", method="PUT")
                urllib.request.urlopen(request).close()
                sent, fetched, cpu = measured(driver, bucket, count, size)
                yield driver, place + 1, f"{sent:.1f}", f"{fetched:.1f}", f"{cpu:.1f}"
    finally:
        server.kill()


def main() -> None:
    """Print the table, or measure the driver that is named."""
    count, size = int((sys.argv[1:] or ["10000"])[0]), int((sys.argv[2:] or ["50000"])[0])
    if sys.argv[3:]:
        DRIVERS[sys.argv[3]](sys.argv[4], count, os.urandom(size))
        return
    lines = table(["driver", "round", "upload, s", "download, s", "own CPU, s"], rows(count, size))
    place = f"{count} objects of {size} bytes, {LANES} threads; {setting()}; load {load()}."
    publish("Which driver moves small objects to a bucket fastest?", lines, place, None)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
