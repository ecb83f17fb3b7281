"""Data sets: named protocols, prepared archives, anyone's own folder, and the samples training is fed with.

Nothing heavy is imported here: each name below is fetched from its file when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_FILES = {
    "Protocol": "protocol",
    "get_protocol": "protocol",
    "list_protocols": "protocol",
    "own_protocol": "protocol",
    "IGNORE": "classes",
    "ClassTable": "classes",
    "read_class_table": "classes",
    "Folder": "folder",
    "Record": "folder",
    "open_folder": "folder",
    "Statistics": "manifest",
    "inspect": "inspection",
    "Report": "inspection",
    "SegmentationDataset": "dataset",
    "Augmentation": "transforms",
    "Loader": "loader",
    "make_loader": "loader",
    "evaluation_loader": "loader",
}
__all__ = list(_FILES)

if TYPE_CHECKING:
    from crispseg.data.classes import IGNORE as IGNORE
    from crispseg.data.classes import ClassTable as ClassTable
    from crispseg.data.classes import read_class_table as read_class_table
    from crispseg.data.dataset import SegmentationDataset as SegmentationDataset
    from crispseg.data.folder import Folder as Folder
    from crispseg.data.folder import Record as Record
    from crispseg.data.folder import open_folder as open_folder
    from crispseg.data.inspection import Report as Report
    from crispseg.data.inspection import inspect as inspect
    from crispseg.data.loader import Loader as Loader
    from crispseg.data.loader import evaluation_loader as evaluation_loader
    from crispseg.data.loader import make_loader as make_loader
    from crispseg.data.manifest import Statistics as Statistics
    from crispseg.data.protocol import Protocol as Protocol
    from crispseg.data.protocol import get_protocol as get_protocol
    from crispseg.data.protocol import list_protocols as list_protocols
    from crispseg.data.protocol import own_protocol as own_protocol
    from crispseg.data.transforms import Augmentation as Augmentation


def __getattr__(name: str) -> Any:
    if name not in _FILES:
        raise AttributeError(f"module 'crispseg.data' has no attribute {name!r}")
    return getattr(importlib.import_module(f"crispseg.data.{_FILES[name]}"), name)
