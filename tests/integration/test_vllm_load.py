# SPDX-License-Identifier: Apache-2.0
"""`--load-format glake` with the real load_model(), processing, methods and parameters of each vLLM, and real PyTorch
on the CPU, for a small model with what is dangerous: tied embeddings, buffers, and tensors that processing makes.

glaked cannot serve PyTorch on the simulated GPU, so the store is a folder here: what is published is written to files,
and what is attached is mapped from them read-only, as on a GPU. Who writes to it ends the program.
"""
import contextlib
import hashlib
import logging
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import types
import unittest
import warnings
from unittest import mock

from tests.integration.engine_sources import SOURCES, changed

try:
    import torch
except ImportError:
    torch = None

LOADERS = "model_executor/model_loader/"


def missing():
    if torch is None:
        return "PyTorch is not here"
    return next((source.why for source in SOURCES.values() if source.why), None)


# ---- vLLM, as far as it is light ----

class Everything:
    """What real code names and these tests do not reach."""

    def __getattr__(self, name):
        return Everything()

    def __call__(self, *arguments, **options):
        return Everything()


def module(name, **content):
    sys.modules[name] = made = types.ModuleType(name)
    vars(made).update(content)
    return made


def light_vllm(source):
    """Modules of vLLM in sys.modules: real ones on stand-ins for what they import."""
    no = {name: (lambda: False) for name in ("is_cpu", "is_xpu", "is_rocm", "is_tpu", "is_cuda_alike",
                                             "use_sync_weight_loader")}
    platform = types.SimpleNamespace(device_type="cpu", **no)
    for name in ("vllm.config", "vllm.config.load", "vllm.model_executor", "vllm.envs"):
        module(name, ModelConfig=object, VllmConfig=object, LoadConfig=object, VLLM_LOG_MODEL_INSPECTION=False)
    module("vllm", __version__=source.version, envs=sys.modules["vllm.envs"])
    module("vllm.logger", init_logger=lambda name: mock.MagicMock())
    module("vllm.platforms", current_platform=platform)
    module("vllm.tracing", instrument=lambda **options: lambda function: function)
    module("vllm.distributed", get_tensor_model_parallel_rank=lambda: 0,
           get_tensor_model_parallel_world_size=lambda: 1)
    module("vllm.utils"), module("vllm.utils.mem_utils", format_gib=str)
    module("vllm.utils.torch_utils", set_default_torch_dtype=lambda dtype: contextlib.nullcontext())
    module("vllm.model_executor.layers")
    for name in ("vllm.model_executor.layers.quantization", "vllm.model_executor.layers.quantization.online",
                 "vllm.model_executor.layers.quantization.online.base"):
        module(name, OnlineQuantizationConfig=type("OnlineQuantizationConfig", (), {}))
    module("vllm.model_executor.layers.quantization.online.fp8", OnlineLinearBase=type("OnlineLinearBase", (), {}))
    module("vllm.model_executor.layers.quantization.online.moe_base",
           OnlineMoEMethodBase=type("OnlineMoEMethodBase", (), {}))
    parameter = source.module("model_executor/parameter.py", "vllm.model_executor.parameter")
    method = type("QuantizeMethodBase", (), {"requires_device_loading": True, "supports_pre_processed_weights": False})
    Layer = type("Layer", (torch.nn.Module,), {})
    names = {"torch": torch, "nn": torch.nn, "QuantizeMethodBase": method, "LinearMethodBase": method,
             "Attention": Attention, "MLAAttention": Attention, "MMEncoderAttention": Attention,
             "is_deferred_attention_layer": lambda layer: isinstance(layer, Attention), "HpcModule": Layer,
             "contextmanager": contextlib.contextmanager, "nullcontext": contextlib.nullcontext,
             "device_loading_context": lambda layer, device: contextlib.nullcontext(),
             "release_device_memory_under_pressure": lambda device: None, "is_weights_pre_processed": lambda: False,
             "maybe_retie_word_embeddings": lambda model, config: None, "current_platform": platform,
             "ModelWeightParameter": parameter.ModelWeightParameter, "Parameter": torch.nn.Parameter,
             "set_weight_attrs": lambda weight, attributes: [setattr(weight, *item) for item in attributes.items()],
             "get_current_vllm_config_or_none": lambda: None, "dispatch_unquantized_gemm": Everything()}
    for path, name in (("model_executor/layers/linear.py", "UnquantizedLinearMethod"),
                       ("model_executor/layers/vocab_parallel_embedding.py", "UnquantizedEmbeddingMethod"),
                       (LOADERS + "utils.py", "process_weights_after_loading")):
        exec(compile("from __future__ import annotations\n" + source.code(path, name), path, "exec"),  # noqa: S102
             names)
    names["initialize_model"] = lambda vllm_config, model_config, prefix="": model_config.build(names)
    module("vllm.model_executor.model_loader")
    module("vllm.model_executor.model_loader.reload", finalize_layerwise_processing=None)
    module("vllm.model_executor.model_loader.utils", initialize_model=names["initialize_model"],
           process_weights_after_loading=names["process_weights_after_loading"])
    base = source.module(LOADERS + "base_loader.py", "vllm.model_executor.model_loader.base_loader")

    class DefaultModelLoader(base.BaseModelLoader):
        """Files are a dictionary here."""

        n_loads = 0

        def download_model(self, model_config):
            raise NotImplementedError

        def load_weights(self, model, model_config):
            DefaultModelLoader.n_loads += 1
            model_config.load(model)

    module("vllm.model_executor.model_loader.default_loader", DefaultModelLoader=DefaultModelLoader)
    return DefaultModelLoader


