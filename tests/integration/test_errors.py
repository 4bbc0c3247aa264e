# SPDX-License-Identifier: Apache-2.0
"""The lists of errors in the public headers, against the library, a real glaked and cudasim.

Each public function is called in situations that go wrong. It must return nothing but what its list
names, and each error of a list must have been returned, or have an excuse.
"""

import contextlib
import ctypes
import errno
import json
import os
import re
import resource
import selectors
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import unittest
from ctypes import byref, c_size_t, c_uint64, c_void_p

from tests.integration.driver_memory import Driver
from tests.integration.with_glaked import PATIENCE_S

BUILD = os.environ["GLAKE_BUILD"]
HEADERS = [f"libclient/{name}.h" for name in ("glake", "glake_admin", "glake_elastic", "glake_order",
                                                "glake_torch")]
MIB = 1 << 20
CHUNK = 2 * MIB
WARM = 4 * MIB
U8 = 2  # enum glake_dtype
HUGE = 1 << 30  # more than the simulated device has

EVERY = None
OPEN = {"glake_model_open", "glake_model_open_shards", "glake_model_open_fds"}
SEALS = {"glake_seal", "glake_seal_idle", "glake_weights_publish"}
SEAL = SEALS | {"glake_unseal", "glake_unseal_spans"}
ASYNC = {"glake_alloc_async", "glake_free_async", "glake_stream_ends"}
SLEEPS = {"glake_sleep", "glake_wake", "glake_sleep_session"}
# Listed errors that no call here returns: the test that meets them or why none does, the functions. Those of glake_elastic_seal and
# glake_elastic_adopt: tests/integration/test_elastic_kept.c.
EXCUSES = {
    "-ENOMEM": ("malloc() fails", EVERY),
    "-ENOBUFS": ("the kernel has no memory for a packet", EVERY),
    "-ENOSYS": ("a driver older than CUDA 12.0", ASYNC | {"glake_order_new", "glake_order_stream"}),
    "-EACCES": ("the tests run as root", {"glake_connect"}),
    "-EAGAIN": ("the process can start no thread", {"glake_elastic_open", "glake_elastic_ahead", "glake_elastic_attend"}),
    "-ENOTSUP": ("ids of chunks that do not count up, or an older glake", {"glake_share", "glake_list_candidates"}),
    "-ENODEV": ("a device that the process does not see", {"glake_share_open"}),
    "-ENOENT": ("a device that glaked does not own", ASYNC),
    "-EBUSY": ("tests/integration/test_client_async.c",
               ASYNC | SEAL | {"glake_map", "glake_order_follow", "glake_share", "glake_unmap",
                               "glake_block_publish", "glake_sleep", "glake_elastic_seal"}),
    "GLAKE_E_NO_PERMISSION": ("tests/integration/test_realms.c",
                              {"glake_set_quota", "glake_force_quota", "glake_set_host_quota", "glake_set_max_sessions",
                               "glake_set_manifest_quota", "glake_seal_session", "glake_drain", "glake_undrain",
                               "glake_sleep_session", "glake_elastic_seal"}),
    "GLAKE_E_DRAINED": ("tests/integration/test_drain.py", {"glake_connect"}),
    "GLAKE_E_NO_FDS": ("tests/integration/test_quota.c", EVERY),
    "GLAKE_E_NO_HOST_MEMORY": ("tests/integration/test_quota.c", EVERY),
    "GLAKE_E_SHUTTING_DOWN": ("tests/integration/test_lifecycle.c", EVERY),
    "GLAKE_E_GONE": ("a session that was gone before", {"glake_chunk_free"}),
    "GLAKE_E_BUSY": ("tests/integration/test_client_model.c",
                     OPEN | SEAL | {"glake_weights_attach", "glake_alloc", "glake_alloc_many", "glake_alloc_async",
                                    "glake_chunk_new",
                                    "glake_elastic_open", "glake_elastic_commit",
                                    "glake_map", "glake_share", "glake_share_open",
                                    "glake_block_publish",
                                    "glake_pin", "glake_seal_session",
                                    "glake_list_candidates",
                                    "glake_drain", "glake_undrain"} | SLEEPS),  # those: test_drain.py
    "GLAKE_E_FILE_CHANGED": ("tests/integration/test_bad_files.c", OPEN),
    "GLAKE_E_READ": ("tests/integration/test_bad_files.c", OPEN),
    "GLAKE_E_MOVER": ("tests/integration/test_kills.c",
                      OPEN | SEALS | SLEEPS | {"glake_block_publish", "glake_weights_attach"}),
    "-EPERM": ("GLAKE_DEDUP=off, or a process of another user", SEALS | {"glake_elastic_attend"}),
    "-EMFILE": ("memory that is large enough to be cut", SEALS | {"glake_elastic_adopt"}),
    "GLAKE_E_OVER_QUOTA": ("memory that is large enough to be cut, or does not read zero, or a program under the shim",
                           SEALS | {"glake_sleep", "glake_sleep_session", "glake_elastic_adopt", "glake_elastic_read"}),
    "GLAKE_E_VERSION": ("tests/unit/test_client_call.c", {"glake_connect"}),
    "GLAKE_E_CUDA": ("the driver gives addresses only where the window has none",
                     {"glake_reserve", "glake_unreserve", "glake_elastic_adopt"}),
    "GLAKE_E_NO_DEVICE_MEMORY": ("glake-mover needs memory to compare, a program under the shim, a model in host memory, or "
                                 "a promise", SEALS | {"glake_connect", "glake_block_publish", "glake_sleep_session", "glake_weights_attach"}),
}


# ---- the headers ----

def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def sentences(comment):
    return re.sub(r"\s+", " ", re.sub(r"\n\s*\*", " ", comment))


def declarations():
    """name -> (result, types of the parameters, the comment before it)."""
    found = {}
    for header in HEADERS:
        comment = ""
        for match in re.finditer(r"/\*(.*?)\*/|GLAKE_API ([^;(]*?)(glake_\w+)\(([^;]*)\);",
                                 read(header), re.S):
            if match[3] is None:
                comment = match[1]
                continue
            types = [parameter.strip() for parameter in match[4].split(",")]
            found[match[3]] = (match[2].strip(), types, sentences(comment))
    return found


def codes_of(text):
    """Texts in parentheses explain codes and may name others."""
    plain = re.sub(r"\([^()]*(\(\)[^()]*)*\)", "", text)
    return set(re.findall(r"-E[A-Z]+\b|GLAKE_E_[A-Z_]+", plain))


