/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libglake-client: borrow GPU memory from glaked, the daemon that owns it on this node.
 *
 * A session is one connection to glaked. Through it a process gets private memory (chunks under its
 * tenant's quota, mapped into its own address space) and models (the weights of safetensors files:
 * one physical copy for all processes of a realm, mapped read-only).
 *
 * Nouns.
 *   chunk     one physical allocation of GPU memory, a multiple of 2 MiB. It is mapped whole.
 *   block     a sealed chunk: its content never changes, and all processes of a realm share it.
 *   digest    the XXH3-128 tree hash of a block's content. glaked finds equal blocks by it, and
 *             compares their bytes before it shares one.
 *   model     a named list of tensors and of the blocks that hold them. Its tensors come from files, or a
 *             program has published them under a key.
 *   session   one connected process.
 *   holder    a session that has a chunk, block or model, and therefore keeps it alive.
 *   tenant    the account that a session is charged to. It has quotas for bytes, fds and sessions.
 *   realm     the processes that may share memory: by default those of one user.
 *   store     all models and blocks. Those without a holder are cache: glaked evicts them when it
 *             needs the memory, except pinned ones.
 *   tier      the kind of memory that backs a chunk. Today there is one: the device's own.
 *   warm      freed memory that stays mapped in the process for its next allocation.
 *   physical  the bytes of the chunks that exist on a device, each counted once.
 *   logical   the bytes that sessions have mapped, summed over sessions: shared blocks count often.
 *
 * Errors. An int function returns 0 or a negative code, unless it says otherwise: -errno where
 * POSIX has a fitting one, else a GLAKE_E_* (-4000 and below). glake_strerror() names both kinds.
 * glake_error() has the exact cause of this thread's last failure. Output parameters are written on
 * success only. Each function lists all its codes. Four groups have a name:
 *   Session errors: -EINVAL (the session is NULL), GLAKE_E_FORKED.
 *   Request errors, of each call that asks glaked: session errors; GLAKE_E_GONE; GLAKE_E_PROTOCOL;
 *     GLAKE_E_BAD_REQUEST (a text is too long for a packet, or glaked does not know the request);
 *     GLAKE_E_INTERNAL (glaked's answer has a status that the library does not know); -ENOBUFS or
 *     -ENOMEM (the kernel cannot send).
 *   Map errors: -ENODEV (glaked has no such device, or this process does not see it),
 *     GLAKE_E_NO_DRIVER (the session has no_cuda), GLAKE_E_CUDA, -ENOMEM.
 *   Grant errors: GLAKE_E_OVER_QUOTA, GLAKE_E_NO_DEVICE_MEMORY, GLAKE_E_NO_FDS,
 *     GLAKE_E_NO_HOST_MEMORY, GLAKE_E_BUSY (too many requests under way in this session),
 *     GLAKE_E_SHUTTING_DOWN, GLAKE_E_INTERNAL (a driver call of glaked failed), -EMFILE.
 *
 * Structs. Those that begin with their size can grow: set it to sizeof before a call. In an output
 * it is then how much of the struct the library knows, and the rest is 0. An option that the library
 * does not know is -EINVAL, unless it is 0.
 *
 * Threads. Any thread may use a session and everything that came from it. Calls lock inside and may
 * wait for each other. The library holds off pthread_cancel() while a call waits for glaked. It
 * starts no thread (but one that GLAKE_ELASTIC_SERVE of glake_elastic.h asks for), prints nothing and never exits.
 *
 * Blocking. A call waits for glaked's answer, unless it is marked "local". If glaked dies, calls wait
 * up to 5 seconds for the next one, and then return GLAKE_E_GONE. If glaked is stopped, they do so
 * after some 20 seconds of silence. Those that give memory back do not wait for the next one.
 * Mapped memory stays mapped and readable either way, because a mapping itself keeps its chunk
 * alive.
 *
 * Descriptors. The session's socket belongs to the library. If the program closes it, or puts
 * another file on its number, the library leaves that number alone and connects again. If the
 * process is at its limit of open files, a call that receives fds returns -EMFILE; the session goes
 * on.
 *
 * Lost connections. A lost connection does not end a session: the next call connects again, for the
 * same session, and ids, mappings and charges stay. So it is with the next glaked, if it has the
 * books of the last. Calls under way may return GLAKE_E_GONE. Once glaked does not know the session,
 * all its calls return that, and GLAKE_NOTICE_GONE has come.
 *
 * CUDA. glake_connect() opens the driver library by dlopen() ($GLAKE_LIBCUDA or libcuda.so.1) and
 * initialises it. The library needs no context and creates none: a mapping belongs to the process.
 * Device pointers are plain 64-bit numbers, valid in every context of the device.
 *
 * fork(). A child cannot use its parent's session: calls return GLAKE_E_FORKED, and
 * glake_disconnect() only frees host memory. The parent's device addresses mean nothing in the
 * child.
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
	GLAKE_E_GONE = -4000,        /* glaked is not there, or does not answer */
	GLAKE_E_PROTOCOL = -4001,    /* the peer does not speak this protocol, or broke its rules */
	GLAKE_E_VERSION = -4002,     /* the peer speaks another major version of the protocol */
	GLAKE_E_BAD_REQUEST = -4003, /* the request makes no sense to glaked */
	GLAKE_E_NOT_FOUND = -4004,
	GLAKE_E_NO_PERMISSION = -4005,
	GLAKE_E_OVER_QUOTA = -4006, /* the tenant's limit */
	GLAKE_E_NO_DEVICE_MEMORY = -4007,
	GLAKE_E_NO_HOST_MEMORY = -4008, /* of glaked or glake-mover */
	GLAKE_E_NO_FDS = -4009,       /* a limit of fds: glaked's, glake-mover's or the tenant's */
	GLAKE_E_BAD_FILE = -4010,     /* not a valid safetensors file or index; see glake_error() */
	GLAKE_E_FILE_CHANGED = -4011, /* the file changed or became shorter during the load */
	GLAKE_E_READ = -4012,         /* the disk reported an error */
	GLAKE_E_MOVER = -4013,        /* glake-mover died or cannot start; its job is undone */
	GLAKE_E_SHUTTING_DOWN = -4014,
	GLAKE_E_BUSY = -4015,      /* in use, or too much is under way */
	GLAKE_E_INTERNAL = -4016,  /* glaked failed: its log says why */
	GLAKE_E_CUDA = -4017,      /* a driver call failed in this process; see glake_error() */
	GLAKE_E_NO_DRIVER = -4018, /* no usable libcuda, here or in glaked; or no_cuda was given */
	GLAKE_E_FORKED = -4019,    /* the session belongs to the parent process */
	GLAKE_E_DRAINED = -4020,   /* an operator lets no new program in, until he ends that */
};

