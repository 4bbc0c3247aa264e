# SPDX-License-Identifier: Apache-2.0
"""The plugin for vLLM without a GPU and without vLLM: its doors in the real sources of each version, its key, and
what it does in the real classes that are light enough to run.

Where the sources (tests/engines/fetch) are absent, what needs them is skipped. test_vllm_load.py has the loader.
"""
import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
import types
import unittest
from unittest import mock

from tests.integration.driver_memory import FILLED
from tests.integration.engine_sources import SOURCES, changed, for_each_version
from tests.integration.with_glaked import BUILD, PATIENCE_S, Served

from glake import _vllm_key as keys

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))

LOADERS = "model_executor/model_loader/"
SLEEP = "device_allocator/sleep_mode_backend.py"
WORKER = "v1/worker/gpu_worker.py"


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
    def test_a_loader_is_registered_by_its_class(self, source):
        self.assertEqual(source.parameters(LOADERS + "__init__.py", "register_model_loader"), ["load_format"])
        self.assertIn("_LOAD_FORMAT_TO_MODEL_LOADER[load_format](load_config)",
                      source.code(LOADERS + "__init__.py", "get_model_loader"))
        self.assertIn("load_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)",
                      source.code(LOADERS + "__init__.py", "get_model"))

    @for_each_version
    def test_a_load_is_made_of_three_steps_in_this_order(self, source):
        base, default = LOADERS + "base_loader.py", LOADERS + "default_loader.py"
        self.assertEqual(source.parameters(base, "BaseModelLoader.load_model"),
                         ["self", "vllm_config", "model_config", "prefix"])
        for path, name in ((base, "BaseModelLoader.load_weights"), (default, "DefaultModelLoader.load_weights")):
            self.assertEqual(source.parameters(path, name), ["self", "model", "model_config"])
        code = source.code(base, "BaseModelLoader.load_model")
        build = "create_model(" if "create_model(" in code else "initialize_model("
        places = [code.index(step) for step in
                  (build, "self.load_weights(model, model_config)", "process_weights_after_loading(")]
        self.assertEqual(places, sorted(places))
        self.assertIn("load_format == 'auto'", source.code(default, "DefaultModelLoader._prepare_weights"))
        self.assertEqual(source.parameters(default, "DefaultModelLoader.get_all_weights"),
                         ["self", "model_config", "model"])
        self.assertEqual(source.parameters(default, "DefaultModelLoader.__init__"), ["self", "load_config"])
        source.find("config/load.py", "LoadConfig.load_format")

    @for_each_version
    def test_processing_leaves_the_weights_of_listed_methods_alone_on_a_gpu(self, source):
        from_linear = source.code("model_executor/layers/linear.py",
                                  "UnquantizedLinearMethod.process_weights_after_loading")
        from_embedding = source.code("model_executor/layers/vocab_parallel_embedding.py",
                                     "UnquantizedEmbeddingMethod.process_weights_after_loading")
        for code in (from_linear, from_embedding):
            body = code.split(":", 1)[1]
            first = next(line.strip() for line in code.splitlines()[1:] if line.strip())
            self.assertRegex(first, r"if current_platform\.is_cpu\(\)|\"\"\"|if is_weights_pre_processed")
            self.assertNotIn("replace_parameter", body)

    @for_each_version
    def test_the_configuration_has_what_decides(self, source):
        fields = {"config/parallel.py": ["ParallelConfig.enable_eplb", "ParallelConfig.tensor_parallel_size",
                                         "ParallelConfig.pipeline_parallel_size",
                                         "ParallelConfig.data_parallel_size",
                                         "ParallelConfig.enable_expert_parallel"],
                  "config/vllm.py": ["VllmConfig.weight_transfer_config", "VllmConfig.speculative_config",
                                     "VllmConfig.lora_config"],
                  "config/model.py": ["ModelConfig.quantization", "ModelConfig.revision", "ModelConfig.dtype",
                                      "ModelConfig.max_model_len", "ModelConfig.enforce_eager",
                                      "ModelConfig.enable_cumem_allocator", "ModelConfig.sleep_mode_backend"],
                  "config/cache.py": ["CacheConfig.cache_dtype"],
                  "config/speculative.py": ["SpeculativeConfig.draft_model_config"]}
        for path, names in fields.items():
            for name in names:
                source.find(path, name)
        # Where it is gone, no layer calculates scales while it serves.
        has = "calculate_kv_scales:" in source.text("config/cache.py")
        for layer in ("attention", "mla_attention"):
            self.assertEqual(has, "def calc_kv_scales" in
                             source.text(f"model_executor/layers/attention/{layer}.py"))

    @for_each_version
    def test_ranks_are_asked_of_groups(self, source):
        for name in ("get_tp_group", "get_pp_group", "get_dp_group"):
            self.assertEqual(source.parameters("distributed/parallel_state.py", name), [])
        source.find("distributed/parallel_state.py", "GroupCoordinator.rank_in_group")

    @for_each_version
    def test_the_worker_says_whose_weights_are_written_to(self, source):
        self.assertEqual(source.parameters(WORKER, "Worker.get_model"), ["self"])
        source.find(WORKER, "Worker.reload_weights")
        source.find(WORKER, "Worker.start_weight_update")
        if "sleep_preserve_parameter_names" in source.text(WORKER):
            source.find(WORKER, "Worker._restore_sleep_parameters")

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

    def test_033_asks_for_memory_that_is_not_its_own(self):
        source = SOURCES["0.33.0"]
        if source.why:
            self.skipTest(source.why)
        self.assertEqual(source.parameters(LOADERS + "base_loader.py",
                                           "BaseModelLoader.get_external_weight_memory"), ["self", "vllm_config"])
        self.assertIn(".get_external_weight_memory(self.vllm_config)", source.text(WORKER))
        self.assertEqual(source.parameters(SLEEP, "CuMemBackend.discard"), ["self", "tags"])


