"""Pictures decoded, cut and resized by Allfold and by Pillow, on one core: rates in pictures per second, and the bytes.

target/python/bin/python benches/peers/pictures.py [PICTURES] [TURNS]      [default: 256 pictures, 3 turns]

Draws PICTURES JPEG files of photographic sizes, and a few test pictures as JPEG and as PNG. Both programs cut random rectangles
(torchvision's RandomResizedCrop) of the JPEG files and resize them to 224 x 224, in turn; the median rate of each counts. The
time of Allfold includes turning bytes into f32, that of Pillow ends with the resized picture. Centres of the test pictures
(shorter side 256, 224 x 224) are compared byte by byte. Those of PNG files must be equal to Pillow's if it resizes rows before
columns; Pillow 13 takes the cheaper order, which moves a byte by 1 at most. Those of JPEG files also differ by what the decoders
(zune-jpeg, libjpeg-turbo) do. Needs Pillow and NumPy, which scripts/python.sh installs, and cargo. The exit code is 1 if the
bytes of a PNG file differ.
"""
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy
import PIL
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
BENCH = ["cargo", "bench", "--quiet", "-p", "allfold-datasets", "--bench", "pictures"]
SIDE, RESIZE = 224, 256
# Photographs as in ImageNet; test pictures are also smaller than a sample, long and narrow.
SIZES = [(500, 375), (375, 500), (500, 333), (640, 480), (400, 400)]
TEST_SIZES = [(500, 375), (375, 500), (256, 256), (120, 90), (700, 61), (257, 999)]


def draw(size, seed):
    """Smooth colours, as a photograph has them, with a little noise."""
    draws = numpy.random.default_rng(seed)
    colours = draws.integers(0, 256, (9, 12, 3), dtype=numpy.uint8)
    smooth = numpy.asarray(Image.fromarray(colours).resize(size, Image.Resampling.BICUBIC), dtype=numpy.int16)
    noise = draws.integers(-6, 7, smooth.shape, dtype=numpy.int16)
    return Image.fromarray(numpy.clip(smooth + noise, 0, 255).astype(numpy.uint8))


def draw_all(folder, pictures):
    train, test = folder / "train" / "drawn", folder / "val" / "drawn"
    train.mkdir(parents=True)
    test.mkdir(parents=True)
    for number in range(pictures):
        draw(SIZES[number % len(SIZES)], number).save(train / f"{number:05}.jpg", quality=90)
    for number, size in enumerate(TEST_SIZES):
        picture = draw(size, 1_000_000 + number)
        picture.save(test / f"{number}.png")
        picture.save(test / f"{number}.jpg", quality=90)
    return train, test


def rectangle(width, height):
    """torchvision's RandomResizedCrop.get_params."""
    area = width * height
    for _ in range(10):
        target, ratio = area * random.uniform(0.08, 1.0), math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = random.randint(0, width - w), random.randint(0, height - h)
            return left, top, left + w, top + h
    return 0, 0, width, height


def pillow_rate(train):
    """Pictures per second, and the mean of the bytes relative to 255."""
    paths = sorted(train.iterdir())
    random.seed(0)
    resized, start = [], time.perf_counter()
    for path in paths:
        with Image.open(path) as opened:
            picture = opened.convert("RGB")
        resized.append(picture.crop(rectangle(*picture.size)).resize((SIDE, SIDE), Image.Resampling.BILINEAR))
    seconds = time.perf_counter() - start
    return len(paths) / seconds, numpy.mean([numpy.asarray(picture).mean() for picture in resized]) / 255


def pillow_centre(path, rows_first):
    """torchvision's Resize and CenterCrop, by one call of Pillow or by one for rows and one for columns."""
    with Image.open(path) as opened:
        picture = opened.convert("RGB")
    width, height = picture.size
    short = min(width, height)
    width, height = RESIZE * width // short, RESIZE * height // short
    left, top = round((width - SIDE) / 2), round((height - SIDE) / 2)
    if rows_first:
        picture = picture.resize((width, picture.height), Image.Resampling.BILINEAR)
    resized = picture.resize((width, height), Image.Resampling.BILINEAR)
    return numpy.asarray(resized.crop((left, top, left + SIDE, top + SIDE)))


def compare(folder, test):
    """Whether the bytes of all PNG files are equal; prints the differences."""
    out = folder / "bytes"
    subprocess.run([*BENCH, "--", "bytes", str(folder), str(out)], cwd=ROOT, check=True)
    ours = numpy.fromfile(out, dtype=numpy.uint8).reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    paths = sorted(test.iterdir())
    assert len(ours) == len(paths), f"{len(ours)} pictures of {len(paths)}"
    equal = True
    for path, square in zip(paths, ours):
        apart, one_call = (numpy.abs(square.astype(int) - pillow_centre(path, rows)) for rows in (True, False))
        if path.suffix == ".png" and (apart.max() > 0 or one_call.max() > 1):
            equal = False
        print(json.dumps({"picture": path.name, "greatest_difference": int(apart.max()), "by_one_call": int(one_call.max()),
                          "mean_difference": round(float(apart.mean()), 4)}))
    return equal


def main():
    given = [int(word) for word in sys.argv[1:]]
    pictures, turns = given + [256, 3][len(given):]
    subprocess.run([*BENCH, "--no-run"], cwd=ROOT, check=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train, test = draw_all(folder, pictures)
        equal = compare(folder, test)
        # One core for both; the program that is started inherits it.
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        rates = {"allfold": [], "pillow": []}
        for _ in range(turns):
            command = [*BENCH, "--", "time", str(folder)]
            ours = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout)
            rates["allfold"].append(ours["pictures_per_s"])
            rate, mean = pillow_rate(train)
            rates["pillow"].append(rate)
            # Other rectangles of the same pictures: the means are alike, not equal.
            print(json.dumps({"allfold": ours["pictures_per_s"], "pillow": round(rate, 1),
                              "mean_allfold": ours["mean"], "mean_pillow": round(float(mean), 3)}))
    allfold, pillow = (statistics.median(rates[program]) for program in ("allfold", "pillow"))
    print(json.dumps({"pictures": pictures, "allfold_per_s": round(allfold, 1), "pillow_per_s": round(pillow, 1),
                      "ratio": round(allfold / pillow, 3), "pillow_version": PIL.__version__, "png_bytes_equal": equal}))
    sys.exit(0 if equal else 1)


if __name__ == "__main__":
    main()
