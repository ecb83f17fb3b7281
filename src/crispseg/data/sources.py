"""Files under a folder, with zip archives (and plain zips stored inside zips) looked into as if they were folders."""

from __future__ import annotations

import dataclasses
import io
import lzma
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from crispseg import memory
from crispseg.errors import UserError
from crispseg.fingerprint import stamp
from crispseg.reading import DAMAGE, reason, require_file


@dataclasses.dataclass(frozen=True)
class Entry:
    """A file; `path` is below the source, and a zip counts as a folder: Potsdam.zip/2_Ortho_RGB/x.tif."""

    path: PurePosixPath
    size: int
    source: Path | Callable[[], bytes] = dataclasses.field(repr=False, compare=False)
    checksum: str = ""  # an archive's own, of what lies in it

    def stamp(self) -> str:
        """Changes when the content does; see crispseg.fingerprint."""
        return stamp(self.source) if isinstance(self.source, Path) else f"{self.size}-{self.checksum}"

    def open(self) -> Path | bytes:
        """The file itself, or the bytes of what lies in an archive."""
        return self.source if isinstance(self.source, Path) else self.source()

    @property
    def folder(self) -> str:
        """The name of the folder it lies in, or of its archive, in small letters."""
        return self.path.parent.name.lower()

    @property
    def folders(self) -> tuple[str, ...]:
        return tuple(part.lower() for part in self.path.parent.parts)


@dataclasses.dataclass
class Scan:
    entries: list[Entry] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)


def scan(source: str | Path) -> Scan:
    """Everything under `source`, which may itself be a zip; broken archives are problems, not exceptions."""
    source = Path(source)
    found = Scan()
    try:
        if source.is_dir():
            for path in _walk(source, found):
                _scan_file(path, PurePosixPath(path.relative_to(source).as_posix()), found)
            return found
        if source.is_file() and zipfile.is_zipfile(source):
            _scan_zip(source, PurePosixPath(source.name), found)
            return found
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {source}: {reason(error)}") from error
    raise UserError(f"{source} is neither a folder nor a zip archive; give --source the folder of the archives")


def _walk(source: Path, found: Scan) -> Iterator[Path]:
    """Files in order, through links to folders too; each folder once, however links lead around in circles."""
    seen: set[str] = set()

    def unreadable(error: OSError) -> None:
        found.problems.append(f"the folder {error.filename} cannot be read ({reason(error)})")

    for folder, folders, names in os.walk(source, followlinks=True, onerror=unreadable):
        place = os.path.realpath(folder)
        if place in seen:
            folders.clear()
            continue
        seen.add(place)
        folders.sort()
        yield from (Path(folder, name) for name in sorted(names))


def _scan_file(path: Path, below: PurePosixPath, found: Scan) -> None:
    if path.name.startswith("."):
        return
    try:
        size = require_file(path).st_size
    except UserError as error:
        links = " (a link that leads nowhere)" if path.is_symlink() else ""
        found.problems.append(f"{below} cannot be read{links}: {error}")
        return
    if path.suffix.lower() == ".zip":
        _scan_zip(path, below, found)
    else:
        found.entries.append(Entry(below, size, path))


def _scan_zip(file: Path | _Slice, below: PurePosixPath, found: Scan) -> None:
    try:
        archive = zipfile.ZipFile(file)
    except _BROKEN as error:
        found.problems.append(f"{below} is not a readable zip archive ({reason(error)}); download it again")
        return
    for member in archive.infolist():
        path = below / member.filename.replace("\\", "/")  # some writers on Windows put these
        if not member.filename or member.is_dir() or path.name.startswith(".") or "__MACOSX" in path.parts:
            continue
        if path.suffix.lower() != ".zip":
            found.entries.append(Entry(path, member.file_size, _reader(archive, member, path), f"{member.CRC:08x}"))
        elif member.compress_type == zipfile.ZIP_STORED and isinstance(file, Path):
            _scan_zip(_Slice(file, _data_offset(file, member), member.file_size), path, found)
        else:
            found.problems.append(f"{path} is a compressed archive inside an archive; unzip {below} first")


def _reader(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: PurePosixPath) -> Callable[[], bytes]:
    def read() -> bytes:
        if member.file_size > memory.free() / 2:
            raise UserError(
                f"{path} takes {member.file_size / 2**30:.1f} GiB when taken out of its archive, and "
                f"{memory.free() / 2**30:.1f} are free; unzip the archive first"
            )
        try:
            return archive.read(member)
        except _BROKEN as error:
            # packed as Windows packs large files, or with a password: there is nothing wrong with the download
            how = "unzip the archive first" if isinstance(error, RuntimeError) else "download it again"
            raise UserError(f"{path} cannot be taken out of its archive ({reason(error)}); {how}") from error

    return read


_BROKEN = (*DAMAGE, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error)


def _data_offset(file: Path, member: zipfile.ZipInfo) -> int:
    """Where a member's bytes begin: after its local header, whose name and extra field vary in length."""
    with file.open("rb") as opened:
        opened.seek(member.header_offset)
        header = opened.read(30)
    return member.header_offset + 30 + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")


class _Slice(io.RawIOBase):
    """Part of a file as a file of its own, so that a zip stored in a zip is read in place."""

    def __init__(self, path: Path, offset: int, size: int) -> None:
        self._file = path.open("rb")
        self._offset, self._size, self._at = offset, size, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(base + offset, 0)
        return self._at

    def readinto(self, buffer: Any) -> int:
        self._file.seek(self._offset + self._at)
        data = self._file.read(min(len(buffer), max(self._size - self._at, 0)))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()
