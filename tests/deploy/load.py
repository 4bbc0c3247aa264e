# SPDX-License-Identifier: Apache-2.0
"""Connects, allocates, opens a model, compares all bytes and leaves, again and again, until its stdin ends.

    load.py MODEL DIGEST     prints how often that went well, and how often glaked was not there for it
"""

import ctypes
import hashlib
import os
import sys
import threading
import time

import glake

BYTES = 8 << 20
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
for failed in (cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
               cuda.cuCtxSetCurrent(context)):
    assert failed == 0, failed
end = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), end.set()), daemon=True).start()
n_good = n_failed = 0


def once():
    with glake.connect() as session:
        ptr, data, back = session.alloc(BYTES), os.urandom(BYTES), bytearray(BYTES)
        buffer = (ctypes.c_char * BYTES).from_buffer(back)
        assert cuda.cuMemcpyHtoD_v2(ctypes.c_uint64(ptr), data, ctypes.c_size_t(BYTES)) == 0
        content = hashlib.sha256()
        with glake.Model(sys.argv[1], session=session) as model:
            for name in sorted(model):
                content.update(model[name].tobytes())
        assert content.hexdigest() == sys.argv[2], "the model has changed"
        assert cuda.cuMemcpyDtoH_v2(buffer, ctypes.c_uint64(ptr), ctypes.c_size_t(BYTES)) == 0
        assert bytes(back) == data, "private memory has changed"
        session.free(ptr)


while not end.is_set():
    try:
        once()
        n_good += 1
    except glake.Error as error:
        n_failed += 1
        last = error
        time.sleep(0.05)
print(n_good, n_failed, last if n_failed else "", flush=True)
