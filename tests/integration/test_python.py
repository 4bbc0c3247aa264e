# SPDX-License-Identifier: Apache-2.0
"""The Python binding against the real daemon on the simulated driver.

Files are written by the real safetensors library and compared byte by byte. Nothing here knows that
the simulator's device memory is host memory: bytes come through Tensor.numpy().
"""
import ast
import ctypes
import errno
import gc
import json
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
import unittest

import numpy
from safetensors.numpy import save, save_file

from tests.integration.driver_memory import FILLED, Driver
from tests.integration.with_glaked import BUILD, MIB, PATIENCE_S, WithSessions, started, tell

import glake
from glake import _lib
from glake.tensor import DLManagedTensor, delete_managed

DTYPES = ["bool", "uint8", "int8", "int16", "uint16", "float16", "int32", "uint32", "float32",
          "float64", "int64", "uint64", "complex64"]


def make(seed, dtype, shape):
    """Any bit pattern but for bool, where there are two."""
    generator = numpy.random.default_rng(seed)
    n_elements = int(numpy.prod(shape, dtype=numpy.int64))
    if dtype == "bool":
        return generator.integers(0, 2, n_elements).astype("bool").reshape(shape)
    raw = generator.integers(0, 256, n_elements * numpy.dtype(dtype).itemsize, dtype="uint8")
    return raw.view(dtype).reshape(shape)