/* A short text for any code that this library returns. Local. Never NULL; static. */
GLAKE_API const char *glake_strerror(int error);

/*
 * The cause of this thread's last failed call, one line; "" if there was none. Local. The text
 * belongs to the library and is valid until this thread's next call.
 */
GLAKE_API const char *glake_error(void);

/* The library's version, "0.1.0". Local. Static. */
GLAKE_API const char *glake_version(void);

/* ---- session -------------------------------------------------------------------------------- */

struct glake_session;

struct glake_connect_options {
	size_t size;             /* sizeof(struct glake_connect_options) */
	const char *socket_path; /* NULL: $GLAKE_SOCKET, then /run/glake/glaked.sock */
	const char *
		program; /* label for listings; NULL: the program's name, and what its interpreter runs */
	const char *libcuda;  /* NULL: $GLAKE_LIBCUDA, then libcuda.so.1 */
	int no_cuda;          /* nonzero: never open the driver. Calls that map then fail */
	int stitch;           /* nonzero: as with GLAKE_ALLOC=stitch: free memory is stitched */
	int sleep_when_asked; /* nonzero: glake_dispatch() may put it to sleep; not under the shim */
	/*
	 * "SIZE" or "NUMBER=SIZE,...", with glaked's numbers of devices: SIZE of each that it sees is promised to this process before
	 * glake_connect() returns. It gets that, whatever others do, and no more. NULL: $GLAKE_PROMISE, which is asked for
	 * when the session first gets memory of a device; or none. Sessions of one process have a promise together.
	 */
	const char *promise;
	/*
	 * Nonzero: the session only looks and steers, as most of glake_admin.h does. It is let in while glaked is drained, and its requests
	 * for memory and models are GLAKE_E_NO_PERMISSION.
	 */
	int only_looks;
};

/*
 * Connect to glaked. @options may be NULL, and its strings are not kept. The caller owns the
 * session and ends it with glake_disconnect(). Waits up to 5 seconds for glaked, then for the
 * driver to start.
 * Errors: GLAKE_E_GONE (no glaked listens or answers), GLAKE_E_PROTOCOL, GLAKE_E_VERSION,
 * GLAKE_E_NO_DRIVER, GLAKE_E_CUDA, GLAKE_E_OVER_QUOTA (too many sessions), GLAKE_E_SHUTTING_DOWN,
 * GLAKE_E_DRAINED (this process has no session yet, and glaked takes no new programs: glake_error() has the operator's reason),
 * GLAKE_E_BAD_REQUEST, GLAKE_E_INTERNAL (the answer has a status that the library does not know),
 * with a promise also GLAKE_E_OVER_QUOTA (the tenant's bytes) and GLAKE_E_NO_DEVICE_MEMORY, after waiting as
 * an allocation does, -EINVAL (@options), -ENAMETOOLONG (the socket's path), -ENOMEM, or -errno of getrandom(),
 * socket() and connect(), such as -EACCES (the socket's mode) and -EMFILE.
 */
GLAKE_API int glake_connect(const struct glake_connect_options *options,
                            struct glake_session **session_out);

/*
 * Unmap everything that came from @session, close it and free it. NULL is allowed. Waits for the
 * driver, not for glaked. The caller must first wait for every kernel and copy that uses the
 * memory. All pointers and handles of the session become invalid, memory and models included; only
 * tensors of glake_model_dlpack() stay; but they have no memory any more if the session sleeps, until they
 * end: wake it before. Do not call it from a callback of the session, nor while another thread uses the session.
 */
GLAKE_API void glake_disconnect(struct glake_session *session);

