"""Every relative link and anchor in a Markdown file of the checkout leads somewhere."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def pages() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout", allow_module_level=True)
    return listed.stdout.split()


def anchors(page: Path) -> set[str]:
    """What a heading is called in a link: lower case, words joined by hyphens, no punctuation."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    heads = re.findall(r"^#+\s+(.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("name", pages())
def test_links(name: str) -> None:
    page = ROOT / name
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        file = page if not path else (page.parent / path).resolve()
        assert file.exists(), f"{name} links to {target}, which is not there"
        assert not anchor or anchor in anchors(file), f"{name} links to {target}; there is no such heading"
