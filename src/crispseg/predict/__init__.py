"""Image or scene in, class map out. `crispseg.predict("city.tif", "map.tif", "crisp_nano_aerial")` makes a map.

`segment` is for images in memory; `predict_scenes` (in `batch`) makes maps of whole scenes in bounded memory.
The path of a scene: plan -> source (reading windows) -> schedule and evaluate -> blend -> journal -> the geo room.
All but the scene-level modules run without rasterio.
"""

from crispseg.predict.segment import segment
from crispseg.rooms import make_callable

__all__ = ["segment"]

make_callable(__name__)
