# SPDX-License-Identifier: Apache-2.0
"""Load a safetensors file to the GPU once, with the loader named, and print one JSON line.

    python3 load.py LOADER FILE [--check]

LOADER is safetensors, fastsafetensors, runai or glake. The time runs from the request to all tensors
usable on the device, in a process whose CUDA context is up, as in a server that has just started.
With --check every tensor is compared, bit for bit, with what safetensors reads to the host.
"""
import argparse
import json
import os
import time

import torch


def by_safetensors(path):
    from safetensors.torch import load_file
    return load_file(path, device="cuda:0")


def by_fastsafetensors(path):
    from fastsafetensors import fastsafe_open
    with fastsafe_open(filenames=[path], nogds=True, device="cuda:0", framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}


def by_runai(path):
    from runai_model_streamer import SafetensorsStreamer
    with SafetensorsStreamer() as streamer:
        streamer.stream_file(path)
        return {name: tensor.to("cuda:0") for name, tensor in streamer.get_tensors()}


def by_glake(path):
    import glake.torch
    return glake.torch.load_file(path, device="cuda:0")


LOADERS = {"safetensors": by_safetensors, "fastsafetensors": by_fastsafetensors,
           "runai": by_runai, "glake": by_glake}


def check(path, tensors):
    from safetensors import safe_open
    with safe_open(path, framework="pt", device="cpu") as file:
        names = set(file.keys())
        if names != set(tensors):
            return False
        for name in names:
            want, have = file.get_tensor(name).cuda(), tensors[name]
            if want.dtype != have.dtype or want.shape != have.shape:
                return False
            if not torch.equal(want.view(torch.uint8), have.view(torch.uint8)):
                return False
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("loader", choices=LOADERS)
    parser.add_argument("file")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    if options.loader == "glake":
        import glake.torch  # noqa: F401  the import is not the load
    start = time.perf_counter()
    tensors = LOADERS[options.loader](options.file)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    size = os.path.getsize(options.file)
    result = {"loader": options.loader, "seconds": round(seconds, 6), "bytes": size,
              "gb_per_s": round(size / seconds / 1e9, 2), "tensors": len(tensors)}
    if options.check:
        result["equal"] = check(options.file, tensors)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