def groups():
    """Of the head of glake.h: "session errors" -> codes."""
    head = sentences(read(HEADERS[0]).split("#ifndef")[0])
    found = {}
    for match in re.finditer(r"(Session|Request|Map|Grant) errors\b[^:]*: (.*?\.)(?= [A-Z])", head):
        found[match[1].lower()] = match[2]
    session = codes_of(found["session"])
    return {name: codes_of(text) | (session if "session errors" in text else set())
            for name, text in found.items()}


def number(code):
    return -getattr(errno, code[1:]) if code.startswith("-E") else NUMBERS[code]


DECLARATIONS = declarations()
GROUPS = groups()
NUMBERS = {code: int(value)
           for code, value in re.findall(r"(GLAKE_E_\w+) = (-\d+)", read(HEADERS[0]))}


def listed(name):
    """The codes in the list of a function, or None if it has no list."""
    match = re.search(r"\bErrors: (.*)", DECLARATIONS[name][2])
    if not match:
        return None
    codes = codes_of(match[1])
    for group in re.findall(r"(session|request|map|grant) errors", match[1]):
        codes |= GROUPS[group]
    for other in re.findall(r"\bas (glake_\w+)\(\)", match[1]):
        codes |= listed(other)
    return codes


class Headers(unittest.TestCase):
    def test_each_function_has_a_list_of_errors_that_exist(self):
        self.assertEqual(set(GROUPS), {"session", "request", "map", "grant"})
        self.assertEqual(set(re.findall(r"^\t\t(glake_\w+);", read("libclient/glake.map"), re.M)),
                         set(DECLARATIONS))
        for name, (result, _, comment) in DECLARATIONS.items():
            with self.subTest(name):
                codes = listed(name)
                if result != "int":
                    self.assertIsNone(codes)
                elif codes is None:
                    self.assertIn("Returns", comment)
                else:
                    self.assertNotEqual(codes, set())
                    self.assertNotIn("...", comment.split("Errors:")[1])
                    for code in codes:
                        self.assertLess(number(code), 0)


# ---- the library ----

def load():
    library = ctypes.CDLL(os.environ["GLAKE_CLIENT_LIB"])
    plain = {"uint64_t": c_uint64, "glake_ptr": c_uint64, "uint32_t": ctypes.c_uint32,
             "int": ctypes.c_int, "unsigned": ctypes.c_uint, "size_t": ctypes.c_size_t,
             "enum glake_dtype": ctypes.c_int}
    for name, (result, types, _) in DECLARATIONS.items():
        function = getattr(library, name)
        function.restype = {"int": ctypes.c_int, "void": None}.get(result, c_void_p)
        function.argtypes = [plain.get(" ".join(type_.split()[:-1]), c_void_p)
                             if "*" not in type_ else c_void_p
                             for type_ in types if type_ != "void"]
    return library


FAULTS = os.path.join(tempfile.gettempdir(), "faults")
os.environ["CUDASIM_FAULT_FILE"] = FAULTS
os.environ.setdefault("GLAKE_LIBCUDA", os.path.join(BUILD, "cudasim", "libcuda.so.1"))
os.environ["CUDASIM_DEVICES"] = "1x256MiB"
LIBRARY = load()
ROW = ctypes.CFUNCTYPE(ctypes.c_int, c_void_p)(lambda user: 0)
RELEASE = ctypes.CFUNCTYPE(None, c_void_p, c_void_p)(lambda user, allocation: None)


def sized(*fields, size=64):
    """A struct that begins with its size; no public one has fewer fields."""
    return (c_uint64 * 8)(size, *fields)


def out():
    return (c_uint64 * 64)()


def sizes(*values):
    return (c_uint64 * len(values))(*values)


def pointers(*strings):
    return (ctypes.c_char_p * len(strings))(*strings)


def connect_options(path, no_cuda=0, libcuda=None):
    path, libcuda = ctypes.c_char_p(path), ctypes.c_char_p(libcuda)
    options = sized(*(ctypes.cast(text, c_void_p).value or 0 for text in (path, None, libcuda)),
                    no_cuda, size=40)
    options.keep = path, libcuda
    return options


def set_faults(rules):
    """By another file: cudasim knows a change by the inode, as its time may be the same."""
    with open(FAULTS + ".new", "w", encoding="utf-8") as file:
        file.write(rules)
    os.replace(FAULTS + ".new", FAULTS)


def elastic_desc(floor, device=0):
    """One lane of two steps."""
    return sized(device | 1 << 32, 2 * CHUNK, CHUNK, 2 | floor << 32, 0, size=48)


RECORD = ctypes.create_string_buffer(32768)
KEY = ctypes.create_string_buffer(b"key")
FIRST = (ctypes.c_uint32 * 1)(0)


def keyed_desc(flags=0):
    """The same, of which the first step is held, and with a key."""
    return sized(1 << 32, 2 * CHUNK, CHUNK, 2 | 1 << 32, flags, ctypes.addressof(KEY), 3, size=64)


