/*
 * cudasim: a libcuda.so.1 for machines without a GPU. This header is what its files agree on.
 *
 * Owner:    the process that opened the library; the registry is shared by all of them.
 * Lifetime: from cuInit to the end of the process (the library cannot be unloaded).
 * Threads:  every function may be called from any thread unless its comment says otherwise.
 *
 * Locks, outermost first: space (rwlock), handle table, registry (shared by all processes).
 * The lock of the streams is taken alone. No lock is held while a host function runs.
 */
#ifndef CUDASIM_SIM_H
#define CUDASIM_SIM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h> /* before the pragma, as cuda.h includes it */

/*
 * Protected, not default: a preloaded shim has the same names, and our own table of addresses
 * (cuGetProcAddress) must hold our functions and not the shim's.
 */
#pragma GCC visibility push(protected)
#define __CUDA_API_VERSION_INTERNAL /* all versions of all calls, each by its symbol */
#include <cuda.h>
#pragma GCC visibility pop

#define SIM_MAX_DEVICES 16
#define SIM_GRANULARITY (2ULL << 20)
#define SIM_DRIVER_VERSION 13000
/* Asynchronous work touches memory in pieces of this size and looks at the mappings anew for
 * each, so an unmap or a change of access meets queued work as it does on hardware. */
#define SIM_PIECE_BYTES (1ULL << 20)

struct blob;
struct ctx;
struct graph;
struct green;
struct stream;

/* --- call.c: what every exported function passes through --- */

enum call_id {
#define CALL(NAME, VERSION, NEED) CALL_##NAME,
#include "calls.def"
#undef CALL
	CALL_COUNT
};

enum call_need {
	NEED_NOTHING,
	NEED_INIT,
	NEED_CTX, /* a current context that is alive and not poisoned */
};

CUresult call_enter(enum call_id id);
const char *call_name(enum call_id id);

