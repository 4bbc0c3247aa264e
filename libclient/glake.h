/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libglake-client: borrow GPU memory from glaked, the one owner of it on this node.
 *
 * A session is one connection. Through it a process gets private memory (physical chunks under its
 * tenant's quota, mapped into its own address space) and models (the weights of safetensors files,
 * one physical copy for all processes of a realm, mapped read-only).
 *
 * Errors. An int function returns 0 or a negative code, unless it says otherwise: -errno where POSIX
 * has the right one, else a GLAKE_E_* from -4000 down. glake_strerror() names both. glake_error() has
 * the exact cause of this thread's last failure, one line, as the daemon or the library worded it.
 *
 * Threads. A session and all that came from it may be used from any thread; calls lock inside and
 * wait for each other. A thread is not cancelled while it waits for the daemon. The library starts no
 * thread, prints nothing and never exits.
 *
 * Blocking. Calls wait for the daemon's answer unless said otherwise. When glaked dies, calls end
 * with GLAKE_E_GONE, and so they do when it is stopped: after some 20 seconds without a sign of life.
 * What is mapped stays mapped and readable, since the mappings themselves hold the memory.
 *
 * Descriptors. The session's is the library's own. When the program closes it, or puts a file of its
 * own on its number, that file is left alone and the session is as if glaked had died. A process at its
 * limit of open files gets -EMFILE for what comes with descriptors, and keeps its session.
 *
 * CUDA. The driver library is opened by dlopen() ($GLAKE_LIBCUDA or libcuda.so.1) and initialised
 * by glake_connect(). No context is needed and none is made: mapping is per process. Device
 * pointers are plain 64-bit numbers, valid in every context of the device.
 *
 * fork(). A session does not cross it: in the child, calls return GLAKE_E_FORKED, and
 * glake_disconnect() frees host memory only. Device addresses mean nothing there.
 *
 * Output parameters are written on success only.
 */
#ifndef GLAKE_H
#define GLAKE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GLAKE_API __attribute__((visibility("default")))

/* A device pointer, as CUdeviceptr. */
typedef uint64_t glake_ptr;

enum glake_error_code {
	GLAKE_E_GONE = -4000,        /* the daemon is not there (any more) */
	GLAKE_E_PROTOCOL = -4001,    /* the peer does not speak our protocol, or broke it */
	GLAKE_E_VERSION = -4002,     /* the peer speaks another major version */
	GLAKE_E_BAD_REQUEST = -4003, /* glaked refused it as senseless */
	GLAKE_E_NOT_FOUND = -4004,
	GLAKE_E_NO_PERMISSION = -4005,
	GLAKE_E_OVER_QUOTA = -4006, /* the tenant's limit */
	GLAKE_E_NO_DEVICE_MEMORY = -4007,
	GLAKE_E_NO_HOST_MEMORY = -4008,
	GLAKE_E_NO_FDS = -4009,       /* the daemon's, or the tenant's, limit of fds */
	GLAKE_E_BAD_FILE = -4010,     /* not a valid safetensors file or index; see glake_error() */
	GLAKE_E_FILE_CHANGED = -4011, /* changed or truncated while it was loaded */
	GLAKE_E_READ = -4012,         /* the disk reported an error */
	GLAKE_E_MOVER = -4013,        /* glake-mover died during the job; nothing of it remains */
	GLAKE_E_SHUTTING_DOWN = -4014,
	GLAKE_E_BUSY = -4015, /* in use, or too much under way in this session */
	GLAKE_E_INTERNAL = -4016,
	GLAKE_E_CUDA = -4017,      /* a driver call failed; see glake_error() */
	GLAKE_E_NO_DRIVER = -4018, /* no usable libcuda */
	GLAKE_E_FORKED = -4019,    /* the session belongs to the parent process */
};

/* A short text for any code this library returns. Never NULL, static. */
GLAKE_API const char *glake_strerror(int error);

/* The cause of this thread's last failed call, one line; "" if none. Valid until its next call. */
GLAKE_API const char *glake_error(void);

