# SPDX-License-Identifier: Apache-2.0
"""libglake-client by ctypes: where it is, and what its functions and structs look like."""
from __future__ import annotations

import ctypes
import operator
import os
from ctypes import (CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_double, c_int, c_int32, c_size_t,
                    c_ssize_t, c_uint, c_uint8, c_uint32, c_uint64, c_void_p)
from typing import Any, Iterator, List, Optional, Tuple

from . import errors

SONAME = "libglake-client.so.0"


# ---- structs of glake.h ----

class ConnectOptions(Structure):
    _fields_ = [("size", c_size_t), ("socket_path", c_char_p), ("program", c_char_p),
                ("libcuda", c_char_p), ("no_cuda", c_int), ("stitch", c_int),
                ("sleep_when_asked", c_int), ("promise", c_char_p), ("only_looks", c_int)]


class Device(Structure):
    _fields_ = [("index", c_uint32), ("ordinal", c_int), ("uuid", c_uint8 * 16),
                ("name", c_char * 64), ("total_bytes", c_uint64), ("quota_bytes", c_uint64)]


class SessionInfo(Structure):
    _fields_ = [("size", c_size_t), ("session", c_uint64), ("is_admin", c_int),
                ("n_devices", c_uint32), ("tenant", c_char * 64), ("realm", c_char * 64),
                ("daemon_version", c_char * 32)]


class DeviceView(Structure):
    _fields_ = [("size", c_size_t), ("quota_bytes", c_uint64), ("used_bytes", c_uint64),
                ("reserved_bytes", c_uint64), ("idle_bytes", c_uint64), ("room_bytes", c_uint64),
                ("warm_bytes", c_uint64), ("promise_bytes", c_uint64), ("left_bytes", c_uint64)]


PROGRESS = CFUNCTYPE(None, c_void_p, c_uint64, c_uint64)
WAITING = CFUNCTYPE(None, c_void_p, c_uint32, c_uint64)


class ModelOptions(Structure):
    _fields_ = [("size", c_size_t), ("device", c_uint32), ("name", c_char_p),
                ("progress", PROGRESS), ("progress_user", c_void_p), ("no_map", c_int),
                ("pin", c_int)]


class ModelInfo(Structure):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("device", c_uint32),
                ("n_tensors", c_uint64), ("n_blocks", c_uint64), ("content_bytes", c_uint64),
                ("mapped_bytes", c_uint64), ("base", c_uint64), ("was_loaded", c_int),
                ("deduplicated_bytes", c_uint64), ("load_ns", c_uint64), ("map_ns", c_uint64)]


class TensorInfo(Structure):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("dtype", c_int), ("n_dims", c_uint32),
                ("shape", POINTER(c_uint64)), ("bytes", c_uint64), ("ptr", c_uint64),
                ("strides", POINTER(c_uint64))]


class Usage(Structure):
    _fields_ = [("size", c_size_t), ("live_bytes", c_uint64), ("reserved_bytes", c_uint64),
                ("warm_bytes", c_uint64), ("shared_bytes", c_uint64), ("n_warm_allocs", c_uint64),
                ("n_cold_allocs", c_uint64), ("peak_bytes", c_uint64)]


class PoolStats(Structure):
    _fields_ = [("size", c_size_t), ("live_bytes", c_uint64), ("peak_live_bytes", c_uint64),
                ("used_bytes", c_uint64), ("reserved_bytes", c_uint64),
                ("peak_reserved_bytes", c_uint64), ("n_allocs", c_uint64),
                ("n_stitches", c_uint64), ("stitched_bytes", c_uint64), ("n_reuses", c_uint64),
                ("n_grows", c_uint64), ("grown_bytes", c_uint64), ("n_mapped", c_uint64),
                ("n_unmapped", c_uint64), ("n_kept", c_uint32), ("n_kept_live", c_uint32),
                ("kept_bytes", c_uint64)]


class PoolRange(Structure):
    _fields_ = [("ptr", c_uint64), ("bytes", c_uint64), ("state", c_int), ("is_stitched", c_int),
                ("allocation", c_uint64), ("stream", c_uint64), ("chunk_bytes", c_uint64)]


class Span(Structure):
    _fields_ = [("ptr", c_uint64), ("bytes", c_uint64)]