struct glake_device {
	uint32_t index; /* glaked's number of the device: requests take this one */
	int ordinal;    /* the CUDA ordinal in this process; -1: not visible here, or no_cuda */
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

/*
 * Describe the session: its tenant, its realm and the number of devices. Local.
 * Errors: session errors; -EINVAL (@info is NULL, or its size is not set).
 */
GLAKE_API int glake_session_info(struct glake_session *session, struct glake_session_info *info);
/*
 * The device at @position, counted from 0. Local.
 * Errors: session errors; -ENOENT (@position is past the last).
 */
GLAKE_API int glake_device_at(struct glake_session *session, uint32_t position,
                              struct glake_device *device_out);
/*
 * Returns glaked's index (0 or more) of the device with CUDA ordinal @ordinal in this process.
 * Local.
 * Errors: session errors; -ENOENT (glaked does not own that device).
 */
GLAKE_API int glake_device_index(struct glake_session *session, int ordinal);

struct glake_device_view {
	size_t size;             /* set by the caller */
	uint64_t quota_bytes;    /* the tenant's limit; 0 = none */
	uint64_t used_bytes;     /* charged to the tenant */
	uint64_t reserved_bytes; /* of used_bytes: this session's private chunks, warm too */
	uint64_t idle_bytes;     /* made ahead, just freed, or unused blocks: to be had */
	uint64_t room_bytes;     /* that glaked may add if the device has as much */
	uint64_t warm_bytes;     /* of reserved_bytes: free, now or as soon as a stream is done */
	uint64_t
		promise_bytes; /* promised to this process, or what it will ask for; 0 = nothing. Else this alone counts: */
	uint64_t
		left_bytes; /* of it: not taken by chunks, shared memory, or what the driver made */
};

/*
 * Tell how much the tenant can still get on glaked's device @index. One round trip.
 * Errors: request errors; GLAKE_E_BAD_REQUEST (no such device); -EINVAL (@view).
 */
GLAKE_API int glake_device_view(struct glake_session *session, uint32_t index,
                                struct glake_device_view *view);

/* One round trip that does nothing. Errors: request errors. */
GLAKE_API int glake_ping(struct glake_session *session);

/* ---- private memory ------------------------------------------------------------------------- */

enum {
	GLAKE_ZERO = 1, /* the memory reads zero: fresh chunks, never warm memory */
};

/*
 * Get @bytes of device memory, mapped read-write at *ptr_out. glake_free() gives it back. If a
 * fitting piece of the session's warm memory is there, the call is local and makes no driver call;
 * else it asks glaked. Without GLAKE_ZERO the content is undefined. Requests of 2 MiB and more, and
 * all with GLAKE_ZERO, get whole chunks: @bytes is rounded up to 2 MiB. Smaller ones share a chunk
 * with each other and are aligned to 512 bytes. A large request may get several chunks behind one
 * address range. The call gets everything or nothing.
 * Errors: request errors; map errors; grant errors; -EINVAL (@bytes is 0 or too large, @flags has
 * an unknown bit, @ptr_out is NULL).
 */
GLAKE_API int glake_alloc(struct glake_session *session, uint32_t device, uint64_t bytes,
                          unsigned flags, glake_ptr *ptr_out);

/*
 * @n allocations, as glake_alloc() makes them, of @bytes[i] at ptrs_out[i]: all or none. It is faster than one
 * by one: glaked gives up to 16 chunks of equal size in one answer, and makes the next ones meanwhile.
 * Errors: as glake_alloc(), for any of them; -EINVAL (@bytes or @ptrs_out is NULL, and @n is not 0); -ENOMEM.
 */
GLAKE_API int glake_alloc_many(struct glake_session *session, uint32_t device,
                               const uint64_t *bytes, size_t n, unsigned flags,
                               glake_ptr *ptrs_out);

/*
 * Give memory back. The caller must first wait for every kernel and copy that uses it. The memory
 * becomes warm up to the limit that glaked sets; the rest is unmapped and returned to glaked. @ptr
 * is exactly what glake_alloc(), glake_alloc_many() or glake_alloc_async() returned; 0 is allowed.
 * Errors: session errors; -EINVAL (@ptr is something else: nothing happens); -ENOMEM or
 * GLAKE_E_CUDA (the memory was not unmapped: it is lost to the caller until glake_disconnect()).
 */
GLAKE_API int glake_free(struct glake_session *session, glake_ptr ptr);

enum {
	GLAKE_PER_THREAD = 2, /* stream 0 is the thread's default stream, not the legacy one */
};

/*
 * The same in stream order. @stream is a CUstream, and the memory is on its device. Memory freed on
 * a stream serves the next glake_alloc_async() on that stream at once, and all other allocations
 * after the stream has passed the free. Both kinds of free take memory of both kinds of alloc:
 * glake_free() needs the memory idle, glake_free_async() needs a stream that is ordered after all
 * its uses. Neither call waits for a stream, except an allocation that would otherwise fail: that
 * waits as long as some stream gets on within ten seconds. The stream's context must live until
 * glake_disconnect(). @flags: GLAKE_PER_THREAD or 0.
 * Errors: request errors; grant errors; -EINVAL, as for glake_alloc(); GLAKE_E_NO_DRIVER; -EBUSY (the
 * stream is being captured); -ENOSYS (the driver is older than CUDA 12.0); -ENOENT (glaked does not
 * own the stream's device); GLAKE_E_CUDA; -ENOMEM.
 */
GLAKE_API int glake_alloc_async(struct glake_session *session, void *stream, uint64_t bytes,
                                unsigned flags, glake_ptr *ptr_out);
/*
 * See glake_alloc_async(), and glake_stream_ends() for a stream that is destroyed later. @ptr may be 0. After an
 * error the memory is still allocated.
 * Errors: session errors; -EINVAL (@ptr or @flags); GLAKE_E_NO_DRIVER; -EBUSY (the stream is being
 * captured); -ENOSYS (the driver is older than CUDA 12.0); -ENOENT (glaked does not own the stream's
 * device); GLAKE_E_CUDA; -ENOMEM.
 */
GLAKE_API int glake_free_async(struct glake_session *session, void *stream, glake_ptr ptr,
                               unsigned flags);

/*
 * The program is about to destroy @stream, on which it has called glake_free_async(). glake records events on streams
 * after the frees, by any thread: without this call it may use the handle when it is gone. A stream that lives until
 * glake_disconnect() needs no such call, nor does a default stream.
 * Errors: session errors; -EINVAL (@flags); else as glake_free_async().
 */
GLAKE_API int glake_stream_ends(struct glake_session *session, void *stream, unsigned flags);

/*
 * Unmap warm memory of @device and return it to glaked, until at most @keep_bytes are warm. What elastic ranges have lent
 * is warm, too (glake_elastic.h). In a session that stitches, waits for
 * what other threads return meanwhile, a second at most.
 * Errors: session errors; map errors.
 */
GLAKE_API int glake_trim(struct glake_session *session, uint32_t device, uint64_t keep_bytes);

/*
 * Get one zeroed chunk of @bytes (a multiple of 2 MiB, at most 512 GiB), for callers that import and
 * map it themselves. The caller owns *fd_out and may close it after the import. It gives the chunk
 * back with glake_chunk_free().
 * Errors: request errors; grant errors; -EINVAL (@bytes); -ENODEV (glaked has no such device).
 */
GLAKE_API int glake_chunk_new(struct glake_session *session, uint32_t device, uint64_t bytes,
                              uint64_t *chunk_out, int *fd_out);
/*
 * Get another fd of a chunk of this session, for example to pass it on. The caller owns *fd_out.
 * Errors: request errors; GLAKE_E_NOT_FOUND; GLAKE_E_NO_FDS (glaked keeps no fd of this chunk,
 * because its fd budget was spent); GLAKE_E_SHUTTING_DOWN; -EMFILE.
 */
GLAKE_API int glake_chunk_fd(struct glake_session *session, uint64_t chunk, int *fd_out);
/*
 * Give a chunk back. The caller has unmapped it and released its import. @bytes is what was given
 * to glake_chunk_new().
 * Errors: request errors; GLAKE_E_BAD_REQUEST (no such chunk).
 */
GLAKE_API int glake_chunk_free(struct glake_session *session, uint64_t chunk, uint64_t bytes);

/*
 * The name of shared memory: plain bytes that another process of the realm needs to open it. Pass
 * them on in any way, but only to processes that may write to the memory. A name is valid until the
 * memory is freed or its session ends. Two names of the same memory have equal bytes.
 */
struct glake_share {
	uint64_t session;
	uint64_t first_chunk; /* ids count up from here, except the last */
	uint64_t last_chunk;
	uint64_t bytes;  /* of all chunks, a multiple of 2 MiB */
	uint64_t ticket; /* random, so that it cannot be guessed */
	uint64_t n_chunks;
};

/*
 * Get the name of memory. @ptr is exactly what glake_alloc() returned, in whole chunks. The first
 * call for a piece of memory asks glaked; later ones are local. Freeing named memory returns it to
 * glaked: it does not become warm, because another process may have it mapped. Sealed memory is
 * made private first, as by glake_unseal(), and is not sealed again while it lives. After a restart of
 * glaked others can open it only if glaked had kept it: glake_get_status() counts what is not kept.
 * Errors: request errors; -EINVAL (@ptr); -ENOTSUP (the memory has more than 253 chunks, or their
 * ids do not count up); GLAKE_E_NO_FDS (the memory is from before a restart of glaked); GLAKE_E_BUSY (too many
 * requests under way in this session); GLAKE_E_SHUTTING_DOWN; GLAKE_E_INTERNAL (glaked has no random numbers);
 * of sealed memory also as glake_unseal().
 */
GLAKE_API int glake_share(struct glake_session *session, glake_ptr ptr,
                          struct glake_share *share_out);

/*
 * Map memory that another session has named, read-write, for its own device and for the device with
 * CUDA ordinal @ordinal in this process (-1 = none). Only the session that allocated the memory is
 * charged, for as long as it has it. The caller waits for all use, then calls glake_share_close()
 * with the same @share, before glake_disconnect().
 * Errors: request errors; map errors; -EINVAL (@share is not a name, or the memory has another
 * size); GLAKE_E_NOT_FOUND (freed, its session ended, or of another realm); GLAKE_E_BUSY (it is
 * being published); GLAKE_E_NO_FDS (glaked keeps no fd of a chunk); GLAKE_E_SHUTTING_DOWN; -EMFILE.
 */
GLAKE_API int glake_share_open(struct glake_session *session, const struct glake_share *share,
                               int ordinal, glake_ptr *ptr_out);
/*
 * Unmap what glake_share_open() mapped at @ptr.
 * Errors: session errors; -EINVAL (@share is not a name, or @ptr is not its mapping); -ENOMEM;
 * GLAKE_E_CUDA.
 */
GLAKE_API int glake_share_close(struct glake_session *session, const struct glake_share *share,
                                glake_ptr ptr);

/*
 * The steps of glake_alloc(), for callers that choose the addresses: reserve a range, back parts of
 * it with chunks, take the backing away, drop the range. @bytes and offsets are multiples of 2 MiB.
 * The caller drops each range with glake_unreserve(), or glake_disconnect() does.
 */
/*
 * Reserve a range of addresses. @alignment is a power of two, or 0. Local.
 * Errors: session errors; -EINVAL (@bytes, @alignment, @ptr_out); GLAKE_E_NO_DRIVER; GLAKE_E_CUDA;
 * -ENOMEM.
 */
GLAKE_API int glake_reserve(struct glake_session *session, uint64_t bytes, uint64_t alignment,
                            glake_ptr *ptr_out);
/*
 * Back [ptr, ptr + bytes) with fresh chunks, read-write. All of it is in one reserved range and has
 * no backing. The call backs everything or nothing.
 * Errors: request errors; map errors; grant errors; -EINVAL; -EBUSY (another thread changes this
 * part).
 */
GLAKE_API int glake_map(struct glake_session *session, uint32_t device, glake_ptr ptr,
                        uint64_t bytes);
/*
 * Take the backing away and return it to glaked. [ptr, ptr + bytes) is exactly what one or more
 * glake_map() calls filled. The caller must first wait for all use. Waits while the memory is sealed or unsealed.
 * Errors: session errors; -EINVAL; -EBUSY (another thread changes this part); -ENOMEM;
 * GLAKE_E_CUDA.
 */
GLAKE_API int glake_unmap(struct glake_session *session, glake_ptr ptr, uint64_t bytes);
/*
 * Drop a reserved range. Local.
 * Errors: session errors; -EINVAL (@ptr is not the start of one); -EBUSY (it still has backing);
 * GLAKE_E_CUDA.
 */
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
	GLAKE_F4,      /* 4 bits per element */
	GLAKE_F6_E2M3, /* 6 bits per element */
	GLAKE_F6_E3M2, /* 6 bits per element */
};