/* "0.1.0", static. */
GLAKE_API const char *glake_version(void);

/* ---- session -------------------------------------------------------------------------------- */

struct glake_session;

struct glake_connect_options {
	size_t size;             /* sizeof(struct glake_connect_options) */
	const char *socket_path; /* NULL: $GLAKE_SOCKET, then /run/glake/glaked.sock */
	const char *program;     /* label for listings; NULL: the program's name */
	const char *libcuda;     /* NULL: $GLAKE_LIBCUDA, then libcuda.so.1 */
	int no_cuda;             /* nonzero: never open the driver; only requests without mapping */
};

/*
 * Connect. @options may be NULL. The session is the caller's: glake_disconnect().
 * Errors: GLAKE_E_GONE (nobody listens, or answers in 5 seconds), GLAKE_E_VERSION, GLAKE_E_NO_DRIVER,
 * GLAKE_E_CUDA, GLAKE_E_OVER_QUOTA (sessions), GLAKE_E_SHUTTING_DOWN; -EACCES (the socket's mode),
 * -ENAMETOOLONG (its path), -EINVAL, -ENOMEM.
 */
GLAKE_API int glake_connect(const struct glake_connect_options *options,
                            struct glake_session **session_out);

/*
 * Unmap and give back everything that came from @session, close it and free it. NULL is fine.
 * The caller has quiesced every kernel and copy that uses the memory. All pointers and handles of
 * the session are invalid afterwards, models and memory included. Not from a callback of the session.
 */
GLAKE_API void glake_disconnect(struct glake_session *session);

struct glake_device {
	uint32_t index; /* glaked's number, as every request takes it */
	int ordinal;    /* the driver's in this process; -1 = not visible here, or no_cuda */
	uint8_t uuid[16];
	char name[64];
	uint64_t total_bytes;
	uint64_t quota_bytes; /* the tenant's limit on this device; 0 = none */
};

struct glake_session_info {
	size_t size; /* sizeof(struct glake_session_info), set by the caller */
	uint64_t session;
	int is_admin;
	uint32_t n_devices;
	char tenant[64];
	char realm[64];
	char daemon_version[32];
};

/* Local, never blocks. */
GLAKE_API int glake_session_info(struct glake_session *session, struct glake_session_info *info);
/* Local. -ENOENT past the last. @position counts from 0. */
GLAKE_API int glake_device_at(struct glake_session *session, uint32_t position,
                              struct glake_device *device_out);
/* Local. glaked's index of the driver's device @ordinal of this process, or -ENOENT. */
GLAKE_API int glake_device_index(struct glake_session *session, int ordinal);

struct glake_device_view {
	size_t size;             /* set by the caller */
	uint64_t quota_bytes;    /* the tenant's limit; 0 = none */
	uint64_t used_bytes;     /* what the tenant is charged for */
	uint64_t reserved_bytes; /* of used_bytes: private chunks of this session, warm ones too */
	uint64_t idle_bytes;     /* made ahead, of unused blocks, just freed: given to who asks */
	uint64_t room_bytes; /* more chunks that glaked may make here, if the device has as much */
	uint64_t warm_bytes; /* of reserved_bytes: kept warm by this session, to be had at once */
};

/* What is left for the tenant on glaked's device @index, in one round trip. GLAKE_E_BAD_REQUEST. */
GLAKE_API int glake_device_view(struct glake_session *session, uint32_t index,
                                struct glake_device_view *view);

/* One round trip that does nothing. */
GLAKE_API int glake_ping(struct glake_session *session);

/* ---- private memory ------------------------------------------------------------------------- */