# ---- a model ----

if torch is not None:
    class Attention(torch.nn.Module):
        """As an MLA layer does, it makes tensors of a loaded weight: a view of it, and a copy in another order."""

        def __init__(self, projection):
            super().__init__()
            self.projection = projection
            self.register_buffer("_k_scale", torch.tensor(1.0))
            self.k_range = torch.tensor(200.0)

        def process_weights_after_loading(self, dtype):
            self.W_UV = self.projection.weight.data.view(2, -1, 512).transpose(0, 1)
            self.W_UK_T = self.projection.weight.data.t().contiguous().t()
            self._k_scale.fill_(1.0)

    class Linear(torch.nn.Module):
        def __init__(self, method, rows, columns):
            super().__init__()
            self.quant_method = method
            method.create_weights(self, columns, [rows], columns, rows, torch.float32,
                                  weight_loader=lambda parameter, loaded: parameter.data.copy_(loaded))

    class Model(torch.nn.Module):
        def __init__(self, names):
            super().__init__()
            embedding, linear = names["UnquantizedEmbeddingMethod"](), names["UnquantizedLinearMethod"]()
            self.embed = Linear(embedding, 1024, 512)
            self.first = Linear(linear, 2048, 512)
            self.norm = torch.nn.Parameter(torch.ones(512))
            self.attention = Attention(Linear(linear, 1024, 512))
            self.register_buffer("positions", torch.arange(4096.0), persistent=False)
            self.register_buffer("bias", torch.zeros(16))
            self.lm_head = embedding.tie_weights(Linear(embedding, 1024, 512), self.embed) \
                if hasattr(embedding, "tie_weights") else Linear(embedding, 1024, 512)
            self.lm_head.weight = self.embed.weight

    def load(model):
        generator = torch.Generator().manual_seed(7)
        for name, parameter in sorted(model.named_parameters()):
            loaded = torch.randn(parameter.shape, generator=generator)
            getattr(parameter, "weight_loader", lambda own, new: own.data.copy_(new))(parameter, loaded)
        model.bias.copy_(torch.arange(16.0))


def contents(model):
    """All tensors of a model by name, with shape, strides and bytes."""
    tensors = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    for name, owner in model.named_modules():
        tensors.update((f"{name}.{key}", value) for key, value in vars(owner).items()
                       if isinstance(value, torch.Tensor))
    return {name: (tuple(tensor.shape), tensor.stride(), str(tensor.dtype),
                   hashlib.sha256(tensor.detach().numpy().tobytes()).hexdigest())
            for name, tensor in tensors.items()}


# ---- a store of files ----