/* The safetensors name, such as "BF16"; "?" for an unknown number. Local. Static. */
GLAKE_API const char *glake_dtype_name(enum glake_dtype dtype);
/* Bits of one element; 0 for an unknown number. Local. */
GLAKE_API unsigned glake_dtype_bits(enum glake_dtype dtype);

struct glake_model;

/*
 * Progress of a load, in bytes. Runs during glake_model_open*(), on its thread, with no lock held:
 * it may call the library, but not glake_disconnect(). Some steps may be skipped.
 */
typedef void (*glake_progress_fn)(void *user, uint64_t done_bytes, uint64_t total_bytes);
/* The load waits for room: @place is that in the queue, from 1 on. Runs as progress does, again and again. */
typedef void (*glake_waiting_fn)(void *user, uint32_t place, uint64_t waiting_ms);

struct glake_model_options {
	size_t size;                /* sizeof(struct glake_model_options) */
	uint32_t device;            /* glaked's index */
	const char *name;           /* for listings; NULL: the path, of shards that of the first */
	glake_progress_fn progress; /* may be NULL */
	void *progress_user;
	int no_map; /* nonzero: load it into the store, map nothing (glakectl load) */
	int pin;    /* nonzero: never evicted until unpinned; the tenant is charged for it */
};

/*
 * Open a model: load it into the store if it is not there yet, then map it read-only. @path is a
 * .safetensors file, an index (NAME.safetensors.index.json, with all its shards beside it), or a
 * folder that holds model.safetensors.index.json or model.safetensors. All processes of the realm
 * that open the same files get the same physical memory. glaked reads the files again only if they
 * may have changed unnoticed (docs/security.md: tmpfs, NFS, a writer). A kernel that writes to the
 * model faults, in this process alone; the driver refuses cuMemcpy and cuMemset to it. The caller
 * owns the model and ends it with glake_model_close(). @options may be NULL (device 0).
 * Errors: request errors; map errors; grant errors; -EINVAL (@path is NULL, or @options); -errno of
 * open() and fstat(); GLAKE_E_BAD_FILE; GLAKE_E_FILE_CHANGED; GLAKE_E_READ; GLAKE_E_MOVER.
 * GLAKE_E_BUSY here also says that too many loads are under way.
 */
