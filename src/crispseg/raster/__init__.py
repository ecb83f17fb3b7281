"""What making maps and reading scenes share: windows and where their pixels come from (`source`, `resample`), whether
these are data (`nodata`) and suit a model (`values`), and the finished rows of maps (`products`). No rasterio here.
"""
