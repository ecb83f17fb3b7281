"""Catalogues of scenes (STAC): items, collections and search results as input, an item beside each map as output."""