GLAKE_API int glake_model_open(struct glake_session *session, const char *path,
                               const struct glake_model_options *options,
                               struct glake_model **model_out);

/*
 * The same for a list of shards, each a path. 1 <= n_paths <= 252, else -EINVAL.
 * Errors: as glake_model_open().
 */
GLAKE_API int glake_model_open_shards(struct glake_session *session, const char *const *paths,
                                      size_t n_paths, const struct glake_model_options *options,
                                      struct glake_model **model_out);

/*
 * The same for files that the caller has open for reading. The fds stay the caller's, and where they
 * stand in their files does not matter. @names are those of the files, for errors and listings; it,
 * and any of them, may be NULL. 1 <= n_fds <= 252, else -EINVAL.
 * Errors: as glake_model_open().
 */
GLAKE_API int glake_model_open_fds(struct glake_session *session, const int *fds,
                                   const char *const *names, size_t n_fds,
                                   const struct glake_model_options *options,
                                   struct glake_model **model_out);

/*
 * Unmap a model and release it. The caller must first wait for all use. NULL is allowed. The store
 * keeps the model as cache. While tensors of glake_model_dlpack() exist, the model stays mapped,
 * but its handle is invalid at once.
 */
GLAKE_API void glake_model_close(struct glake_model *model);

struct glake_model_info {
	size_t size;      /* set by the caller */
	const char *name; /* owned by the model */
	uint32_t device;
	uint64_t n_tensors;
	uint64_t n_blocks;
	uint64_t content_bytes;      /* sum over tensors */
	uint64_t mapped_bytes;       /* address range, a multiple of 2 MiB; 0 with no_map */
	glake_ptr base;              /* 0 with no_map */
	int was_loaded;              /* nonzero: the store had it already */
	uint64_t deduplicated_bytes; /* of this load: bytes equal to blocks in the store */
	uint64_t load_ns;            /* time of glaked's load; 0 if was_loaded */
	uint64_t map_ns;             /* time of this process's mapping */
};

/* Local. Errors: -EINVAL (@model or @info is NULL, or its size is not set). */
GLAKE_API int glake_model_info(const struct glake_model *model, struct glake_model_info *info);

struct glake_tensor {
	size_t size;      /* set by the caller: sizeof(struct glake_tensor) */
	const char *name; /* owned by the model */
	enum glake_dtype dtype;
	uint32_t n_dims;
	const uint64_t *shape;   /* elements, owned by the model */
	uint64_t bytes;          /* from the first element to the end of the last */
	glake_ptr ptr;           /* 0 with no_map, and for tensors of no bytes */
	const uint64_t *strides; /* elements, owned by the model; NULL: row-major, no gaps */
};

/*
 * The tensor at @position, in name order. Local.
 * Errors: -EINVAL (@model or @tensor_out is NULL, or its size is not set); -ENOENT (past the last).
 */
GLAKE_API int glake_model_tensor_at(const struct glake_model *model, uint64_t position,
                                    struct glake_tensor *tensor_out);
/*
 * The tensor named @name. Local, a binary search.
 * Errors: -EINVAL (a parameter is NULL, or the size is not set); -ENOENT.
 */
GLAKE_API int glake_model_tensor(const struct glake_model *model, const char *name,
                                 struct glake_tensor *tensor_out);

struct DLManagedTensor; /* of dlpack.h, the unversioned struct */

/*
 * The tensor at @position as a DLPack object, for other libraries to use without a copy. Local. The
 * caller owns the object and ends it with its deleter, on any thread, even after
 * glake_disconnect(). The model stays mapped as long as one object exists. After
 * glake_model_close(), the last deleter waits for the work queued in the device's primary context
 * and then unmaps the model. DLPack has no number for floats of 8 bits and less. Tensors of these
 * types appear as bytes: 8-bit ones in their own shape, smaller ones flat. DLPack cannot say here
 * that the memory is read-only: writing to it faults.
 * Errors: session errors; -EINVAL (opened with no_map); -ENOENT (past the last); -ENOMEM.
 */
GLAKE_API int glake_model_dlpack(struct glake_model *model, uint64_t position,
                                 struct DLManagedTensor **managed_out);

/*
 * The destructor, as PyCapsule_New() takes one, of a Python capsule named "dltensor" that owns a DLPack
 * object: of glake_model_dlpack(), or any other. If no consumer has taken the object, it calls the
 * object's deleter, without the interpreter's lock, and leaves an exception that is set as it is. NULL: the
 * process has no Python of which symbols can be found. Local. Call it without the interpreter's lock, as
 * ctypes.CDLL does.
 */
GLAKE_API void *glake_capsule_destructor(void);

/*
 * Copy @bytes at device pointer @from to host memory, through the device's primary context. Waits
 * for the copy, not for glaked.
 * Errors: session errors; map errors.
 */
GLAKE_API int glake_read(struct glake_session *session, uint32_t device, void *to, glake_ptr from,
                         uint64_t bytes);

/* ---- blocks that come from a program -------------------------------------------------------- */

struct glake_block;

struct glake_digest {
	uint8_t bytes[16];
};

/*
 * Turn private memory into a block. @ptr comes from glake_alloc(), is one whole chunk of at most
 * 128 MiB, and holds @content_bytes followed by zeros up to its end (GLAKE_ZERO helps). The caller
 * must first wait for everything that may write to it. Afterwards the same address is mapped
 * read-only, backed by the realm's one copy of these bytes, and belongs to the block: the caller
 * ends it with glake_block_release(). After an error the memory is as before, allocated and
 * writable. There are two exceptions. After GLAKE_E_GONE and GLAKE_E_PROTOCOL the memory is sealed:
 * another process may have the block already (glake_unseal() gives a private copy). The realm had an
 * equal block, and the driver unmaps the caller's memory but cannot map that block (GLAKE_E_CUDA):
 * then the address is empty and no longer allocated, and glake_free() of it is -EINVAL.
 * Errors: request errors; -EINVAL (@ptr, @content_bytes, not one chunk, or sealed memory); -EBUSY
 * (another thread changes this memory); GLAKE_E_BAD_REQUEST (the memory has a name of glake_share(),
 * or is not zero behind the content); GLAKE_E_BUSY; GLAKE_E_NO_DEVICE_MEMORY; GLAKE_E_NO_HOST_MEMORY;
 * GLAKE_E_NO_FDS; GLAKE_E_MOVER;
 * GLAKE_E_INTERNAL; GLAKE_E_SHUTTING_DOWN; GLAKE_E_CUDA; -ENOMEM.
 */
