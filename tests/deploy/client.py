# SPDX-License-Identifier: Apache-2.0
"""A program with private memory and a model, which says when asked if its bytes are still the same.

    client.py MODEL     then lines on stdin: check, quit
"""

import ctypes
import hashlib
import os
import sys

import glake

BYTES = 32 << 20
session = glake.connect()
ptr = session.alloc(BYTES)
data = os.urandom(BYTES)
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
if cuda.cuMemcpyHtoD_v2(ctypes.c_uint64(ptr), data, ctypes.c_size_t(BYTES)) != 0:
    sys.exit("cannot copy to the device")
model = glake.Model(sys.argv[1], session=session)


def digest():
    content = hashlib.sha256()
    private = bytearray(BYTES)
    buffer = (ctypes.c_char * BYTES).from_buffer(private)
    if cuda.cuMemcpyDtoH_v2(buffer, ctypes.c_uint64(ptr), ctypes.c_size_t(BYTES)) != 0:
        sys.exit("cannot copy from the device")
    if bytes(private) != data:
        sys.exit("the private memory has changed")
    for name in sorted(model):
        content.update(model[name].tobytes())
    return content.hexdigest()


print(digest(), flush=True)
for line in sys.stdin:
    if line.strip() == "quit":
        break
    print(digest(), flush=True)
