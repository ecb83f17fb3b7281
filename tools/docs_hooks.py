"""Hooks of mkdocs.yml: what lies outside docs/, and the pages that are made from the package itself.

Pages link to files of the repository by relative paths, so that they can be followed in a checkout and on a forge.
On the site a picture is copied into it, and any other file becomes an address of the repository.
"""

from __future__ import annotations

import contextlib
import io
import os
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = "https://github.com/crispseg/crispseg"
PICTURES = (".png", ".jpg", ".jpeg", ".svg")
_SCRIPT = re.compile(r"<script\b.*?</script>", re.DOTALL)
_LINK = re.compile(r"(\]\()((?:\.\./)+[^)\s#]*)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill in the pages that `folder/*` of the navigation stands for."""
    named = set(_pages(config.nav))
    folder = Path(config.docs_dir)

    def filled(entries: list[Any]) -> list[Any]:
        result: list[Any] = []
        for entry in entries:
            if isinstance(entry, dict):
                result.append({title: filled(below) for title, below in entry.items()})
            elif entry.endswith("/*"):
                found = sorted(path for kind in ("*.md", "*.ipynb") for path in (folder / entry[:-2]).glob(kind))
                names = [path.relative_to(folder).as_posix() for path in found]
                result += [name for name in names if name not in named]
            else:
                result.append(entry)
        return result

    config.nav = filled(config.nav or [])
    return config


def _pages(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    below = nav.values() if isinstance(nav, dict) else nav or []
    return [page for part in below for page in _pages(part)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path in sorted(ROOT.glob("benchmarks/results/**/*")):
        if path.suffix in PICTURES:
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, f"images/{name}", abs_src_path=str(path)))
    for name, text in {
        "reference/commands.md": commands_page(),
        "reference/configs.md": configs_page(),
        "reference/changelog.md": (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
    }.items():
        files.append(File.generated(config, name, content=text, inclusion=InclusionLevel.INCLUDED))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    place = posixpath.dirname(page.file.src_uri)

    def found_elsewhere(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", place, match[2]))
        if target.startswith("docs/"):
            return match[0]
        if target.endswith(PICTURES):
            return match[1] + os.path.relpath(f"images/{target}", place or ".")
        kind = "tree" if (ROOT / target).is_dir() else "blob"
        return f"{match[1]}{REPOSITORY}/{kind}/main/{target}"

    return _LINK.sub(found_elsewhere, markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Notebooks are made by another program: links to pages are mended, and a script is taken out that would fetch
    Mermaid for diagrams; we have none, and fetch nothing."""
    if page.file.src_uri.endswith(".ipynb"):
        output = re.sub(r'href="(\.\./[\w/-]+)\.md(#[\w-]+)?"', r'href="../\1/\2"', output)
    return _SCRIPT.sub(lambda match: "" if "://cdnjs." in match[0] else match[0], output)


def commands_page() -> str:
    """Every verb's help, from the parsers themselves."""
    sys.path.insert(0, str(ROOT / "src"))
    os.environ["COLUMNS"] = "110"
    from crispseg.cli import main

    parts = ["# Commands", "", "`crisp VERB --help` prints these.", ""]
    parts += ["```", _said(main.main, ["--help"]), "```", ""]
    for verb in main.VERBS:
        parts += [f"## crisp {verb}", "", "```", _said(main.main, [verb, "--help"]), "```", ""]
    return "\n".join(parts)


def configs_page() -> str:
    """The names of all configs and tables, and the one that lists every key."""
    sys.path.insert(0, str(ROOT / "src"))
    from crispseg.configs import find_config, names, summary

    parts = ["# Configs", "", "`crisp configs` lists what comes along, `crisp configs NAME` prints one.", ""]
    for kind, title in (("config", "Of training runs"), ("table", "Tables of experiments")):
        parts += [f"## {title}", "", "| name | what |", "|---|---|"]
        parts += [f"| `{name}` | {summary(path)} |" for name, path in names(kind).items()] + [""]
    parts += ["## Every key", "", "```yaml", find_config("default").read_text(encoding="utf-8"), "```", ""]
    return "\n".join(parts)


def _said(call: Any, words: list[str]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        call(words)
    return out.getvalue().rstrip()
