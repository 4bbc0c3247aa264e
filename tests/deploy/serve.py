# SPDX-License-Identifier: Apache-2.0
"""A CUDA program that knows nothing of glake; its last line is of its test."""

import ctypes
import json
import os
import subprocess

cuda = ctypes.CDLL("libcuda.so.1")
context, ptr = ctypes.c_void_p(), ctypes.c_uint64()
for failed in (cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
               cuda.cuCtxSetCurrent(context),
               cuda.cuMemAlloc_v2(ctypes.byref(ptr), ctypes.c_size_t(16 << 20))):
    assert failed == 0, failed

answer = subprocess.run(["glakectl", "--json", "sessions"], check=True, stdout=subprocess.PIPE,
                        env={**os.environ, "LD_PRELOAD": ""}).stdout
own = [row for row in json.loads(answer)["sessions"] if row["pid"] == os.getpid()]
print("glaked's memory:", sum(row["reserved_bytes"] for row in own) >= 16 << 20)
