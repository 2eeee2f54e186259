#!/usr/bin/env python3
"""Draws pictures of five kinds of flowers, in a folder for each kind, as `data.name = "pictures"` reads them.

    examples/flowers/draw.py FOLDER [--each 40] [--seed 1]

The kinds differ in their number of petals, in the petals' form and in colour; each picture has another place, size, turn, shade and
ground. Needs nothing but Python: PNG files are written by hand.
"""

import argparse
import math
import pathlib
import random
import struct
import zlib

# A kind: petals, the power of the petals' outline (less is broader), their colour, the colour of the centre.
KINDS = {
    "daisy": (12, 0.5, (240, 240, 235), (235, 190, 40)),
    "dandelion": (24, 0.3, (240, 205, 30), (225, 170, 20)),
    "rose": (5, 0.2, (200, 25, 50), (150, 10, 35)),
    "sunflower": (16, 0.7, (245, 185, 20), (90, 55, 25)),
    "tulip": (3, 0.4, (190, 60, 170), (60, 20, 60)),
}
SIDES = (224, 288)


def picture(kind, chance):
    """Width, height, and the bytes of the rows, red, green and blue of each pixel."""
    petals, power, colour, centre = KINDS[kind]
    width, height = chance.randint(*SIDES), chance.randint(*SIDES)
    x, y = width * chance.uniform(0.35, 0.65), height * chance.uniform(0.35, 0.65)
    size, turn = min(width, height) * chance.uniform(0.25, 0.42), chance.uniform(0, math.tau)
    shade, ground = chance.uniform(0.75, 1.1), chance.randint(40, 110)
    rows = []
    for row in range(height):
        line = bytearray()
        for column in range(width):
            dx, dy = column - x, row - y
            distance = math.hypot(dx, dy) / size
            if distance < 0.25:
                pixel = centre
            elif distance < 1 and distance < abs(math.cos(petals / 2 * (math.atan2(dy, dx) + turn))) ** power:
                pixel = colour
            else:
                # Grass: green, with stripes.
                stripe = (column * 7 + row * 3) % 23
                line += bytes((ground // 2 + stripe, ground + 40 + stripe, ground // 3))
                continue
            fade = shade * (1 - 0.3 * distance)
            line += bytes(min(255, int(part * fade)) for part in pixel)
        rows.append(bytes(line))
    return width, height, rows


def png(width, height, rows):
    """The bytes of a PNG file."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def main():
    """Draws the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--each", type=int, default=40, help="pictures of each kind")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    chance = random.Random(chosen.seed)
    for kind in KINDS:
        folder = chosen.folder / kind
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(chosen.each):
            (folder / f"{number:03}.png").write_bytes(png(*picture(kind, chance)))
    print(f"{chosen.each} pictures of each of {', '.join(KINDS)} in {chosen.folder}")


if __name__ == "__main__":
    main()
