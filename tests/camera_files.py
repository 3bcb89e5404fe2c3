"""Small real files of the formats that cameras and phones write: HEIC, RAW (a DNG with its preview) and video."""

import io
import struct
from datetime import datetime

import numpy as np
from PIL import Image

TAKEN = datetime(2021, 2, 3, 4, 5, 6)
_EXIF_TIME = TAKEN.strftime("%Y:%m:%d %H:%M:%S")
_BYTE, _ASCII, _SHORT, _LONG, _RATIONAL, _SIGNED_RATIONAL = 1, 2, 3, 4, 5, 10
_SENSOR = 64  # pixels a side: LibRaw takes no less than 22


def halves(width=96, height=64):
    """Red on the left, blue on the right: which way is up can be seen."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[:, : width // 2, 0] = pixels[:, width // 2 :, 2] = 220
    return Image.fromarray(pixels)


def heic(picture):
    """The bytes of a HEIC file."""
    from pillow_heif import from_pillow

    exif, file = Image.Exif(), io.BytesIO()
    exif[306] = _EXIF_TIME
    from_pillow(picture).save(file, quality=90, exif=exif.tobytes())
    return file.getvalue()


def dng(picture, turn=1):
    """The bytes of a DNG file: a grey sensor, the picture as its preview, and how the camera was held."""
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=95, subsampling=0)
    jpeg, sensor = file.getvalue(), np.full((_SENSOR, _SENSOR), 1000, np.uint16).tobytes()
    whole, identity = [1, 1] * 3, [number for one in np.eye(3, dtype=int).ravel().tolist() for number in (one, 1)]

    def entry(tag, kind, *values):
        letter = {_BYTE: "B", _SHORT: "H", _LONG: "I", _RATIONAL: "I", _SIGNED_RATIONAL: "i"}.get(kind)
        data = values[0].encode() + b"\0" if letter is None else struct.pack(f"<{len(values)}{letter}", *values)
        count = len(data) if letter is None else len(values) // (2 if kind in (_RATIONAL, _SIGNED_RATIONAL) else 1)
        return tag, kind, count, data

    def preview(sub_at, jpeg_at):
        return [
            *(entry(254, _LONG, 1), entry(256, _LONG, picture.width), entry(257, _LONG, picture.height)),
            *(entry(258, _SHORT, 8, 8, 8), entry(259, _SHORT, 7), entry(262, _SHORT, 6), entry(271, _ASCII, "Made")),
            *(entry(272, _ASCII, "Test"), entry(273, _LONG, jpeg_at), entry(274, _SHORT, turn), entry(277, _SHORT, 3)),
            *(entry(278, _LONG, picture.height), entry(279, _LONG, len(jpeg)), entry(306, _ASCII, _EXIF_TIME)),
            *(entry(330, _LONG, sub_at), entry(50706, _BYTE, 1, 4, 0, 0), entry(50707, _BYTE, 1, 1, 0, 0)),
            *(entry(50708, _ASCII, "Test"), entry(50721, _SIGNED_RATIONAL, *identity)),
            *(entry(50728, _RATIONAL, *whole), entry(50778, _SHORT, 21)),
        ]

    def raw(sensor_at):
        return [
            *(entry(254, _LONG, 0), entry(256, _LONG, _SENSOR), entry(257, _LONG, _SENSOR), entry(258, _SHORT, 16)),
            *(entry(259, _SHORT, 1), entry(262, _SHORT, 32803), entry(273, _LONG, sensor_at), entry(277, _SHORT, 1)),
            *(entry(278, _LONG, _SENSOR), entry(279, _LONG, len(sensor)), entry(33421, _SHORT, 2, 2)),
            *(entry(33422, _BYTE, 0, 1, 1, 2), entry(50717, _SHORT, 65535)),
        ]

    def directory(entries, at):
        """A TIFF directory that lies at a place; values of more than four bytes follow it."""
        head, tail, end = struct.pack("<H", len(entries)), b"", at + 6 + 12 * len(entries)
        for tag, kind, count, data in entries:
            value = data.ljust(4, b"\0") if len(data) <= 4 else struct.pack("<I", end + len(tail))
            head += struct.pack("<HHI", tag, kind, count) + value
            tail += b"" if len(data) <= 4 else data + b"\0" * (len(data) % 2)
        return head + struct.pack("<I", 0) + tail

    sub_at = 8 + len(directory(preview(0, 0), 8))
    sensor_at = sub_at + len(directory(raw(0), sub_at))
    first = directory(preview(sub_at, sensor_at + len(sensor)), 8)
    return b"II*\0" + struct.pack("<I", 8) + first + directory(raw(sensor_at), sub_at) + sensor + jpeg


def video(path, picture, seconds=1):
    """A video file, of the kind of its suffix, whose first frame is the picture; the rest is black."""
    import av

    with av.open(str(path), "w") as container:
        container.metadata["creation_time"] = TAKEN.astimezone().isoformat()
        stream = container.add_stream("mpeg4", rate=4)
        stream.width, stream.height, stream.pix_fmt = *picture.size, "yuv420p"
        stream.bit_rate = 2_000_000
        for frame in [picture, *[Image.new("RGB", picture.size)] * (4 * seconds - 1)]:
            container.mux(stream.encode(av.VideoFrame.from_image(frame)))
        container.mux(stream.encode())