def raw_file(path, entries):
    """A safetensors file by hand, for types that numpy lacks: name -> (dtype, shape, bytes)."""
    header, data = {}, b""
    for name, (dtype, shape, content) in entries.items():
        header[name] = {"dtype": dtype, "shape": list(shape),
                        "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)


class Case(WithSessions):
    def setUp(self):
        os.environ.setdefault("CUDASIM_DEVICES", "2x8GiB")
        os.environ.setdefault("GLAKE_LIBCUDA", os.path.join(BUILD, "cudasim", "libcuda.so.1"))
        super().setUp()

    def read(self, session, ptr, n_bytes):
        got = bytearray(n_bytes)
        memory = (ctypes.c_char * n_bytes).from_buffer(got)
        _lib.check(_lib.library().glake_read(session.handle, 0, memory, ptr, n_bytes))
        return bytes(got)

    def save(self, name="model.safetensors"):
        tensors = {f"t.{dtype}.{i}": make(i + 1, dtype, shape) for dtype in DTYPES
                   for i, shape in enumerate([(3, 5), (), (7,), (0, 4), (2, 3, 4, 5)])}
        tensors["large"] = make(99, "float32", (1024, 1100))
        save_file(tensors, self.path(name))
        return tensors


class Memory(Driver):
    """Private memory with content."""

    def __init__(self, session):
        self._session = session
        session.device_index(0)
        super().__init__()

    def holding(self, *arrays):
        """One allocation, the arrays 512 bytes apart in it. Their addresses."""
        places, n_bytes = [], 0
        for array in arrays:
            places.append(n_bytes)
            n_bytes += -(-array.nbytes // 512) * 512
        ptr = self._session.alloc(max(n_bytes, 1), 0, zero=True)
        for place, array in zip(places, arrays):
            self.write(ptr + place, array.tobytes())
        return [ptr + place for place in places]


class Published(Case):
    """Weights that a process publishes, as others find them."""

    def setUp(self):
        super().setUp()
        self.session = glake.default_session()
        self.memory = Memory(self.session)

    def publish(self, key="llama@1", **more):
        self.large = make(1, "float32", (1024, 1024))
        self.small = make(2, "int16", (3, 5))
        large, small = self.memory.holding(self.large, self.small)
        return glake.publish(key, {
            "large": glake.Weight(large, "F32", (1024, 1024)),
            "tied": glake.Weight(large, "F32", (1024, 1024)),
            "turned": glake.Weight(large, "F32", (512, 1024), (1, 1024)),
            "small": glake.Weight(small, "I16", (3, 5)),
            "empty": glake.Weight(0, "F32", (0, 4))}, **more)

    def check(self, model):
        self.assertEqual(set(model), {"large", "tied", "turned", "small", "empty"})
        self.assertEqual(model["large"].numpy().tobytes(), self.large.tobytes())
        self.assertEqual(model["tied"].ptr, model["large"].ptr)
        self.assertEqual(model["small"].numpy().tobytes(), self.small.tobytes())
        self.assertEqual(model["empty"].shape, (0, 4))
        turned = model["turned"]
        self.assertEqual((turned.shape, turned.strides), ((512, 1024), (1, 1024)))
        self.assertEqual(turned.numpy().tobytes(), self.large[:, :512].T.tobytes())
        self.assertEqual(turned.__cuda_array_interface__["strides"], (4, 4096))
        self.assertIsNone(model["large"].strides)

    def test_other_sessions_attach(self):
        published = self.publish()
        self.assertGreaterEqual(published.in_place_bytes + published.copied_bytes,
                                self.large.nbytes)
        self.assertFalse(published.was_published)
        with glake.connect() as session, \
                glake.Model.attach("llama@1", session=session) as model:
            self.check(model)
            self.assertEqual(model.name, "llama@1")
            self.assertEqual([(row["name"], row["is_published"]) for row in glake.models()],
                             [("llama@1", True)])

    def test_a_key_stays_when_its_publisher_has_gone(self):
        code = """
            import glake, sys
            sys.path.insert(0, sys.argv[1])
            from test_python import Memory
            import numpy
            memory = Memory(glake.default_session())
            ptr, = memory.holding(numpy.arange(1 << 20, dtype="int32"))
            glake.publish("numbers", {"n": glake.Weight(ptr, "I32", (1 << 20,))}, pin=True)
        """
        subprocess.run([sys.executable, "-c", textwrap.dedent(code),
                        os.path.dirname(os.path.abspath(__file__))], check=True)
        with glake.Model.attach("numbers") as model:
            self.assertEqual(model["n"].numpy().tolist(), list(range(1 << 20)))

    def test_a_key_that_is_not_there(self):
        with self.assertRaises(glake.NotFoundError):
            glake.Model.attach("nobody")
        begin = time.monotonic()
        with self.assertRaises(glake.NotFoundError):
            glake.Model.attach("nobody", wait=0.3)
        self.assertGreater(time.monotonic() - begin, 0.25)

    def test_waiting_for_a_key(self):
        found = []

        def attach():
            with glake.connect() as session:
                with glake.Model.attach("later", wait=60, session=session) as model:
                    found.append(len(model))

        thread = threading.Thread(target=attach)
        thread.start()
        time.sleep(0.1)
        self.publish("later")
        thread.join(60)
        self.assertEqual(found, [5])

    def test_a_type_that_is_unknown(self):
        with self.assertRaises(KeyError):
            glake.publish("key", {"a": glake.Weight(0, "F7", (0,))})


class Models(Case):
    def check(self, model, tensors):
        self.assertEqual(set(model), set(tensors))
        self.assertEqual(len(model), len(tensors))
        for name, expected in tensors.items():
            tensor = model[name]
            self.assertEqual(tensor.shape, expected.shape, name)
            self.assertEqual(tensor.nbytes, expected.nbytes, name)
            got = tensor.numpy()
            self.assertEqual(got.dtype, expected.dtype, name)
            self.assertEqual(got.shape, expected.shape, name)
            self.assertEqual(got.tobytes(), expected.tobytes(), name)

    def test_every_type_comes_back_bit_by_bit(self):
        tensors = self.save()
        with glake.Model(self.path("model.safetensors")) as model:
            self.check(model, tensors)
            self.assertFalse(model.was_loaded)
            self.assertEqual(model.content_bytes, sum(t.nbytes for t in tensors.values()))
            self.assertIn("large", model)
            self.assertNotIn("small", model)
            with self.assertRaises(KeyError):
                model.tensor("small")
        with glake.Model(self.folder) as again:
            self.check(again, tensors)
        with self.assertRaises(ValueError):
            again["large"]

    def test_types_that_numpy_lacks(self):
        entries = {"bf16": ("BF16", (3, 5), os.urandom(30)), "e4": ("F8_E4M3", (7,), os.urandom(7)),
                   "e5": ("F8_E5M2", (7,), os.urandom(7)), "e8": ("F8_E8M0", (2, 2), os.urandom(4)),
                   "f4": ("F4", (2, 8), os.urandom(8))}
        raw_file(self.path("m.safetensors"), entries)
        try:
            import ml_dtypes
        except ImportError:
            ml_dtypes = None
        names = {"bf16": ("bfloat16", "uint16"), "e4": ("float8_e4m3fn", "uint8"),
                 "e5": ("float8_e5m2", "uint8"), "e8": ("float8_e8m0fnu", "uint8")}
        with glake.Model(self.path("m.safetensors")) as model:
            for name, (dtype, shape, content) in entries.items():
                tensor = model[name]
                self.assertEqual(tensor.dtype, dtype)
                self.assertEqual(tensor.shape, shape)
                self.assertEqual(tensor.tobytes(), content)
                self.assertEqual(tensor.numpy().tobytes(), content)
                if name in names:
                    kind, raw = names[name]
                    wanted = getattr(ml_dtypes, kind) if ml_dtypes else raw
                    self.assertEqual(tensor.numpy().dtype, numpy.dtype(wanted))
                    self.assertEqual(tensor.numpy().shape, shape)
            self.assertEqual(model["f4"].numpy().shape, (8,))

    def test_shards_and_folders(self):
        tensors = self.save("all.safetensors")
        names = sorted(tensors)
        shards = ["a.safetensors", "b.safetensors"]
        for i, shard in enumerate(shards):
            save_file({name: tensors[name] for name in names[i::2]}, self.path(shard))
        index = {"weight_map": {name: shards[i % 2] for i, name in enumerate(names)}}
        with open(self.path("model.safetensors.index.json"), "w") as file:
            json.dump(index, file)
        with glake.Model(self.folder) as model:
            self.check(model, tensors)
        with glake.Model([self.path(shard) for shard in shards]) as model:
            self.check(model, tensors)
        os.unlink(self.path("b.safetensors"))
        with self.assertRaises(glake.BadFileError) as caught:
            glake.Model(self.folder)
        for part in ("model.safetensors.index.json", names[1], "b.safetensors"):
            self.assertIn(part, str(caught.exception))

    def test_errors_are_what_python_expects(self):
        with self.assertRaises(FileNotFoundError):
            glake.Model(self.path("none"))
        with open(self.path("bad.safetensors"), "wb") as file:
            file.write(b"x" * 100)
        with self.assertRaises(glake.BadFileError) as caught:
            glake.Model(self.path("bad.safetensors"))
        self.assertEqual(caught.exception.code, -4010)
        self.assertIn("bad.safetensors", caught.exception.text)
        with self.assertRaises(ValueError) as caught:
            glake.Model(self.path("bad.safetensors"), device=7)
        for part in ("cuda:7", "are cuda:0 (CUDASIM), cuda:1 ("):
            self.assertIn(part, str(caught.exception))
        with self.assertRaises(ValueError):
            glake.Model(self.path("bad.safetensors"), device="cpu")
        with self.assertRaises(glake.GoneError):
            glake.connect(self.path("nobody"))

    def test_progress_and_its_exceptions(self):
        save_file({f"t{i}": make(i, "uint8", (2 << 20,)) for i in range(24)},
                  self.path("m.safetensors"))
        seen = []
        with glake.Model(self.path("m.safetensors"), name="named",
                         progress=lambda done, total: seen.append((done, total))) as model:
            self.assertEqual(model.name, "named")
        self.assertTrue(seen)
        self.assertEqual(seen, sorted(seen))
        glake.evict()

        def fail(_done, _total):
            raise ZeroDivisionError

        with self.assertRaises(ZeroDivisionError):
            glake.Model(self.path("m.safetensors"), progress=fail)

    def test_the_second_device(self):
        tensors = self.save()
        with glake.Model(self.path("model.safetensors"), device="cuda:1") as model:
            self.check(model, tensors)
            self.assertEqual(model["large"].__dlpack_device__(), (2, 1))

    def test_threads(self):
        tensors = self.save()
        failures = []

        def work():
            try:
                for _ in range(5):
                    with glake.Model(self.path("model.safetensors")) as model:
                        self.check(model, tensors)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        self.assertEqual(glake.default_session().usage()["shared_bytes"], 0)

    def test_the_daemon_dies_and_comes_back(self):
        tensors = self.save()
        model = glake.Model(self.path("model.safetensors"))
        self.stop_daemon(self.daemon)
        self.check(model, tensors)
        with self.assertRaises(glake.GoneError):
            glake.default_session().ping()
        with self.assertRaises(glake.GoneError):
            glake.Model(self.path("model.safetensors"))
        self.start_daemon()
        with glake.Model(self.path("model.safetensors")) as again:
            self.check(again, tensors)
        self.check(model, tensors)


class Numbers(Case):
    """What is no number of bytes, or one that nobody has."""

    def test_more_than_the_device_has_is_out_of_memory(self):
        session = glake.default_session()
        for n_bytes in (1 << 50, 1 << 60, (1 << 64) - (2 << 20)):
            with self.assertRaises(glake.OutOfMemoryError) as caught:
                session.alloc(n_bytes)
            with self.assertRaises(glake.OutOfMemoryError):
                session.alloc_many([2 << 20, n_bytes])
        self.assertIn("more on device 0, which has 8.0 GiB in all", str(caught.exception))
        self.assertEqual(session.usage()["live_bytes"], 0)

    def test_numbers_that_do_not_fit_are_not_made_others(self):
        session = glake.default_session()
        for call in (lambda: session.alloc(-1), lambda: session.alloc(1 << 64),
                     lambda: session.alloc_many([1, -1]),
                     lambda: glake.Model.attach("key", wait=-1),
                     lambda: glake.set_quota("default", 0, -1),
                     lambda: glake.set_quota("default", -1, 0),
                     lambda: glake.set_manifest_quota("default", -1),
                     lambda: glake.set_max_sessions("default", -1)):
            with self.assertRaises(ValueError) as caught:
                call()
            self.assertRegex(str(caught.exception), "is not from 0 to ")
        for n_bytes in ("5G", 5.5, None):
            with self.assertRaises(TypeError) as caught:
                session.alloc(n_bytes)
            self.assertRegex(str(caught.exception), "cannot be interpreted as an integer")
        with glake.connect(cuda=False) as looker, self.assertRaises(ValueError) as caught:
            looker.alloc(1)
        self.assertIn("cuda=False", str(caught.exception))
        for device in (-1, 99, 1 << 40):
            with self.assertRaises(ValueError):
                session.alloc(1, device)


class Elastic(Case):
    CHUNK = 2 << 20

    def test_steps_come_are_lent_and_go(self):
        from glake.elastic import HELD, HOLE, LENT
        session = glake.default_session()
        with glake.Elastic(self.CHUNK, steps=6, lanes=2, floor=1) as elastic:
            self.assertEqual(elastic.states(), [HELD] + [HOLE] * 5)
            elastic.commit(1, 3)
            elastic.lend(2, 2)
            self.assertEqual(elastic.states(), [HELD, HELD, LENT, LENT, HOLE, HOLE])
            self.assertEqual(elastic.give_back(3, 3), 1)
            self.assertEqual(elastic.take(1, 5), 2)
            self.assertEqual(elastic.states(), [HELD] * 3 + [HOLE] * 3)
            self.assertEqual(elastic.ptr(2, 1), elastic.base + 6 * self.CHUNK + 2 * self.CHUNK)
            stats = elastic.stats()
            self.assertEqual((stats["n_held"], stats["n_lent"], stats["step_bytes"]),
                             (3, 0, 2 * self.CHUNK))
            for call in (elastic.commit, elastic.lend, elastic.take, elastic.give_back):
                with self.assertRaises(ValueError):
                    call(0, -1)
            with self.assertRaises(OSError) as caught:
                elastic.lend(0, 1)
            self.assertIn("floor", str(caught.exception))
            with self.assertRaises(IndexError):
                elastic.ptr(6)
        with self.assertRaises(ValueError):
            elastic.states()
        self.assertEqual(session.usage()["reserved_bytes"], 0)

    def test_a_prefix_is_read_in_a_second_place(self):
        from glake.elastic import HELD, HOLE, READ, SHOWN
        session = glake.default_session()
        memory = Memory(session)
        with glake.Elastic(self.CHUNK, steps=4, lanes=2, floor=3) as elastic, \
                glake.Elastic(self.CHUNK, steps=4, lanes=2) as view:
            for step in range(3):
                memory.write(elastic.ptr(step, 1), b"step %d" % step)
            view.show(1, elastic, [2, 0])
            self.assertEqual(elastic.states(), [SHOWN, HELD, SHOWN, HOLE])
            self.assertEqual(view.states(), [HOLE, READ, READ, HOLE])
            self.assertEqual(view.stats()["n_read"], 2)
            self.assertEqual(session.usage()["reserved_bytes"], 6 * self.CHUNK)
            for place, text in ((1, b"step 2"), (2, b"step 0")):
                self.assertEqual(self.read(session, view.ptr(place, 1), 6), text)
            for call in (lambda: elastic.unseal(2), elastic.close):
                with self.assertRaises(OSError) as caught:
                    call()
                self.assertEqual(caught.exception.errno, errno.EBUSY)
            with self.assertRaises(ValueError):
                view.show(0, elastic, [-1])
            view.hide(0, 4)
            self.assertEqual(elastic.states(), [HELD] * 3 + [HOLE])

    def test_a_sealed_step_outlives_its_process(self):
        program = f"""
            import glake, os, signal, sys
            sys.path.insert(0, sys.argv[1])
            from test_python import Memory
            session = glake.default_session()
            memory = Memory(session)
            elastic = glake.Elastic({self.CHUNK}, steps=2, lanes=2, key=b"layout\\0of mine")
            elastic.commit(0, 2)
            for step in range(2):
                for lane in range(2):
                    memory.write(elastic.ptr(step, lane), b"%d %d" % (step, lane))
                elastic.seal(step, b"hashes\\0%d" % step)
            elastic.unseal(0)
            os.kill(os.getpid(), signal.SIGKILL)
        """
        result = subprocess.run([sys.executable, "-c", textwrap.dedent(program),
                                 os.path.dirname(os.path.abspath(__file__))],
                                stderr=subprocess.PIPE, text=True)
        self.assertEqual((result.returncode, result.stderr), (-signal.SIGKILL, ""))
        session = glake.default_session()
        with glake.Elastic(self.CHUNK, steps=2, lanes=2, key=b"layout") as other:
            self.assertIsNone(other.adopt(0))
        with glake.Elastic(self.CHUNK, steps=2, lanes=2, key=b"layout\0of mine") as elastic:
            record, end = None, time.monotonic() + PATIENCE_S
            while record is None and time.monotonic() < end:
                record = elastic.adopt(1)
            self.assertEqual(record, b"hashes\0001")
            self.assertIsNone(elastic.adopt(0))
            self.assertEqual(elastic.n_living, 1)    # its own
            for lane in range(2):
                self.assertEqual(self.read(session, elastic.ptr(1, lane), 3), b"1 %d" % lane)
            elastic.unseal(0, 2)
            self.assertIsNone(elastic.adopt(0))
            self.assertEqual(elastic.n_living, 0)
            with self.assertRaises(OSError) as caught:
                elastic.seal(0)
            self.assertIn("is not held", str(caught.exception))

    def test_another_session_reads_what_is_shared(self):
        from glake.elastic import READ
        mine, other = glake.default_session(), glake.connect()
        memory = Memory(mine)
        with glake.Elastic(self.CHUNK, steps=2, lanes=2, floor=2, key=b"layout", shared=True) as elastic, \
                glake.Elastic(self.CHUNK, steps=2, lanes=2, key=b"layout", session=other) as reader:
            for step in range(2):
                memory.write(elastic.ptr(step, 1), b"step %d" % step)
                elastic.seal(step, b"hash%d" % step)
            self.assertIsNone(reader.read(0, b"hash2"))
            self.assertEqual(reader.read(0, b"hash0"), b"hash0")
            self.assertEqual(reader.read(1), b"hash1")
            self.assertEqual(reader.states(), [READ, READ])
            self.assertEqual(other.usage()["reserved_bytes"], 0)
            for step in range(2):
                self.assertEqual(self.read(other, reader.ptr(step, 1), 6), b"step %d" % step)
            with self.assertRaises(glake.Error) as caught:
                elastic.unseal(0)
            self.assertIn("reads chunk", str(caught.exception))
            reader.hide(0)
            elastic.unseal(0)
        other.close()

    def test_a_guard_costs_a_chunk(self):
        session = glake.default_session()
        with glake.Elastic(self.CHUNK, steps=3, lanes=2, guard=True) as elastic:
            self.assertEqual(session.usage()["reserved_bytes"], self.CHUNK)
            elastic.commit(0, 2)
            self.assertEqual(session.usage()["reserved_bytes"], 5 * self.CHUNK)
        self.assertEqual(session.usage()["reserved_bytes"], 0)

    def test_steps_come_ahead(self):
        from glake.elastic import HOLE, LENT
        with glake.Elastic(self.CHUNK, steps=3, lanes=2) as elastic:
            elastic.ahead(0, 2)
            end = time.monotonic() + PATIENCE_S
            while elastic.states() != [LENT, LENT, HOLE] and time.monotonic() < end:
                time.sleep(0.01)
            self.assertEqual(elastic.states(), [LENT, LENT, HOLE])
            self.assertEqual(elastic.take(0, 3), 2)
            self.assertEqual(elastic.stats()["n_ahead"], 2)

    def test_what_is_lent_is_still_to_be_had(self):
        session = glake.default_session()
        before = session.device_view()
        with glake.Elastic(self.CHUNK, steps=4) as elastic:
            elastic.commit(0, 4)
            self.assertEqual(session.device_view()["warm_bytes"], before["warm_bytes"])
            elastic.lend(0, 3)
            view = session.device_view()
            self.assertEqual(view["warm_bytes"] - before["warm_bytes"], 3 * self.CHUNK)
            self.assertEqual(view["used_bytes"] - before["used_bytes"], 4 * self.CHUNK)
        with self.assertRaises(ValueError):
            session.device_view(7)

    def test_the_session_ends_it(self):
        session = glake.connect()
        elastic = glake.Elastic(self.CHUNK, steps=2, floor=2, session=session)
        session.close()
        with self.assertRaises(ValueError):
            elastic.take(0, 1)
        elastic.close()


class OldPyTorch(unittest.TestCase):
    def imports(self, version, module):
        program = f"""
            import sys, types
            torch = types.ModuleType("torch")
            torch.__version__, torch.__file__ = {version!r}, "/usr/lib/torch/__init__.py"
            sys.modules["torch"] = torch
            try:
                import {module}
            except ImportError as error:
                print(error)
        """
        return subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True,
                              text=True, timeout=PATIENCE_S).stdout

    def test_it_is_refused_with_the_lowest_that_is_not(self):
        for version in ("1.13.1", "2.0.1+cu118", "2.1.2"):
            for module in ("glake.torch", "glake.transformers"):
                self.assertEqual(self.imports(version, module), "glake.torch needs PyTorch 2.2 or newer, "
                                 f"and this is {version} (/usr/lib/torch/__init__.py)\n")
        for version in ("2.2.0", "2.11.0a0+git1234", "10.0", "mine"):
            self.assertEqual(self.imports(version, "glake._torch_version"), "")


class Docstrings(unittest.TestCase):
    """By their source: PyTorch may not be here."""

    PACKAGE = os.path.dirname(glake.__file__)

    def tree(self, name):
        with open(os.path.join(self.PACKAGE, name), encoding="utf-8") as file:
            return ast.parse(file.read())

    def exported(self):
        """Names of modules that begin with _, by the modules that offer them."""
        return {name for module in ("__init__.py", "torch.py") for node in self.tree(module).body
                if isinstance(node, ast.Assign) and node.targets[0].id == "__all__"
                for name in ast.literal_eval(node.value)}

    def public(self, body, is_public):
        functions = (ast.FunctionDef, ast.ClassDef)
        return [node for node in body if isinstance(node, functions) and is_public(node.name)]

    def test_everything_public_has_one(self):
        exported, n_seen = self.exported(), 0
        for name in sorted(os.listdir(self.PACKAGE)):
            if not name.endswith(".py") or name == "_lib.py":
                continue
            of_module = (lambda name: name in exported) if name.startswith("_") else \
                (lambda name: not name.startswith("_"))
            for node in self.public(self.tree(name).body, of_module):
                members = self.public(getattr(node, "body", []), lambda name: name[0] != "_") \
                    if isinstance(node, ast.ClassDef) else []
                for each in (node, *members):
                    n_seen += 1
                    self.assertTrue(ast.get_docstring(each), f"{name}: {node.name}: {each.name}")
        self.assertGreater(n_seen, 80)


class Export(Case):
    def managed(self, tensor):
        get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
            ("PyCapsule_GetPointer", ctypes.pythonapi))
        capsule = tensor.__dlpack__()
        return capsule, DLManagedTensor.from_address(get(capsule, b"dltensor"))

    def test_capsules_say_what_is_there(self):
        entries = {"bf16": ("BF16", (3, 5), os.urandom(30)), "e4": ("F8_E4M3", (7, 2), os.urandom(14)),
                   "f4": ("F4", (2, 8), os.urandom(8)), "b": ("BOOL", (2,), b"\0\1"),
                   "s": ("I64", (), os.urandom(8)), "c": ("C64", (1,), os.urandom(8)),
                   "none": ("F32", (0, 3), b"")}
        raw_file(self.path("m.safetensors"), entries)
        expected = {"bf16": (4, 16, (3, 5)), "e4": (1, 8, (7, 2)), "f4": (1, 8, (8,)),
                    "b": (6, 8, (2,)), "s": (0, 64, ()), "c": (5, 64, (1,)), "none": (2, 32, (0, 3))}
        with glake.Model(self.path("m.safetensors")) as model:
            for name, (code, bits, shape) in expected.items():
                capsule, managed = self.managed(model[name])
                self.assertEqual(managed.data or 0, model[name].ptr)
                self.assertEqual((managed.device_type, managed.device_id), (2, 0))
                self.assertEqual((managed.type_code, managed.type_bits, managed.type_lanes),
                                 (code, bits, 1))
                self.assertEqual(tuple(managed.shape[:managed.n_dims]), shape)
                self.assertFalse(managed.strides)
                self.assertEqual(managed.byte_offset, 0)
                del capsule
            with self.assertRaises(BufferError):
                model["s"].__dlpack__(copy=True)

    def test_an_unused_capsule_lets_go(self):
        self.save()
        model = glake.Model(self.path("model.safetensors"))
        capsule, _ = self.managed(model["large"])
        mapped = model.mapped_bytes
        usage = glake.default_session().usage
        model.close()
        self.assertEqual(usage()["shared_bytes"], mapped)
        del capsule, _
        self.assertEqual(usage()["shared_bytes"], 0)
        self.assertEqual(glake.sessions(glake.default_session())[0]["n_models"], 0)

    def test_a_capsule_dropped_by_an_exception_is_quiet(self):
        self.save()
        program = f"""
            import glake
            def use():
                capsule = glake.Model({self.path("model.safetensors")!r})["large"].__dlpack__()
                raise KeyError("mine")
            for _ in range(3):
                try:
                    use()
                except KeyError as error:
                    pass
            print(glake.default_session().usage()["shared_bytes"])
        """
        self.assertEqual(self.run_python(program), "0\n")

    def test_a_consumer_that_refuses_lets_go(self):
        self.save()
        program = f"""
            import glake, numpy
            model = glake.Model({self.path("model.safetensors")!r})
            for _ in range(100):
                try:
                    numpy.from_dlpack(model["large"])
                except (BufferError, RuntimeError) as error:
                    text = str(error)
            assert "evice" in text, text
            model.close()
            print(glake.default_session().usage()["shared_bytes"])
        """
        self.assertEqual(self.run_python(program), "0\n")

    def test_a_deleter_in_python_runs_beside_an_exception(self):
        program = """
            import ctypes, numpy
            from glake.tensor import DELETER, KDL_CUDA, DLManagedTensor, new_capsule
            dropped = []
            drop = DELETER(dropped.append)
            managed = DLManagedTensor(device_type=KDL_CUDA, deleter=drop)
            class Home:
                def __dlpack__(self, **options):
                    return new_capsule(ctypes.addressof(managed))
                def __dlpack_device__(self):
                    return KDL_CUDA, 0
            try:
                numpy.from_dlpack(Home())
            except (BufferError, RuntimeError) as error:
                print(dropped == [ctypes.addressof(managed)])
        """
        self.assertEqual(self.run_python(program), "True\n")

    def run_python(self, program):
        result = subprocess.run([sys.executable, "-c", textwrap.dedent(program)],
                                capture_output=True, text=True, timeout=PATIENCE_S)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return result.stdout

    def test_the_mapping_lives_as_long_as_a_tensor_of_it(self):
        tensors = self.save()
        session = glake.connect()
        model = glake.Model(self.path("model.safetensors"), session=session)
        address = model.export(list(model).index("large"))
        managed = DLManagedTensor.from_address(address)
        expected = tensors["large"].tobytes()
        model.close()
        session.close()
        del model, session
        gc.collect()
        # Through another session: it is the same address space.
        other = glake.default_session()
        self.assertEqual(self.read(other, managed.data, len(expected)), expected)
        device_address = managed.data
        # Dropped by a thread that Python does not know, as a library might.
        thread = threading.Thread(target=delete_managed, args=(address,))
        thread.start()
        thread.join()
        with self.assertRaises(glake.DriverError):
            self.read(other, device_address, 1)

    def test_the_end_of_the_interpreter_is_quiet(self):
        self.save()
        program = f"""
            import glake, threading
            model = glake.Model({self.path("model.safetensors")!r})
            kept = [model[name].__dlpack__() for name in model]
            leaked = [model.export(0) for _ in range(3)]
            import ctypes, atexit
            cycle = [kept]; cycle.append(cycle)
            print("end")
        """
        self.assertEqual(self.run_python(program), "end\n")

    def test_array_interface(self):
        tensors = self.save()
        with glake.Model(self.path("model.safetensors")) as model:
            interface = model["large"].__cuda_array_interface__
            self.assertEqual(interface["shape"], tensors["large"].shape)
            self.assertEqual(interface["typestr"], tensors["large"].dtype.str)
            self.assertEqual(interface["data"], (model["large"].ptr, True))
            self.assertEqual(interface["version"], 3)


