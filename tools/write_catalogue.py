"""Count every registered model anew for `crisp models`: python tools/write_catalogue.py (needs crispseg[peers])."""

from crispseg.models.catalogue import PATH, write_catalogue

if __name__ == "__main__":
    write_catalogue()
    print(f"wrote {PATH}")
