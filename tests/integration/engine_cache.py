# SPDX-License-Identifier: Apache-2.0
"""The real KVCacheManager and BlockPool of a vLLM, without vLLM: a small scheduler, and a GPU that does what is queued when it
is told to, with memory of the simulated driver.

What a request has computed is known for each token, by all tokens up to it: every step of the GPU reads all of it in all
lanes, and writes what is new. A block whose memory is gone, or has another's content, is an error.
"""
import ast
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import os
import sys
import types

from tests.integration.driver_memory import Driver

#: Modules of vLLM that are real here, if the version has them
REAL = {"vllm.v1.core." + name for name in (
    "block_pool", "kv_cache_utils", "kv_cache_manager", "kv_cache_coordinator", "single_type_kv_cache_manager",
    "kv_cache_metrics", "kv_cache_planning", "kv_cache_config_builder")} | {"vllm.v1." + name for name in (
        "core", "kv_cache_interface", "kv_cache_spec_registry", "kv_cache_layout", "request")} | {
    "vllm.utils.math_utils"}
#: What these import and do not need here: stand-ins, where it is not installed
FOREIGN = ("torch", "msgspec", "zmq", "cbor2", "xxhash")
#: found out once: where a stand-in is imported, the name is found
ABSENT = [name for name in FOREIGN if importlib.util.find_spec(name) is None]


class Everything:
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Everything()

    def __call__(self, *arguments, **options):
        return Everything()

    __getitem__ = __or__ = __ror__ = __call__

    def __iter__(self):
        return iter(())

    def __mro_entries__(self, bases):
        return ()


class StandIn(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Everything()


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, source):
        self.source = source

    def find_spec(self, name, path, target=None):
        if name.split(".")[0] != "vllm" and name.split(".")[0] not in ABSENT:
            return None
        place = os.path.join(self.source.path, *name.split(".")[1:]) + ".py"
        if name in REAL and os.path.isfile(place):
            return importlib.util.spec_from_file_location(name, place)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


#: of each version that was imported ahead: vLLM's modules by name
_ahead = {}


def import_ahead(source):
    """Processes that are forked by this one have its modules: light_vllm() need not import them there."""
    light_vllm(source)
    import glake._vllm_kv
    import vllm.v1.core.kv_cache_manager
    import vllm.v1.request  # noqa: F401
    del sys.meta_path[0]
    _ahead[source.version] = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "vllm"}


def light_vllm(source):
    """From here on `import vllm` imports this version."""
    sys.meta_path.insert(0, Finder(source))
    if source.version in _ahead:
        sys.modules.update(_ahead[source.version])
        return
    import vllm.envs
    import vllm.logger
    import vllm.utils.torch_utils
    import vllm.v1.attention.backend
    import vllm.v1.utils
    vllm.utils.torch_utils.get_dtype_size = lambda dtype: dtype.itemsize
    vllm.v1.attention.backend.MultipleOf = type("MultipleOf", (), {})
    vllm.envs.VLLM_PREFIX_CACHE_RETENTION_INTERVAL = None
    vllm.logger.init_logger = logging.getLogger
    code = ast.unparse(source.find("v1/utils.py", "ConstantList"))
    exec("from typing import *\nfrom collections.abc import Sequence\nT = TypeVar('T')\n" + code,  # noqa: S102
         vllm.v1.utils.__dict__)


BLOCK_TOKENS = 4


def values(tokens):
    """What the cache has for each token: it depends on all before it."""
    state = hashlib.blake2b(digest_size=8)
    for token in tokens:
        state.update(b"%d," % token)
        yield state.digest()


class Output:
    def __init__(self):
        self.work = []
        self.total_num_scheduled_tokens = 0
        self.is_done = False