# What _torch_alloc.py uses of PyTorch, which does not run on the simulator. A program that has its GPU
# memory from the daemon says so, and lives until its stdin ends.
PYTORCH = """
import ctypes, sys, types

class Allocator:
    def __init__(self, alloc, free):
        self.alloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int,
                                      ctypes.c_void_p)(alloc)
        self.free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int,
                                     ctypes.c_void_p)(free)
    def set_record_stream_fn(self, address):
        self.record_stream = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(address)
    def set_reset_fn(self, address):
        self.reset = ctypes.CFUNCTYPE(None)(address)

class CUDAPluggableAllocator:
    def __init__(self, path, alloc, free):
        library = ctypes.CDLL(path)
        self._allocator = Allocator(*(ctypes.cast(getattr(library, name), ctypes.c_void_p).value
                                      for name in (alloc, free)))
    def allocator(self):
        return self._allocator

class Native:
    is_used = False
    def allocator(self):
        return self

class MemPool:
    def __init__(self, allocator, use_on_oom=False):
        self.allocator, self.use_on_oom = allocator, use_on_oom

current = Native()
def change(allocator):
    global current
    if not isinstance(current, Native) or current.is_used:
        raise RuntimeError("Can't swap an already initialized allocator")
    current = types.SimpleNamespace(allocator=lambda: allocator)

torch = types.ModuleType("torch")
torch.__file__ = "/nowhere/torch/__init__.py"
torch._C = types.SimpleNamespace(_cuda_changeCurrentAllocator=change)
torch.cuda = types.SimpleNamespace(
    memory=types.SimpleNamespace(CUDAPluggableAllocator=CUDAPluggableAllocator,
                                 _get_current_allocator=lambda: current),
    MemPool=MemPool, current_device=lambda: 0)
sys.modules["torch"] = torch
from glake import _torch_alloc as door
MIB = 1 << 20
"""


