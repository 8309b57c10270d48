"""The real data sets, if available, and small synthetic ones in the official layouts."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat


def real(name):
    """A folder of real data; the test is skipped if CONGRUENCY_DATA does not have it."""
    root = Path(os.environ.get("CONGRUENCY_DATA", "data")) / name
    if not root.is_dir():
        pytest.skip(f"needs {name} in the folder that CONGRUENCY_DATA names")
    return root


def picture(path, height=30, width=40, mode="RGB", seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (height, width) if mode == "L" else (height, width, 3)
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def small_osie(root, images=4, viewers=3, height=30, width=40):
    """A data set in OSIE's layout: random images, three fixations per viewer."""
    random = np.random.default_rng(0)
    entries = np.zeros(images, dtype=[("img", object), ("subjects", object)])
    for i in range(images):
        picture(root / "stimuli" / f"{1001 + i}.jpg", height, width, seed=i)
        subjects = np.zeros(viewers, dtype=[("fix_x", object), ("fix_y", object), ("fix_duration", object)])
        for j in range(viewers):
            x, y = random.uniform(1, width, 3), random.uniform(1, height, 3)
            subjects[j] = (x, y, np.full(3, 200.0))
        entries[i] = (f"{1001 + i}.jpg", subjects)
    savemat(root / "fixations.mat", {"fixations": entries})
    return root


def small_mit1003(root):
    """Two images of different sizes with two fixations each, as maps like those of the official archives."""
    for name, (height, width) in (("i1", (60, 80)), ("i2", (90, 70))):
        picture(root / "ALLSTIMULI" / f"{name}.jpeg", height, width)
        points = np.zeros((height, width), dtype=np.uint8)
        points[10, 20] = points[40, 50] = 255
        (root / "ALLFIXATIONMAPS").mkdir(exist_ok=True)
        Image.fromarray(points).save(root / "ALLFIXATIONMAPS" / f"{name}_fixPts.jpg", quality=100)
        Image.fromarray(points).save(root / "ALLFIXATIONMAPS" / f"{name}_fixMap.jpg")
    return root


def small_cat2000(root):
    """One image in each of two categories, of the same name, as ``trainSet`` of the official archive has them."""
    for seed, category in enumerate(("Action", "Social")):
        picture(root / "trainSet" / "Stimuli" / category / "001.jpg", 54, 96, seed=seed)
        picture(root / "trainSet" / "Stimuli" / category / "Output" / "001_SaliencyMap.jpg", 54, 96, mode="L")
        picture(root / "trainSet" / "FIXATIONMAPS" / category / "001.jpg", 54, 96, mode="L", seed=seed)
        seen = np.zeros((54, 96), dtype=np.uint8)
        seen[10 + seed, 20] = seen[40, 90] = 1
        (root / "trainSet" / "FIXATIONLOCS" / category).mkdir(parents=True)
        savemat(root / "trainSet" / "FIXATIONLOCS" / category / "001.mat", {"fixLocs": seen})
    return root


def small_salicon(root, split="train"):
    """Two images as in the release of 2017; the second worker of the first image has no fixation."""
    for number, fixations in ((7, [[[1, 1], [640, 480], [900, 3]], []]), (9, [[[12, 34]], [[5, 6], [7, 8]]])):
        name = f"COCO_{split}2014_{number:012d}"
        picture(root / "images" / split / f"{name}.jpg", 480, 640)
        gaze = np.zeros(len(fixations), dtype=[("location", object), ("timestamp", object), ("fixations", object)])
        for i, points in enumerate(fixations):
            gaze[i] = (np.ones((3, 2)), np.arange(3), np.array(points, dtype=np.uint16).reshape(-1, 2))
        (root / "fixations" / split).mkdir(parents=True, exist_ok=True)
        savemat(root / "fixations" / split / f"{name}.mat", {"image": name, "resolution": [480, 640], "gaze": gaze})
        picture(root / "maps" / split / f"{name}.png", 480, 640, mode="L")
    return root