/*
 * Get @bytes of device memory, mapped read-write at *ptr_out: from the session's warm memory if a
 * fitting piece is there (no driver call, no round trip), else from glaked. It holds anything unless
 * GLAKE_ZERO is given. 2 MiB and more, and zeroed memory, are whole chunks, rounded up to 2 MiB; what is
 * smaller shares a chunk with its like, 512-byte aligned. Large requests are rows of chunks behind one
 * address range. All or nothing.
 * Errors: GLAKE_E_OVER_QUOTA, GLAKE_E_NO_DEVICE_MEMORY, GLAKE_E_NO_FDS, GLAKE_E_CUDA, ...
 */
enum {
	GLAKE_ZERO = 1, /* never warm memory: fresh chunks read zero */
};
GLAKE_API int glake_alloc(struct glake_session *session, uint32_t device, uint64_t bytes,
                          unsigned flags, glake_ptr *ptr_out);

/*
 * Give memory of glake_alloc() back. The caller has made sure that no kernel or copy uses it any
 * more. It stays mapped as warm memory up to the limit set by glaked, else is unmapped and
 * returned. @ptr must be exactly what glake_alloc() gave, else -EINVAL and nothing happens. 0 is
 * fine.
 */
GLAKE_API int glake_free(struct glake_session *session, glake_ptr ptr);

/*
 * The same in the order of a CUstream, of whose device the memory is. What was freed on a stream serves
 * the next glake_alloc_async() on it at once, and everybody else when the stream has got there. Either
 * call takes memory of either kind: glake_free() wants it quiesced, glake_free_async() on a stream
 * that is ordered behind all use of it. Nothing waits for the stream, but an allocation that would
 * fail otherwise. The stream's context stays until glake_disconnect(). @flags: GLAKE_PER_THREAD or 0.
 * Errors: as glake_alloc(); -EBUSY (the stream is being captured), -ENOSYS (a driver before CUDA 12.0).
 */
enum {
	GLAKE_PER_THREAD = 2, /* stream 0 is the thread's default stream, not the legacy one */
};
GLAKE_API int glake_alloc_async(struct glake_session *session, void *stream, uint64_t bytes,
                                unsigned flags, glake_ptr *ptr_out);
GLAKE_API int glake_free_async(struct glake_session *session, void *stream, glake_ptr ptr,
                               unsigned flags);

/* Unmap and return warm memory of @device until at most @keep_bytes remain. */
GLAKE_API int glake_trim(struct glake_session *session, uint32_t device, uint64_t keep_bytes);

/*
 * One chunk of @bytes (a multiple of 2 MiB, at most 64 GiB) for callers that import and map it by
 * themselves: *fd_out is the caller's, and may be closed once imported. Zeroed. Ends with
 * glake_chunk_free(), after the caller has unmapped it and released the import.
 */
GLAKE_API int glake_chunk_new(struct glake_session *session, uint32_t device, uint64_t bytes,
                              uint64_t *chunk_out, int *fd_out);
/* Its fd once more, to be passed on: the caller's. GLAKE_E_NO_FDS: glaked has none of it left. */
GLAKE_API int glake_chunk_fd(struct glake_session *session, uint64_t chunk, int *fd_out);
/* @bytes as given to glake_chunk_new(). */
GLAKE_API int glake_chunk_free(struct glake_session *session, uint64_t chunk, uint64_t bytes);

/*
 * What another process of the realm needs to know to open memory of glake_alloc(): plain bytes, to
 * be passed on in any way, but not to everybody: who has them may write to the memory. Good for as
 * long as the memory is not freed and its session lives. Names of the same memory are equal bytes.
 */
struct glake_share {
	uint64_t session;
	uint64_t first_chunk; /* all but the last count up from here */
	uint64_t last_chunk;
	uint64_t bytes;  /* of all, a multiple of 2 MiB */
	uint64_t ticket; /* random: nobody guesses it */
	uint64_t n_chunks;
};

/*
 * Name memory: @ptr is exactly what glake_alloc() gave, in whole chunks. Asks glaked the first time; the name stays
 * the same. Named memory is given back when it is freed, not kept warm.
 * Errors: -EINVAL, -ENOTSUP (too large), GLAKE_E_GONE, ...
 */
