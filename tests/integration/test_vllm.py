# SPDX-License-Identifier: Apache-2.0
"""The plugin for vLLM without a GPU and without vLLM: its doors in the real sources of each version, and
what it does in the real classes that are light enough to run.

Where the sources (tests/engines/fetch) are absent, what needs them is skipped.
"""
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
import types
import unittest

from tests.integration.engine_sources import Source, pinned

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
BUILD = os.environ.get("GLAKE_BUILD", "build")
SOURCES = {version: Source("vllm", version) for version in pinned("vllm")}

SLEEP = "device_allocator/sleep_mode_backend.py"
WORKER = "v1/worker/gpu_worker.py"


def for_each_version(test):
    def run(self):
        absent = [source.why for source in SOURCES.values() if source.why]
        for source in SOURCES.values():
            if not source.why:
                with self.subTest(version=source.version):
                    test(self, source)
        if absent:
            self.skipTest(absent[0])
    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


class Doors(unittest.TestCase):
    """What of vLLM the plugin uses is where and as it uses it."""

    @for_each_version
    def test_plugins_of_the_group_are_called_in_engine_and_worker(self, source):
        self.assertIn("'vllm.general_plugins'", source.code("plugins/__init__.py", "DEFAULT_PLUGINS_GROUP"))
        for path in ("v1/engine/core.py", "v1/worker/worker_base.py", "engine/arg_utils.py"):
            self.assertIn("load_general_plugins()", source.text(path))

    def test_the_wheel_has_the_entry_point(self):
        with open(os.path.join(ROOT, "libclient", "python", "pyproject.toml"), encoding="utf-8") as file:
            self.assertIn('[project.entry-points."vllm.general_plugins"]\nglake = "glake.vllm:register"\n',
                          file.read())

    @for_each_version
    def test_the_worker_sleeps_by_the_backend(self, source):
        self.assertIn(".suspend(level)", source.code(WORKER, "Worker.sleep"))
        self.assertIn(".resume(tags)", source.code(WORKER, "Worker.wake_up"))
        self.assertIn("SleepModeBackendFactory.create_backend(self.vllm_config.model_config)",
                      "".join(source.text(WORKER).split()))
        self.assertEqual(source.parameters(SLEEP, "SleepModeBackendFactory.create_backend"), ["cls", "model_config"])
        self.assertEqual(source.parameters(SLEEP, "SleepModeBackendFactory.register_backend"),
                         ["cls", "name", "module_path", "class_name"])
        self.assertEqual(source.parameters(SLEEP, "CuMemBackend.suspend"), ["self", "level"])
        self.assertEqual(source.parameters(SLEEP, "CuMemBackend.resume"), ["self", "tags"])


# ---- sleep: the real factory, the real glaked, the real shim ----

# What the real file and the plugin import of vLLM and PyTorch, and a program with 4 MiB on the simulated GPU.
SLEEPER = """
import ctypes, dataclasses, logging, sys, types
sys.path.insert(0, {root!r})
from tests.integration.engine_sources import Source
def module(name, **content):
    sys.modules[name] = made = types.ModuleType(name)
    vars(made).update(content)
    return made
module("torch", __file__="/nowhere/torch/__init__.py", cuda=types.SimpleNamespace(
    is_initialized=lambda: True, device_count=lambda: 1, synchronize=lambda ordinal: None, empty_cache=lambda: None))
calls = []
class Allocator:
    def sleep(self, offload_tags): calls.append(("sleep", offload_tags))
    def wake_up(self, tags): calls.append(("wake_up", tags))
    def discard(self, tags): calls.append(("discard", tags))
module("vllm", __version__={version!r})
module("vllm.logger", init_logger=logging.getLogger)
module("vllm.device_allocator", get_mem_allocator_instance=Allocator)
source = Source("vllm", {version!r})
args = source.find("engine/arg_utils.py", "EngineArgs")
names = [node.target.id for node in args.body if hasattr(node, "target")]
module("vllm.engine"), module("vllm.engine.arg_utils", EngineArgs=dataclasses.make_dataclass("EngineArgs", names))
name = "vllm.device_allocator.sleep_mode_backend"
sys.modules[name] = real = types.ModuleType(name)
exec(compile(source.text("device_allocator/sleep_mode_backend.py"), name, "exec"), real.__dict__)
from glake import _vllm_sleep
for _ in range(2):
    _vllm_sleep.enable(real.SleepModeBackendFactory)
can_be_chosen = "sleep_mode_backend" in names
config = types.SimpleNamespace(sleep_mode_backend="glake" if can_be_chosen else "cumem")
backend = real.SleepModeBackendFactory.create_backend(config)
assert type(backend) is _vllm_sleep.GlakeBackend and backend.preserves_communicators()
if can_be_chosen:
    plain = real.SleepModeBackendFactory.create_backend(types.SimpleNamespace(sleep_mode_backend="cumem"))
    assert type(plain) is real.CuMemBackend
import glake
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
def sleepers():
    return [row["private_bytes"] for row in glake.sleepers()]
"""