class Sealed(Structure):
    _fields_ = [("size", c_size_t), ("sealed_bytes", c_uint64), ("shared_bytes", c_uint64),
                ("pinned_bytes", c_uint64), ("edge_bytes", c_uint64), ("pinned_why", c_char_p),
                ("held_ns", c_uint64), ("longest_held_ns", c_uint64)]


class PublishOptions(Structure):
    _fields_ = [("size", c_size_t), ("device", c_uint32), ("pin", c_int)]


class Published(Structure):
    _fields_ = [("size", c_size_t), ("in_place_bytes", c_uint64), ("copied_bytes", c_uint64),
                ("copied_why", c_char_p), ("was_published", c_int)]


class AttachOptions(Structure):
    _fields_ = [("size", c_size_t), ("device", c_uint32), ("wait_ms", c_uint32), ("pin", c_int)]


class StaySlept(Structure):
    _fields_ = [("why", c_char_p), ("bytes", c_uint64)]


class Slept(Structure):
    _fields_ = [("size", c_size_t), ("private_bytes", c_uint64), ("shared_bytes", c_uint64),
                ("took_ns", c_uint64), ("held_ns", c_uint64), ("n_stays", c_uint32),
                ("stays", StaySlept * 16)]


# ---- structs of glake_admin.h ----

class DeviceStatus(Structure):
    _fields_ = [("index", c_uint32), ("name", c_char_p), ("uuid", c_uint8 * 16),
                ("total_bytes", c_uint64), ("physical_bytes", c_uint64),
                ("private_bytes", c_uint64), ("block_bytes", c_uint64),
                ("used_block_bytes", c_uint64), ("pool_bytes", c_uint64),
                ("logical_bytes", c_uint64), ("logical_block_bytes", c_uint64),
                ("free_bytes", c_uint64), ("context_bytes", c_uint64),
                ("managed_bytes", c_uint64), ("array_bytes", c_uint64),
                ("graph_bytes", c_uint64), ("other_bytes", c_uint64),
                ("mover_bytes", c_uint64), ("foreign_bytes", c_uint64),
                ("unaccounted_bytes", c_uint64), ("n_foreign", c_uint32),
                ("fabric", c_char_p), ("rdma", c_int), ("kept_bytes", c_uint64),
                ("saved_alone_bytes", c_uint64), ("unsealing_bytes", c_uint64),
                ("unsealing_wanted_bytes", c_uint64)]


class HostStatus(Structure):
    _fields_ = [("node", c_uint32), ("total_bytes", c_uint64), ("limit_bytes", c_uint64),
                ("physical_bytes", c_uint64), ("private_bytes", c_uint64),
                ("copy_bytes", c_uint64), ("used_copy_bytes", c_uint64),
                ("sleep_copy_bytes", c_uint64), ("model_copy_bytes", c_uint64),
                ("cached_copy_bytes", c_uint64), ("slept_bytes", c_uint64),
                ("ready_bytes", c_uint64)]


class Status(Structure):
    _fields_ = [("version", c_char_p), ("driver", c_char_p), ("config", c_char_p),
                ("mover", c_char_p), ("pid", c_uint64), ("uptime_ms", c_uint64),
                ("n_sessions", c_uint64), ("n_models", c_uint64), ("n_blocks", c_uint64),
                ("fds_used", c_uint64), ("fds_budget", c_uint64), ("draining", c_int),
                ("n_devices", c_uint32), ("devices", POINTER(DeviceStatus)),
                ("kept_fds", c_uint64), ("max_kept_fds", c_uint64),
                ("unkept_blocks", c_uint64), ("unparked_bytes", c_uint64),
                ("unkept_chunks", c_uint64), ("n_hosts", c_uint32),
                ("hosts", POINTER(HostStatus)), ("hosts_lacking", c_char_p),
                ("mover_idle_ms", c_uint64), ("sleeps_idle", c_int),
                ("sleeps_on_pressure", c_int), ("waits", c_int), ("drained", c_int),
                ("drain_reason", c_char_p), ("drained_at_ms", c_uint64), ("drained_by", c_uint32),
                ("n_programs", c_uint32)]


