"""Every link into the checkout, and every anchor, in a Markdown file leads somewhere.

The README is shown on the package index, where relative links lead nowhere: there they are addresses of the repository,
and are looked up here as files.
"""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(([^)\s]+)\)")
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Source"]
OURS = re.compile(
    rf"(?:{REPOSITORY}/(?:blob|tree)/main|{REPOSITORY.replace('github.com', 'raw.githubusercontent.com')}/main)/(.*)"
)


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
        ours = OURS.fullmatch(target)
        if ours is None and ("://" in target or target.startswith("mailto:")):
            continue
        path, _, anchor = (ours[1] if ours else target).partition("#")
        file = page if not path else ((ROOT if ours else page.parent) / path).resolve()
        assert file.exists(), f"{name} links to {target}, which is not there"
        assert not anchor or anchor in anchors(file), f"{name} links to {target}; there is no such heading"


def test_the_readme_has_no_relative_links() -> None:
    targets = LINK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert [target for target in targets if OURS.fullmatch(target)], "links to the repository are recognised"
    assert not [target for target in targets if "://" not in target]