class Published(dict):
    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass


class Store:
    """Ranges of tensors that overlap are one file; it is mapped once, and read-only."""

    def __init__(self, folder):
        self.folder, self.keys, self.log = folder, {}, []

    def publish(self, bundle, key, move=True):
        self.log.append(("publish", move))
        rows, saved = {}, {}
        for name, tensor in {**bundle._parameters, **bundle._buffers}.items():
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in saved:
                path = os.path.join(self.folder, f"{len(self.keys)}.{len(saved)}")
                with open(path, "wb") as file:
                    file.write(torch.empty(0, dtype=torch.uint8).set_(storage).numpy().tobytes())
                saved[storage.data_ptr()] = path
            rows[name] = (saved[storage.data_ptr()], tensor.dtype, tensor.shape, tensor.stride(),
                          tensor.storage_offset())
        self.keys[key] = rows
        return types.SimpleNamespace(in_place_bytes=0, copied_bytes=0)

    def seal(self, bundle, move=True):
        self.log.append(("seal", sorted(bundle._parameters)))
        return types.SimpleNamespace(shared_bytes=0)

    def find(self, key):
        from glake._torch_tensors import DTYPES, mapped_storages
        if key not in self.keys:
            return None
        names = {dtype: name for name, dtype in DTYPES.items()}
        maps, there = {}, Published()
        there.mapped_bytes = 12345
        for name, (path, dtype, shape, stride, offset) in self.keys[key].items():
            if path not in maps:
                with open(path, "rb") as file, warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
                    maps[path] = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
                    mapped_storages.add(maps[path])
            view = torch.empty(0, dtype=dtype).set_(maps[path], offset, shape, stride)
            there[name] = types.SimpleNamespace(shape=tuple(shape), dtype=names[dtype], view=view)
        return there


# ---- tests ----

class Case(unittest.TestCase):
    def test_each_version(self):
        """Each in a process of its own, since vLLM's modules stay in a process."""
        why = missing()
        if why:
            self.skipTest(why)
        for function, what in (
                (second_engine, "the second engine loads nothing and has what a twin has"),
                (no_memory, "who attaches has no memory for parameters before"),
                (refusals, "what speaks against it is found first"),
                (other_state, "what loading leaves outside of tensors is not published"),
                (processing_writes, "what processing writes to is not published"),
                (views, "a view that would not see the weights ends the load"),
                (writers, "weights that are written to stay private"),
                (registered, "the load format is registered"),
                (reload, "a reload has writable weights")):
            for version in SOURCES:
                with self.subTest(what, version=version):
                    code = f"from tests.integration import test_vllm_load as t; t.{function.__name__}(t.Engine({version!r}))"
                    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300,
                                          cwd=os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
                    self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)


class Engine:
    def __init__(self, version):
        self.source = SOURCES[version]
        self.default = light_vllm(self.source)
        from glake import _vllm_loader
        self.loader_module, self.folder = _vllm_loader, tempfile.mkdtemp()
        import atexit
        atexit.register(shutil.rmtree, self.folder)
        self.store = Store(tempfile.mkdtemp(dir=self.folder))
        self.said = []
        for name, new in (("_find", self.store.find), ("publish", self.store.publish), ("seal", self.store.seal),
                          ("as_tensor", lambda tensor: tensor.view), ("_ranks", lambda: {"tp": 0, "pp": 0, "dp": 0}),
                          ("_machine", lambda: {"gpu": "none"})):
            setattr(_vllm_loader, name, new)
        torch.accelerator.empty_cache = lambda: None
        for level in ("info", "warning"):
            setattr(_vllm_loader.logger, level, lambda text, *values: self.said.append(text % values))
        with open(os.path.join(self.folder, "config.json"), "w") as file:
            file.write("{}")

    def configs(self, **more):
        """vLLM's, as far as they are read."""
        model = types.SimpleNamespace(model=self.folder, revision=None, hf_config={}, max_model_len=16,
                                      dtype=torch.float32, quantization=None, build=Model, load=load,
                                      enable_cumem_allocator=False)
        whole = types.SimpleNamespace(
            model_config=model, parallel_config=types.SimpleNamespace(enable_eplb=False),
            cache_config=types.SimpleNamespace(cache_dtype="auto", calculate_kv_scales=False),
            weight_transfer_config=None, speculative_config=None, quant_config=None,
            device_config=types.SimpleNamespace(device="cpu"), load_config=None)
        return changed(whole, more)

    def start(self, loader=None, **more):
        """A model, and how often files were read for it."""
        whole, before = self.configs(**more), self.default.n_loads
        whole.load_config = LoadConfig()
        loader = (loader or self.loader_module.GlakeLoader)(whole.load_config)
        model = loader.load_model(vllm_config=whole, model_config=whole.model_config)
        return model, self.default.n_loads - before