class SessionDevice(Structure):
    _fields_ = [("device", c_uint32), ("reserved_bytes", c_uint64), ("shared_bytes", c_uint64),
                ("managed_bytes", c_uint64), ("array_bytes", c_uint64),
                ("graph_bytes", c_uint64), ("other_bytes", c_uint64),
                ("process_bytes", c_uint64), ("promise_bytes", c_uint64),
                ("left_bytes", c_uint64), ("part_bytes", c_double),
                ("reusable_bytes", c_uint64), ("live_bytes", c_uint64), ("knows_live", c_int)]


class Unsealed(Structure):
    _fields_ = [("why", c_char_p), ("bytes", c_uint64)]


class SessionPool(Structure):
    _fields_ = [("device", c_uint32), ("live_bytes", c_uint64), ("peak_live_bytes", c_uint64),
                ("reserved_bytes", c_uint64), ("peak_reserved_bytes", c_uint64),
                ("n_allocs", c_uint64), ("n_stitches", c_uint64), ("stitched_bytes", c_uint64),
                ("n_reuses", c_uint64), ("n_grows", c_uint64), ("n_mapped", c_uint64),
                ("n_unmapped", c_uint64), ("n_kept", c_uint64), ("kept_bytes", c_uint64)]


class SessionRow(Structure):
    _fields_ = [("session", c_uint64), ("pid", c_uint32), ("uid", c_uint32),
                ("program", c_char_p), ("tenant", c_char_p), ("realm", c_char_p),
                ("reserved_bytes", c_uint64), ("live_bytes", c_uint64), ("warm_bytes", c_uint64),
                ("shared_bytes", c_uint64), ("n_chunks", c_uint32), ("n_models", c_uint32),
                ("age_ms", c_uint64), ("n_requests", c_uint64), ("peak_bytes", c_uint64),
                ("n_owned", c_uint64), ("n_passed", c_uint64), ("n_devices", c_uint32),
                ("devices", POINTER(SessionDevice)), ("detached", c_int),
                ("sealed_bytes", c_uint64), ("sealed_common_bytes", c_uint64),
                ("part_bytes", c_uint64), ("n_seals", c_uint64), ("seal_ns", c_uint64),
                ("held_ns", c_uint64), ("n_unsealed", c_uint32), ("unsealed", POINTER(Unsealed)),
                ("n_pools", c_uint32), ("pools", POINTER(SessionPool)), ("host_bytes", c_uint64),
                ("name", c_char_p), ("script", c_char_p), ("arguments", c_char_p),
                ("cgroup", c_char_p), ("pod_uid", c_char_p), ("container_id", c_char_p),
                ("n_refused", c_uint64), ("wait_bound", c_char_p), ("wait_bytes", c_uint64),
                ("wait_ms", c_uint64),
                ("filling_bytes", c_uint64), ("quiet_bytes", c_uint64), ("alone_bytes", c_uint64),
                ("refused_bytes", c_uint64), ("refused_why", c_char_p)]


class TenantDevice(Structure):
    _fields_ = [("device", c_uint32), ("used_bytes", c_uint64), ("quota_bytes", c_uint64),
                ("peak_bytes", c_uint64), ("n_refused", c_uint64), ("refused_quota", c_uint64),
                ("refused_promise", c_uint64), ("refused_room", c_uint64),
                ("refused_tenant_fds", c_uint64), ("refused_fds", c_uint64),
                ("refused_manifests", c_uint64), ("refused_user_share", c_uint64),
                ("refused_reserve", c_uint64)]


class TenantRow(Structure):
    _fields_ = [("name", c_char_p), ("n_sessions", c_uint32), ("max_sessions", c_uint32),
                ("n_fds", c_uint64), ("max_fds", c_uint64), ("priority", c_int32),
                ("n_devices", c_uint32), ("devices", POINTER(TenantDevice)),
                ("manifest_bytes", c_uint64), ("quota_manifest_bytes", c_uint64),
                ("n_hosts", c_uint32), ("hosts", POINTER(TenantDevice))]


class ModelRow(Structure):
    _fields_ = [("id", c_uint64), ("name", c_char_p), ("realm", c_char_p), ("state", c_char_p),
                ("device", c_uint32), ("span_bytes", c_uint64), ("content_bytes", c_uint64),
                ("unique_bytes", c_uint64), ("n_tensors", c_uint64), ("n_blocks", c_uint64),
                ("n_open", c_uint32), ("pinned", c_int), ("idle_ms", c_uint64),
                ("reload_reason", c_char_p), ("part_bytes", c_uint64), ("is_published", c_int),
                ("copied_bytes", c_uint64)]


