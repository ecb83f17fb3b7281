"""What is run: each case makes its inputs in `in`, writes to `out`, and says which content must be the same.

A new verb is a new class in one of these modules: `make`, `change`, `run`, `content`, `is_finished`, `has_begun`.
"""

from campaigns.kill.cases.base import Case, Content
from campaigns.kill.cases.data import Prepare, Vector
from campaigns.kill.cases.exports import Export
from campaigns.kill.cases.maps import Predict, Remote, Vectorize
from campaigns.kill.cases.runs import Ablate, Pretrain, Train

__all__ = ["Case", "Content", "cases"]


def cases() -> dict[str, Case]:
    known: list[Case] = [
        Predict("predict", 34),
        Predict("exact", 10),
        Predict("ray", 1),
        Remote(),
        Vectorize(),
        Train(),
        Pretrain(),
        Ablate(),
        Prepare(),
        Vector(),
        Export(),
    ]
    return {case.name: case for case in known}
