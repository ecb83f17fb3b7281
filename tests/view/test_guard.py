"""Attacks on the server: each is refused, or harmless."""

import http.client
import json
import os
import re
import shutil
from urllib.parse import urlsplit

import pytest

from crispseg.view.app import make_app
from crispseg.view.guard import Guard
from crispseg.view.scene import Scene
from crispseg.view.serving import Server
from tests.view.scenes import fetch, make


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    made = make(tmp_path_factory.mktemp("scene"))
    server = Server(make_app([Scene(made.files)]))
    stop = server.start()
    yield server
    stop()


def ask(server, path, method="GET", **headers):
    """With the path sent as it is: no client tidies it up."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()


def test_listens_on_the_loopback_alone(served):
    assert urlsplit(served.address).hostname == "127.0.0.1"
    assert served._socket.getsockname()[0] == "127.0.0.1"


def test_without_the_token_nothing_is_answered(served):
    good = served.token
    for path in ("/", "/scenes/0/legend.json", f"/{good[:-1]}/", f"/{good}x/", "/static/crisp.css", "//", "/%00/"):
        status, _, body = ask(served, path)
        assert status == 403 and b"token" in body, path
    assert fetch(served.address)[0] == 200


def test_every_run_has_its_own_token(served):
    other = Server(make_app())
    assert len(other.token) >= 32 and other.token != served.token
    other._socket.close()


@pytest.mark.parametrize(
    "path",
    [
        "static/../scene.py",
        "static/%2e%2e/scene.py",
        "static/..%2f..%2fetc%2fpasswd",
        "../../../../etc/passwd",
        "scenes/0/../../../../etc/passwd",
        "scenes/0/tiles/../../etc/passwd/1/2/3",
        "scenes/0/tiles/%2e%2e%2fmap.tif/17/65536/65536",
        "scenes/0/tiles/a/17/65536/..%2f..%2fmap.tif",
        "scenes/-1/",
        "scenes/99/legend.json",
        "scenes/0/tiles/a/99/0/0",
        "scenes/0/tiles/a/2/9/0",
        "scenes/0/tiles/a/17/65536/65536?off=1,2;rm",
        "scenes/0/windows.gpkg?window=/etc/passwd",
        "scenes/0/point.json?lon=nan&lat=0",
        "docs",
        "openapi.json",
    ],
)
def test_no_path_leads_out(served, path):
    status, _, body = ask(served, f"/{served.token}/{path}")
    assert status in (404, 422, 503), status
    assert b"root:" not in body and b"import" not in body


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost.evil.example", "169.254.169.254", ""])
def test_another_host_header_is_refused(served, host):
    status, _, body = ask(served, f"/{served.token}/", Host=host)
    assert status == 421 and b"<html" not in body


@pytest.mark.parametrize("host", ["localhost:9000", "127.0.0.1:1234", "[::1]:80", "LOCALHOST"])
def test_a_tunnel_with_another_port_works(served, host):
    assert ask(served, f"/{served.token}/", Host=host)[0] == 200


def test_told_to_listen_elsewhere_numbers_are_ours_and_foreign_names_are_not():
    guard = Guard(make_app(), "t", "0.0.0.0")
    assert guard._ours("192.168.1.7:8000") and guard._ours("localhost:1")
    assert not guard._ours("evil.example:8000")


def test_cors_preflight_is_refused_and_nothing_is_shared(served):
    status, headers, _ = ask(
        served, f"/{served.token}/", "OPTIONS", Origin="https://evil.example", Access_Control_Request_Method="GET"
    )
    assert status == 403
    status, headers, _ = ask(served, f"/{served.token}/", Origin="https://evil.example")
    assert status == 403
    assert not [name for name in headers if name.startswith("access-control")]
    assert ask(served, f"/{served.token}/", Origin=f"http://127.0.0.1:{served.port}")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "TRACE"])
def test_there_is_nothing_to_write(served, method):
    assert ask(served, f"/{served.token}/", method)[0] == 405


def test_every_answer_carries_the_policy(served):
    for path in ("", "static/map.js", "scenes/0/legend.json", "nowhere"):
        headers = ask(served, f"/{served.token}/{path}")[1]
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "*" not in policy
        assert "frame-ancestors 'none'" in policy and "script-src 'self'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers


def test_a_class_called_script_is_only_a_name(served):
    page = fetch(served.address)[2].decode()
    assert "<script>alert" not in page
    about = re.search(r'<script id="about" type="application/json">(.*?)</script>', page, re.DOTALL)
    names = [row["name"] for row in json.loads(about[1])["classes"]]
    assert '<script>alert(1)</script> & "tree"' in names


def test_a_page_loads_nothing_from_elsewhere(served):
    page = fetch(served.address)[2].decode()
    sources = re.findall(r'(?:src|href)="([^"#]+)"', page)
    assert sources and all(not re.match(r"[a-z]+:|//", source) or source == "data:," for source in sources)


def test_a_deleted_or_damaged_file_is_a_sentence_and_the_server_lives(tmp_path):
    made = make(tmp_path, crs=False)
    server = Server(make_app([Scene(made.files)]))
    stop = server.start()
    try:
        tile = f"{server.address}scenes/0/tiles/a/17/65536/65536"
        assert fetch(tile)[0] == 200
        path = made.files.maps[0]
        shutil.move(path, tmp_path / "away")
        for address in (tile, f"{server.address}scenes/0/point.json?lon=0.0005&lat=-0.0005"):
            status, _, body = fetch(address)
            assert status == 503 and "is gone" in json.loads(body)["error"]
        with open(path, "wb") as file:
            file.write((tmp_path / "away").read_bytes()[:600])
        status, _, body = fetch(tile)
        assert status == 503 and "cannot be read" in json.loads(body)["error"]
        os.replace(tmp_path / "away", path)
        assert fetch(tile)[0] == 200
        assert fetch(server.address)[0] == 200
    finally:
        stop()