class BlockRow(Structure):
    _fields_ = [("id", c_uint64), ("digest", c_uint8 * 16), ("device", c_uint32),
                ("realm", c_char_p), ("chunk_bytes", c_uint64), ("content_bytes", c_uint64),
                ("n_models", c_uint32), ("n_users", c_uint32), ("n_mappings", c_uint32)]


class EventRow(Structure):
    _fields_ = [("id", c_uint64), ("time_ms", c_uint64), ("kind", c_char_p),
                ("realm", c_char_p), ("session", c_uint64), ("pid", c_uint32),
                ("text", c_char_p), ("pod_uid", c_char_p), ("container_id", c_char_p)]


class CandidateRow(Structure):
    _fields_ = [("session", c_uint64), ("address", c_uint64), ("bytes", c_uint64),
                ("filled_bytes", c_uint64), ("state", c_char_p), ("refused_why", c_char_p),
                ("n_unsealed", c_uint32)]


class LayoutRow(Structure):
    _fields_ = [("session", c_uint64), ("pid", c_uint32), ("with_session", c_uint64), ("with_pid", c_uint32),
                ("unshared_bytes", c_uint64), ("looked_bytes", c_uint64), ("equal_bytes", c_uint64)]


class MistakeRow(Structure):
    _fields_ = [("id", c_uint64), ("uid", c_uint32), ("program", c_char_p), ("script", c_char_p),
                ("executable", c_char_p), ("time_ms", c_uint64), ("n_faults", c_uint64),
                ("n_words", c_uint32), ("kernels", c_char_p)]


class SealOptions(Structure):
    _fields_ = [("size", c_size_t), ("dry_run", c_int), ("progress", PROGRESS),
                ("progress_user", c_void_p)]


class SealReport(Structure):
    _fields_ = [("size", c_size_t), ("sealed_bytes", c_uint64), ("shared_bytes", c_uint64),
                ("small_bytes", c_uint64), ("unfilled_bytes", c_uint64),
                ("rewritten_bytes", c_uint64), ("pinned_bytes", c_uint64),
                ("failed_bytes", c_uint64), ("took_ns", c_uint64), ("held_ns", c_uint64),
                ("longest_held_ns", c_uint64), ("pinned_why", c_char * 128),
                ("failed_why", c_char * 128)]


class Stay(Structure):
    _fields_ = [("why", c_char_p), ("bytes", c_uint64)]


class SleepOptions(Structure):
    _fields_ = [("size", c_size_t), ("wakes", c_int), ("progress", PROGRESS),
                ("progress_user", c_void_p), ("waiting", WAITING)]


class SleepReport(Structure):
    _fields_ = [("is_asleep", c_int), ("private_bytes", c_uint64), ("shared_bytes", c_uint64),
                ("took_ns", c_uint64), ("held_ns", c_uint64), ("n_stays", c_uint32),
                ("stays", POINTER(Stay)), ("waited_ms", c_uint64)]


class SleeperRow(Structure):
    _fields_ = [("session", c_uint64), ("pid", c_uint32), ("uid", c_uint32),
                ("program", c_char_p), ("tenant", c_char_p), ("realm", c_char_p),
                ("state", c_char_p), ("why", c_char_p), ("asleep_ms", c_uint64),
                ("private_bytes", c_uint64), ("shared_bytes", c_uint64),
                ("stays_bytes", c_uint64), ("place", c_uint32), ("waiting_ms", c_uint64),
                ("n_sleeps", c_uint64), ("slept_ns", c_uint64), ("woke_ns", c_uint64),
                ("n_stays", c_uint32), ("stays", POINTER(Stay)), ("woke_waited_ms", c_uint64),
                ("gpu_bytes", c_uint64), ("n_models", c_uint32), ("models", POINTER(c_char_p)),
                ("name", c_char_p), ("script", c_char_p)]


class ElasticDesc(Structure):
    _fields_ = [("size", c_size_t), ("device", c_uint32), ("n_lanes", c_uint32),
                ("lane_stride", c_uint64), ("chunk_bytes", c_uint64), ("n_steps", c_uint32),
                ("floor_steps", c_uint32), ("flags", c_uint32), ("key", c_char_p), ("n_key", c_uint32)]


