import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = "import os\ndef test_a():\n    assert 6 * 7 == 41\ndef test_b():\n    "


@pytest.mark.parametrize(("words", "then"), [([], "os._exit(3)"), (["-n", "1"], "pass")], ids=["cut off", "with xdist"])
def test_why_a_test_failed_is_told_at_once_and_once(tmp_path, words, then):
    (tmp_path / "test_two.py").write_text(TESTS + then)
    told = tmp_path / "failures.log"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment |= {"CRISPSEG_TEST_FAILURES": str(told), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", *words, "."]
    subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=100)
    text = told.read_text()
    assert text.count("test_two.py::test_a\n") == 1 and "test_b\n" not in text
    assert "assert (6 * 7) == 41" in text
