# SPDX-License-Identifier: Apache-2.0
"""What programs of tests begin with that have memory of the driver's own."""

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