GLAKE_API int glake_share(struct glake_session *session, glake_ptr ptr,
                          struct glake_share *share_out);

/*
 * Map memory that another session has named, read-write for its own device and for CUDA device
 * @ordinal (-1 = none) of this process. It is charged to the one who has it only, while he has it.
 * The caller closes it before glake_disconnect(), with the same @share, and has quiesced all use.
 * Errors: GLAKE_E_NOT_FOUND (freed, ended, or of another realm), GLAKE_E_NO_FDS, ...
 */
GLAKE_API int glake_share_open(struct glake_session *session, const struct glake_share *share,
                               int ordinal, glake_ptr *ptr_out);
GLAKE_API int glake_share_close(struct glake_session *session, const struct glake_share *share,
                                glake_ptr ptr);

/*
 * The parts of glake_alloc(), for callers that place memory themselves: reserve an address range,
 * fill it with chunks, empty it, drop it. @bytes and @offset are multiples of 2 MiB.
 */
GLAKE_API int glake_reserve(struct glake_session *session, uint64_t bytes, uint64_t alignment,
                            glake_ptr *ptr_out);
/* Back [ptr, ptr + bytes) of a reserved range, unbacked so far, with fresh chunks, read-write. */
GLAKE_API int glake_map(struct glake_session *session, uint32_t device, glake_ptr ptr,
                        uint64_t bytes);
/* Take the backing away again; [ptr, ptr + bytes) is exactly what glake_map() calls filled. */
GLAKE_API int glake_unmap(struct glake_session *session, glake_ptr ptr, uint64_t bytes);
/* Drop a reserved range that has no backing (else -EBUSY). */
GLAKE_API int glake_unreserve(struct glake_session *session, glake_ptr ptr);

/* ---- models --------------------------------------------------------------------------------- */

enum glake_dtype {
	GLAKE_DTYPE_NONE = 0,
	GLAKE_BOOL,
	GLAKE_U8,
	GLAKE_I8,
	GLAKE_F8_E5M2,
	GLAKE_F8_E4M3,
	GLAKE_F8_E8M0,
	GLAKE_I16,
	GLAKE_U16,
	GLAKE_F16,
	GLAKE_BF16,
	GLAKE_I32,
	GLAKE_U32,
	GLAKE_F32,
	GLAKE_C64,
	GLAKE_F64,
	GLAKE_I64,
	GLAKE_U64,
	GLAKE_F4,      /* 4 bits an element */
	GLAKE_F6_E2M3, /* 6 bits an element */
	GLAKE_F6_E3M2, /* 6 bits an element */
};

/* The safetensors name, "BF16"; "?" for an unknown number. Static. */
GLAKE_API const char *glake_dtype_name(enum glake_dtype dtype);
/* Bits of one element, 0 for an unknown number. */
GLAKE_API unsigned glake_dtype_bits(enum glake_dtype dtype);

struct glake_model;

/*
 * Called on the thread inside glake_model_open*(), between its start and its end, with no lock held:
 * it may call the library, but not end the session. Not every step need be told.
 */
typedef void (*glake_progress_fn)(void *user, uint64_t done_bytes, uint64_t total_bytes);

struct glake_model_options {
	size_t size;                /* sizeof(struct glake_model_options) */
	uint32_t device;            /* glaked's index */
	const char *name;           /* for listings; NULL: the path */
	glake_progress_fn progress; /* may be NULL */
	void *progress_user;
	int no_map; /* nonzero: bring it into the store, map nothing (glakectl load) */
	int pin;    /* nonzero: never evicted, and paid for by the tenant, until unpinned */
};