def LoadConfig():
    import dataclasses
    return dataclasses.make_dataclass("LoadConfig", [("load_format", str, "glake"), ("device", object, None)])()


def registered(engine):
    """By what vLLM calls, with its real registry; a vLLM without a door is not ended by that."""
    import glake.vllm
    logging.disable()
    glake.vllm.register()
    names = {"BaseModelLoader": engine.default.__base__, "logger": mock.MagicMock(), "_LOAD_FORMAT_TO_MODEL_LOADER": {}}
    for name in ("register_model_loader", "get_model_loader"):
        exec("from __future__ import annotations\n" + engine.source.code(LOADERS + "__init__.py", name),  # noqa: S102
             names)
    sys.modules["vllm.model_executor.model_loader"].register_model_loader = names["register_model_loader"]
    for _ in range(2):
        glake.vllm.register()
    loader = names["get_model_loader"](LoadConfig())
    assert type(loader) is engine.loader_module.GlakeLoader and loader.load_config.load_format == "auto"


def second_engine(engine):
    twin, _ = engine.start(engine.default)
    first, n_first = engine.start()
    second, n_second = engine.start()
    assert (n_first, n_second) == (1, 0), engine.said
    assert contents(first) == contents(twin) and contents(second) == contents(twin)
    assert second.lm_head.weight is second.embed.weight and not second.training
    from glake._torch_tensors import mapped_storages
    for tensor in (*second.parameters(), second.attention.W_UV, second.attention.W_UK_T):
        assert tensor.untyped_storage() in mapped_storages
    # A write to what is shared would end this program; buffers are each engine's own.
    for buffer in second.buffers():
        buffer.add_(1)
    assert contents(first) == contents(twin)
    assert engine.loader_module.GlakeLoader(LoadConfig()).get_external_weight_memory(engine.configs()) == 12345
    assert any("attached" in line for line in engine.said), engine.said


