"""The documentation's site builds without a warning, its links lead somewhere, and it fetches nothing from outside."""

import os
import re
import subprocess
import sys
import urllib.parse
from html.parser import HTMLParser
from pathlib import Path

import pytest

import crispseg

ROOT = Path(__file__).parents[2]
pytest.importorskip("mkdocs")
pytest.importorskip("material")
pytest.importorskip("mkdocstrings")
pytest.importorskip("mkdocs_jupyter")


class Page(HTMLParser):
    """A page's links, the things its browser fetches, and its anchors."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in ("script", "img", "iframe", "source", "video") and "src" in given:
            self.fetched.append(given["src"])
        if tag == "link" and given.get("rel") not in ("canonical", "next", "prev"):
            self.fetched.append(given["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return {path: Page(path) for path in out.rglob("*.html")}


def test_every_link_leads_somewhere(site):
    assert len(site) > 20
    for path, page in site.items():
        if path.name == "404.html":
            continue
        for link in [*page.links, *page.fetched]:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or link.startswith(("//", "data:")):
                continue
            target = path if not parts.path else Path(os.path.normpath(path.parent / urllib.parse.unquote(parts.path)))
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{path}: {link}"
            if parts.fragment and target in site and not parts.fragment.startswith("__"):
                assert urllib.parse.unquote(parts.fragment) in site[target].anchors, f"{path}: {link}"


def test_nothing_is_fetched_from_outside(site):
    for path, page in site.items():
        assert not [link for link in page.fetched if "://" in link or link.startswith("//")], path
        assert not re.search(r"(import|fetch)\s*\(\s*[\"']https?:", path.read_text(encoding="utf-8")), path
    folder = next(path for path in site if path.name == "404.html").parent
    for sheet in folder.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", text), sheet


def test_every_public_name_is_on_the_page_of_functions(site):
    (page,) = (page for path, page in site.items() if path.parent.parts[-2:] == ("reference", "api"))
    documented = {anchor.rpartition(".")[2] for anchor in page.anchors if anchor.startswith("crispseg.")}
    assert set(crispseg.__all__) - {"__version__"} <= documented
