"""Small generated data sets in the layouts of the real ones, complete in tiles and names, tiny in pixels.

Every image shows what its labels say (a colour per class, and noise), so that small models can learn from it.
"""

from tests.fakedata.archives import fake_loveda, fake_potsdam, fake_vaihingen
from tests.fakedata.folders import fake_geoseg_patches, fake_mmseg, fake_own
from tests.fakedata.scenes import erode, paint, scene

__all__ = [
    "erode",
    "fake_geoseg_patches",
    "fake_loveda",
    "fake_mmseg",
    "fake_own",
    "fake_potsdam",
    "fake_vaihingen",
    "paint",
    "scene",
]
