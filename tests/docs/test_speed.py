"""What the page about speed says of the kernels is so."""

import re
from pathlib import Path

from crispseg.ops.dispatch import A100, ANY_GPU, DATA_CENTRE, operators

PAGE = (Path(__file__).parents[2] / "docs/explanation/speed.md").read_text(encoding="utf-8")


def test_which_operators_need_a_large_gpu():
    sentence = r"Of the (\d+) operators five are cut for more .*?: (.*?) need an A100's .*?, (.*?) an H100's"
    (told,) = re.findall(sentence, PAGE, re.S)
    names = [set(re.findall(r"`(\w+)`", words)) for words in told[1:]]
    known = operators()
    assert int(told[0]) == len(known)
    assert names == [{name for name, op in known.items() if op.room == room} for room in (A100, DATA_CENTRE)]
    assert len(set.union(*names)) == 5 == sum(op.room > ANY_GPU for op in known.values())
