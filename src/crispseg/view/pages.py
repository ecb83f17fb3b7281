"""Every page we make: one set of templates, one stylesheet, dark and light. Needs Jinja2 and nothing else."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

# What the server may hand out from static/, with its kind.
STATIC = {
    "crisp.css": "text/css",
    "page.js": "text/javascript",
    "answers.js": "text/javascript",
    "panes.js": "text/javascript",
    "panel.js": "text/javascript",
    "marks.js": "text/javascript",
    "map.js": "text/javascript",
    "run.js": "text/javascript",
    "report.js": "text/javascript",
    "maplibre-gl.css": "text/css",
    "maplibre-gl-csp.js": "text/javascript",
    "maplibre-gl-csp-worker.js": "text/javascript",
}


@functools.cache
def static_file(name: str) -> bytes:
    folder = resources.files("crispseg.view") / "static"
    return (folder / "maplibre" / name if name.startswith("maplibre") else folder / name).read_bytes()


def static_text(name: str) -> str:
    return static_file(name).decode()


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("crispseg.view"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["static_text"] = lambda name: Markup(static_text(name))
    environment.filters["percent"] = percent
    environment.filters["data_uri"] = data_uri
    return environment


def render(template: str, **values: Any) -> str:
    """A page by its template's name."""
    return _environment().get_template(template).render(**values)


def render_alone(template: str, **values: Any) -> str:
    """A page that needs no other file; it allows only the scripts and styles that are inside it."""
    text = render(template, **values)
    return text.replace("%POLICY%", alone_policy(text), 1)


def alone_policy(text: str) -> str:
    """A Content-Security-Policy for a page with its scripts and styles inside, each allowed by its hash."""
    scripts = _hashes(r"<script(?: [^>]*)?>(.*?)</script>", text)
    styles = _hashes(r"<style>(.*?)</style>", text)
    return (
        f"default-src 'none'; img-src 'self' file: data: blob:; style-src {styles}; script-src {scripts}; "
        "connect-src data: blob:; worker-src blob:; base-uri 'none'; form-action 'none'"
    )


def _hashes(pattern: str, text: str) -> str:
    found = {hashlib.sha256(part.encode()).digest() for part in re.findall(pattern, text, re.DOTALL) if part}
    return " ".join(sorted(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in found)) or "'none'"


def percent(value: float | None, digits: int = 2) -> str:
    """A fraction as a percentage; a dash where it is not defined."""
    return "-" if value is None or value != value else f"{100 * value:.{digits}f}"


def data_uri(picture: bytes) -> str:
    kind = "jpeg" if picture.startswith(b"\xff\xd8") else "png"
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode()}"