#define ENTER(NAME) \
	do { \
		CUresult enter_err = call_enter(CALL_##NAME); \
		if (enter_err != CUDA_SUCCESS) { \
			return enter_err; \
		} \
	} while (0)

/* cudaGL.h and cudaVDPAU.h want headers of others. */
#pragma GCC visibility push(default)
CUresult cuGLCtxCreate_v2(CUcontext *ctx_out, unsigned int flags, CUdevice dev);
CUresult cuVDPAUCtxCreate_v2(CUcontext *ctx_out, unsigned int flags, CUdevice dev,
                             uint32_t vdp_device, void *vdp_get_proc);
#pragma GCC visibility pop

/* --- work.c: what has a handle that the program may forget, as it may with a driver: no leak --- */

struct kept {
	struct kept *next;
	struct kept **at; /* link: all that is kept */
};

void kept_add(struct kept *kept);
void kept_remove(struct kept *kept);

/* --- fault.c: CUDASIM_FAULT --- */

/* Applies the rules that match this call; CUDA_SUCCESS lets it go on. */
CUresult fault_check(enum call_id id);
/* False: CUDASIM_FAULT (or its file) cannot be parsed; the reason went to stderr. */
bool fault_config_is_valid(void);

/* --- device.c: the devices of this process, numbered as the application sees them --- */

/* Reads CUDASIM_DEVICES and CUDA_VISIBLE_DEVICES; called once, by cuInit. */
CUresult device_init(void);
int device_count(void);
bool device_is_valid(CUdevice dev);
/* The ordinal before CUDA_VISIBLE_DEVICES, which all processes agree on. */
unsigned device_physical(CUdevice dev);
/* The reverse: -1 if this process does not see that device. */
int device_from_physical(unsigned physical);
uint64_t device_total_bytes(CUdevice dev);
uint64_t device_physical_bytes(unsigned physical);
void device_uuid(unsigned physical, uint8_t uuid_out[16]);
const char *device_spec(void);
/* Parse a size like "8GiB"; false: it is malformed, or 0. */
bool device_parse_size(const char *text, uint64_t *bytes_out);
/* The memory that a context takes of its device (CUDASIM_CONTEXT), in whole granules. */
uint64_t device_context_bytes(void);
enum device_fabric { FABRIC_NONE, FABRIC_DENIED, FABRIC_PERMITTED };
enum device_fabric device_fabric(void);

/* --- context.c --- */

struct ctx {
	unsigned device;
	unsigned n_retained; /* by the program; under the contexts' lock */
	unsigned n_greens;   /* by green contexts; under the contexts' lock */
	unsigned flags;
	uint64_t id; /* another one each time it is opened; under the contexts' lock */
	atomic_bool active;
	/* CUDA_SUCCESS, or the error that every later call on this context answers. */
	atomic_int poison;
	struct stream *null_stream; /* owned; made with the context, its thread on first use */
	struct phys *overhead; /* owned or NULL: the memory that a context takes of the device */
	atomic_uint peers;     /* bit per device whose allocations this context may reach */
};

/* The context with that handle; NULL: there is none, or it was destroyed. */
struct ctx *ctx_find(const void *handle);
bool ctx_is_created(const struct ctx *ctx);
uint64_t ctx_id(const struct ctx *ctx);
CUresult ctx_check(const struct ctx *ctx);
/* --- current.c --- */

/* Make the context the calling thread's current one. */
CUresult ctx_push(struct ctx *ctx);
/* If the context is the calling thread's current one, pop it. */
void ctx_pop_if(const struct ctx *ctx);
/* Is the calling thread's context, or green context, usable? Returns its error. */
CUresult ctx_check_current(void);
/* The calling thread's context or NULL; for a green one, its primary. */
struct ctx *ctx_current(void);
struct green *ctx_current_green(void);
struct ctx *ctx_of_device(unsigned device);
struct ctx *ctx_from_handle(CUcontext handle);
/* Retain a primary context, for a green one or for the program, which cannot release those that green ones retain. */
CUresult ctx_retain(CUdevice dev, bool is_for_green, struct ctx **ctx_out);
CUresult ctx_release(struct ctx *ctx, bool is_for_green);
uint64_t ctx_new_id(void);
/* Poison the context and all others of its device, as a GPU drops them together. all: on all devices. */
void ctx_poison(struct ctx *ctx, CUresult err);
void ctx_poison_all(CUresult err);

/* --- resource.c: multiprocessors, and what can be made of them --- */

/* The device of the resources, or -1. */
int resource_device(CUdevResourceDesc desc);

/* --- green.c --- */

/* A place for a green context. Its address is the CUgreenCtx and the CUcontext. */
struct green {
	struct ctx *ctx;            /* the primary, retained; NULL: a free place */
	uint64_t id;                /* another one each time the place is used */
	struct stream *null_stream; /* owned */
	atomic_bool active;
};

/* NULL: there is no such green context, or it is destroyed. */
struct green *green_from_handle(const void *handle);

/* --- hostnode.c: NUMA nodes of the host --- */

#define SIM_MAX_NODES 8U
/* The places that the registry counts: devices, and after them nodes. */
#define SIM_MAX_PLACES (SIM_MAX_DEVICES + SIM_MAX_NODES)

/* Calls that take time by bytes. */
enum host_cost {
	HOST_COST_CREATE,
	HOST_COST_RELEASE,
	HOST_COST_GPU_ACCESS,
	HOST_COST_UNMAP,
	HOST_COST_CPU_ACCESS,
};

const char *hostnode_spec(void);
/* False if the environment cannot be understood. */
bool hostnode_init(void);
/* False: a driver that has no chunks in host memory. */
bool hostnode_is_supported(void);
bool hostnode_is_valid(int node);
/* 0: without a limit. */
uint64_t hostnode_bytes(unsigned node);
/* Sleep for the time that the call takes, if CUDASIM_HOST_COST says so. */
void hostnode_pay(enum host_cost cost, uint64_t bytes);

/* --- registry.c: how much memory of each device exists, over all processes --- */

/* The file of a chunk, for who asks later whether it is there still. */
struct chunk_file {
	uint64_t inode;
	int handle_type;
	uint32_t n_bytes; /* of the handle; 0: only its lock tells */
	unsigned char handle[16];
};

struct registry_slot {
	uint32_t index;
	uint64_t inode;
};

CUresult registry_open(void);
/* A number that only processes sharing this registry know; part of each chunk's name. */
uint64_t registry_id(void);
/* Charges a chunk that already carries its lock. CUDA_ERROR_OUT_OF_MEMORY if it does not fit. */
CUresult registry_charge(unsigned physical, const struct chunk_file *file, uint64_t bytes,
                         struct registry_slot *slot_out);
/* Refund a chunk that nobody else can hold. A later sweep finds others. */
void registry_refund(const struct registry_slot *slot);
/* Sweep, and return the bytes that remain. */
uint64_t registry_used_bytes(unsigned physical);

/* --- proclocks.c --- */

/* The inodes of all OFD locks on this machine, sorted; the caller frees the list. 0 or -errno. */
int proclocks_read(uint64_t **inodes_out, size_t *n_out);
bool proclocks_has(const uint64_t *inodes, size_t n, uint64_t inode);

/* --- physical.c: chunks --- */

/*
 * One chunk's file as this process knows it. It lives while handles or mappings refer to it; the memory
 * lives while any process holds a struct phys, an fd or a mapping.
 */
struct phys {
	int fd;          /* owned; -1 for memory of cuMemAlloc, which nobody can export */
	unsigned device; /* valid if !on_host */
	unsigned n_refs; /* under the handle table's lock: handles + mappings */
	unsigned n_handles;
	unsigned handle_slot; /* valid while n_handles > 0 */
	bool on_host;
	bool rdma;       /* a property that an importer cannot see in prop */
	bool is_shared;  /* exported or imported: only a sweep can tell when it is gone */
	bool is_charged; /* by this process, in the registry */
	uint64_t bytes;
	uint64_t id;    /* unique in this process */
	uint64_t inode; /* an imported chunk's; 0: it was not imported */
	struct phys
		*next; /* under the same lock: link of imports with the same hash of the inode */
	struct registry_slot slot;
	CUmemAllocationProp prop;
};

/* One reference for the caller, no handle. */
CUresult phys_new(const CUmemAllocationProp *prop, uint64_t bytes, struct phys **phys_out);
/* A reference for the caller; NULL if the handle is unknown. */
struct phys *phys_ref_handle(CUmemGenericAllocationHandle handle);
void phys_ref(struct phys *phys);
void phys_unref(struct phys *phys);
/* Gives up the fd of a chunk that is mapped and will never be exported. */
void phys_drop_fd(struct phys *phys);
/* Another handle to the chunk (the same number if it still has one). */
CUresult phys_add_handle(struct phys *phys, CUmemGenericAllocationHandle *handle_out);
/* The chunk that this process has imported of the file, with a reference for the caller; NULL: it has none. */
struct phys *phys_ref_import(int fd);
/* Note an imported chunk, so that phys_ref_import() finds it. */
void phys_enter_import(struct phys *phys);
/* Takes the fd over unless it answers NULL. One reference for the caller, no charge. */
struct phys *phys_from_fd(int fd, const CUmemAllocationProp *prop, uint64_t bytes);
/* From now on others may hold the memory. */
void phys_mark_shared(struct phys *phys);

/* --- chunkfd.c: the file behind a chunk and what its name says --- */

struct chunk_label {
	bool on_host;
	unsigned device; /* physical ordinal */
	unsigned location_type;
	int location_id;
	unsigned handle_types;
	unsigned rdma;
};

/* Reads the environment, as part of cuInit. */
void chunkfd_begin(void);
/* Makes the file, its size and the lock that lives exactly as long as its memory. */
int chunkfd_new(const struct chunk_label *label, uint64_t bytes, struct chunk_file *file_out);
/* The folder of all chunks, for the caller to close; -1: there is none. */
int chunkfd_open_folder(void);
/* Whether somebody has the file still; < 0: who may not open files by handle cannot say (-errno). */
int chunkfd_exists(int folder_fd, const struct chunk_file *file);
/* The inode as it is called in all of cudasim: with the file system that it is of, because there may be two. */
uint64_t chunkfd_inode(unsigned file_system, uint64_t inode);
/* The inode of the file, 0 if it has none. */
uint64_t chunkfd_inode_of(int fd);
/* False if fd is not a chunk of this registry. */
bool chunkfd_read(int fd, struct chunk_label *label_out, uint64_t *bytes_out);
/* Opens the chunk that another process offers by a fabric handle; -1 + errno. */
int chunkfd_reopen(int pid, int fd, uint64_t inode);

/* --- space.c: device addresses --- */

enum space_kind {
	SPACE_VMM,   /* cuMemMap */
	SPACE_ALLOC, /* cuMemAlloc and friends */
	SPACE_HOST,  /* pinned or registered host memory, at its own address */
};

enum space_access { SPACE_NONE = 0, SPACE_READ = 1, SPACE_WRITE = 3 };

struct range {
	uint64_t start;
	uint64_t bytes;
};

/*
 * Addresses handed out by cuMemAddressReserve. They stay inaccessible to the host, as device
 * addresses are; the simulator reaches memory there through mapping.host.
 */
struct reservation {
	struct range range; /* must be first: the tree compares ranges */
	bool is_internal;   /* made by cuMemAlloc: not the application's */
	bool is_of_graph;   /* will have memory when the graph is launched */
};

struct slab;
struct graphmem;

struct mapping {
	struct range range; /* must be first */
	enum space_kind kind;
	uint8_t *host;           /* where the simulator reaches the bytes */
	struct reservation *res; /* owned, SPACE_ALLOC with a chunk of its own */
	struct phys *phys;       /* one reference; NULL for SPACE_HOST and pieces of a slab */
	struct slab *slab;       /* borrowed; pieces of a slab only */
	unsigned device;         /* the memory's; for host memory that of the context */
	struct ctx *ctx;         /* it was allocated in, or its pool lives by; not SPACE_VMM */
	uint64_t id;             /* unique in this process */
	bool on_host;
	CUmemoryPool pool;         /* of cuMemAllocAsync, else NULL */
	struct mapping *next_kept; /* link: pool.kept */
	struct graphmem *graphmem; /* SPACE_ALLOC of a graph's, which owns it */
	bool is_registered;        /* SPACE_HOST of cuMemHostRegister */
	bool is_managed;           /* SPACE_HOST of cuMemAllocManaged */
	bool is_sync_memops;       /* set by cuPointerSetAttribute */
	unsigned host_flags;       /* SPACE_HOST: as given to cuMemHostAlloc */
	uint8_t access[SIM_MAX_DEVICES];
	uint8_t host_access; /* the CPU's at range.start; host chunks only */
};

void space_lock_read(void);
void space_lock_write(void);
void space_unlock(void);

/* The functions below are called with the space locked, for writing if they change it. */
CUresult space_reserve(uint64_t bytes, uint64_t alignment, uint64_t hint,
                       struct reservation **res_out);
void space_unreserve(struct reservation *res);
/* The reservation that contains the address, or NULL. */
struct reservation *space_find_reservation(uint64_t addr);
/* Is the range made of the application's reservations, without a gap? */
bool space_is_reserved(uint64_t addr, uint64_t bytes);
struct mapping *space_find(uint64_t addr);
/* Any mapping that overlaps. */
struct mapping *space_find_in(uint64_t addr, uint64_t bytes);
/* Takes the mapping over; 0 or -ENOMEM. */
int space_add(struct mapping *m);
void space_remove(struct mapping *m);
/* All mappings that `wants` accepts, in a list that the caller frees; returns how many. */
size_t space_gather(bool (*wants)(const struct mapping *m, const struct ctx *ctx),
                    const struct ctx *ctx, struct mapping ***list_out);

enum space_view {
	SPACE_BY_KERNEL, /* memory that the device itself can reach */
	SPACE_BY_ENGINE, /* copies and sets: memory that any device can reach */
	SPACE_BY_API,    /* as BY_ENGINE, or pageable memory of the host */
};

/*
 * Find the bytes at addr and how many follow in one piece (at most `bytes`). If it is not device
 * memory at all, SPACE_BY_API returns the address itself, as pageable host memory.
 */
bool space_resolve(uint64_t addr, uint64_t bytes, enum space_access want, enum space_view view,
                   unsigned device, uint8_t **host_out, uint64_t *n_out);
/*
 * Do copies (or sets) of a context of @device take the address, as the driver 580.159 does on two H200s without peer access?
 * Not memory that is mapped and not opened to @device; and sets nothing that another device allocated. Takes the lock itself.
 */
bool space_is_open_to(uint64_t addr, unsigned device, bool is_set);
/* Is the whole range reachable? Takes the lock itself. */
bool space_check(uint64_t addr, uint64_t bytes, enum space_access want, enum space_view view,
                 unsigned device);

/* Like memmove and memset; a word of 4 or 8 bytes is written at once, ordered with accesses before and after. */
void bytes_move(void *dst, const void *src, size_t bytes);
void bytes_set(void *dst, uint8_t value, size_t bytes);
/* Write @element @n times, one behind the other. */
void bytes_repeat(void *dst, const void *element, size_t element_bytes, size_t n);
/* Every byte the same? */
bool bytes_are_equal(const void *a, const void *b, size_t bytes);
uint64_t bytes_sum(const void *src, size_t bytes);
/* Is there any mapping at the address, or will a graph make one? Takes the lock itself. */
bool space_is_known(uint64_t addr);
uint64_t space_new_id(void);

/* --- slab.c: cuMemAlloc below 2 MiB shares chunks; the space is locked for writing --- */

/* Fills in where the piece is: range, host and slab. The caller adds the mapping. */
CUresult slab_take(unsigned device, uint64_t bytes, struct mapping *m);
/* Gives the piece back and, with the last one, the chunk. */
void slab_give(const struct mapping *m);
struct reservation *slab_reservation(const struct slab *slab);

/* --- alloc.c --- */

/* A chunk without a handle, at an address of its own; the space is locked for writing. */
struct alloc_chunk {
	struct reservation *res;
	struct phys *phys;
	uint8_t *host;
};
CUresult alloc_chunk_new(unsigned device, uint64_t bytes, bool keeps_fd,
                         struct alloc_chunk *chunk_out);
void alloc_chunk_free(const struct alloc_chunk *chunk);
CUresult alloc_device(unsigned device, uint64_t bytes, CUmemoryPool pool, CUdeviceptr *ptr_out);
/* Enters @m, unless @err has gone before, and ends the lock of the space. Returns @err, or CUDA_ERROR_OUT_OF_MEMORY. */
CUresult alloc_enter(struct mapping *m, CUresult err, CUdeviceptr *ptr_out);
/* Frees a mapping that is in the space no more; the space is locked for writing. */
void alloc_give(struct mapping *m);
/* CUDA_ERROR_INVALID_VALUE: nothing was allocated there. Waits for nothing. */
CUresult alloc_free(CUdeviceptr ptr);
/* Frees what cuMemAlloc still holds when the context goes. */
void alloc_free_all(const struct ctx *ctx);

/* --- pool.c --- */

/* The pool that cuMemAllocAsync takes from. */
CUmemoryPool pool_current(unsigned device);
/* The pool that graphs of the device allocate from. */
CUmemoryPool pool_of_graphs(unsigned device);
bool pool_is_known(CUmemoryPool pool);
unsigned pool_device(CUmemoryPool pool);
/* Is the pool from another process? Is it shareable? Then each allocation has a chunk of its own, with its fd. */
bool pool_is_imported(CUmemoryPool pool);
bool pool_is_shareable(CUmemoryPool pool);
CUresult pool_new_imported(CUmemoryPool *pool_out, unsigned device);
/* The functions below are called with the space locked for writing. The pool may be NULL. */
bool pool_has_room(CUmemoryPool pool, uint64_t bytes);
/* Fills in where the memory is, if the pool keeps some that is large enough. */
bool pool_take(CUmemoryPool pool, uint64_t bytes, struct mapping *m);
void pool_charge(const struct mapping *m);
/* Takes over a mapping that is in the space no more, to keep its memory or to free it. */
void pool_give(struct mapping *m);
/* Free all memory that pools of the device keep; false: there was none. */
bool pool_trim_device(unsigned device);
/* Add @bytes, perhaps negative, to the memory that is reserved, or used, for graphs. */
void pool_graph_reserve(unsigned device, int64_t bytes);
void pool_graph_use(unsigned device, int64_t bytes);
/* Takes no lock. */
bool pool_is_open_to(CUmemoryPool pool, unsigned device);

/* --- graphmem.c; the space is locked for writing --- */

/* Free a graph's allocation, which keeps its memory. False: it was freed already. */
bool graphmem_give(struct graphmem *memory);
/* The primary context ends: free all graph memory of the device. */
void graphmem_end_device(unsigned device);

/* --- array.c --- */

/* Destroys the arrays of a context. */
void array_free_all(const struct ctx *ctx);

/* --- hostmem.c --- */

/* Free memory of cuMemHostAlloc and forget registered memory, of one context. */
void hostmem_free_all(const struct ctx *ctx);
/* Free memory of cuMemHostAlloc; CUDA_ERROR_INVALID_VALUE: it is not such memory. */
CUresult hostmem_free(uint64_t addr);

/* --- stream.c --- */

/* Runs on a stream's thread, in order. An error poisons the context. */
typedef CUresult (*op_fn)(struct ctx *ctx, void *arg);

/* A moment on a stream; reached when the work submitted before it is done. */
struct mark;

/* A flag beside CU_STREAM_*: the stream is the legacy default stream of its context. */
#define STREAM_IS_LEGACY 0x10000U

/* @green: NULL, or of @ctx. */
CUresult stream_new(struct ctx *ctx, struct green *green, unsigned flags, int priority,
                    struct stream **stream_out);
/* Queued work still runs; the caller's pointer is dead. */
void stream_free(struct stream *s);
/*
 * NULL if not a stream. Handles 0 and CU_STREAM_LEGACY are the current context's,
 * CU_STREAM_PER_THREAD is the calling thread's own there.
 */
struct stream *stream_from_handle(CUstream handle);
/* In the calling thread, handle 0 is CU_STREAM_PER_THREAD as long as this call lasts. */
extern _Thread_local bool stream_zero_is_own;
/* The error for a handle that is no stream. */
CUresult stream_missing(CUstream handle);
/* The id of a stream, which is never used again. */
uint64_t stream_id(const struct stream *s);
struct ctx *stream_ctx(const struct stream *s);
struct green *stream_green(const struct stream *s);
unsigned stream_flags(const struct stream *s);
int stream_priority(const struct stream *s);
/* Queues a copy of arg. `done` (or NULL) runs afterwards even in a poisoned context. */
CUresult stream_submit(struct stream *s, op_fn run, void (*done)(void *arg), const void *arg,
                       size_t arg_bytes);
/* Waits for all that was submitted, then answers the context's poison. */
CUresult stream_wait(struct stream *s);
bool stream_is_idle(struct stream *s);
/* Wait for all work of the context and of its green contexts. */
void stream_wait_ctx(struct ctx *ctx);
/* Wait for all work of all contexts, because any may use host memory. */
void stream_wait_all(void);
void stream_wait_green(const struct green *green);
void stream_free_all(struct ctx *ctx);
/* The green context is no more: nobody can use its streams, nor destroy them. Queued work runs. */
void stream_detach_all(const struct green *green);
struct mark *stream_mark(struct stream *s);
/* Reached when all that is on the context's streams now is done; of a green one's only, if not NULL. */
struct mark *stream_mark_ctx(struct ctx *ctx, const struct green *green);
/* Reached by mark_reach() only. */
struct mark *mark_new(void);
void mark_reach(struct mark *mark);
CUresult stream_wait_mark(struct stream *s, struct mark *mark);
void mark_ref(struct mark *mark);
void mark_unref(struct mark *mark);
bool mark_is_reached(const struct mark *mark);
void mark_wait(struct mark *mark);
uint64_t mark_time_ns(const struct mark *mark);

/* --- event.c --- */

CUresult event_record_ctx(CUevent event, struct ctx *ctx, struct green *green);
bool event_is_known(CUevent event);
/* A launch of a graph records it; takes the mark over. */
void event_record_mark(CUevent event, struct mark *mark);
/* The mark of the last record, with a reference for the caller, or NULL. */
struct mark *event_last_mark(CUevent event);

/* --- capture.c --- */

/*
 * Check whether a capture forbids the call: depending on the thread's mode, always on the captured stream, or
 * always in its context. Returns the call's error; a forbidden call has ended the capture.
 */
CUresult capture_check_unsafe(void);
CUresult capture_check_stream(const struct stream *s);
CUresult capture_check_ctx(const struct ctx *ctx);
bool capture_is_of(const struct stream *s);
struct work;
/* True: the stream is captured, or its capture is broken now; the work was taken over. */
bool capture_add(struct stream *s, struct work *work, CUresult *err_out);
/*
 * The nodes where a captured stream stands, for an event that is recorded on it; one reference for the caller.
 * NULL: the stream is not captured.
 */
struct blob *capture_fork(const struct stream *s);
/* Another stream is captured from there on, too. */
CUresult capture_join(struct stream *s, const struct blob *fork);
/* End the capture of a stream that would have to wait for work outside the capture. */
CUresult capture_isolate(const struct stream *s);
/* Is some stream captured to it? */
bool capture_is_to(const struct graph *graph);
/* End captures of the stream, or of all streams of the context or the green context. */
void capture_end_of_stream(const struct stream *s);
void capture_end_of_ctx(const struct ctx *ctx);
void capture_end_of_green(const struct green *green);

/* --- kernels.c --- */

struct cudasim_kernel;

struct kernel {
	const char *name;
	CUresult (*run)(struct ctx *ctx,
	                const uint64_t *params); /* for the simulator's own kernels */
	const struct cudasim_kernel *given;      /* for an image's kernel, else NULL */
	const void *module;                      /* for an image's kernel */
	unsigned n_params;
	uint16_t param_bytes[16];
};

const struct kernel *kernel_find(const char *name);
const struct kernel *kernel_from_handle(CUfunction handle);
/* Make a kernel of an image, which stays for good. NULL: no memory. */
struct kernel *kernel_new(const struct cudasim_kernel *given);
size_t kernel_param_offset(const struct kernel *kernel, unsigned index);
size_t kernel_params_bytes(const struct kernel *kernel);
/* Load and store as a kernel of the context does. False: the access is forbidden. */
bool kernel_load(struct ctx *ctx, uint64_t addr, void *value_out, uint64_t bytes);
bool kernel_store(struct ctx *ctx, uint64_t addr, const void *value, uint64_t bytes);

#endif
