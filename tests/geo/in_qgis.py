"""What real QGIS makes of some layers, as JSON: run by the system's Python, which has QGIS where it is installed."""

import json
import sys

from qgis.core import QgsApplication, QgsRasterLayer, QgsVectorLayer


def described(path):
    is_raster = path.endswith(".tif")
    layer = QgsRasterLayer(path, "map") if is_raster else QgsVectorLayer(path, "polygons", "ogr")
    renderer = layer.renderer()
    if is_raster:
        classes = [[c.value, c.label, c.color.name()] for c in renderer.classes()]
    else:
        classes = [[c.value(), c.label(), c.symbol().color().name()] for c in renderer.categories()]
    return {"valid": layer.isValid(), "renderer": renderer.type(), "classes": classes, "crs": layer.crs().authid()}


application = QgsApplication([], False)
application.initQgis()
print(json.dumps([described(path) for path in sys.argv[1:]]))