class Sleep(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.environment = {**os.environ, "GLAKE_SOCKET": os.path.join(self.folder, "socket")}
        log = open(os.path.join(self.folder, "log"), "w", encoding="utf-8")
        self.addCleanup(log.close)
        self.daemon = subprocess.Popen([os.path.join(BUILD, "bin", "glaked"), "-s", self.environment["GLAKE_SOCKET"]],
                                       stdout=log, stderr=log)
        self.addCleanup(self.stop_daemon)
        deadline = time.monotonic() + 30
        while not os.path.exists(self.environment["GLAKE_SOCKET"]):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def stop_daemon(self):
        self.daemon.kill()
        self.daemon.wait()

    def run_in(self, source, program, under_shim=True):
        begin = SLEEPER.format(root=ROOT, version=source.version)
        if not under_shim:
            # No shim has the driver's name.
            begin = begin.replace('"libcuda.so.1"', repr(os.environ["GLAKE_LIBCUDA"]))
        command = [os.path.join(BUILD, "bin", "glake"), "run", "--"] if under_shim else []
        result = subprocess.run([*command, sys.executable, "-c", begin + textwrap.dedent(program)],
                                capture_output=True, text=True, timeout=120, env=self.environment)
        self.assertEqual((result.stdout, result.stderr), ("well\n", ""))

    @for_each_version
    def test_level_one_is_a_sleep_of_the_whole_process(self, source):
        self.run_in(source, """
            for tags in (None, ["weights"]):
                backend.suspend(1)
                assert backend.state() == "SUSPENDED" and sleepers() == [4 << 20], sleepers()
                backend.resume(tags)
                assert backend.state() == "RUNNING" and sleepers() == []
                # The other tag finds it awake.
                backend.resume(["kv_cache"])
            assert calls == [], calls
            content = (ctypes.c_ubyte * 4096)()
            call("cuMemcpyDtoH_v2", content, ptr, ctypes.c_size_t(4096))
            assert bytes(content) == bytes([7]) * 4096
            print("well")
        """)

    @for_each_version
    def test_level_two_stays_with_vllms_allocator(self, source):
        self.run_in(source, """
            backend.suspend(1)
            backend.resume()
            backend.suspend(2)
            assert sleepers() == []
            backend.resume(["weights"])
            assert [name for name, _ in calls] == ["sleep", "wake_up"] and calls[1][1] == ["weights"], calls
            assert "weights" not in calls[0][1]
            print("well")
        """)

    @for_each_version
    def test_memory_is_given_up_by_vllms_allocator_only_when_all_is_awake(self, source):
        self.run_in(source, """
            if hasattr(real.CuMemBackend, "discard"):
                backend.suspend(1)
                backend.discard(("kv_cache",))
                assert sleepers() == [] and calls == [("discard", ("kv_cache",))], calls
                backend.resume(["kv_cache"])
                assert calls[1:] == [("wake_up", ["kv_cache"])], calls
            print("well")
        """)

    @for_each_version
    def test_without_the_shim_or_without_glaked_vllms_allocator_sleeps(self, source):
        self.run_in(source, """
            backend.suspend(1)
            assert calls == [("sleep", calls[0][1])] and "weights" in calls[0][1], calls
            backend.resume()
            assert calls[1] == ("wake_up", None), calls
            print("well")
        """, under_shim=False)
        self.run_in(source, """
            import os
            logging.disable()
            os.environ["GLAKE_SOCKET"] = "/nowhere"
            backend.suspend(1)
            backend.resume()
            assert [name for name, _ in calls] == ["sleep", "wake_up"], calls
            print("well")
        """)


if __name__ == "__main__":
    unittest.main()