/*
 * Open a model: into the store if it is not there yet, then mapped read-only into this process.
 * @path is a .safetensors file, or a folder that holds model.safetensors.index.json (all its
 * shards), or model.safetensors. Any process of the realm that opens the same files gets the same
 * physical memory, without reading them again unless they could have changed unseen (docs/security.md:
 * tmpfs, NFS, a writer). A kernel that writes to it faults in this process alone; cuMemcpy and cuMemset
 * to it are refused by the driver.
 * The model is the caller's: glake_model_close(). @options may be NULL (device 0).
 * Errors: -errno of open(), GLAKE_E_BAD_FILE, GLAKE_E_FILE_CHANGED, GLAKE_E_READ,
 * GLAKE_E_OVER_QUOTA, GLAKE_E_NO_DEVICE_MEMORY, GLAKE_E_MOVER, ...
 */
GLAKE_API int glake_model_open(struct glake_session *session, const char *path,
                               const struct glake_model_options *options,
                               struct glake_model **model_out);

/* The same for a list of shards, each a path. 1 <= n_paths <= 252. */
GLAKE_API int glake_model_open_shards(struct glake_session *session, const char *const *paths,
                                      size_t n_paths, const struct glake_model_options *options,
                                      struct glake_model **model_out);

/* The same for open files, which stay the caller's. @names may be NULL. */
GLAKE_API int glake_model_open_fds(struct glake_session *session, const int *fds,
                                   const char *const *names, size_t n_fds,
                                   const struct glake_model_options *options,
                                   struct glake_model **model_out);

/*
 * Unmap and let go. The caller has quiesced all use. NULL is fine. The store keeps it as cache.
 * While tensors of glake_model_dlpack() live, the model stays mapped, and its handle is invalid.
 */
GLAKE_API void glake_model_close(struct glake_model *model);

struct glake_model_info {
	size_t size;      /* set by the caller */
	const char *name; /* owned by the model */
	uint32_t device;
	uint64_t n_tensors;
	uint64_t n_blocks;
	uint64_t content_bytes;      /* sum over tensors */
	uint64_t mapped_bytes;       /* address range, a multiple of 2 MiB */
	glake_ptr base;              /* 0 with no_map */
	int was_loaded;              /* nonzero: it was in the store already */
	uint64_t deduplicated_bytes; /* of this load: bytes equal to blocks in the store */
	uint64_t load_ns;            /* the daemon's load; 0 when was_loaded */
	uint64_t map_ns;             /* this process's mapping */
};

GLAKE_API int glake_model_info(const struct glake_model *model, struct glake_model_info *info);

struct glake_tensor {
	size_t size;      /* set by the caller: sizeof(struct glake_tensor) */
	const char *name; /* owned by the model */
	enum glake_dtype dtype;
	uint32_t n_dims;
	const uint64_t *shape; /* elements, owned by the model */
	uint64_t bytes;
	glake_ptr ptr; /* 0 with no_map, and for tensors of no bytes */
};

/* By position, in name order. -ENOENT past the last. Local. */
GLAKE_API int glake_model_tensor_at(const struct glake_model *model, uint64_t position,
                                    struct glake_tensor *tensor_out);
/* By name. -ENOENT. Local, logarithmic. */
GLAKE_API int glake_model_tensor(const struct glake_model *model, const char *name,
                                 struct glake_tensor *tensor_out);

struct DLManagedTensor; /* of dlpack.h, the unversioned one */

/*
 * The tensor at @position as a DLPack object, for other libraries to use without a copy. It is the
 * caller's, to be ended by its deleter, on any thread, even after glake_disconnect(). As long as one
 * lives the model stays mapped; with the last, when the model is closed, all work queued in the
 * device's primary context is waited for, and then it is unmapped. Types that DLPack has no number
 * for (8-bit and smaller floats) are shown as bytes: of the same shape for 8 bits, else flat.
 * DLPack cannot say here that the memory is read-only: writing to it faults.
 */
GLAKE_API int glake_model_dlpack(struct glake_model *model, uint64_t position,
                                 struct DLManagedTensor **managed_out);

/* Copy @bytes at device pointer @from to host memory, with the device's primary context. Waits. */
GLAKE_API int glake_read(struct glake_session *session, uint32_t device, void *to, glake_ptr from,
                         uint64_t bytes);

/* ---- blocks that come from a program -------------------------------------------------------- */