def no_memory(engine):
    engine.start()
    seen = []

    def build(names):
        model = Model(names)
        seen.extend(parameter.untyped_storage().nbytes() for parameter in model.parameters()
                    if parameter.numel() * 4 >= 1 << 20)
        shape = model.first.weight.to("meta")
        assert shape.is_contiguous() and shape.shape == (2048, 512)
        return model
    engine.start(build=build)
    assert seen == [4] * len(seen) and seen, seen
    register = torch.nn.Module.register_parameter
    try:
        engine.start(build=lambda names: 1 // 0)
    except ZeroDivisionError:
        pass
    assert torch.nn.Module.register_parameter is register


def refusals(engine):
    twin, _ = engine.start(engine.default)
    engine.start()

    class OtherKernel(torch.nn.Module):
        pass

    def with_kernel(names):
        model = Model(names)
        model.attention.impl = OtherKernel()
        return model

    def wider(names):
        model = Model(names)
        model.norm = torch.nn.Parameter(torch.ones(513))
        return model

    def unlisted(names):
        model = Model(names)
        model.first.quant_method = type("MarlinMethod", (names["QuantizeMethodBase"],), {
            "process_weights_after_loading": lambda self, layer: None})()
        return model

    for build, word in ((with_kernel, "other kernels"), (unlisted, "MarlinMethod"), (wider, "norm")):
        del engine.said[:], engine.store.log[:]
        keys = {key: dict(rows) for key, rows in engine.store.keys.items()}
        model, n_loads = engine.start(build=build)
        assert n_loads == 1 and any(word in line for line in engine.said), engine.said
        if build is not wider:
            state = contents(model)
            assert {name: state[name] for name in contents(twin)} == contents(twin)
        assert engine.store.log[0][0] == ("seal" if build is unlisted else "publish")
        engine.store.keys = keys
    for more in ({"quantization": "fp8"}, {"model": "org/name"}, {"enable_cumem_allocator": True}):
        del engine.store.log[:]
        _, n_loads = engine.start(**more)
        assert n_loads == 1 and [name for name, _ in engine.store.log] == ["seal"], (more, engine.store.log)
    # A file that is written anew while it is read.

    def load_and_change(model):
        load(model)
        with open(os.path.join(engine.folder, "new"), "w"):
            pass
    engine.store.keys.clear()
    engine.start(load=load_and_change)
    assert engine.store.keys == {} and "changed while" in engine.said[-1], engine.said


def other_state(engine):
    def load_flag(model):
        load(model)
        model.has_own_embeddings = True

    def load_constant(model):
        load(model)
        model.attention.k_range.fill_(2)
    for function, word in ((load_flag, "has_own_embeddings"), (load_constant, "attention.k_range")):
        engine.start(load=function)
        assert engine.store.keys == {} and word in engine.said[-1], engine.said


def processing_writes(engine):
    class Writer(Attention):
        def process_weights_after_loading(self, dtype):
            # The same words in another order, past torch's counter of writes.
            self.projection.weight.data.copy_(self.projection.weight.data.flip(0))

    def build(names):
        model = Model(names)
        model.attention = Writer(model.attention.projection)
        return model
    engine.start(build=build)
    assert engine.store.keys == {} and "attention.projection.weight" in engine.said[-1], engine.said


def views(engine):
    class Other:
        pass

    def build_late(names):
        model = Model(names)
        model.other = Other()
        model.other.view = model.first.weight.data[:4]
        return model

    def build_early(names):
        model = Model(names)
        memory = torch.empty(1024, 512)
        model.extra = torch.nn.Parameter(memory, requires_grad=False)
        model.other = Other()
        model.other.view = memory[:4]
        return model

    for build in (build_late, build_early):
        engine.store.keys.clear()
        model, _ = engine.start(build=build)
        assert len(engine.store.keys) == 1, engine.said
        try:
            engine.start(build=build)
            raise AssertionError("a view of no weights")
        except RuntimeError as error:
            assert "--load-format auto" in str(error), error


def writers(engine):
    for more in ({"enable_eplb": True}, {"weight_transfer_config": object()}, {"calculate_kv_scales": True}):
        _, n_loads = engine.start(**more)
        assert n_loads == 1 and engine.store.log == [] and "stay private" in engine.said[-1], engine.said


def reload(engine):
    engine.start()
    model, _ = engine.start()
    calls = []

    class Worker:
        vllm_config = types.SimpleNamespace(model_config=types.SimpleNamespace(enforce_eager=True))

        def get_model(self):
            return model

        def reload_weights(self, value):
            calls.append(value)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.fill_(value)

    engine.loader_module.unseal = lambda bundle: calls.append(sorted(bundle._parameters))
    for _ in range(2):
        engine.loader_module.guard(Worker)
    Worker.vllm_config.model_config.enforce_eager = False
    try:
        Worker().reload_weights(3)
        raise AssertionError("graphs know the addresses")
    except RuntimeError as error:
        assert "--load-format auto" in str(error)
    assert calls == []
    Worker.vllm_config.model_config.enforce_eager = True
    Worker().reload_weights(3)
    assert calls[-1] == 3 and float(model.first.weight.min()) == 3 and model.lm_head.weight is model.embed.weight
    # The next engine has what was published.
    other, _ = engine.start()
    assert float(other.first.weight.min()) != 3
    # Graphs are no matter to weights that this process has loaded itself: they are unsealed where they are.
    Worker.vllm_config.model_config.enforce_eager = False
    model = engine.start(engine.default)[0]
    Worker().reload_weights(4)
    assert "p:first.weight" in calls[-2] and calls[-1] == 4


if __name__ == "__main__":
    unittest.main()
