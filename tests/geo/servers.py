"""A real S3 server and web servers with and without ranges, all on the loopback.

Each runs in a process of its own: rasterio keeps Python's lock while it opens a file, so a thread could not answer it.

    python tests/geo/servers.py s3 [ACTIONS]
    python tests/geo/servers.py ranges FOLDER FAILURES
    python tests/geo/servers.py plain FOLDER
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import os
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def s3_server(bucket: str = "bucket", strict: bool = False) -> Iterator[dict[str, str]]:
    """moto's server with one bucket; gives the environment that lets GDAL find it.

    A strict one knows no access key: it refuses all but the first action, which makes the bucket.
    """
    with _started("s3", *["1"] * strict) as port:
        urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/{bucket}", method="PUT")).close()
        yield {
            "AWS_S3_ENDPOINT": f"127.0.0.1:{port}",
            "AWS_HTTPS": "NO",
            "AWS_VIRTUAL_HOSTING": "FALSE",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }


def keys_in(environment: dict[str, str], bucket: str = "bucket", prefix: str = "") -> list[str]:
    """The names of all objects (that begin so), asked of the server itself."""
    address = f"http://{environment['AWS_S3_ENDPOINT']}/{bucket}?list-type=2&prefix={prefix}"
    with urllib.request.urlopen(address) as answer:
        return sorted(re.findall(r"<Key>(.*?)</Key>", answer.read().decode()))


def read_object(environment: dict[str, str], key: str, bucket: str = "bucket") -> bytes:
    """Asked of the server without GDAL."""
    import boto3

    address = f"http://{environment['AWS_S3_ENDPOINT']}"
    client = boto3.client("s3", endpoint_url=address, aws_access_key_id="test", aws_secret_access_key="test")
    return client.get_object(Bucket=bucket, Key=key)["Body"].read()


@contextlib.contextmanager
def range_server(folder: os.PathLike[str], failures: int = 0) -> Iterator[str]:
    """Its address; the first `failures` range requests are answered with 503."""
    with _started("ranges", os.fspath(folder), str(failures)) as port:
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def plain_server(folder: os.PathLike[str]) -> Iterator[str]:
    """The address of one that gives files as a whole only."""
    with _started("plain", os.fspath(folder)) as port:
        yield f"http://127.0.0.1:{port}"


def requests_to(address: str) -> list[tuple[str, str | None]]:
    """What a range server was asked so far: (path, range)."""
    with urllib.request.urlopen(f"{address}/-/log") as answer:
        return [tuple(row) for row in json.load(answer)]


@contextlib.contextmanager
def _started(*words: str) -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, __file__, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


class _Ranges(http.server.BaseHTTPRequestHandler):
    folder, failures, log = Path(), 0, []

    def do_GET(self):
        if self.path == "/-/log":
            return self._answer(200, json.dumps(self.log).encode())
        wanted = self.headers.get("Range")
        self.log.append((self.path, wanted))
        if wanted and type(self).failures:
            type(self).failures -= 1
            return self._answer(503)
        path = self.folder / self.path.partition("?")[0].lstrip("/")
        if not path.is_file():
            return self._answer(404)
        data, size = path.read_bytes(), path.stat().st_size
        found = re.match(r"bytes=(\d+)-(\d*)", wanted or "")
        if not found:
            return self._answer(200, data)
        first, last = int(found[1]), min(int(found[2] or size - 1), size - 1)
        return self._answer(206, data[first : last + 1], {"Content-Range": f"bytes {first}-{last}/{size}"})

    def do_HEAD(self):
        self.log.append((self.path, "HEAD"))
        path = self.folder / self.path.partition("?")[0].lstrip("/")
        self._answer(200 if path.is_file() else 404, size=path.stat().st_size if path.is_file() else 0)

    def _answer(self, status, data=b"", headers=None, size=None):
        self.send_response(status)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(data) if size is None else size))
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


def _serve_ranges(folder: str, failures: str) -> None:
    _Ranges.folder, _Ranges.failures = Path(folder), int(failures)
    _serve(_Ranges)


def _serve_plain(folder: str) -> None:
    _serve(functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder))


def _serve(handler: Callable[..., http.server.BaseHTTPRequestHandler]) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


def _serve_s3(open_actions: str = "inf") -> None:
    os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = open_actions  # read when moto is imported
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    print(server.get_host_and_port()[1], flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    {"s3": _serve_s3, "ranges": _serve_ranges, "plain": _serve_plain}[sys.argv[1]](*sys.argv[2:])
