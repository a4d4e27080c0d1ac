"""Small images for tests."""

from __future__ import annotations

import struct
import zlib


def png(width: int, height: int, pixels: bytes) -> bytes:
    """Return an image in PNG format.

    Args:
        width: The width in pixels.
        height: The height in pixels.
        pixels: Red, green and blue of each pixel, row by row.
    """
    lines = b"".join(b"\0" + pixels[at * width * 3 : (at + 1) * width * 3] for at in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*part) for part in parts)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
