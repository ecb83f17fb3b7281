"""What is fuzzed: for every kind of file we read, a small sound folder and the code that reads it, as a user would.

A case damages one file of the folder and reads. It may succeed or raise a UserError; all else is a fault.
"""

from campaigns.fuzz.targets import data, images, learning, models, runs, scenes, shapes, texts
from campaigns.fuzz.targets.base import Target

__all__ = ["Target", "targets"]


def targets() -> list[Target]:
    return [
        target for room in (texts, images, data, models, runs, scenes, learning, shapes) for target in room.targets()
    ]
