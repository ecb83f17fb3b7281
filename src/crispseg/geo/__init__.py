"""Maps on disk: the only room that knows rasterio, shapely and pyogrio."""