class ElasticStats(Structure):
    _fields_ = [("size", c_size_t), ("n_held", c_uint32), ("n_lent", c_uint32),
                ("step_bytes", c_uint64), ("n_commits", c_uint64), ("n_takes", c_uint64),
                ("n_returns", c_uint64), ("n_ahead", c_uint64), ("n_read", c_uint64)]


class ElasticRequest(Structure):
    _fields_ = [("number", c_uint64), ("verb", c_uint32), ("first", c_uint32), ("n", c_uint32), ("zero", c_uint32)]


class ElasticReply(Structure):
    _fields_ = [("number", c_uint64), ("result", c_int32), ("n", c_uint32), ("passed", c_uint64), ("stats", ElasticStats)]


STATUS_ROW = CFUNCTYPE(c_int, c_void_p, POINTER(Status))
METRIC_ROW = CFUNCTYPE(c_int, c_void_p, c_char_p, c_uint64, c_char_p)
SESSION_ROW = CFUNCTYPE(c_int, c_void_p, POINTER(SessionRow))
TENANT_ROW = CFUNCTYPE(c_int, c_void_p, POINTER(TenantRow))
MODEL_ROW = CFUNCTYPE(c_int, c_void_p, POINTER(ModelRow))
BLOCK_ROW = CFUNCTYPE(c_int, c_void_p, POINTER(BlockRow))
EVENT_ROW = CFUNCTYPE(c_int, c_void_p, POINTER(EventRow))
CANDIDATE_ROW = CFUNCTYPE(c_int, c_void_p, POINTER(CandidateRow))
LAYOUT_ROW = CFUNCTYPE(c_int, c_void_p, POINTER(LayoutRow))
MISTAKE_ROW = CFUNCTYPE(c_int, c_void_p, POINTER(MistakeRow))
SLEEP_ROW = CFUNCTYPE(c_int, c_void_p, POINTER(SleepReport))
SLEEPER_ROW = CFUNCTYPE(c_int, c_void_p, POINTER(SleeperRow))

# ---- functions: name, result, arguments ----