class PyTorch(Case):
    """The entry points as PyTorch sets them up."""

    CONFIG = "pool = (); tenants = ({ name = \"default\"; device_bytes = \"256MiB\"; });"

    def start(self, program):
        script = PYTORCH + textwrap.dedent(program) + "\nprint('ready', flush=True)\nsys.stdin.read()"
        child = started(self, [sys.executable, "-c", script], stderr=subprocess.PIPE)
        if child.stdout.readline() != "ready\n":
            self.fail(child.stderr.read())
        return child

    def test_all_memory_is_the_daemons(self):
        child = self.start("""
            door.use_allocator()
            door.use_allocator()
            allocator = current.allocator()
            assert set(door.memory_stats(0).values()) == {0}
            ptr = allocator.alloc(4 * MIB, 0, None)
            session = door._Door()
            assert session.usage()["live_bytes"] == 4 * MIB
            allocator.record_stream(ptr, None)
            allocator.free(ptr, 4 * MIB, 0, None)
            allocator.reset()
            assert session.usage()["live_bytes"] == 0
            assert allocator.alloc(1 << 40, 0, None) is None
            door.reset_peak_memory_stats("cuda")
            assert "n_stitches" in door.memory_stats()

            held = allocator.alloc(6 * MIB, 0, None)
            allocator.free(allocator.alloc(20 * MIB, 0, None), 20 * MIB, 0, None)
            stats = torch._C._cuda_memoryStats(0)
            allocated = stats["allocated_bytes"]["all"]
            reserved = stats["reserved_bytes"]["all"]
            assert (allocated["current"], allocated["peak"]) == (6 * MIB, 26 * MIB), allocated
            assert 26 * MIB <= reserved["peak"] <= 40 * MIB, reserved
            torch._C._cuda_resetPeakMemoryStats(0)
            torch._C._cuda_resetAccumulatedMemoryStats(0)
            assert torch._C._cuda_memoryStats(0)["allocated_bytes"]["all"]["peak"] == 6 * MIB
            """)
        self.assertIn("does not know this PyTorch", child.communicate()[1])
        self.assertEqual(child.returncode, 0)

    def test_pools_have_their_options(self):
        self.start("""
            pool = door.mem_pool(use_on_oom=True)
            assert pool.use_on_oom and isinstance(current, Native)
            assert pool.allocator.alloc(4 * MIB, 0, None)
            assert door.mem_pool().allocator is pool.allocator
            """)

    def test_it_says_when_it_is_too_late_or_in_vain(self):
        self.start("""
            current.is_used = True
            try:
                door.use_allocator()
                raise SystemExit("no error")
            except RuntimeError as error:
                assert "before anything else uses torch.cuda" in str(error), error
            """)
        self.stop_daemon(self.daemon)
        self.start("""
            import glake
            try:
                door.use_allocator()
                raise SystemExit("no error")
            except glake.GoneError:
                assert isinstance(current, Native)
            """)

    def test_others_get_what_it_keeps_warm(self):
        """Though the program does nothing."""
        self.start("""
            pool = door.mem_pool()
            ptr = pool.allocator.alloc(200 * MIB, 0, None)
            pool.allocator.free(ptr, 200 * MIB, 0, None)
            cuda = ctypes.CDLL(__import__("os").environ["GLAKE_LIBCUDA"])
            context = ctypes.c_void_p()
            assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
            assert cuda.cuCtxSetCurrent(context) == 0 and cuda.cuCtxSynchronize() == 0
            """)
        with glake.connect() as session:
            session.alloc(200 * MIB)