GLAKE_API int glake_block_publish(struct glake_session *session, glake_ptr ptr,
                                  uint64_t content_bytes, struct glake_block **block_out);

/*
 * Find a block of the realm by its digest and map it read-only. The caller ends it with
 * glake_block_release().
 * Errors: request errors; map errors; GLAKE_E_NOT_FOUND; GLAKE_E_OVER_QUOTA;
 * GLAKE_E_NO_HOST_MEMORY; GLAKE_E_SHUTTING_DOWN; -EMFILE.
 */
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

/* Local. Errors: -EINVAL (@block or @info is NULL, or its size is not set). */
GLAKE_API int glake_block_info(const struct glake_block *block, struct glake_block_info *info);
/*
 * Unmap a block and release it. The caller must first wait for all use. The store keeps the block
 * as cache. NULL is allowed.
 */
GLAKE_API void glake_block_release(struct glake_block *block);
/* Compute the digest that a block of these host bytes has. Local. */
GLAKE_API void glake_digest_bytes(const void *bytes, uint64_t n_bytes,
                                  struct glake_digest *digest_out);

/* ---- sealing -------------------------------------------------------------------------------- */

struct glake_span {
	glake_ptr ptr;
	uint64_t bytes;
};

struct glake_sealed {
	size_t size;           /* set by the caller */
	uint64_t sealed_bytes; /* in blocks now, those included that were before */
	uint64_t
		shared_bytes; /* of them: the realm had an equal block, and this process's copy is gone */
	uint64_t pinned_bytes;  /* stay private, because others may write to them by another way */
	uint64_t edge_bytes;    /* stay private: pages that the spans do not fill */
	const char *pinned_why; /* of one of the pinned pages; static; NULL: there is none */
	uint64_t held_ns;       /* the program's work was held back, in sum; 0 without the shim */
	uint64_t longest_held_ns; /* at a time */
};

/*
 * Seal memory in place. The memory becomes blocks, which all processes of the realm share, and stays
 * readable at the same addresses all the time. glaked finds equal blocks by their content, so it does
 * not matter which program made them. Each span lies in one allocation of glake_alloc() or, under the
 * shim, of the program, or in one range of glake_reserve(), whose chunks stay apart, so that they can be unmapped as
 * they were mapped. Spans may come in any order, touch and overlap. Whole pages of 2 MiB are
 * shared, at equal offsets within them: spans are rounded inward, and a page that holds anything else
 * stays private.
 *
 * Memory of a session that stitches may share chunks with other allocations. Without the shim such chunks stay private
 * (edge_bytes): others' work goes on in them.
 *
 * Without the shim, the caller must first wait for everything that may write to the memory; under the
 * shim, glake_seal() waits for queued work itself. Sealed memory is read-only: a
 * kernel that writes to it faults, in this process alone. glake_unseal() makes it writable again;
 * under the shim, a write by the driver's API does so by itself. glake_free() and glake_free_async()
 * free it as any allocation. Large memory is copied when it is cut into blocks, chunk by chunk, for
 * which up to 2 GiB must be free at a time.
 *
 * After an error, memory that could not be sealed is private and writable, as before. One part is not:
 * if the answer was lost (GLAKE_E_GONE, GLAKE_E_PROTOCOL), the memory that glaked was sealing stays
 * read-only, since other processes may share it. @sealed_out (may be NULL) is written in any case, and says how much
 * was sealed.
 * Errors: session errors; request errors; grant errors; -EINVAL (a span is not in one allocation;
 * @sealed_out); -EPERM (GLAKE_DEDUP=off); -EBUSY (work that is queued does not end in
 * time); GLAKE_E_BUSY (a glake-mover that has died and does not end still has some of it); GLAKE_E_MOVER; GLAKE_E_CUDA; -ENOMEM.
 */
GLAKE_API int glake_seal(const struct glake_span *spans, size_t n_spans,
                         struct glake_sealed *sealed_out);

/*
 * The same for memory that no work uses, neither queued nor started before this returns: under the shim, too,
 * nothing is waited for, and no work is held back. A kernel that uses the memory meanwhile faults, or reads what
 * is mapped there by turns. For memory that was just filled, and that its users do not know yet.
 * Errors: as glake_seal(); -EBUSY: for ten seconds the GPU had no time for a copy.
 */
GLAKE_API int glake_seal_idle(const struct glake_span *spans, size_t n_spans,
                              struct glake_sealed *sealed_out);

/*
 * Make sealed memory private and writable again, at the same addresses: each block that the span touches
 * is replaced by a copy. Memory that is not sealed stays as it is. If glaked is gone, the copy is memory of
 * the driver. After an error, what is sealed stays sealed, and can be read.
 * Errors: session errors; grant errors; GLAKE_E_BAD_REQUEST; -EINVAL (the span is not in one
 * allocation); -EBUSY (work that is queued does not end in time); GLAKE_E_CUDA; -ENOMEM; -ENOBUFS.
 */
GLAKE_API int glake_unseal(glake_ptr ptr, uint64_t bytes);

/*
 * The same for many spans at once, in any order: under the shim, the program is held back once for up to 16 GiB and 256 blocks,
 * as far as free memory allows. After an error some of it may be private; -EINVAL changes nothing.
 * Errors: as glake_unseal().
 */
GLAKE_API int glake_unseal_spans(const struct glake_span *spans, size_t n_spans);

/* ---- sleep ---------------------------------------------------------------------------------- */

#define GLAKE_MAX_STAYS_SLEPT 16

/* Memory that stays on the GPU while a program sleeps, and why. */
struct glake_stay {
	const char *why; /* static in struct glake_slept */
	uint64_t bytes;
};

struct glake_slept {
	size_t size;            /* set by the caller */
	uint64_t private_bytes; /* that have left the GPUs, or came back */
	uint64_t shared_bytes;  /* the same of sealed memory and models: others may still have it */
	uint64_t took_ns;
	uint64_t held_ns; /* of it: until all work of the program had ended */
	uint32_t n_stays;
	struct glake_stay stays[GLAKE_MAX_STAYS_SLEPT]; /* by reason */
};

