"""The files around the code: workflows, citation, the hook on commit subjects."""

import subprocess
from pathlib import Path

import pytest
import yaml

import crispseg

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_ask_for_little_and_end(path):
    values = yaml.safe_load(path.read_text())
    assert values["permissions"] == {"contents": "read"}
    for name, job in values["jobs"].items():
        assert 0 < job["timeout-minutes"] <= 120, name
        if job.get("permissions", {}).get("id-token") == "write":
            assert "environment" in job, f"{name} may publish; an environment says who lets it"


def test_workflows_install_extras_that_exist():
    import re
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for path in [*WORKFLOWS, ROOT / "Makefile", ROOT / "README.md", ROOT / "docs" / "how-to" / "install.md"]:
        for listed in re.findall(r"(?:crispseg|'\.)\[([\w,]+)\]", path.read_text()):
            assert set(listed.split(",")) <= set(extras), path


def test_the_citation_is_of_this_version():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == crispseg.__version__


@pytest.mark.parametrize(
    ("subject", "good"),
    [
        ("train: lock a run while it is trained", True),
        ("Merge branch 'main'", True),
        ("Lock runs", False),
        ("train:lock runs", False),
        (f"train: {'x' * 70}", False),
    ],
)
def test_the_hook_on_subjects(subject, good, tmp_path):
    (tmp_path / "message").write_text(f"{subject}\n\nwhy\n")
    done = subprocess.run([str(ROOT / "tools" / "commit_subject.sh"), str(tmp_path / "message")], capture_output=True)
    assert (done.returncode == 0) == good