class Seals(Case):
    """Memory that reads zero is equal memory."""

    def counts(self):
        device = glake.status()["devices"][0]
        return device["private_bytes"] + device["block_bytes"]

    def test_pool_stats_are_all_there(self):
        with glake.connect(stitch=True) as session:
            stats = session.pool_stats()
            self.assertEqual(stats["peak_live_bytes"], 0)
            self.assertEqual(stats["kept_bytes"], 0)
            session.reset_pool_peaks("cuda:0")
            self.assertEqual(session.pool_snapshot(), [])

    def test_equal_memory_becomes_one_copy(self):
        one, two = glake.connect(), glake.connect()
        before = self.counts()
        first = one.alloc(6 * MIB, zero=True)
        second = two.alloc(6 * MIB, "cuda:0", zero=True)
        self.assertEqual(self.counts() - before, 12 * MIB)
        self.assertEqual(glake.seal([(first, 6 * MIB)]), glake.Sealed(6 * MIB))
        self.assertEqual(glake.seal([(second, 6 * MIB)], idle=True),
                         glake.Sealed(6 * MIB, 6 * MIB))
        self.assertEqual(two.usage()["shared_bytes"], 6 * MIB)
        self.assertEqual(self.counts() - before, 6 * MIB)
        glake.unseal(second, 1)
        self.assertEqual((two.usage()["shared_bytes"], one.usage()["shared_bytes"]), (0, 6 * MIB))
        self.assertEqual(self.read(two, second, 6 * MIB), bytes(6 * MIB))
        one.free(first)
        two.free(second)
        self.assertEqual(one.usage()["shared_bytes"], 0)

    def test_a_program_is_sealed_from_outside(self):
        program = started(self, [os.path.join(BUILD, "bin", "glake"), "run", "--",
                                 os.path.join(BUILD, "tests", "shim", "outside"), "serve"])
        program.stdout.readline()
        (row,) = (row for row in glake.sessions() if row["pid"] == program.pid)
        self.assertEqual(glake.seal_session(row["session"], dry_run=True)["sealed_bytes"], 2 * MIB)
        report = glake.seal_session(row["session"])
        self.assertEqual((report["sealed_bytes"], report["shared_bytes"]), (2 * MIB, 0))
        self.assertEqual(report["failed_why"], "")
        with glake.connect() as session, self.assertRaisesRegex(glake.Error, "glake run"):
            glake.seal_session(session.info()["session"], session=session)
        program.communicate("\n", timeout=PATIENCE_S)
        self.assertEqual(program.returncode, 0)

    def test_spans_in_any_order(self):
        with glake.connect() as session:
            ptr = session.alloc(10 * MIB, zero=True)
            small, other = session.alloc_many([4096, 2 * MIB])
            session.free(other)
            sealed = glake.seal((ptr + at * MIB, n * MIB) for at, n in ((5, 4), (1, 4)))
            # What they fill together is [2, 8) MiB.
            self.assertEqual((sealed.sealed_bytes, sealed.edge_bytes), (6 * MIB, 2 * MIB))
            self.assertEqual(sealed.pinned_why, None)
            self.assertEqual(sealed.private, {})
            (row,) = (row for row in glake.admin.sessions(session) if row["sealed_bytes"])
            # All of it is zero: one block, at several places.
            self.assertEqual((row["sealed_bytes"], row["sealed_common_bytes"]), (6 * MIB, 6 * MIB))
            self.assertEqual(row["part_bytes"], 2 * MIB)
            self.assertEqual([why["bytes"] for why in row["unsealed"]], [4 * MIB])
            self.assertIn("page", row["unsealed"][0]["why"])
            self.assertEqual((row["n_seals"], row["held_ns"]), (1, 0))
            self.assertEqual(glake.seal([(small, 4096)]).edge_bytes, 4096)
            self.assertEqual(glake.seal([]), glake.Sealed())

    def test_memory_that_must_stay_is_pinned(self):
        with glake.connect() as session:
            ptr = session.alloc(2 * MIB, zero=True)
            name = (ctypes.c_uint64 * 6)()
            _lib.check(_lib.library().glake_share(session.handle, ctypes.c_uint64(ptr), name))
            sealed = glake.seal([(ptr, 2 * MIB)])
            self.assertEqual((sealed.sealed_bytes, sealed.pinned_bytes), (0, 2 * MIB))
            self.assertTrue(sealed.pinned_why)

    def test_errors(self):
        with glake.connect() as session:
            ptr = session.alloc(4 * MIB, zero=True)
            for span in ((ptr, 4 * MIB + 1), (ptr, 0), (4096, 4096), (ptr - 1, 2)):
                with self.assertRaises(OSError) as caught:
                    glake.seal([(ptr, 4 * MIB), span])
                self.assertEqual(caught.exception.errno, errno.EINVAL)
                self.assertEqual(caught.exception.sealed, glake.Sealed())
                with self.assertRaises(OSError) as caught:
                    glake.unseal(*span)
                self.assertEqual(caught.exception.errno, errno.EINVAL)
            with self.assertRaises(OSError):
                session.free(ptr + MIB)
            with self.assertRaises(ValueError):
                session.alloc(MIB, 7)

    def test_dedup_off_wins(self):
        os.environ["GLAKE_DEDUP"] = "off"
        self.addCleanup(os.environ.pop, "GLAKE_DEDUP")
        with glake.connect() as session:
            ptr = session.alloc(2 * MIB, zero=True)
            for spans in ([(ptr, 2 * MIB)], []):
                with self.assertRaises(PermissionError):
                    glake.seal(spans)
            self.assertEqual(session.usage()["shared_bytes"], 0)
            glake.unseal(ptr, 2 * MIB)

    def test_without_a_daemon_it_stays_private(self):
        session = glake.connect()
        ptr = session.alloc(2 * MIB, zero=True)
        self.stop_daemon(self.daemon)
        with self.assertRaises(glake.GoneError) as caught:
            glake.seal([(ptr, 2 * MIB)])
        self.assertEqual(caught.exception.sealed.sealed_bytes, 0)
        self.assertEqual(self.read(session, ptr, 2 * MIB), bytes(2 * MIB))

    def test_the_copy_that_the_process_has_is_the_one(self):
        """Two copies would know nothing of each other's memory."""
        program = """
            import ctypes, os, glake
            from glake import _lib
            mine = ctypes.CDLL(os.environ["LD_PRELOAD"])
            theirs = _lib.library()
            address = lambda lib: ctypes.cast(lib.glake_seal, ctypes.c_void_p).value
            assert address(mine) == address(theirs)
            with glake.connect() as session:
                print(glake.seal([(session.alloc(2 << 20, zero=True), 2 << 20)]).sealed_bytes)
        """
        # Whichever else is named is not looked at.
        result = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True,
            timeout=PATIENCE_S, env={**os.environ, "GLAKE_CLIENT_LIB": "/nowhere",
                             "LD_PRELOAD": os.path.abspath(os.path.join(
                                 BUILD, "lib", _lib.SONAME))})
        self.assertEqual((result.stdout, result.stderr), (f"{2 * MIB}\n", ""))


