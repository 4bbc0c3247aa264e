# SPDX-License-Identifier: Apache-2.0
"""Memory of the driver's own: what programs of tests begin with, and the driver in the process of a test."""

import ctypes
import os

#: 4 MiB of sevens at `ptr`; `call` calls the driver.
FILLED = """
import ctypes, glake
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    assert result == 0, (name, result)
context, ptr, n_bytes = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t(4 << 20)
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", ctypes.byref(ptr), n_bytes)
call("cuMemsetD8_v2", ptr, ctypes.c_ubyte(7), n_bytes)
"""


class Driver:
    """It is asked as a program would, with a context on device 0."""

    def __init__(self):
        self._cuda = ctypes.CDLL(os.environ["GLAKE_LIBCUDA"])
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *arguments):
        result = getattr(self._cuda, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name}: {result}")

    def write(self, ptr, content):
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(ptr), content, ctypes.c_size_t(len(content)))

    def read(self, ptr, n_bytes):
        content = ctypes.create_string_buffer(n_bytes)
        self.call("cuMemcpyDtoH_v2", content, ctypes.c_uint64(ptr), ctypes.c_size_t(n_bytes))
        return content.raw
