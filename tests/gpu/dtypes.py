# SPDX-License-Identifier: Apache-2.0
"""glake.torch.load_file() is a drop-in: every element type is what safetensors.torch gives.

    python3 dtypes.py FOLDER

Tensors of every type that this torch can save, with none, one and several dimensions, without
elements, and large ones. Prints one JSON line; exit 1 when a bit, a shape or a type differs. Then a
process of its own writes to a tensor in place: it faults, and this one still reads the right bytes.
"""
import json
import os
import subprocess
import sys

import torch
from safetensors.torch import load_file, save_file

import glake.torch

NAMES = ("bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16",
         "bfloat16", "float32", "float64", "complex64", "float8_e4m3fn", "float8_e5m2",
         "float8_e8m0fnu")
SHAPES = {"scalar": (), "empty": (0, 7), "vector": (1001,), "cube": (3, 5, 8), "large": (1 << 21, 3)}
WRITER = """
import sys, torch, glake.torch
tensor = glake.torch.load_file(sys.argv[1], device="cuda:0")["float32.cube"]
tensor.add_(1)
torch.cuda.synchronize()
"""


def make(kind, shape):
    count = 1
    for extent in shape:
        count *= extent
    raw = torch.randint(0, 256, (count * kind.itemsize,), dtype=torch.uint8)
    if kind == torch.bool:
        raw &= 1
    if count == 0:
        return torch.empty(shape, dtype=kind)
    return raw.view(kind).reshape(shape)


def equal(a, b):
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def main():
    path = os.path.join(sys.argv[1], "dtypes.safetensors")
    torch.manual_seed(3)
    tensors = {}
    for name in NAMES:
        kind = getattr(torch, name, None)
        if kind is not None:
            for shape_name, shape in SHAPES.items():
                tensors[f"{name}.{shape_name}"] = make(kind, shape)
    save_file(tensors, path)
    want = load_file(path, device="cuda:0")
    have = glake.torch.load_file(path, device="cuda:0")
    wrong = [name for name in want if name not in have or not equal(want[name], have[name])]
    wrong += [name for name in have if name not in want]
    writer = subprocess.run([sys.executable, "-c", WRITER, path], capture_output=True, text=True,
                            check=False)
    faulted = writer.returncode != 0 and "illegal memory access" in writer.stderr
    intact = equal(want["float32.cube"], have["float32.cube"])
    print(json.dumps({"tensors": len(want), "wrong": wrong, "writer_faulted": faulted,
                      "reader_intact": intact}), flush=True)
    sys.exit(0 if not wrong and faulted and intact else 1)


if __name__ == "__main__":
    main()