class SealsUnderTheShim(Case):
    def test_memory_of_the_program_itself(self):
        program = FILLED + textwrap.dedent("""
            sealed = glake.seal([(ptr.value, n_bytes.value)])
            glake.unseal(ptr.value, 1)
            call("cuMemsetD8_v2", ptr, ctypes.c_ubyte(8), n_bytes)
            print(sealed.sealed_bytes, sealed.shared_bytes)
        """)
        for expected in (0, 4 * MIB):
            result = subprocess.run(
                [os.path.join(BUILD, "bin", "glake"), "run", "--", sys.executable, "-c",
                 program], capture_output=True, text=True, timeout=PATIENCE_S)
            self.assertEqual((result.stdout, result.stderr), (f"{4 * MIB} {expected}\n", ""))


class SealsByItself(Case):
    """tests/shim/auto.c, which nobody asks to seal."""

    def setUp(self):
        super().setUp()
        self.tables = self.path("readers.d")
        os.mkdir(self.tables, 0o755)
        writer = self.start("table", self.table("test"), GLAKE_SHIM="off")
        self.assertEqual((*writer.communicate("", 60), writer.returncode), ("", "", 0))
        os.chmod(self.table("test"), 0o644)

    def table(self, name):
        return os.path.join(self.tables, name + ".readers")

    def start(self, *scenario, **environment):
        return started(self, [os.path.join(BUILD, "bin", "glake"), "run", "--dedup=auto", "--",
                              os.path.join(BUILD, "tests", "shim", "auto"), *scenario], stderr=subprocess.PIPE,
                       env={**os.environ, "GLAKE_READERS": self.tables, "GLAKE_DEDUP_QUIET_MS": "300", **environment})

    def test_candidates(self):
        program = self.start("shown")
        self.assertEqual(program.stdout.readline(), "sealed\n")
        (number,) = (row["session"] for row in glake.sessions() if row["pid"] == program.pid and row["shared_bytes"])
        (row,) = glake.candidates(number)
        self.assertEqual((row["session"], row["bytes"], row["filled_bytes"], row["state"], row["refused_why"],
                          row["n_unsealed"]), (number, 4 * MIB, 4 * MIB, "sealed", "", 0))
        self.assertGreater(row["address"], 0)
        self.assertEqual(tell(program, ""), "written\n")
        self.until(lambda: glake.candidates(number)[0]["state"] == "refused")
        self.assertIn("is in no table", glake.candidates(number)[0]["refused_why"])
        self.assertEqual(program.communicate("\n", 60), ("", ""))
        with self.assertRaises(glake.NotFoundError):
            glake.candidates(number)

    def test_mistakes(self):
        self.assertEqual(glake.mistakes(), [])
        with open(self.table("test")) as file:
            text = file.read()
        # It says of a kernel that writes that it only reads.
        with open(self.table("a-wrong"), "w") as file:
            file.write(text.replace("function write\n", "function write\n  reads 0\n"))
        program = self.start("faults")
        _, said = program.communicate("", 60)
        self.assertEqual(program.returncode, 0, said)
        self.assertIn("not sealed by itself again", said)
        (row,) = glake.mistakes()
        self.assertEqual((row["program"], row["uid"], row["n_faults"]), ("auto", os.getuid(), 1))
        self.assertIn("write at 0x", row["kernels"])
        with self.assertRaises(glake.NotFoundError):
            glake.forgive(row["id"] + 1)
        glake.forgive(row["id"])
        self.assertEqual(glake.mistakes(), [])
        glake.forgive()
        for number in (-1, 1 << 64):
            with self.assertRaises(ValueError):
                glake.forgive(number)