_FUNCTIONS: List[Tuple[str, Any, List[Any]]] = [
    ("glake_strerror", c_char_p, [c_int]),
    ("glake_error", c_char_p, []),
    ("glake_version", c_char_p, []),
    ("glake_connect", c_int, [POINTER(ConnectOptions), POINTER(c_void_p)]),
    ("glake_disconnect", None, [c_void_p]),
    ("glake_session_info", c_int, [c_void_p, POINTER(SessionInfo)]),
    ("glake_device_at", c_int, [c_void_p, c_uint32, POINTER(Device)]),
    ("glake_device_index", c_int, [c_void_p, c_int]),
    ("glake_device_view", c_int, [c_void_p, c_uint32, POINTER(DeviceView)]),
    ("glake_ping", c_int, [c_void_p]),
    ("glake_alloc", c_int, [c_void_p, c_uint32, c_uint64, c_uint, POINTER(c_uint64)]),
    ("glake_alloc_many", c_int, [c_void_p, c_uint32, POINTER(c_uint64), c_size_t, c_uint,
                                 POINTER(c_uint64)]),
    ("glake_free", c_int, [c_void_p, c_uint64]),
    ("glake_trim", c_int, [c_void_p, c_uint32, c_uint64]),
    ("glake_seal", c_int, [POINTER(Span), c_size_t, POINTER(Sealed)]),
    ("glake_seal_idle", c_int, [POINTER(Span), c_size_t, POINTER(Sealed)]),
    ("glake_unseal", c_int, [c_uint64, c_uint64]),
    ("glake_unseal_spans", c_int, [POINTER(Span), c_size_t]),
    ("glake_weights_publish", c_int, [c_void_p, c_char_p, POINTER(TensorInfo), c_size_t,
                                      POINTER(PublishOptions), POINTER(Published)]),
    ("glake_weights_attach", c_int, [c_void_p, c_char_p, POINTER(AttachOptions),
                                     POINTER(c_void_p)]),
    ("glake_dtype_name", c_char_p, [c_int]),
    ("glake_dtype_bits", c_uint, [c_int]),
    ("glake_model_open", c_int, [c_void_p, c_char_p, POINTER(ModelOptions), POINTER(c_void_p)]),
    ("glake_model_open_shards", c_int, [c_void_p, POINTER(c_char_p), c_size_t,
                                        POINTER(ModelOptions), POINTER(c_void_p)]),
    ("glake_model_close", None, [c_void_p]),
    ("glake_model_info", c_int, [c_void_p, POINTER(ModelInfo)]),
    ("glake_model_tensor_at", c_int, [c_void_p, c_uint64, POINTER(TensorInfo)]),
    ("glake_capsule_destructor", c_void_p, []),
    ("glake_model_dlpack", c_int, [c_void_p, c_uint64, POINTER(c_void_p)]),
    ("glake_read", c_int, [c_void_p, c_uint32, c_void_p, c_uint64, c_uint64]),
    ("glake_fd", c_int, [c_void_p]),
    ("glake_dispatch", c_int, [c_void_p]),
    ("glake_usage", c_int, [c_void_p, POINTER(Usage)]),
    ("glake_pool_stats", c_int, [c_void_p, c_uint32, POINTER(PoolStats)]),
    ("glake_pool_reset_peaks", c_int, [c_void_p, c_uint32]),
    ("glake_pool_snapshot", c_int, [c_void_p, c_uint32, POINTER(POINTER(PoolRange)),
                                    POINTER(c_size_t)]),
    ("glake_torch_alloc", c_void_p, [c_ssize_t, c_int, c_void_p]),
    ("glake_torch_pool_alloc", c_void_p, [c_ssize_t, c_int, c_void_p]),
    ("glake_torch_free", None, [c_void_p, c_ssize_t, c_int, c_void_p]),
    ("glake_torch_record_stream", None, [c_void_p, c_void_p]),
    ("glake_torch_empty_cache", None, []),
    ("glake_torch_session", c_void_p, []),
    ("glake_torch_set_raise", None, [c_void_p]),
    ("glake_torch_tend", None, [c_int]),
    ("glake_elastic_open", c_int, [c_void_p, POINTER(ElasticDesc), POINTER(c_void_p),
                                   POINTER(c_uint64)]),
    ("glake_elastic_close", c_int, [c_void_p]),
    ("glake_elastic_commit", c_int, [c_void_p, c_uint32, c_uint32, POINTER(c_uint32)]),
    ("glake_elastic_ahead", c_int, [c_void_p, c_uint32, c_uint32]),
    ("glake_elastic_lend", c_int, [c_void_p, c_uint32, c_uint32]),
    ("glake_elastic_take", c_uint32, [c_void_p, c_uint32, c_uint32]),
    ("glake_elastic_return", c_int, [c_void_p, c_uint32, c_uint32]),
    ("glake_elastic_seal", c_int, [c_void_p, c_uint32, c_void_p, c_size_t]),
    ("glake_elastic_unseal", c_int, [c_void_p, c_uint32, c_uint32]),
    ("glake_elastic_adopt", c_int, [c_void_p, c_uint32, c_void_p, POINTER(c_size_t), POINTER(c_uint32)]),
    ("glake_elastic_show", c_int, [c_void_p, c_uint32, c_void_p, POINTER(c_uint32), c_uint32]),
    ("glake_elastic_read", c_int, [c_void_p, c_uint32, c_void_p, c_size_t, c_void_p, POINTER(c_size_t)]),
    ("glake_elastic_hide", c_int, [c_void_p, c_uint32, c_uint32]),
    ("glake_elastic_states", POINTER(c_uint32), [c_void_p]),
    ("glake_elastic_stats", c_int, [c_void_p, POINTER(ElasticStats)]),
    ("glake_elastic_attend", c_int, [c_void_p, c_int]),
    ("glake_elastic_mark", c_int, [c_void_p, c_uint64, c_void_p]),
    ("glake_get_status", c_int, [c_void_p, STATUS_ROW, c_void_p]),
    ("glake_get_stats", c_int, [c_void_p, METRIC_ROW, c_void_p]),
    ("glake_list_sessions", c_int, [c_void_p, SESSION_ROW, c_void_p]),
    ("glake_list_tenants", c_int, [c_void_p, TENANT_ROW, c_void_p]),
    ("glake_list_models", c_int, [c_void_p, MODEL_ROW, c_void_p]),
    ("glake_list_blocks", c_int, [c_void_p, BLOCK_ROW, c_void_p]),
    ("glake_list_events", c_int, [c_void_p, EVENT_ROW, c_void_p]),
    ("glake_list_candidates", c_int, [c_void_p, c_uint64, CANDIDATE_ROW, c_void_p,
                                      POINTER(c_uint64)]),
    ("glake_list_layout", c_int, [c_void_p, c_uint64, LAYOUT_ROW, c_void_p]),
    ("glake_list_mistakes", c_int, [c_void_p, MISTAKE_ROW, c_void_p]),
    ("glake_forgive", c_int, [c_void_p, c_uint64]),
    ("glake_pin", c_int, [c_void_p, c_char_p, c_int]),
    ("glake_evict", c_int, [c_void_p, c_char_p, POINTER(c_uint64), POINTER(c_uint64)]),
    ("glake_seal_session", c_int, [c_void_p, c_uint64, POINTER(SealOptions), POINTER(SealReport)]),
    ("glake_sleep", c_int, [c_void_p, c_uint32, POINTER(Slept)]),
    ("glake_wake", c_int, [c_void_p, POINTER(Slept)]),
    ("glake_is_asleep", c_int, [c_void_p]),
    ("glake_sleep_session", c_int, [c_void_p, c_uint64, POINTER(SleepOptions), SLEEP_ROW,
                                    c_void_p]),
    ("glake_list_sleepers", c_int, [c_void_p, SLEEPER_ROW, c_void_p]),
    ("glake_drain", c_int, [c_void_p, c_char_p]),
    ("glake_undrain", c_int, [c_void_p]),
    ("glake_set_quota", c_int, [c_void_p, c_char_p, c_uint32, c_uint64]),
    ("glake_force_quota", c_int, [c_void_p, c_char_p, c_uint32, c_uint64]),
    ("glake_set_max_sessions", c_int, [c_void_p, c_char_p, c_uint32]),
    ("glake_set_host_quota", c_int, [c_void_p, c_char_p, c_uint32, c_uint64]),
    ("glake_set_manifest_quota", c_int, [c_void_p, c_char_p, c_uint64]),
]


