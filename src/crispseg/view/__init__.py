"""Looking at what was made: the map page, live runs, reports, and the templates of every page.

`pages` needs Jinja2 alone. The server and its tiles need the extra `view` (fastapi, uvicorn, rio-tiler); MapLibre GL
lies in static/, so nothing is fetched from a network.
"""