# What _torch_sleep.py uses of PyTorch.
SLEEPY_PYTORCH = """
import sys, types
done = []
torch = types.ModuleType("torch")
torch.__file__ = "/nowhere/torch/__init__.py"
torch.cuda = types.SimpleNamespace(
    is_initialized=lambda: True, device_count=lambda: 1,
    synchronize=lambda ordinal: done.append("synchronize"),
    empty_cache=lambda: done.append("empty_cache"))
sys.modules["torch"] = torch
from glake import _torch_sleep
"""


class Sleep(Case):
    CONFIG = 'wake_wait_ms = 200; warm_bytes = "2MiB";'

    def test_a_session_sleeps_and_wakes(self):
        session = glake.default_session()
        memory = Memory(session)
        content = make(1, "int16", (MIB,))
        ptr, = memory.holding(content)
        self.assertFalse(session.is_asleep())
        slept = session.sleep()
        self.assertEqual((slept["private_bytes"], slept["stays"]), (2 * MIB, []))
        self.assertTrue(session.is_asleep())
        row, = glake.sleepers()
        self.assertEqual((row["session"], row["pid"], row["state"], row["why"], row["private_bytes"]),
                         (session.info()["session"], os.getpid(), "asleep", "itself", 2 * MIB))
        self.assertEqual(glake.status()["devices"][0]["private_bytes"], 0)
        self.assertEqual(session.wake()["private_bytes"], 2 * MIB)
        self.assertFalse(session.is_asleep())
        self.assertEqual(glake.sleepers(), [])
        self.assertEqual(memory.read(ptr, content.nbytes), content.tobytes())

    def test_a_session_that_allows_it_is_asked(self):
        ends = threading.Event()
        with glake.connect(sleep_when_asked=True) as session:
            session.alloc(2 * MIB)
            number = session.info()["session"]

            def idle():
                while not ends.is_set():
                    select.select([session], [], [], 0.02)
                    session.dispatch()

            thread = threading.Thread(target=idle)
            thread.start()
            try:
                self.assertEqual(glake.sleep_session(number)["private_bytes"], 2 * MIB)
                self.assertTrue(session.is_asleep())
                self.assertEqual(glake.status()["devices"][0]["private_bytes"], 0)
                glake.sleep_session(number, wakes=True)
                self.assertFalse(session.is_asleep())
            finally:
                ends.set()
                thread.join()

    def test_only_programs_under_the_shim_are_asked(self):
        session = glake.default_session()
        with self.assertRaises(glake.Error) as caught:
            glake.sleep_session(session.info()["session"])
        self.assertEqual(caught.exception.code, -4003)
        with self.assertRaises(glake.NotFoundError):
            glake.sleep_session(1)

    def test_sealed_memory_sleeps_too_and_what_is_shared_stays(self):
        with glake.connect() as session:
            sealed = session.alloc(4 * MIB, zero=True)
            glake.seal([(sealed, 4 * MIB)])
            shared = session.alloc(2 * MIB)
            name = (ctypes.c_uint64 * 6)()
            _lib.check(_lib.library().glake_share(session.handle, ctypes.c_uint64(shared), name))
            slept = session.sleep()
            self.assertEqual((slept["private_bytes"], slept["shared_bytes"]), (0, 4 * MIB))
            (stay,) = slept["stays"]
            self.assertIn("other processes", stay["why"])
            self.assertEqual(stay["bytes"], 2 * MIB)
            self.assertEqual(session.sleep(timeout_ms=0)["shared_bytes"], 4 * MIB)
            self.assertEqual(session.wake()["shared_bytes"], 4 * MIB)
            self.assertEqual(session.wake()["shared_bytes"], 0)
            self.assertEqual(self.read(session, sealed, 4 * MIB), bytes(4 * MIB))

    def test_models_and_their_tensors_sleep_too(self):
        tensors = {"a": make(3, "float32", (3, MIB)), "b": make(4, "int16", (1000,))}
        path = self.path("sleepy.safetensors")
        save_file(tensors, path)
        with glake.connect() as session:
            model = glake.Model(path, session=session)
            tensor = model["a"]
            n_bytes = model.mapped_bytes
            self.assertEqual(session.sleep()["shared_bytes"], n_bytes)
            self.assertEqual(glake.sleepers()[0]["models"], [model.name])
            glake.evict(session=session)
            self.assertEqual(glake.status()["devices"][0]["block_bytes"], 0)
            self.assertEqual(session.wake()["shared_bytes"], n_bytes)
            self.assertEqual(tensor.numpy().tobytes(), tensors["a"].tobytes())
            self.assertEqual(model["b"].numpy().tobytes(), tensors["b"].tobytes())
            session.sleep()
            # Nobody waits for the wake.
            model.close()
            session.wake()
            self.assertEqual(session.usage()["shared_bytes"], 0)

    def test_it_waits_for_room_and_can_be_asked_again(self):
        with glake.connect() as session, glake.connect() as other:
            ptr = session.alloc(64 * MIB, zero=True)
            session.sleep()
            taken = []

            def take():
                """What sleeps, or was of the test before, may still be on its way out."""
                try:
                    taken.append(other.alloc(8 * (1 << 30) - 32 * MIB))
                except glake.OutOfMemoryError:
                    pass
                return taken

            self.until(take)
            for _ in range(2):
                with self.assertRaises(glake.OutOfMemoryError):
                    session.wake()
                self.assertTrue(session.is_asleep())
            other.free(taken[0])
            session.wake()
            self.assertEqual(self.read(session, ptr, MIB), bytes(MIB))

    def test_wrong_numbers_and_closed_sessions(self):
        session = glake.connect()
        for timeout_ms in (-1, 1 << 32):
            with self.assertRaises(ValueError):
                session.sleep(timeout_ms)
        self.assertFalse(session.is_asleep())
        session.sleep()
        session.close()
        for call in (session.sleep, session.wake, session.is_asleep):
            with self.assertRaises(ValueError):
                call()

    def test_without_a_daemon_it_stays_awake(self):
        session = glake.connect()
        ptr = session.alloc(2 * MIB, zero=True)
        self.stop_daemon(self.daemon)
        with self.assertRaises(glake.GoneError):
            session.sleep()
        self.assertFalse(session.is_asleep())
        self.assertEqual(self.read(session, ptr, 2 * MIB), bytes(2 * MIB))

    def run_torch(self, program, *command):
        result = subprocess.run([*command, sys.executable, "-c", SLEEPY_PYTORCH + textwrap.dedent(program)],
                                capture_output=True, text=True, timeout=PATIENCE_S)
        self.assertEqual((result.stdout, result.stderr), ("well\n", ""))

    def test_pytorch_without_the_shim(self):
        self.run_torch("""
            import glake
            glake.default_session().alloc(4 << 20)
            assert _torch_sleep.sleep()["private_bytes"] == 4 << 20
            assert done == ["synchronize", "empty_cache"]
            assert glake.default_session().is_asleep()
            assert _torch_sleep.wake()["private_bytes"] == 4 << 20
            assert not glake.default_session().is_asleep()
            print("well")
        """)

    def test_what_dies_meanwhile_is_freed_by_the_wake(self):
        """Its end would wait for the wake, on the thread that wakes."""
        self.run_torch("""
            import glake
            for name in ("utils", "utils.dlpack"):
                sys.modules["torch." + name] = types.ModuleType("torch." + name)
            torch.utils, torch.Tensor = sys.modules["torch.utils"], object
            torch.UntypedStorage = object
            from glake import _torch_seal
            session = glake.default_session()
            home = types.SimpleNamespace(session=session, ordinal=0, ptr=session.alloc(200 << 20))
            _torch_sleep.sleep()
            _torch_seal._dead.append(home)
            _torch_seal._free_dead()
            assert _torch_seal._dead == [home]
            assert _torch_sleep.wake()["private_bytes"] == 200 << 20
            assert _torch_seal._dead == []
            assert session.usage()["live_bytes"] == 0
            print("well")
        """)

    def test_pytorch_under_the_shim(self):
        self.run_torch(FILLED + textwrap.dedent("""
            for wakes_itself in (False, True):
                slept = _torch_sleep.sleep()
                assert slept["private_bytes"] == 4 << 20, (slept, glake.sessions())
                assert [row["private_bytes"] for row in glake.sleepers()] == [4 << 20]
                if not wakes_itself:
                    assert _torch_sleep.wake()["private_bytes"] == 4 << 20
                    assert glake.sleepers() == []
                byte = ctypes.c_ubyte()
                call("cuMemcpyDtoH_v2", ctypes.byref(byte), ptr, ctypes.c_size_t(1))
                assert byte.value == 7
                assert glake.sleepers() == []
            print("well")
        """), os.path.join(BUILD, "bin", "glake"), "run", "--")