# ---- the key ----

def config(folder, **more):
    """As much of vLLM's configuration as the key reads."""
    model = types.SimpleNamespace(model=folder, revision=None, hf_config={"architectures": ["LlamaForCausalLM"]},
                                  max_model_len=2048, dtype="torch.bfloat16", quantization=None,
                                  enable_cumem_allocator=False, enforce_eager=True)
    parallel = types.SimpleNamespace(enable_eplb=False, tensor_parallel_size=1)
    whole = types.SimpleNamespace(parallel_config=parallel, weight_transfer_config=None, speculative_config=None,
                                  model_config=model, cache_config=types.SimpleNamespace(cache_dtype="auto"))
    return changed(whole, more)


class Key(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.write("model.safetensors", b"weights")
        self.write("config.json", b"{}")
        for name in [name for name in os.environ if name.startswith("VLLM_")]:
            del os.environ[name]

    def write(self, name, content):
        with open(os.path.join(self.folder, name), "wb") as file:
            file.write(content)

    def key(self, prefix="", ranks=None, machine=None, **more):
        whole = config(self.folder, **more)
        return keys.key_of(keys.parts(whole, whole.model_config, prefix, ranks or {"tp": 0, "pp": 0, "dp": 0},
                                      machine or {"gpu": "H200", "vllm": "0.25.1"}))

    def test_equal_engines_have_equal_keys_that_can_be_read(self):
        key = self.key()
        self.assertEqual(key, self.key())
        self.assertRegex(key, rf"^vllm/{os.path.basename(self.folder)}/tp0\.pp0\.dp0/[0-9a-f]{{32}}$")
        self.assertLessEqual(len(key), 255)

    def test_whatever_decides_is_in_it(self):
        others = [self.key(prefix="draft"), self.key(ranks={"tp": 1, "pp": 0, "dp": 0}),
                  self.key(machine={"gpu": "H100", "vllm": "0.25.1"}),
                  self.key(machine={"gpu": "H200", "vllm": "0.33.0"}), self.key(revision="main"),
                  self.key(hf_config={"architectures": ["Other"]}),
                  self.key(dtype="torch.float16"), self.key(quantization="fp8"), self.key(max_model_len=4096),
                  self.key(tensor_parallel_size=2), self.key(cache_dtype="fp8")]
        os.environ["VLLM_ATTENTION_BACKEND"] = "TRITON_ATTN"
        self.addCleanup(os.environ.pop, "VLLM_ATTENTION_BACKEND", None)
        others.append(self.key())
        del os.environ["VLLM_ATTENTION_BACKEND"]
        self.assertEqual(len({self.key(), *others}), len(others) + 1)

    def test_a_port_and_a_secret_are_not(self):
        before = self.key()
        for name in ("VLLM_PORT", "VLLM_API_KEY", "VLLM_LOGGING_LEVEL"):
            os.environ[name] = "1"
            self.addCleanup(os.environ.pop, name, None)
        self.assertEqual(self.key(), before)

    def test_a_model_that_is_written_anew_is_another_one(self):
        before = self.key()
        self.write("model.safetensors", b"WEIGHTS")
        os.utime(os.path.join(self.folder, "model.safetensors"), ns=(time.time_ns(), time.time_ns()))
        self.assertNotEqual(self.key(), before)

    def test_a_name_of_a_hub_needs_its_commit(self):
        named = types.SimpleNamespace(model="org/name", hf_config=types.SimpleNamespace())
        self.assertIsNone(keys.checkpoint(named))
        named.hf_config._commit_hash = "abc"
        self.assertEqual(keys.checkpoint(named), {"name": "org/name", "commit": "abc"})


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
# vLLM shows what loggers below its own say, and no others' INFO.
assert _vllm_sleep.logger.name.startswith("vllm.")
for _ in range(2):
    _vllm_sleep.enable(real.SleepModeBackendFactory)
can_be_chosen = "sleep_mode_backend" in names
config = types.SimpleNamespace(sleep_mode_backend="glake" if can_be_chosen else "cumem")
backend = real.SleepModeBackendFactory.create_backend(config)
assert type(backend) is _vllm_sleep.GlakeBackend and backend.preserves_communicators()
if can_be_chosen:
    plain = real.SleepModeBackendFactory.create_backend(types.SimpleNamespace(sleep_mode_backend="cumem"))
    assert type(plain) is real.CuMemBackend
""" + FILLED + """
def sleepers():
    return [row["private_bytes"] for row in glake.sleepers()]
"""


class RangeKey(unittest.TestCase):
    """The key of blocks that outlive their engine."""

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.environment = {"PYTHONHASHSEED": "0"}

    def engine(self, **more):
        whole = config(self.folder)
        vars(whole.cache_config).update(enable_prefix_caching=True, calculate_kv_scales=False, block_size=16,
                                        prefix_caching_hash_algo="sha256")
        whole.lora_config = None
        return changed(whole, more)

    def key(self, layers=("a", "b"), heads=8, weights="weights", chunk=1, seed="0", **more):
        spec = dataclasses.make_dataclass("FullAttentionSpec", ["heads", "dtype"])(heads, object)
        groups = [types.SimpleNamespace(layer_names=list(layers), kv_cache_spec=spec)]
        tensors = [types.SimpleNamespace(shared_by=[layer], size=1) for layer in layers]
        with mock.patch.dict(os.environ, {"PYTHONHASHSEED": seed}):
            return keys.range_key({"w": weights}, self.engine(**more),
                                  types.SimpleNamespace(kv_cache_groups=groups, kv_cache_tensors=tensors), {"chunk": chunk})

    def test_whatever_decides_is_in_it(self):
        self.assertEqual(self.key(), self.key())
        self.assertLessEqual(len(self.key()), 64)
        others = [self.key(layers=("b", "a")), self.key(heads=4), self.key(weights="other"), self.key(chunk=2),
                  self.key(seed="1"), self.key(block_size=32), self.key(cache_dtype="fp8"),
                  self.key(prefix_caching_hash_algo="xxhash")]
        self.assertEqual(len({self.key(), *others}), len(others) + 1)

    def test_another_rank_has_another_key(self):
        """Of the same model, with as many heads of it."""
        made = [self.key(weights=keys.parts(self.engine(), self.engine().model_config, "", {"tp": rank, "pp": 0, "dp": 0}, {}))
                for rank in (0, 1)]
        self.assertNotEqual(*made)

    def test_what_is_of_no_use_to_the_next_is_not_kept(self):
        self.assertIsNone(keys.why_not_kept(self.engine(), self.environment))
        for environment in ({}, {"PYTHONHASHSEED": "random"}):
            self.assertIn("PYTHONHASHSEED", keys.why_not_kept(self.engine(), environment))
        for changes, why in (({"enable_prefix_caching": False}, "caching is off"), ({"lora_config": object()}, "adapter"),
                             ({"speculative_config": object()}, "draft"), ({"calculate_kv_scales": True}, "scales"),
                             ({"enable_eplb": True}, "weights may change"), ({"weight_transfer_config": object()}, "may change"),
                             ({"model": "org/name", "hf_config": object()}, "revision")):
            self.assertIn(why, keys.why_not_kept(self.engine(**changes), self.environment))


class Store(Served):
    def test_glaked_takes_such_keys_and_names(self):
        whole = config(self.folder)
        with open(os.path.join(self.folder, "config.json"), "w", encoding="utf-8") as file:
            file.write("{}")
        key = keys.key_of(keys.parts(whole, whole.model_config, "", {"tp": 0, "pp": 0, "dp": 0}, {}))
        names = ["p:model.layers.0.self_attn.qkv_proj.weight", "b:model.rotary_emb.cos_sin_cache",
                 "d:model.layers.0.self_attn.attn.W_UV", "kernels:" + 32 * "0"]
        program = f"""
            import glake
            from glake.publishing import Weight
            session = glake.default_session()
            ptr = session.alloc(4 << 20, zero=True)
            weights = {{name: Weight(ptr + (i << 20), "BF16", (3, 5), (5, 1) if i else (1, 3))
                        for i, name in enumerate({names!r})}}
            glake.publish({key!r}, weights)
            with glake.Model.attach({key!r}) as model:
                assert sorted(model) == sorted({names!r})
                assert model[{names[0]!r}].strides == (1, 3)
            print("well")
        """
        result = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True,
                                timeout=PATIENCE_S, env=self.environment)
        self.assertEqual((result.stdout, result.stderr), ("well\n", ""))


class Sleep(Served):
    def run_in(self, source, program, under_shim=True):
        begin = SLEEPER.format(root=ROOT, version=source.version)
        if not under_shim:
            # No shim has the driver's name.
            begin = begin.replace('"libcuda.so.1"', repr(os.environ["GLAKE_LIBCUDA"]))
        command = [os.path.join(BUILD, "bin", "glake"), "run", "--"] if under_shim else []
        result = subprocess.run([*command, sys.executable, "-c", begin + textwrap.dedent(program)],
                                capture_output=True, text=True, timeout=PATIENCE_S, env=self.environment)
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
                # What was given up comes back from there only: glake does not get in between.
                backend.suspend(1)
                assert sleepers() == [] and calls[1][0] == "sleep", calls
                backend.resume(["weights"])
                backend.resume(["kv_cache"])
                assert calls[2:] == [("wake_up", ["weights"]), ("wake_up", ["kv_cache"])], calls
                backend.suspend(1)
                assert sleepers() == [4 << 20] and len(calls) == 4, calls
                backend.resume()
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
