"""Labels drawn as polygons, made into a folder of images and masks that training reads.

`layers` reads and mends what was drawn, `burn` turns it into class ids window by window, `folder` writes images and
masks, `vector` puts the three together: `crisp prepare vector`.
"""