/*
 * Have the session's memory on GPUs, private and sealed, and its open models, copied to host memory of glaked, and give it to
 * others. Its addresses stay. Does nothing if it sleeps. @timeout_ms: how long work under way is waited for. @slept_out may be NULL.
 *
 * Models, their tensors and those of glake_model_dlpack() stay valid; nothing may touch the memory: without the shim that is a
 * fault, which ends the context. A model that is closed, or loses its last such tensor, asleep is unmapped by the wake.
 *
 * Under the shim all sessions of the process sleep along that do not sleep yet, and *slept_out is of @session alone. A session that is made
 * later is awake. The program's work is waited for, and what the program submits next wakes it, by whatever thread. Without the
 * shim the caller sees to it that nothing uses the memory, and that nobody uses, shares or seals memory of the session before
 * glake_wake(): calls that change what is asleep wait until another thread wakes it. But glake_alloc() and its like, and
 * glake_unmap(), wake it first, with the errors of glake_wake(). glake_free() and glake_free_async() of whole chunks leave it
 * asleep, and the copies go; others wake it.
 *
 * Errors: session errors; request errors; -EBUSY (work that is queued does not end in time, another thread does the same, or
 * under the shim another thread wants to work, or ends a session, while copies are still being made);
 * -EINVAL (*slept_out); GLAKE_E_NO_HOST_MEMORY; GLAKE_E_OVER_QUOTA; GLAKE_E_NO_FDS; GLAKE_E_MOVER; GLAKE_E_BUSY; GLAKE_E_CUDA; -ENOMEM. Then it
 * is awake; but if it failed late, and the memory could not be mapped again, it sleeps: glake_is_asleep() tells, and glake_wake()
 * goes on there.
 */
GLAKE_API int glake_sleep(struct glake_session *session, uint32_t timeout_ms,
                          struct glake_slept *slept_out);

/*
 * Get all of it back, at the same addresses. Blocks until glaked has room for it: see wake_wait_ms in docs/configuration.md. Does nothing if
 * the session is awake. Under the shim all sessions of the process wake, or none.
 * Errors: session errors; request errors; -EINVAL (*slept_out); GLAKE_E_NO_DEVICE_MEMORY, GLAKE_E_OVER_QUOTA, GLAKE_E_NO_FDS (it has waited
 * in vain); GLAKE_E_MOVER (what came back was something else); GLAKE_E_BUSY; GLAKE_E_CUDA; -EMFILE; -ENOMEM. Then it sleeps on, and the next
 * call goes on there.
 */
GLAKE_API int glake_wake(struct glake_session *session, struct glake_slept *slept_out);

/* Returns nonzero if it sleeps. Local. */
GLAKE_API int glake_is_asleep(const struct glake_session *session);

/* ---- published weights ---------------------------------------------------------------------- */

struct glake_publish_options {
	size_t size;     /* sizeof(struct glake_publish_options) */
	uint32_t device; /* glaked's index */
	int pin;         /* nonzero: never evicted until unpinned; the tenant is charged for it */
};

struct glake_published {
	size_t size; /* set by the caller */
	/* The model's blocks: the tensors' own memory, read-only now; and copies of memory that stays as it was. */
	uint64_t in_place_bytes;
	uint64_t copied_bytes;
	const char *copied_why; /* of one of the copied pages; static; NULL: there is none */
	int was_published;      /* nonzero: the key had these tensors already, in the same memory */
};

/*
 * Leave a model of these tensors in the store, under @key, for all processes of the realm to attach. It
 * lives there as a model from files does: while nobody has it open it is cache, also after the end of
 * this process, and glakectl lists, pins and evicts it by its key. A key names one model on each device:
 * publishing it again replaces the model for later attaches. Those that have it open keep the old one.
 *
 * Each of @tensors has its size set. The call reads name, dtype, n_dims, shape, strides and ptr. Names are
 * unique. Tensors may overlap, also as a whole (tied weights), and ptr of those without elements is ignored.
 * The caller must first wait for everything that may write to them. @key is UTF-8 of 1 to 255 bytes, without
 * control characters and not only digits. @options may be NULL (device 0).
 *
 * The call seals the tensors' memory, as glake_seal() does; also tensors of open models and blocks are
 * shared as they are. Pages of 2 MiB that cannot become blocks are copied for the model, charged to the
 * tenant: those that hold anything else, pinned ones, and memory that is not of glake. The model is
 * published whole or not at all; after an error, memory may be sealed. Blocks are shared whole, with what
 * else was sealed in them. Nothing that the program does with its memory afterwards changes the model.
 * @published_out may be NULL.
 * Errors: as glake_seal(); map errors; -EINVAL (@key, @options, @published_out, a tensor, or its memory is
 * freed); GLAKE_E_BAD_REQUEST (glaked refuses a tensor, or another thread freed or unsealed its memory).
 */
GLAKE_API int glake_weights_publish(struct glake_session *session, const char *key,
                                    const struct glake_tensor *tensors, size_t n_tensors,
                                    const struct glake_publish_options *options,
                                    struct glake_published *published_out);

struct glake_attach_options {
	size_t size;      /* sizeof(struct glake_attach_options) */
	uint32_t device;  /* glaked's index */
	uint32_t wait_ms; /* if the key is not there, wait this long for it */
	int pin;          /* nonzero: never evicted until unpinned; the tenant is charged for it */
};

/*
 * Open the model that a process of the realm has published under @key, and map it read-only, as
 * glake_model_open() does for files; glake_model_close() ends it. @options may be NULL (device 0).
 * A model that was evicted comes back from host memory, if that has it.
 * Errors: request errors; map errors; -EINVAL (@key, @options); GLAKE_E_NOT_FOUND; GLAKE_E_OVER_QUOTA;
 * GLAKE_E_NO_HOST_MEMORY; GLAKE_E_NO_FDS; GLAKE_E_SHUTTING_DOWN; -EMFILE. From host memory also GLAKE_E_NO_DEVICE_MEMORY,
 * GLAKE_E_MOVER and GLAKE_E_BUSY.
 */
GLAKE_API int glake_weights_attach(struct glake_session *session, const char *key,
                                   const struct glake_attach_options *options,
                                   struct glake_model **model_out);

/* ---- notices -------------------------------------------------------------------------------- */

