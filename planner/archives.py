"""What a ``.npz`` archive says of itself, before anything of it is unpacked."""

from __future__ import annotations

import io
import lzma
import math
import struct
import tokenize
import zipfile
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["FAULTS", "array_header", "read_archive"]

FAULTS: tuple[type[Exception], ...] = (
    ArithmeticError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,  # an encrypted archive, an unknown packing, a header nested too deeply
    SyntaxError,
    TypeError,
    ValueError,
    lzma.LZMAError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What zipfile and numpy raise on archives that are none."""


def array_header(archive: zipfile.ZipFile, member: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of one array; only its header is read.

    Raises
    ------
    ValueError
        If it is of an unknown format, holds objects of Python, or its size is not the one that
        the archive tells. More of ``FAULTS`` where the archive is damaged.
    """
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        name = member.removesuffix(".npy")
        if read is None:
            raise ValueError(f"{name!r} is of an unknown format {version}")
        shape, _, dtype = read(file)
        begin = file.tell()
    if dtype.hasobject:
        raise ValueError(f"{name!r} holds objects of Python")
    if begin + math.prod(shape) * dtype.itemsize != archive.getinfo(member).file_size:
        raise ValueError(f"{name!r} is {dtype} {shape}, but the archive holds another size")
    return shape, dtype


def read_archive(data: bytes, most_bytes: int) -> dict[str, npt.NDArray[Any]]:
    """All arrays of an archive; nothing is unpacked before all headers are read.

    Raises
    ------
    ValueError
        If the arrays take more than ``most_bytes``. More of ``FAULTS`` where it is damaged.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.namelist()
        if len(set(members)) != len(members) or not all(m.endswith(".npy") for m in members):
            raise ValueError("a member is no array, or stands twice")
        size = 0
        for member in members:
            shape, dtype = array_header(archive, member)
            size += math.prod(shape) * dtype.itemsize
        if size > most_bytes:
            raise ValueError(f"arrays of {size:,} bytes are more than {most_bytes:,}")
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        return {name: np.asarray(file[name]) for name in file.files}
