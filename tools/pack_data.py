"""Pack data folders into tar files of a bearable size, for a machine that takes only so much at a time.

  python tools/pack_data.py FOLDER OUT --limit 42 [--also NAME=PATH] tiny_imagenet/train_[012].npz ucmerced dubai ...

Writes OUT/part1.tar, OUT/part2.tar, ...: unpacked one after the other into one folder they give the named parts of
FOLDER again. `--also NAME=PATH` adds a file under another name.
"""

from __future__ import annotations

import argparse
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

_HEADER = 1024  # bytes that tar adds to a file at most


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("parts", nargs="+", help="files or folders of FOLDER; patterns are allowed")
    parser.add_argument("--limit", type=float, default=42, help="MiB per tar file (%(default)s)")
    parser.add_argument("--also", action="append", default=[], metavar="NAME=PATH")
    args = parser.parse_args(argv)
    files = [(str(path.relative_to(args.folder)), path) for path in find_files(args.folder, args.parts)]
    files += [(name, Path(path)) for name, _, path in (word.partition("=") for word in args.also)]
    args.out.mkdir(parents=True, exist_ok=True)
    for number, group in enumerate(share_out(files, int(args.limit * 2**20)), 1):
        target = args.out / f"part{number}.tar"
        with tarfile.open(target, "w") as archive:
            for name, path in group:
                archive.add(path, name)
        print(f"{target}: {len(group)} files, {target.stat().st_size / 2**20:.1f} MiB")
    return 0


def find_files(folder: Path, parts: Sequence[str]) -> Iterator[Path]:
    for part in parts:
        found = sorted(folder.glob(part))
        if not found:
            raise SystemExit(f"pack_data: {folder} has no {part}")
        for path in found:
            yield from sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]


def share_out(files: Sequence[tuple[str, Path]], limit: int) -> list[list[tuple[str, Path]]]:
    """Large files first, each into the first group that has room."""
    groups: list[list[tuple[str, Path]]] = []
    room: list[int] = []
    for name, path in sorted(files, key=lambda item: -item[1].stat().st_size):
        size = path.stat().st_size + _HEADER
        place = next((i for i, left in enumerate(room) if left >= size), None)
        if place is None:
            groups.append([])
            room.append(limit)
            place = len(groups) - 1
        groups[place].append((name, path))
        room[place] -= size
    return groups


if __name__ == "__main__":
    sys.exit(main())