enum glake_notice_kind {
	GLAKE_NOTICE_RECLAIM = 1,   /* glaked asked for warm memory; the library has returned it */
	GLAKE_NOTICE_SHUTTING_DOWN, /* glaked ends; mapped memory stays */
	GLAKE_NOTICE_MODEL_EVICTED, /* name */
	GLAKE_NOTICE_GONE,          /* the session has ended at glaked; mapped memory stays */
};

struct glake_notice {
	size_t size; /* sizeof(struct glake_notice) in the library */
	enum glake_notice_kind kind;
	uint32_t device;
	uint64_t bytes;
	const char *name; /* valid during the callback; may be NULL */
};

typedef void (*glake_notice_fn)(void *user, const struct glake_notice *notice);

/*
 * Set the function that gets notices; NULL switches it off. A notice that arrives during a call of
 * the session is delivered by that call, on its thread, with no lock held: after the call's work,
 * or while it waits for memory. The handler may call the library, but not glake_disconnect(). When
 * this function returns, the old handler does not run any more, unless it is the caller. Does
 * nothing with an invalid session.
 */
GLAKE_API void glake_set_notice_handler(struct glake_session *session, glake_notice_fn handler,
                                        void *user);
/*
 * The session's socket, for poll(): readable when a notice waits. It belongs to the session; never
 * read from it. Local. Returns -1 for an invalid session or a connection that is gone. A new
 * connection may have another number, so ask again after each glake_dispatch().
 */
GLAKE_API int glake_fd(struct glake_session *session);
/*
 * Deliver the notices that wait. Does not wait for any; but if the connection is lost, the call tries to
 * connect again, now and then, for 250 ms at most. In a session that stitches, also give memory back
 * that was not needed for some seconds, which takes milliseconds: call it now and then while the program
 * neither allocates nor frees. Returns how many notices there were, or, if none, an error.
 *
 * A session that was connected with sleep_when_asked also follows what glaked wants, here and nowhere else: `glakectl sleep`,
 * `glakectl wake`, room for programs of tenants with on_pressure, and the wake that glake_wake() was refused, as soon as it
 * fits. It sleeps as by glake_sleep() and wakes as by glake_wake(), during this call, which takes as long as they do. So
 * nothing may use the session's memory during the call, nor after it before glake_wake(), if glake_is_asleep() says so. Call
 * it at least once a second, asleep too: glaked waits for 10 s, and what it has given up is followed all the same. If the session
 * could not sleep or wake, who asked is told, and the result of this call is not changed.
 *
 * Errors: session errors; GLAKE_E_GONE; GLAKE_E_PROTOCOL.
 */
GLAKE_API int glake_dispatch(struct glake_session *session);

/* ---- statistics ----------------------------------------------------------------------------- */

struct glake_usage {
	size_t size;             /* set by the caller */
	uint64_t live_bytes;     /* allocated by the program */
	uint64_t reserved_bytes; /* of private chunks of this session */
	uint64_t warm_bytes;     /* of reserved_bytes: free for reuse */
	uint64_t shared_bytes;   /* of mapped models and blocks */
	uint64_t n_warm_allocs;  /* served without a round trip */
	uint64_t n_cold_allocs;  /* served by glaked */
	uint64_t peak_bytes;     /* the highest live_bytes */
};

/* This session's own counters. Local. Errors: session errors; -EINVAL (@usage). */
GLAKE_API int glake_usage(struct glake_session *session, struct glake_usage *usage);

/*
 * Memory in stream order of one device, of a session that stitches; all 0 for another. What is sealed does not count
 * in live_bytes, used_bytes and reserved_bytes.
 */
struct glake_pool_stats {
	size_t size;                  /* set by the caller */
	uint64_t live_bytes;          /* as asked for */
	uint64_t peak_live_bytes;     /* the highest since the last reset */
	uint64_t used_bytes;          /* as taken: rounded up */
	uint64_t reserved_bytes;      /* chunks, each counted once */
	uint64_t peak_reserved_bytes; /* the highest since the last reset */
	uint64_t n_allocs;            /* allocations that were served */
	uint64_t n_stitches;          /* ranges stitched of free chunks that are apart */
	uint64_t stitched_bytes;      /* in them, in sum */
	uint64_t n_reuses;            /* allocations served by a stitched range that was kept */
	uint64_t n_grows;             /* requests to glaked */
	uint64_t grown_bytes;         /* that they brought */
	uint64_t n_mapped;            /* handles mapped: the driver's calls that cost */
	uint64_t n_unmapped;
	uint32_t n_kept;      /* stitched ranges that are kept now, live ones included */
	uint32_t n_kept_live; /* of n_kept: in use */
	uint64_t kept_bytes;  /* addresses in n_kept: no memory of their own */
};

/*
 * The numbers of glaked's device @device. Local.
 * Errors: session errors; -ENODEV (glaked has no such device); -EINVAL (@stats).
 */
GLAKE_API int glake_pool_stats(struct glake_session *session, uint32_t device,
                               struct glake_pool_stats *stats);
/*
 * Begin both peaks anew, at the present values. Local.
 * Errors: session errors; -ENODEV (glaked has no such device).
 */
GLAKE_API int glake_pool_reset_peaks(struct glake_session *session, uint32_t device);

enum glake_pool_state {
	GLAKE_POOL_FREE,   /* for any stream */
	GLAKE_POOL_PARKED, /* freed, and for its stream at once: work of that may still use it */
	GLAKE_POOL_USED,
};

#define GLAKE_POOL_NO_STREAM UINT64_MAX

/* A piece of memory in stream order. */
struct glake_pool_range {
	glake_ptr ptr;
	uint64_t bytes;
	enum glake_pool_state state;
	int is_stitched;      /* of a used one: it is part of a stitched range */
	glake_ptr allocation; /* that it is of, by the program's address; 0: none */
	uint64_t stream;      /* that uses it, or used it last, by cuStreamGetId() */
	uint64_t chunk_bytes; /* of the chunk at ptr */
};

/*
 * All memory in stream order of glaked's device @device: each byte of reserved_bytes once, by address. What
 * other threads allocate and free waits meanwhile. The caller frees *@ranges_out by free(); without ranges it
 * is NULL. Local.
 * Errors: session errors; -ENODEV (glaked has no such device); -EINVAL (an output is NULL); -ENOMEM.
 */
GLAKE_API int glake_pool_snapshot(struct glake_session *session, uint32_t device,
                                  struct glake_pool_range **ranges_out, size_t *n_out);

#ifdef __cplusplus
}
#endif
#endif