class Forks(Case):
    def test_a_child_gets_a_session_of_its_own(self):
        self.save()
        program = """
            import os, sys, glake
            looking = glake.connect(cuda=False)
            first = looking.info()["session"]
            pid = os.fork()
            if pid == 0:
                try:
                    looking.ping()
                    os._exit(1)
                except glake.ForkedError:
                    pass
                del looking
                second = glake.connect(cuda=False).info()["session"]
                os._exit(0 if second != first else 2)
            status = os.waitpid(pid, 0)[1]
            looking.ping()
            print(status)
        """
        result = subprocess.run([sys.executable, "-c", textwrap.dedent(program)],
                                capture_output=True, text=True, timeout=PATIENCE_S)
        self.assertEqual((result.stdout, result.stderr), ("0\n", ""))


class Admin(Case):
    CONFIG = 'tenants = ({ name = "default"; device_bytes = "1GiB"; });'

    def test_lists(self):
        self.save()
        path = self.path("model.safetensors")
        with glake.Model(path, pin=True) as model:
            status = glake.status()
            self.assertEqual(status["pid"], self.daemon.pid)
            self.assertEqual(len(status["devices"]), 2)
            self.assertGreaterEqual(status["devices"][0]["block_bytes"], model.mapped_bytes)
            self.assertFalse(status["draining"])
            self.assertGreater(len(glake.stats()), 5)
            rows = glake.models()
            self.assertEqual([(row["name"], row["n_open"], row["pinned"]) for row in rows],
                             [(path, 1, True)])
            mine = [row for row in glake.sessions() if row["pid"] == os.getpid()]
            self.assertIn(model.mapped_bytes, [row["shared_bytes"] for row in mine])
            self.assertTrue(glake.blocks())
            self.assertEqual(len(glake.blocks()[0]["digest"]), 32)
            self.assertEqual(glake.events(), [])
            tenant = {row["name"]: row for row in glake.tenants()}["default"]
            self.assertEqual(tenant["devices"][1]["quota_bytes"], 1 << 30)
            with self.assertRaises(glake.BusyError):
                glake.evict(path)
        glake.unpin(path)
        self.assertEqual(glake.evict()[0], 1)
        self.assertEqual(glake.models(), [])
        with self.assertRaises(glake.NotFoundError):
            glake.pin("nothing")

    def test_quotas(self):
        glake.set_quota("default", 0, 2 << 20)
        with open(self.path("m.safetensors"), "wb") as file:
            file.write(save({"t": make(1, "uint8", (5 << 20,))}))
        with self.assertRaises(glake.QuotaError) as caught:
            glake.Model(self.path("m.safetensors"))
        self.assertIn("quota", str(caught.exception))
        # The default session is one, and those before it have ended.
        session = glake.default_session()
        self.until(lambda: len(glake.sessions(session)) == 1)
        glake.set_max_sessions("default", 2, session)
        keep = glake.connect(cuda=False)
        with self.assertRaises(glake.QuotaError):
            glake.connect(cuda=False)
        keep.close()


if __name__ == "__main__":
    unittest.main()