class Gpu:
    """Work in order, done when told to."""

    def __init__(self, elastic, layout, lanes):
        self.elastic, self.layout, self.lanes, self.queue = elastic, layout, lanes, []
        self.driver = Driver()

    def _at(self, block, slot, lane):
        return self.elastic.ptr(0, lane) + block * self.layout.block_bytes + \
            slot * (self.layout.block_bytes // BLOCK_TOKENS)

    def access(self, blocks, tokens, n_read, n_write):
        for i, expected in enumerate(values(tokens[:n_read + n_write])):
            for lane in range(self.lanes):
                ptr = self._at(blocks[i // BLOCK_TOKENS], i % BLOCK_TOKENS, lane)
                if i >= n_read:
                    self.driver.write(ptr, expected)
                elif self.driver.read(ptr, len(expected)) != expected:
                    raise AssertionError(f"token {i}, block {blocks[i // BLOCK_TOKENS]}, lane {lane}: not its content")

    def mark(self):
        done = []
        self.queue.append(lambda: done.append(True))
        return lambda: bool(done)

    def run(self, until=None, n=None):
        while self.queue and (until is None or not until()) and n != 0:
            self.queue.pop(0)()
            n = None if n is None else n - 1


class Engine:
    """vLLM's part: what is scheduled, preempted and freed. `depth`: batches in flight."""

    def __init__(self, elastic, layout, lanes, depth=1, defers=False, budget=24, caching=True,
                 watermark=0.0):
        import inspect

        import vllm.v1.core.kv_cache_utils as kv_cache_utils
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.request import Request, RequestStatus

        self.Request, self.Status, self.depth, self.defers, self.budget = Request, RequestStatus, depth, defers, budget
        self.gpu = Gpu(elastic, layout, lanes)
        spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=1, dtype=None)
        config = KVCacheConfig(num_blocks=layout.n_blocks, kv_cache_tensors=[],
                               kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
        options = dict(kv_cache_config=config, max_model_len=BLOCK_TOKENS * layout.n_blocks, enable_caching=caching,
                       scheduler_block_size=BLOCK_TOKENS, hash_block_size=BLOCK_TOKENS, watermark=watermark)
        budget_name = next(name for name in ("max_num_batched_tokens", "max_in_flight_tokens")
                           if name in inspect.signature(KVCacheManager.__init__).parameters)
        self.kv_cache_manager = KVCacheManager(**options, **{budget_name: depth * budget})
        self.pool = self.kv_cache_manager.block_pool

        def digest(value):
            return hashlib.sha256(repr(value).encode()).digest()

        kv_cache_utils.init_none_hash(digest)
        self.hasher = kv_cache_utils.get_request_block_hasher(BLOCK_TOKENS, digest)
        self.waiting, self.running, self.in_flight, self.batches = [], [], set(), []
        self.tokens, self.n_made, self.n_preempted, self.n_hit, self.n_done = {}, 0, 0, 0, 0

    # ---- requests ----

    def add(self, prompt, output):
        """Its tokens are known from the beginning; vLLM learns of the last ones step by step."""
        self.n_made += 1
        name = f"r{self.n_made}"
        sampling = types.SimpleNamespace(max_tokens=len(output), extra_args=None, prompt_logprobs=None,
                                         structured_outputs=None, skip_reading_prefix_cache=None, repetition_detection=None)
        structured = sys.modules["vllm.v1.request"].StructuredOutputRequest
        if isinstance(structured, Everything):
            sys.modules["vllm.v1.request"].StructuredOutputRequest = types.SimpleNamespace(
                from_sampling_params=lambda *arguments: None)
            sys.modules["vllm.v1.request"].length_from_prompt_token_ids_or_embeds = lambda tokens, embeds: len(tokens)
        request = self.Request(name, list(prompt), sampling, None, block_hasher=self.hasher)
        request.skip_reading_prefix_cache = False
        self.tokens[name] = list(prompt) + list(output)
        self.waiting.append(request)
        return request

    def get_num_unfinished_requests(self):
        return len(self.waiting) + len(self.running)

    def drop(self, request):
        """As vLLM aborts: what is in flight goes on, and its output is ignored."""
        self.kv_cache_manager.free(request)
        (self.running if request in self.running else self.waiting).remove(request)
        del self.tokens[request.request_id]

    # ---- a step ----

    def _preempt(self, request):
        self.kv_cache_manager.free(request)
        request.num_computed_tokens = 0
        request.status = self.Status.PREEMPTED
        self.running.remove(request)
        self.waiting.insert(0, request)
        self.n_preempted += 1

    def _allocate(self, request, n, **options):
        return self.kv_cache_manager.allocate_slots(request, n, **options)

    def _schedule_one(self, output, request, n):
        blocks = self.kv_cache_manager.get_block_ids(request.request_id)[0]
        known = self.tokens[request.request_id]
        output.work.append((request, list(blocks), list(known), request.num_computed_tokens, n))
        request.num_computed_tokens += n
        output.total_num_scheduled_tokens += n
        self.in_flight.add(request.request_id)

    def schedule(self):
        output, left = Output(), self.budget
        preempted = False
        for request in list(self.running):
            if request not in self.running or request.request_id in self.in_flight or left == 0:
                continue
            n = min(request.num_tokens - request.num_computed_tokens, left)
            while self._allocate(request, n) is None:
                victims = [other for other in self.running if other.request_id not in self.in_flight]
                preempted = True
                self._preempt(victims[-1])
                if victims[-1] is request:
                    break
            else:
                self._schedule_one(output, request, n)
                left -= n
        while self.waiting and left > 0 and not preempted:
            request = self.waiting[0]
            if request.request_id in self.in_flight:
                break
            blocks, n_hit = self.kv_cache_manager.get_computed_blocks(request)[:2]
            n = min(request.num_tokens - n_hit, left)
            if self._allocate(request, n, num_new_computed_tokens=n_hit, new_computed_blocks=blocks,
                              full_sequence_must_fit=True, has_scheduled_reqs=bool(output.work)) is None:
                break
            self.waiting.pop(0)
            self.running.append(request)
            request.status = self.Status.RUNNING
            request.num_computed_tokens = n_hit
            self.n_hit += n_hit
            self._schedule_one(output, request, n)
            left -= n
        return output

    def _queue_model(self, output):
        for request, blocks, tokens, n_read, n_write in output.work:
            self.gpu.queue.append(lambda b=blocks, t=tokens, r=n_read, w=n_write: self.gpu.access(b, t, r, w))

    def _queue_rest(self, output):
        """Its output, and a draft behind that, which uses the same blocks."""
        self.gpu.queue.append(lambda: setattr(output, "is_done", True))
        for request, blocks, tokens, n_read, n_write in output.work:
            self.gpu.queue.append(lambda b=blocks, t=tokens, n=n_read + n_write: self.gpu.access(b, t, n, 0))

    def update_from_output(self, output, *rest):
        for request, blocks, tokens, n_read, n_write in output.work:
            self.in_flight.discard(request.request_id)
            if request not in self.running:
                continue
            n = request.num_tokens
            if request.num_computed_tokens < n:
                continue
            if n == len(tokens):
                self.n_done += 1
                self.drop(request)
            else:
                request.append_output_token_ids(tokens[n])

    def _process_oldest(self):
        output = self.batches.pop(0)
        if output.work:
            self.gpu.run(until=lambda: output.is_done)
        self.update_from_output(output)

    def step(self):
        """As EngineCore.step_with_batch_queue(); with `defers`, what comes behind the model is queued when the output before it
        was processed, as with structured output."""
        output = self.schedule()
        self._queue_model(output)
        if self.defers and self.batches and output.work:
            self._process_oldest()
        self._queue_rest(output)
        self.batches.append(output)
        if len(self.batches) >= self.depth or not output.work:
            self._process_oldest()

    def idle(self):
        """Until nothing is in flight; what is queued on the GPU may still be."""
        while self.batches:
            self._process_oldest()
