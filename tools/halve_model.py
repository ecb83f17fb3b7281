"""Store a saved model in half precision: python tools/halve_model.py RUN/best OUT"""

from __future__ import annotations

import sys

from crispseg.models.folder import load, save

if __name__ == "__main__":
    save(load(sys.argv[1]), sys.argv[2], half=True)