class World:
    """A session and what calls are made with. What prepares them fails loudly."""

    def __init__(self, test, path, no_cuda=0):
        self.test = test
        self.path = path.encode()
        session = c_void_p()
        options = connect_options(self.path, no_cuda)
        self.ok(LIBRARY.glake_connect(options, byref(session)))
        self.whole = self.session = session
        self.other = None
        self.undo = None

    def ok(self, result):
        self.test.assertGreaterEqual(result, 0, c_text(LIBRARY.glake_error()))

    def get(self, function, *args):
        """The number that a function gives by its last parameter."""
        value = out()
        self.ok(getattr(LIBRARY, function)(self.session, *args, value))
        return value[0]

    def alloc(self, n_bytes=CHUNK):
        return self.get("glake_alloc", 0, n_bytes, 1)

    def chunk(self):
        chunk, fd = c_uint64(), ctypes.c_int()
        self.ok(LIBRARY.glake_chunk_new(self.session, 0, CHUNK, byref(chunk), byref(fd)))
        os.close(fd.value)
        return chunk.value

    def reserved(self, n_bytes=CHUNK):
        return self.get("glake_reserve", n_bytes, 0)

    def mapped(self):
        ptr = self.reserved()
        self.ok(LIBRARY.glake_map(self.session, 0, ptr, CHUNK))
        return ptr

    def elastic(self, floor=0):
        elastic = c_void_p()
        self.ok(LIBRARY.glake_elastic_open(self.session, elastic_desc(floor), byref(elastic), out()))
        return elastic

    def attended(self):
        """With one end of a socket; the other one stays until the test is over."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.test.addCleanup(ours.close)
        return self.elastic(), theirs.detach()

    def keyed(self):
        elastic = c_void_p()
        self.ok(LIBRARY.glake_elastic_open(self.session, keyed_desc(), byref(elastic), out()))
        return elastic

    def shown(self):
        """Its first step stands in its second one."""
        elastic = self.elastic(1)
        self.ok(LIBRARY.glake_elastic_show(elastic, 1, elastic, FIRST, 1))
        return elastic

    def shown_elsewhere(self):
        elastic = self.elastic(1)
        self.ok(LIBRARY.glake_elastic_show(self.elastic(), 0, elastic, FIRST, 1))
        return elastic

    def others_sealed(self):
        """A range of another session, of which one step is sealed, and one of this with the same key."""
        self.other = World(self.test, self.path.decode())
        theirs = c_void_p()
        self.ok(LIBRARY.glake_elastic_open(self.other.session, keyed_desc(4), byref(theirs), out()))
        self.ok(LIBRARY.glake_elastic_seal(theirs, 0, None, c_size_t(0)))
        return self.keyed()

    def sealed_step(self):
        elastic = self.keyed()
        self.ok(LIBRARY.glake_elastic_seal(elastic, 0, None, c_size_t(0)))
        return elastic

    def elastic_on_full_device(self):
        elastic = self.elastic()
        self.full_device()
        return elastic

    def undrained(self):
        """What it drains is not drained any more when it is closed."""
        def undo():
            # This process is let in because it has a session. The relay of this one may be dead.
            admin = World(self.test, self.test.socket, no_cuda=1)
            # The order itself may be on its way still.
            while (result := LIBRARY.glake_undrain(admin.session)) == number("GLAKE_E_BUSY"):
                pass
            self.ok(result)
            admin.close()
        self.undo = undo

    def share(self):
        share = out()
        self.ok(LIBRARY.glake_share(self.session, self.alloc(), share))
        return share

    def freed_share(self):
        share, ptr = out(), self.alloc()
        self.ok(LIBRARY.glake_share(self.session, ptr, share))
        self.ok(LIBRARY.glake_free(self.session, ptr))
        return share

    def full_device(self):
        """And the model, which does not fit."""
        while LIBRARY.glake_alloc(self.session, 0, CHUNK, 1, out()) == 0:
            pass
        return self.test.model

    def opened(self):
        share = self.share()
        return share, self.get("glake_share_open", share, -1)

    def span(self):
        """Of all of an allocation: pointer and bytes."""
        return (c_uint64 * 2)(self.alloc(), CHUNK)

    def asleep(self):
        self.alloc()
        self.ok(LIBRARY.glake_sleep(self.session, 1000, None))

    def asleep_on_full_device(self):
        """Another session has it: one that allocates wakes."""
        self.other = World(self.test, self.path.decode())
        self.asleep()
        self.other.full_device()

    def sealed(self):
        span = self.span()
        self.ok(LIBRARY.glake_seal(span, 1, None))
        return span

    def tensor(self):
        """Of all of an allocation."""
        name, shape = ctypes.c_char_p(b"t"), (c_uint64 * 1)(CHUNK)
        tensor = sized(ctypes.cast(name, c_void_p).value, U8 | 1 << 32,
                       ctypes.addressof(shape), 0, self.alloc())
        tensor.keep = name, shape
        return tensor

    def key(self):
        """Of published weights that nobody has open."""
        tensor = self.tensor()
        self.ok(LIBRARY.glake_weights_publish(self.session, b"key", tensor, 1, None, None))
        self.ok(LIBRARY.glake_free(self.session, tensor[5]))
        return b"key"

    def block(self):
        return self.get("glake_block_publish", self.alloc(), CHUNK)

    def digest(self):
        """Of a block that nobody holds."""
        info, block = sized(), self.block()
        self.ok(LIBRARY.glake_block_info(block, info))
        LIBRARY.glake_block_release(block)
        return (c_uint64 * 2)(info[1], info[2])

    def model(self, no_map=0):
        return self.get("glake_model_open", self.test.model, sized(0, 0, 0, 0, no_map))

    def name(self):
        """Of a model that is open."""
        self.model()
        return self.test.model

    def name_of_unused(self):
        LIBRARY.glake_model_close(self.model())
        return self.test.model

    def order(self):
        order = c_void_p()
        self.ok(LIBRARY.glake_order_new(order_options(), byref(order)))
        stream = out()
        self.ok(LIBRARY.glake_order_stream(order, None, 0, stream))
        return order, stream

    def parked(self):
        order, stream = self.order()
        self.ok(LIBRARY.glake_order_park(order, None, 0, stream, 1, 0, CHUNK))
        return order, stream[0]

    def close(self):
        if self.other:
            self.other.close()
        if self.undo:
            self.undo()
        LIBRARY.glake_pin(self.whole, self.test.model, 0)
        LIBRARY.glake_disconnect(self.whole)


def c_text(address):
    return ctypes.string_at(address).decode()


def order_options(release=ctypes.cast(RELEASE, c_void_p).value, libcuda=None):
    text = ctypes.c_char_p(libcuda)
    options = sized(ctypes.cast(text, c_void_p).value or 0, release, size=32)
    options.keep = text
    return options


def nothing(world):
    return None


def model_file(world):
    return world.test.model


def dispatched(world, _):
    """An error waits until all notices are delivered."""
    LIBRARY.glake_dispatch(world.session)
    return (world.session,)


QUOTAS = ("glake_set_host_quota", "glake_set_quota", "glake_force_quota")
LIMITS = ("glake_set_max_sessions", "glake_set_manifest_quota")
# How each function is called so that it would succeed: what to prepare, and the arguments.
CALLS = {
    "glake_connect": (nothing, lambda w, x: (connect_options(w.path), out())),
    "glake_elastic_open": (nothing, lambda w, x: (w.session, elastic_desc(1), byref(c_void_p()), out())),
    "glake_elastic_close": (lambda w: w.elastic(1), lambda w, x: (x,)),
    "glake_elastic_commit": (World.elastic, lambda w, x: (x, 0, 1, None)),
    "glake_elastic_ahead": (World.elastic, lambda w, x: (x, 0, 1)),
    "glake_elastic_lend": (World.elastic, lambda w, x: (x, 0, 1)),
    "glake_elastic_seal": (World.keyed, lambda w, x: (x, 0, None, c_size_t(0))),
    "glake_elastic_unseal": (World.sealed_step, lambda w, x: (x, 0, 1)),
    "glake_elastic_adopt": (World.keyed, lambda w, x: (x, 1, RECORD, byref(c_size_t()), None)),
    "glake_elastic_show": (lambda w: w.elastic(1), lambda w, x: (x, 1, x, FIRST, 1)),
    "glake_elastic_read": (World.others_sealed, lambda w, x: (x, 1, None, c_size_t(0), RECORD, byref(c_size_t()))),
    "glake_elastic_hide": (World.shown, lambda w, x: (x, 1, 1)),
    "glake_elastic_stats": (World.elastic, lambda w, x: (x, sized())),
    "glake_elastic_attend": (World.attended, lambda w, x: x),
    "glake_elastic_mark": (World.elastic, lambda w, x: (x, c_uint64(1), None)),
    "glake_session_info": (nothing, lambda w, x: (w.session, sized())),
    "glake_device_at": (nothing, lambda w, x: (w.session, 0, out())),
    "glake_device_index": (nothing, lambda w, x: (w.session, 0)),
    "glake_device_view": (nothing, lambda w, x: (w.session, 0, sized())),
    "glake_ping": (nothing, lambda w, x: (w.session,)),
    "glake_alloc": (nothing, lambda w, x: (w.session, 0, CHUNK, 1, out())),
    "glake_alloc_many": (nothing, lambda w, x: (w.session, 0, sizes(CHUNK, CHUNK), 2, 1, out())),
    "glake_free": (lambda w: w.alloc(WARM + CHUNK), lambda w, x: (w.session, x)),
    "glake_alloc_async": (nothing, lambda w, x: (w.session, None, 2 * CHUNK, 0, out())),
    "glake_free_async": (World.alloc, lambda w, x: (w.session, None, x, 0)),
    "glake_stream_ends": (nothing, lambda w, x: (w.session, None, 0)),
    "glake_trim": (lambda w: LIBRARY.glake_free(w.session, w.alloc()),
                   lambda w, x: (w.session, 0, 0)),
    "glake_chunk_new": (nothing, lambda w, x: (w.session, 0, CHUNK, out(), out())),
    "glake_chunk_fd": (World.chunk, lambda w, x: (w.session, x, out())),
    "glake_chunk_free": (World.chunk, lambda w, x: (w.session, x, CHUNK)),
    "glake_share": (World.sealed, lambda w, x: (w.session, x[0], out())),
    "glake_share_open": (World.share, lambda w, x: (w.session, x, -1, out())),
    "glake_share_close": (World.opened, lambda w, x: (w.session, *x)),
    "glake_reserve": (nothing, lambda w, x: (w.session, CHUNK, 0, out())),
    "glake_map": (World.reserved, lambda w, x: (w.session, 0, x, CHUNK)),
    "glake_unmap": (World.mapped, lambda w, x: (w.session, x, CHUNK)),
    "glake_unreserve": (World.reserved, lambda w, x: (w.session, x)),
    "glake_model_open": (model_file, lambda w, x: (w.session, x, sized(), out())),
    "glake_model_open_shards": (model_file,
                                lambda w, x: (w.session, pointers(x), 1, sized(), out())),
    "glake_model_open_fds": (nothing, lambda w, x: (w.session, (ctypes.c_int * 1)(w.test.model_fd),
                                                    None, 1, sized(), out())),
    "glake_model_info": (World.model, lambda w, x: (x, sized())),
    "glake_model_tensor_at": (World.model, lambda w, x: (x, 0, sized())),
    "glake_model_tensor": (World.model, lambda w, x: (x, b"t", sized())),
    "glake_model_dlpack": (World.model, lambda w, x: (x, 0, out())),
    "glake_read": (World.alloc, lambda w, x: (w.session, 0, out(), x, 8)),
    "glake_block_publish": (World.alloc, lambda w, x: (w.session, x, CHUNK, out())),
    "glake_block_lookup": (World.digest, lambda w, x: (w.session, 0, x, out())),
    "glake_block_info": (World.block, lambda w, x: (x, sized())),
    "glake_seal": (World.span, lambda w, x: (x, 1, None)),
    "glake_seal_idle": (World.span, lambda w, x: (x, 1, None)),
    "glake_weights_publish": (World.tensor, lambda w, x: (w.session, b"new", x, 1, None, None)),
    "glake_weights_attach": (World.key, lambda w, x: (w.session, x, None, out())),
    "glake_unseal": (World.sealed, lambda w, x: tuple(x)),
    "glake_unseal_spans": (World.sealed, lambda w, x: (x, 1)),
    "glake_dispatch": (nothing, dispatched),
    "glake_usage": (nothing, lambda w, x: (w.session, sized())),
    "glake_pool_stats": (nothing, lambda w, x: (w.session, 0, sized())),
    "glake_pool_reset_peaks": (nothing, lambda w, x: (w.session, 0)),
    "glake_pool_snapshot": (nothing, lambda w, x: (w.session, 0, out(), out())),
    **{name: (nothing, lambda w, x: (w.session, ROW, None))
       for name in ("glake_get_status", "glake_get_stats", "glake_get_histograms", "glake_list_sessions", "glake_list_tenants",
                    "glake_list_events", "glake_list_sleepers", "glake_list_mistakes")},
    **{name: (World.model, lambda w, x: (w.session, ROW, None))
       for name in ("glake_list_models", "glake_list_blocks", "glake_list_uses")},
    "glake_list_events_after": (nothing, lambda w, x: (w.session, 0, ROW, None)),
    "glake_pin": (World.name_of_unused, lambda w, x: (w.session, x, 1)),
    "glake_evict": (World.name, lambda w, x: (w.session, None, None, None)),
    "glake_seal_session": (nothing, lambda w, x: (w.session, 1, None, sized())),
    "glake_sleep": (World.alloc, lambda w, x: (w.session, 1000, None)),
    "glake_wake": (World.asleep, lambda w, x: (w.session, None)),
    "glake_sleep_session": (nothing, lambda w, x: (w.session, 1, None, ROW, None)),
    "glake_drain": (World.undrained, lambda w, x: (w.session, None)),
    "glake_undrain": (nothing, lambda w, x: (w.session,)),
    "glake_list_candidates": (nothing, lambda w, x: (w.session, 1, ROW, None, None)),
    "glake_list_layout": (nothing, lambda w, x: (w.session, 1, ROW, None)),
    "glake_forgive": (nothing, lambda w, x: (w.session, 0)),
    **{name: (nothing, lambda w, x: (w.session, b"default", 0, 0)) for name in QUOTAS},
    **{name: (nothing, lambda w, x: (w.session, b"default", 0)) for name in LIMITS},
    "glake_order_new": (nothing, lambda w, x: (order_options(), out())),
    "glake_order_stream": (World.order, lambda w, x: (x[0], None, 0, out())),
    "glake_order_follow": (World.parked, lambda w, x: (x[0], None, 0, x[1])),
    "glake_order_park": (World.order, lambda w, x: (x[0], None, 0, x[1], 1, 0, CHUNK)),
}

# Other arguments: function, code, what to prepare, arguments.
WRONG = [
    ("glake_connect", "GLAKE_E_GONE", nothing, lambda w, x: (connect_options(b"/none"), out())),
    ("glake_connect", "GLAKE_E_NO_DRIVER", nothing,
     lambda w, x: (connect_options(w.path, libcuda=b"/none"), out())),
    ("glake_connect", "-EINVAL", nothing, lambda w, x: (sized(size=1), out())),
    ("glake_connect", "-ENAMETOOLONG", nothing,
     lambda w, x: (connect_options(b"/" * 200), out())),
    ("glake_elastic_open", "-EINVAL", nothing, lambda w, x: (w.session, None, byref(c_void_p()), out())),
    ("glake_elastic_open", "-ENODEV", nothing,
     lambda w, x: (w.session, elastic_desc(1, 99), byref(c_void_p()), out())),
    ("glake_elastic_open", "GLAKE_E_NO_DEVICE_MEMORY", World.full_device,
     lambda w, x: (w.session, elastic_desc(1), byref(c_void_p()), out())),
    ("glake_elastic_commit", "-EINVAL", World.elastic, lambda w, x: (x, 2, 1, None)),
    ("glake_elastic_commit", "GLAKE_E_NO_DEVICE_MEMORY", World.elastic_on_full_device,
     lambda w, x: (x, 0, 1, None)),
    ("glake_elastic_ahead", "-EINVAL", World.elastic, lambda w, x: (x, 2, 1)),
    ("glake_elastic_lend", "-EINVAL", World.elastic, lambda w, x: (x, 2, 1)),
    ("glake_elastic_seal", "-EINVAL", World.keyed, lambda w, x: (x, 1, None, c_size_t(0))),
    ("glake_elastic_unseal", "-EINVAL", World.keyed, lambda w, x: (x, 1, 2)),
    ("glake_elastic_adopt", "-EINVAL", World.elastic, lambda w, x: (x, 1, RECORD, byref(c_size_t()), None)),
    ("glake_elastic_adopt", "-EBUSY", World.keyed, lambda w, x: (x, 0, RECORD, byref(c_size_t()), None)),
    ("glake_elastic_adopt", "-ENOENT", World.keyed, lambda w, x: (x, 1, RECORD, byref(c_size_t()), None)),
    ("glake_elastic_commit", "-EBUSY", World.shown, lambda w, x: (x, 1, 1, None)),
    ("glake_elastic_lend", "-EBUSY", World.shown, lambda w, x: (x, 1, 1)),
    ("glake_elastic_close", "-EBUSY", World.shown_elsewhere, lambda w, x: (x,)),
    ("glake_elastic_unseal", "-EBUSY", World.shown, lambda w, x: (x, 0, 1)),
    ("glake_elastic_show", "-EINVAL", World.elastic, lambda w, x: (x, 2, x, FIRST, 1)),
    ("glake_elastic_show", "-EBUSY", World.elastic, lambda w, x: (x, 1, x, FIRST, 1)),
    ("glake_elastic_read", "-EINVAL", World.elastic, lambda w, x: (x, 1, None, c_size_t(0), RECORD, byref(c_size_t()))),
    ("glake_elastic_read", "-EBUSY", World.keyed, lambda w, x: (x, 0, None, c_size_t(0), RECORD, byref(c_size_t()))),
    ("glake_elastic_read", "-ENOENT", World.keyed, lambda w, x: (x, 1, None, c_size_t(0), RECORD, byref(c_size_t()))),
    ("glake_elastic_hide", "-EINVAL", World.elastic, lambda w, x: (x, 1, 2)),
    ("glake_elastic_attend", "-EINVAL", World.elastic, lambda w, x: (x, -1)),
    ("glake_elastic_mark", "-EINVAL", World.elastic, lambda w, x: (x, c_uint64(0), None)),
    ("glake_elastic_stats", "-EINVAL", World.elastic, lambda w, x: (x, sized(size=0))),
    ("glake_session_info", "-EINVAL", nothing, lambda w, x: (w.session, sized(size=0))),
    ("glake_device_at", "-ENOENT", nothing, lambda w, x: (w.session, 99, out())),
    ("glake_device_index", "-ENOENT", nothing, lambda w, x: (w.session, 99)),
    ("glake_device_view", "GLAKE_E_BAD_REQUEST", nothing, lambda w, x: (w.session, 99, sized())),
    ("glake_device_view", "-EINVAL", nothing, lambda w, x: (w.session, 0, sized(size=0))),
    ("glake_alloc", "-EINVAL", nothing, lambda w, x: (w.session, 0, 0, 0, out())),
    ("glake_alloc", "-ENODEV", nothing, lambda w, x: (w.session, 99, CHUNK, 0, out())),
    ("glake_alloc", "GLAKE_E_NO_DEVICE_MEMORY", nothing,
     lambda w, x: (w.session, 0, HUGE, 0, out())),
    ("glake_alloc_many", "-EINVAL", nothing,
     lambda w, x: (w.session, 0, sizes(CHUNK, 0), 2, 0, out())),
    ("glake_alloc_many", "-ENODEV", nothing,
     lambda w, x: (w.session, 99, sizes(CHUNK), 1, 0, out())),
    ("glake_alloc_many", "GLAKE_E_NO_DEVICE_MEMORY", nothing,
     lambda w, x: (w.session, 0, sizes(CHUNK, HUGE), 2, 0, out())),
    ("glake_free", "-EINVAL", nothing, lambda w, x: (w.session, 8)),
    ("glake_alloc_async", "-EINVAL", nothing, lambda w, x: (w.session, None, 0, 0, out())),
    ("glake_alloc_async", "GLAKE_E_NO_DEVICE_MEMORY", nothing,
     lambda w, x: (w.session, None, HUGE, 0, out())),
    ("glake_free_async", "-EINVAL", nothing, lambda w, x: (w.session, None, 8, 0)),
    ("glake_stream_ends", "-EINVAL", nothing, lambda w, x: (w.session, None, 1)),
    ("glake_trim", "-ENODEV", nothing, lambda w, x: (w.session, 99, 0)),
    ("glake_chunk_new", "-EINVAL", nothing, lambda w, x: (w.session, 0, 1, out(), out())),
    ("glake_chunk_new", "-ENODEV", nothing, lambda w, x: (w.session, 99, CHUNK, out(), out())),
    ("glake_chunk_new", "GLAKE_E_NO_DEVICE_MEMORY", nothing,
     lambda w, x: (w.session, 0, HUGE, out(), out())),
    ("glake_chunk_fd", "GLAKE_E_NOT_FOUND", nothing, lambda w, x: (w.session, 1 << 40, out())),
    ("glake_chunk_free", "GLAKE_E_BAD_REQUEST", nothing,
     lambda w, x: (w.session, 1 << 40, CHUNK)),
    ("glake_share", "-EINVAL", nothing, lambda w, x: (w.session, 8, out())),
    ("glake_share", "GLAKE_E_NO_DEVICE_MEMORY", lambda w: (w.sealed(), w.full_device())[0],
     lambda w, x: (w.session, x[0], out())),
    ("glake_share_open", "-EINVAL", nothing, lambda w, x: (w.session, out(), -1, out())),
    ("glake_share_open", "GLAKE_E_NOT_FOUND", World.freed_share,
     lambda w, x: (w.session, x, -1, out())),
    ("glake_share_close", "-EINVAL", World.opened, lambda w, x: (w.session, x[0], 8)),
    ("glake_reserve", "-EINVAL", nothing, lambda w, x: (w.session, 1, 0, out())),
    ("glake_map", "-EINVAL", World.mapped, lambda w, x: (w.session, 0, x, CHUNK)),
    ("glake_map", "-ENODEV", World.reserved, lambda w, x: (w.session, 99, x, CHUNK)),
    ("glake_map", "GLAKE_E_NO_DEVICE_MEMORY", lambda w: w.reserved(HUGE),
     lambda w, x: (w.session, 0, x, HUGE)),
    ("glake_unmap", "-EINVAL", World.reserved, lambda w, x: (w.session, x, CHUNK)),
    ("glake_unreserve", "-EINVAL", World.alloc, lambda w, x: (w.session, x)),
    ("glake_unreserve", "-EBUSY", World.mapped, lambda w, x: (w.session, x)),
    ("glake_model_open", "-EINVAL", nothing, lambda w, x: (w.session, None, sized(), out())),
    ("glake_model_open", "-ENOENT", nothing, lambda w, x: (w.session, b"/none", sized(), out())),
    ("glake_model_open", "GLAKE_E_BAD_FILE", nothing,
     lambda w, x: (w.session, b"/dev/null", sized(), out())),
    ("glake_model_open", "-ENODEV", nothing,
     lambda w, x: (w.session, w.test.model, sized(99), out())),
    ("glake_model_open_shards", "-EINVAL", nothing,
     lambda w, x: (w.session, pointers(b"/"), 0, sized(), out())),
    ("glake_model_open_shards", "GLAKE_E_BAD_FILE", nothing,
     lambda w, x: (w.session, pointers(b"/dev/null"), 1, sized(), out())),
    ("glake_model_open_shards", "-ENODEV", nothing,
     lambda w, x: (w.session, pointers(w.test.model), 1, sized(99), out())),
    ("glake_model_open_fds", "-EINVAL", nothing,
     lambda w, x: (w.session, None, None, 0, sized(), out())),
    ("glake_model_open_fds", "GLAKE_E_BAD_FILE", nothing,
     lambda w, x: (w.session, (ctypes.c_int * 1)(w.test.null_fd), None, 1, sized(), out())),
    ("glake_model_open_fds", "-ENODEV", nothing,
     lambda w, x: (w.session, (ctypes.c_int * 1)(0), None, 1, sized(99), out())),
    *((name, "GLAKE_E_NO_DEVICE_MEMORY", World.full_device, CALLS[name][1])
      for name in ("glake_model_open", "glake_model_open_shards", "glake_model_open_fds")),
    ("glake_model_info", "-EINVAL", nothing, lambda w, x: (None, sized())),
    ("glake_model_tensor_at", "-EINVAL", nothing, lambda w, x: (None, 0, sized())),
    ("glake_model_tensor_at", "-ENOENT", World.model, lambda w, x: (x, 99, sized())),
    ("glake_model_tensor", "-EINVAL", World.model, lambda w, x: (x, None, sized())),
    ("glake_model_tensor", "-ENOENT", World.model, lambda w, x: (x, b"none", sized())),
    ("glake_model_dlpack", "-EINVAL", lambda w: w.model(no_map=1), lambda w, x: (x, 0, out())),
    ("glake_model_dlpack", "-ENOENT", World.model, lambda w, x: (x, 99, out())),
    ("glake_read", "-ENODEV", nothing, lambda w, x: (w.session, 99, out(), 8, 8)),
    ("glake_block_publish", "-EINVAL", nothing, lambda w, x: (w.session, 8, CHUNK, out())),
    ("glake_block_lookup", "-ENODEV", nothing, lambda w, x: (w.session, 99, out(), out())),
    ("glake_block_lookup", "GLAKE_E_NOT_FOUND", nothing,
     lambda w, x: (w.session, 0, out(), out())),
    ("glake_block_info", "-EINVAL", nothing, lambda w, x: (None, sized())),
    ("glake_seal", "-EINVAL", nothing, lambda w, x: ((c_uint64 * 2)(8, CHUNK), 1, None)),
    ("glake_seal", "-EINVAL", World.span, lambda w, x: (x, 1, sized(size=0))),
    ("glake_seal_idle", "-EINVAL", nothing, lambda w, x: ((c_uint64 * 2)(8, CHUNK), 1, None)),
    ("glake_weights_publish", "-EINVAL", World.tensor,
     lambda w, x: (w.session, b"", x, 1, None, None)),
    ("glake_weights_publish", "GLAKE_E_BAD_REQUEST", World.tensor,
     lambda w, x: (w.session, b"1", x, 1, None, None)),
    ("glake_weights_publish", "-ENODEV", World.tensor,
     lambda w, x: (w.session, b"key", x, 1, sized(99), None)),
    ("glake_weights_attach", "-EINVAL", nothing, lambda w, x: (w.session, None, None, out())),
    ("glake_weights_attach", "-ENODEV", nothing,
     lambda w, x: (w.session, b"key", sized(99), out())),
    ("glake_weights_attach", "GLAKE_E_NOT_FOUND", nothing,
     lambda w, x: (w.session, b"none", None, out())),
    ("glake_unseal", "-EINVAL", nothing, lambda w, x: (8, CHUNK)),
    ("glake_unseal", "GLAKE_E_NO_DEVICE_MEMORY", lambda w: (w.sealed(), w.full_device())[0],
     lambda w, x: tuple(x)),
    ("glake_unseal_spans", "-EINVAL", nothing, lambda w, x: ((c_uint64 * 2)(8, CHUNK), 1)),
    ("glake_unseal_spans", "GLAKE_E_NO_DEVICE_MEMORY",
     lambda w: (w.sealed(), w.full_device())[0], lambda w, x: (x, 1)),
    ("glake_usage", "-EINVAL", nothing, lambda w, x: (w.session, sized(size=0))),
    ("glake_pool_stats", "-EINVAL", nothing, lambda w, x: (w.session, 0, sized(size=0))),
    ("glake_pool_stats", "-ENODEV", nothing, lambda w, x: (w.session, 99, sized())),
    ("glake_pool_reset_peaks", "-ENODEV", nothing, lambda w, x: (w.session, 99)),
    ("glake_pool_snapshot", "-ENODEV", nothing, lambda w, x: (w.session, 99, out(), out())),
    ("glake_pool_snapshot", "-EINVAL", nothing, lambda w, x: (w.session, 0, None, out())),
    ("glake_pin", "GLAKE_E_NOT_FOUND", nothing, lambda w, x: (w.session, b"none", 1)),
    ("glake_list_candidates", "GLAKE_E_NOT_FOUND", nothing,
     lambda w, x: (w.session, 1, ROW, None, None)),
    ("glake_forgive", "GLAKE_E_NOT_FOUND", nothing, lambda w, x: (w.session, 99)),
    ("glake_evict", "GLAKE_E_NOT_FOUND", nothing,
     lambda w, x: (w.session, b"none", None, None)),
    ("glake_evict", "GLAKE_E_NOT_FOUND", World.name_of_unused,
     lambda w, x: (w.session, b"", None, None)),
    ("glake_evict", "GLAKE_E_BUSY", World.name, lambda w, x: (w.session, x, None, None)),
    ("glake_seal_session", "GLAKE_E_NOT_FOUND", nothing,
     lambda w, x: (w.session, 1, None, sized())),
    ("glake_seal_session", "-EINVAL", nothing,
     lambda w, x: (w.session, 1, sized(size=1), sized())),
    ("glake_seal_session", "-EINVAL", nothing, lambda w, x: (w.session, 1, None, sized(size=0))),
    ("glake_sleep", "-EINVAL", nothing, lambda w, x: (w.session, 1000, sized(size=0))),
    ("glake_wake", "GLAKE_E_NO_DEVICE_MEMORY", World.asleep_on_full_device,
     lambda w, x: (w.session, None)),
    ("glake_wake", "-EINVAL", nothing, lambda w, x: (w.session, sized(size=0))),
    ("glake_sleep_session", "GLAKE_E_NOT_FOUND", nothing,
     lambda w, x: (w.session, 1, None, ROW, None)),
    ("glake_sleep_session", "-EINVAL", nothing,
     lambda w, x: (w.session, 1, sized(size=1), ROW, None)),
    ("glake_set_host_quota", "-ENOTSUP", nothing, lambda w, x: (w.session, b"default", 99, 0)),
    *((name, "GLAKE_E_NOT_FOUND", nothing, lambda w, x: (w.session, b"none", 0, 0)) for name in QUOTAS),
    *((name, "GLAKE_E_NOT_FOUND", nothing, lambda w, x: (w.session, b"none", 0)) for name in LIMITS),
    ("glake_set_quota", "GLAKE_E_BAD_REQUEST", nothing, lambda w, x: (w.session, b"default", 99, 0)),
    ("glake_force_quota", "GLAKE_E_BAD_REQUEST", nothing, lambda w, x: (w.session, b"default", 99, 0)),
    ("glake_set_quota", "GLAKE_E_BUSY", World.asleep, lambda w, x: (w.session, b"default", 0, 1)),
    ("glake_order_follow", "-ENOENT", World.order, lambda w, x: (x[0], None, 0, 99)),
    ("glake_order_new", "-EINVAL", nothing, lambda w, x: (order_options(release=0), out())),
    ("glake_order_new", "GLAKE_E_NO_DRIVER", nothing,
     lambda w, x: (order_options(libcuda=b"/none"), out())),
]


class Relay(threading.Thread):
    """Between clients and glaked. With a reply set, requests get that instead of an answer."""

    def __init__(self, path, target):
        super().__init__(daemon=True)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(path)
        self.listener.listen(8)
        self.target = target
        self.reply = None  # of an id in bytes
        self.is_dead = False
        self.clients = []
        self.peers = {}
        self.start()

    @staticmethod
    def id_of(packet):
        """The bytes of the first field's number: ten for requests whose answers no call awaits."""
        end = 1
        while packet[end] & 0x80:
            end += 1
        return packet[1:end + 1]

    def say(self, packet):
        """To all clients, unasked."""
        for client in self.clients:
            with contextlib.suppress(OSError):
                client.send(packet)

    def die(self):
        """Close all connections, and refuse new ones: nobody waits for another daemon."""
        self.is_dead = True
        for client in self.clients:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def accept(self, selector):
        client, _ = self.listener.accept()
        if self.is_dead:
            client.recv(1 << 16)
            client.send(b"\x08\x01\x10\x0c")
            client.close()
            return
        daemon = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        daemon.connect(self.target)
        self.clients.append(client)
        self.peers[client], self.peers[daemon] = daemon, client
        for end in (client, daemon):
            selector.register(end, selectors.EVENT_READ)

    def forward(self, selector, end):
        peer = self.peers[end]
        packet, fds = b"", []
        with contextlib.suppress(OSError):
            packet, fds, _, _ = socket.recv_fds(end, 1 << 16, 253)
        if not packet:
            for gone in (end, peer):
                selector.unregister(gone)
                del self.peers[gone]
                gone.close()
            return
        number_ = self.id_of(packet) if end in self.clients else b""
        with contextlib.suppress(OSError):
            if self.reply and number_ and len(number_) < 10:
                end.send(self.reply(number_))
            else:
                socket.send_fds(peer, [packet], fds)
        for fd in fds:
            os.close(fd)

    def run(self):
        with selectors.DefaultSelector() as selector:
            selector.register(self.listener, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self.listener:
                        self.accept(selector)
                    elif key.fileobj in self.peers:
                        self.forward(selector, key.fileobj)


class Errors(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.socket = os.path.join(self.folder, "glaked.sock")
        set_faults("")
        self.start_daemon()
        self.model = os.path.join(self.folder, "model.safetensors").encode()
        text = json.dumps({"t": {"dtype": "U8", "shape": [CHUNK], "data_offsets": [0, CHUNK]}})
        with open(self.model, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text.encode() + bytes(CHUNK))
        self.model_fd = os.open(self.model, os.O_RDONLY)
        self.null_fd = os.open("/dev/null", os.O_RDONLY)
        self.addCleanup(os.close, self.model_fd)
        self.addCleanup(os.close, self.null_fd)
        self.seen = set()
        self.returned = {}
        Driver()

    def start_daemon(self):
        config = os.path.join(self.folder, "glaked.conf")
        with open(config, "w", encoding="utf-8") as file:
            # A full device stays full: what glake-mover has of it does not come back by itself.
            file.write(f'socket_path = "{self.socket}";\nwarm_bytes = "{WARM}";\npool = ();\n'
                       "wake_wait_ms = 100;\nmover_idle_ms = 0;\n")
        environment = {name: value for name, value in os.environ.items()
                       if name != "CUDASIM_FAULT_FILE"}
        with open(os.path.join(self.folder, "log"), "wb") as log:
            self.daemon = subprocess.Popen([os.path.join(BUILD, "bin", "glaked"), "-c", config],
                                           stderr=log, env=environment)
        self.addCleanup(self.stop_daemon)
        end = time.monotonic() + PATIENCE_S
        session = c_void_p()
        while LIBRARY.glake_connect(connect_options(self.socket.encode(), 1), byref(session)) != 0:
            self.assertLess(time.monotonic(), end, c_text(LIBRARY.glake_error()))
            time.sleep(0.01)
        LIBRARY.glake_disconnect(session)

    def stop_daemon(self):
        self.daemon.kill()
        self.daemon.wait()

    def note(self, name, result):
        self.returned.setdefault(name, []).append((result, c_text(LIBRARY.glake_error())))
        codes = {number(code): code for code in listed(name)}
        if result in codes:
            self.seen.add((name, codes[result]))
        elif result < 0 and not (-200 < result and "-errno of" in DECLARATIONS[name][2]):
            self.fail(f"{name}() returned {result} ({c_text(LIBRARY.glake_error())}), "
                      "which its list does not have")

    def call(self, world, name, arguments, prepared):
        given = arguments(world, prepared)
        result = getattr(LIBRARY, name)(*given)
        if name == "glake_connect" and result == 0:
            LIBRARY.glake_disconnect(given[1][0])
        return result

    def call_in_child(self, world, name, arguments, prepared):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(writer, str(self.call(world, name, arguments, prepared)).encode())
            finally:
                os._exit(0)
        os.close(writer)
        with open(reader, encoding="ascii") as pipe:
            result = int(pipe.read())
        os.waitpid(child, 0)
        return result

    def each(self, happen, path=None, call=None):
        """Call each function while @happen(world) holds."""
        for name, (prepare, arguments) in CALLS.items():
            takes_session = "struct glake_session *session" in DECLARATIONS[name][1]
            if happen is self.no_session and not takes_session:
                continue
            with self.subTest(name), contextlib.closing(World(self, path or self.socket)) as world:
                prepared = prepare(world)
                with happen(world):
                    result = (call or self.call)(world, name, arguments, prepared)
                    self.note(name, result)

    # ---- what happens ----

    @staticmethod
    @contextlib.contextmanager
    def no_session(world):
        world.session = None
        yield
        world.session = world.whole

    @contextlib.contextmanager
    def no_driver(self, world):
        other = World(self, self.socket, no_cuda=1)
        world.session = other.session
        yield
        other.close()
        world.session = world.whole

    @staticmethod
    @contextlib.contextmanager
    def driver_fails(_):
        set_faults("*:*:fail=999")
        try:
            yield
        finally:
            set_faults("")

    @staticmethod
    @contextlib.contextmanager
    def no_fds(_):
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    @contextlib.contextmanager
    def no_quota(self, _):
        admin = World(self, self.socket, no_cuda=1)
        admin.ok(LIBRARY.glake_force_quota(admin.session, b"default", 0, 1))
        admin.ok(LIBRARY.glake_set_host_quota(admin.session, b"default", 0, 1))
        admin.ok(LIBRARY.glake_set_max_sessions(admin.session, b"default", 1))
        try:
            yield
        finally:
            admin.ok(LIBRARY.glake_set_quota(admin.session, b"default", 0, 0))
            admin.ok(LIBRARY.glake_set_host_quota(admin.session, b"default", 0, 0))
            admin.ok(LIBRARY.glake_set_max_sessions(admin.session, b"default", 0))
            admin.close()

    @contextlib.contextmanager
    def daemon_gone(self, _):
        self.relay.die()
        try:
            yield
        finally:
            self.relay.is_dead = False

    def daemon_says(self, reply, unasked=None):
        @contextlib.contextmanager
        def happen(_):
            if unasked:
                self.relay.say(unasked)
            self.relay.reply = reply
            try:
                yield
            finally:
                self.relay.reply = None
        return happen

    def refusal(self, status):
        return self.daemon_says(lambda id_: b"\x08" + id_ + b"\x10" + bytes([status]))

    def test_each_function_returns_what_its_list_names(self):
        path = os.path.join(self.folder, "relay.sock")
        self.relay = Relay(path, self.socket)
        self.assertEqual({name for name in DECLARATIONS if listed(name)}, set(CALLS))
        self.each(self.no_session)
        self.each(contextlib.nullcontext, call=self.call_in_child)
        self.each(self.no_driver)
        self.each(self.driver_fails)
        self.each(self.no_fds)
        self.each(self.no_quota)
        for name, code, prepare, arguments in WRONG:
            with self.subTest(name, code=code), contextlib.closing(World(self, self.socket)) as world:
                result = self.call(world, name, arguments, prepare(world))
                self.assertEqual(result, number(code), c_text(LIBRARY.glake_error()))
                self.note(name, result)
        for happen in (self.daemon_gone, self.daemon_says(lambda _: b"\xff", b"\xff"), self.refusal(1), self.refusal(99)):
            self.each(happen, path)
        self.check_excuses()

    def check_excuses(self):
        unseen = {}
        for name in CALLS:
            for code in sorted(listed(name)):
                with self.subTest(name, code=code):
                    if (name, code) not in self.seen:
                        unseen.setdefault(code, set()).add(name)
                        _, names = EXCUSES.get(code, ("", set()))
                        self.assertTrue(names is EVERY or name in names, f"never returned, but {self.returned[name]}")
        for code, (excuse, names) in EXCUSES.items():
            with self.subTest(excuse=code):
                self.assertEqual(unseen.get(code, set()), names or unseen.get(code))
                if excuse.startswith("tests/"):
                    self.assertIn(code.lstrip("-"), read(excuse))


if __name__ == "__main__":
    unittest.main()