def _candidates() -> Iterator[str]:
    chosen = os.environ.get("GLAKE_CLIENT_LIB")
    if chosen:
        # An explicit choice has no fallback.
        yield chosen
        return
    package = os.path.dirname(os.path.abspath(__file__))
    build = os.environ.get("GLAKE_BUILD")
    folders = [
        package,                                                          # a wheel
        os.path.join(package, "..", "..", "lib"),                         # an unpacked tarball
        os.path.join(package, "..", "..", ".."),                          # PREFIX/lib
        os.path.join(build, "lib") if build else None,
        os.path.join(package, "..", "..", "..", "build", "lib"),          # a source tree
    ]
    for folder in folders:
        path = os.path.join(folder, SONAME) if folder else None
        if path and os.path.exists(path):
            yield os.path.normpath(path)
    yield SONAME


def _of_process() -> Optional[ctypes.CDLL]:
    """The copy that the process has already: the shim's, or the program's own. A second one would
    know nothing of the memory that the first has mapped."""
    everything = ctypes.CDLL(None)
    has_all = hasattr(everything, "glake_connect") and hasattr(everything, "glake_seal")
    return everything if has_all else None


def _load() -> ctypes.CDLL:
    library = _of_process()
    reasons = []
    for path in _candidates() if library is None else ():
        try:
            library = ctypes.CDLL(path)
            break
        except OSError as error:
            reasons.append(str(error))
    if library is None:
        raise ImportError("cannot load libglake-client: " + "; ".join(reasons))
    for name, result, arguments in _FUNCTIONS:
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


_library: Optional[ctypes.CDLL] = None


def library() -> ctypes.CDLL:
    """The library, loaded on first use: importing the package alone needs none."""
    global _library
    if _library is None:
        _library = _load()
    return _library


def unsigned(value: int, what: str, bits: int = 64) -> int:
    """ctypes would make another number of one that does not fit. TypeError: it is none."""
    if not 0 <= operator.index(value) < 1 << bits:
        raise ValueError(f"{what}: {value} is not from 0 to {(1 << bits) - 1}")
    return value


def text(value: Optional[bytes]) -> str:
    return value.decode("utf-8", "replace") if value else ""


def check(result: int) -> int:
    """Raise what a negative result means, on the thread that got it."""
    if result >= 0:
        return result
    lib = library()
    raise errors.make(result, text(lib.glake_error()) or text(lib.glake_strerror(result)))