struct glake_block;

struct glake_digest {
	uint8_t bytes[16];
};

/*
 * Make a block of private memory: @ptr is of glake_alloc() and holds @content_bytes, with only zeros
 * behind them up to its end (GLAKE_ZERO helps), in one whole chunk (at most 128 MiB). The caller has
 * quiesced everything that may write to it. Afterwards the same address is mapped read-only, backed
 * by the realm's one copy of these bytes, and belongs to the block.
 * On failure the memory is as it was before, still of glake_alloc(). One exception: when the realm
 * had an equal block, and the driver takes ours away but does not map that one (GLAKE_E_CUDA), the
 * address is empty and given up, and glake_free() of it is -EINVAL.
 */
GLAKE_API int glake_block_publish(struct glake_session *session, glake_ptr ptr,
                                  uint64_t content_bytes, struct glake_block **block_out);

/* Find a block by digest and map it read-only. GLAKE_E_NOT_FOUND. */
GLAKE_API int glake_block_lookup(struct glake_session *session, uint32_t device,
                                 const struct glake_digest *digest, struct glake_block **block_out);

struct glake_block_info {
	size_t size; /* set by the caller */
	struct glake_digest digest;
	glake_ptr ptr;
	uint64_t content_bytes;
	uint64_t mapped_bytes;
	int was_known; /* nonzero: the realm had an equal block already */
};

GLAKE_API int glake_block_info(const struct glake_block *block, struct glake_block_info *info);
/* Unmap and let go; the store keeps it as cache. NULL is fine. */
GLAKE_API void glake_block_release(struct glake_block *block);
/* The digest that a block of these host bytes has. Local. */
GLAKE_API void glake_digest_bytes(const void *bytes, uint64_t n_bytes,
                                  struct glake_digest *digest_out);

/* ---- notices -------------------------------------------------------------------------------- */

enum glake_notice_kind {
	GLAKE_NOTICE_RECLAIM = 1,   /* warm memory was wanted; the library has already trimmed it */
	GLAKE_NOTICE_SHUTTING_DOWN, /* the daemon ends; what is mapped stays */
	GLAKE_NOTICE_MODEL_EVICTED, /* name */
	GLAKE_NOTICE_GONE,          /* the daemon closed the connection */
};

struct glake_notice {
	size_t size; /* sizeof in the library */
	enum glake_notice_kind kind;
	uint32_t device;
	uint64_t bytes;
	const char *name; /* valid during the callback; may be NULL */
};

typedef void (*glake_notice_fn)(void *user, const struct glake_notice *notice);

/* Notices that arrive during any call of the session are delivered by it, on its thread, after its
 * work or while it waits for memory, with no lock held: the callback may call the library, but not
 * end the session. NULL switches it off; when this returns, the old handler runs no more, unless it
 * is the caller. */
GLAKE_API void glake_set_notice_handler(struct glake_session *session, glake_notice_fn handler,
                                        void *user);
/* Readable when a notice waits: for poll(). Belongs to the session; never read from it. -1 = gone. */
GLAKE_API int glake_fd(struct glake_session *session);
/* Take what waits, without blocking, and deliver it. Returns the number of notices, or an error. */
GLAKE_API int glake_dispatch(struct glake_session *session);

/* ---- statistics ----------------------------------------------------------------------------- */

struct glake_usage {
	size_t size;             /* set by the caller */
	uint64_t live_bytes;     /* the program holds */
	uint64_t reserved_bytes; /* of private chunks this session has */
	uint64_t warm_bytes;     /* reserved and free for reuse */
	uint64_t shared_bytes;   /* of models and blocks mapped */
	uint64_t n_warm_allocs;  /* served without a round trip */
	uint64_t n_cold_allocs;
	uint64_t peak_bytes; /* the highest live_bytes */
};

/* This session's own counters. Local. */
GLAKE_API int glake_usage(struct glake_session *session, struct glake_usage *usage);

#ifdef __cplusplus
}
#endif
#endif
