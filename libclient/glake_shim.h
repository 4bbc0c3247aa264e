/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library's functions for the shim alone. They are not installed and not in glake.map; the shim
 * links the library's archive. The two change together.
 *
 * Threads: any. Errors: as in glake.h.
 */
#ifndef GLAKE_SHIM_PRIVATE_H
#define GLAKE_SHIM_PRIVATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "glake.h"
#include "glake_order.h"
#include "libclient/space/page.h"
#include "libclient/space/ptr_table.h"
#include "proto/limits.h"

/* ---- the heap --------------------------------------------------------------------------------- */

/*
 * The shim's notes on an allocation. The library reads ctx and generation only, to find
 * allocations.
 */
struct glake__tag {
	void *ctx; /* that allocated it: the memory ends with it */
	uint64_t generation;
	void *pool;
	void *connection;
	uint64_t stream; /* the id of the stream in whose order it was allocated, + 1; 0: none */
};

/* Smaller requests lie in slabs. */
#define GLAKE__POOL_MIN_BYTES (128u * 1024)

/* Ids from here on are no streams of the driver's, but of captures (shim/graphmem.h). */
#define GLAKE__GRAPH_STREAM (1ull << 63)

/*
 * Does an allocation with @tag, of @n_bytes, come from the pool of a session that stitches? Small ones of a capture
 * do: a slab does not know what may serve again in the same capture.
 */
static inline bool glake__pool_serves(const struct glake__tag *tag, uint64_t n_bytes)
{
	return tag->stream > GLAKE__GRAPH_STREAM ||
	       (tag->stream > 0 && n_bytes >= GLAKE__POOL_MIN_BYTES);
}

/* Who waits for what streams have freed: for those up to a number. Begins with glake__order_watch(), or as zeroes. */
struct glake__order_wait {
	uint64_t n_released; /* when it looked last */
	uint64_t upto;
	uint64_t grace_ns;
	uint64_t ended_ns; /* when one of them was seen to */
	unsigned n_left;
	bool is_over;
};

struct glake__order_wait glake__order_watch(const struct glake_order *order);

/*
 * Wait until some of what was parked at the first call is released, and a little longer, each time twice as long: more
 * may follow. What is parked in @ctx, the current context; or, if that is NULL, for device @ordinal. True: something
 * has been released since @wait began or was used last, by any thread. False: there is nothing left, or nothing has
 * ended for ten seconds. Then what is left may wait for the caller.
 */
bool glake__order_await(struct glake_order *order, void *ctx, int ordinal,
                        struct glake__order_wait *wait);

/*
 * How one allocation waits: since when, over all its requests to glaked. In stream order its stream may also wait for
 * another one's work (glake_order_follow()), unless order is NULL. Begins as zeroes.
 */
struct glake__wait {
	uint64_t since_ns;
	struct glake__order_wait parked;
	bool is_room_made;         /* what is free has gone back to glaked for it */
	struct glake_order *order; /* borrowed */
	void *stream;              /* its CUstream, and */
	unsigned flags;            /* GLAKE_PER_THREAD or 0 */
};

/*
 * A piece of private memory, live or parked: all of a range of its own, or part of a slab or pool. A thread
 * reads it if it has claimed it or holds the lock.
 */
struct glake__allocation {
	glake_ptr address;
	uint64_t n_bytes;    /* as asked for */
	uint64_t n_capacity; /* as taken */
	uint64_t id;         /* of this allocation; never used again */
	int ordinal;         /* of its CUDA device */
	bool is_claimed;     /* a thread is about to free it */
	bool is_parked;      /* freed in the order of a stream, which may still use it */
	struct glake__tag tag;
	struct glake__allocation *next;  /* link: a list of claimed ones */
	bool is_pooled;                  /* it lies in a pool (pool.h), and not in: */
	struct glake__backing *backing;  /* borrowed: it lies there */
	struct glake__slab_block *block; /* borrowed; NULL: all of the backing */
};

/* Facts about an allocation, found by any address in it. */
struct glake__facts {
	glake_ptr address;
	uint64_t n_bytes;
	uint64_t id;
	int ordinal;
	struct glake_session *session; /* borrowed */
	struct glake__tag tag;
	glake_ptr region_address; /* of its range */
	uint64_t region_bytes;
	uint64_t region_id;
};

/* The bytes that a request for @n_bytes takes. */
uint64_t glake__heap_round(uint64_t n_bytes);

/*
 * Private memory of CUDA device @ordinal, not initialised, at least 512-byte aligned, with @tag.
 * glake__heap_take() serves it without a request, or returns NULL. glake__supply_get() asks glaked
 * if it must, and blocks; -ENODEV: glaked does not own the device.
 */
struct glake__allocation *glake__heap_take(struct glake_session *session, int ordinal,
                                           uint64_t n_bytes, const struct glake__tag *tag);
int glake__supply_get(struct glake_session *session, int ordinal, uint64_t n_bytes,
                      const struct glake__tag *tag, struct glake__wait *wait,
                      struct glake__allocation **allocation_out);

/* Is @address in an allocation that no thread has claimed? Then @facts_out (may be NULL) is set. */
bool glake__heap_find(glake_ptr address, struct glake__facts *facts_out);
/* Is @address in private memory at all, warm memory included? */
bool glake__heap_has(glake_ptr address);

/*
 * Claim the allocation that starts at @address: no other thread can free it. NULL if there is
 * none.
 */
struct glake__allocation *glake__heap_claim(glake_ptr address);
/* All of @ctx from before @generation, as a list by next. */
struct glake__allocation *glake__heap_claim_of(const void *ctx, uint64_t generation);
void glake__heap_unclaim(struct glake__allocation *allocation);

/*
 * Free the allocation that starts at @address, of @session or, if that is NULL, of any, in the order of @stream,
 * without an event: it joins one that is parked there and waits for the next mark (glake_order.h). *was_out (may be
 * NULL) is what it was. False: there is none, or it cannot; memory of graphs never can.
 */
bool glake__heap_join(const struct glake_session *session, glake_ptr address, uint64_t stream,
                      struct glake__allocation *was_out);
/* marking() of glake_order.h. */
void glake__heap_marking(struct glake__allocation *allocation);

/*
 * A claimed allocation leaves the program, in the order of @stream. park: before that is an event of the stream;
 * false: no memory of the host. Behind it, parked: the stream may have the memory at once; or unpark: the program
 * has it again.
 */
struct glake__parking {
	uint64_t
		n_reusable; /* bytes that a parked allocation may serve next, by glake__heap_reuse() */
	/* The memory, if it is of a pool (pool.h). */
	struct glake__pool *pool;
	struct glake__pooled *waiting;
	uint64_t number;
	struct glake__run *runs;
	struct glake__stitched *stitched;
};
bool glake__heap_park(struct glake__allocation *allocation, uint64_t stream,
                      struct glake__parking *parking_out);
void glake__heap_parked(struct glake__parking *parking);
void glake__heap_unpark(struct glake__allocation *allocation, struct glake__parking *parking);
/* A parked allocation becomes another, live one. The connection of its tag stays. */
void glake__heap_reuse(struct glake__allocation *allocation, uint64_t n_bytes,
                       const struct glake__tag *tag);

/* Nothing uses a claimed allocation any more: make it warm or give it back. */
void glake__heap_release(struct glake_session *session, struct glake__allocation *allocation);

/* glake_share() of the region that @ptr lies in, which may hold many allocations. */
int glake__share_region(struct glake_session *session, glake_ptr ptr,
                        struct glake_share *share_out);

/*
 * CUDA device @reader may read and write all private memory of @device from now on. After
 * GLAKE_E_CUDA, later memory is not opened to it. Waits for changes that are under way.
 */
int glake__space_add_reader(int device, int reader);

/* ---- the map ---------------------------------------------------------------------------------- */

/*
 * Holds back the program's work while a range changes. Without a gate (the library without the shim)
 * the caller of a change must do that.
 *
 * close() returns 0 when no submitted work uses the memory of @readers (one bit per CUDA device) any
 * more. No new work is submitted until open(), which the same thread calls. Otherwise it returns a
 * negative error, and the change does not happen:
 *   -EAGAIN  work did not end within @patience_ns, or a stream is being captured: try again later
 *   others   this process can never hold back its work
 * wait() (may be NULL) waits for the work that is submitted by now, and holds nothing back meanwhile. What it
 * returns means the same.
 * left() (may be NULL) is told that work of the library's own goes on.
 * The library calls it without its locks.
 *
 * hold_context() finds a context of CUDA @device for work of the library's own, one that the program has, since a
 * new one takes 500 MiB and 0.2 s. No context of the process ends until let_context(), which the same thread calls.
 * *context_out is NULL if the program has never had one. Otherwise it returns a negative error, and holds nothing:
 *   -EAGAIN  another thread is ending a context, and did not get ready within @patience_ns
 *   -ENOENT  those that the program had have ended
 * release_primary() gives back a primary context that the library has retained while others could end: it may be
 * the last user, so whoever notes things about the context has to know.
 */
struct glake__gate {
	int (*close)(void *user, uint64_t readers, uint64_t patience_ns);
	void (*open)(void *user);
	void *user;
	int (*wait)(void *user, uint64_t readers, uint64_t patience_ns);
	void (*left)(void *user);
	int (*hold_context)(void *user, int device, uint64_t patience_ns, void **context_out);
	void (*let_context)(void *user);
	void (*release_primary)(void *user, int device);
};

/*
 * The driver, by path, is initialised: from now on there is a window, and changes pass @gate. 0, or an
 * error of cudrv_open().
 */
int glake__space_start(const char *libcuda, const struct glake__gate *gate);

/* Kinds of addresses: where one is. */
enum glake__address_kind {
	GLAKE__ELSEWHERE, /* none of ours */
	GLAKE__FREE,      /* of the window, in no range */
	GLAKE__OWN,       /* private memory, live or warm; models; blocks */
	GLAKE__OPENED,    /* another process's */
	GLAKE__PROGRAMS,  /* in a reservation of the program */
};

struct glake__address_info {
	enum glake__address_kind kind;
	glake_ptr address; /* of the range, unless it is free */
	uint64_t n_bytes;
	void *user; /* glake__opened_set_user() */
};
struct glake__address_info glake__space_look(glake_ptr address);

/* Attach @user to memory of glake_share_open(), for glake__space_look(). */
void glake__opened_set_user(glake_ptr address, void *user);

/* Reasons why a chunk must keep its place and content. */
enum glake__pin {
	GLAKE__PIN_NONE,
	GLAKE__PIN_ALIASED,     /* it is mapped more than once; computed, as is the next */
	GLAKE__PIN_HANDLE,      /* the program has a handle of it */
	GLAKE__PIN_SHARED,      /* another process may map it; noted, as are the next */
	GLAKE__PIN_FOREIGN,     /* it is another process's */
	GLAKE__PIN_EXPORTED,    /* its fd was handed out */
	GLAKE__PIN_DMABUF,      /* another device may have it */
	GLAKE__PIN_SYNC_MEMOPS, /* the driver waits by its address */
	GLAKE__PIN_MULTICAST,   /* it is bound to a multicast object */
	GLAKE__N_PINS
};
const char *glake__pin_text(enum glake__pin pin);

/*
 * Why memory that was to be sealed is private: as UnsealedWhy of glake.proto. Behind GLAKE__UNSEALED_NAMED
 * come the reasons of enum glake__pin.
 */
enum glake__unsealed {
	GLAKE__UNSEALED_NOT = -1, /* no cause */
	GLAKE__UNSEALED_EDGE,     /* only a part of the page was to be sealed */
	GLAKE__UNSEALED_FAILED,   /* sealing it was an error */
	GLAKE__UNSEALED_WRITTEN,  /* the driver's API was about to write to it */
	GLAKE__UNSEALED_ASKED,    /* glake_unseal() */
	GLAKE__UNSEALED_NAMED,    /* another process or device was about to get it */
};

/* Of the memory at @address; GLAKE__PIN_NONE also for memory that is not ours. */
enum glake__pin glake__pin_at(glake_ptr address);

/*
 * Note that memory in [address, address + n_bytes) is pinned for reason @pin, or no longer is. Waits for
 * changes of it that are under way.
 */
void glake__pin_range(glake_ptr address, uint64_t n_bytes, enum glake__pin pin, bool is_pinned);

/* ---- sealed memory ---------------------------------------------------------------------------- */

/* Each launch looks at it: one line of the processor's cache. */
struct glake__sealed {
	/*
	 * Blocks that are mapped, each mapping counted. Private memory becomes one only while the gate is closed, so
	 * whoever is inside and reads 0 may write anywhere.
	 */
	_Alignas(64) _Atomic uint64_t n;
	_Atomic uint64_t n_sealings; /* the same, but it only grows */
	/* All blocks that are in the window lie in there. */
	_Atomic uint64_t base;
	_Atomic uint64_t n_bytes;
};

extern struct glake__sealed glake__sealed __attribute__((visibility("hidden")));

/*
 * The first address in [ptr, ptr + n_bytes) that is in a block, sealed here or opened; 0: there is none.
 * Calls no driver and waits for nobody.
 */
glake_ptr glake__find_sealed(glake_ptr ptr, uint64_t n_bytes);

/* glake_unseal() for cause @why. */
int glake__unseal(glake_ptr ptr, uint64_t bytes, enum glake__unsealed why);

/* Of blocks that are mapped, each mapping counted. */
uint64_t glake__sealed_bytes(void);

/* ---- what the host has filled ----------------------------------------------------------------- */

/*
 * The program's calls write to [ptr, ptr + n_bytes), which may be anywhere: copied from the host; zeroed or set,
 * which may come before a copy; or written otherwise, also again and again. Each costs a few
 * instructions for each page.
 */
void glake__fill_copied(glake_ptr ptr, uint64_t n_bytes);
void glake__fill_set(glake_ptr ptr, uint64_t n_bytes);
void glake__fill_written(glake_ptr ptr, uint64_t n_bytes);

/* GLAKE_DEDUP=off wins over whoever asks: nothing is counted, and nothing sealed. */
bool glake__dedup_is_off(void);

/* Would glake__fill_copied() count anything there? */
bool glake__fill_is_open(glake_ptr ptr, uint64_t n_bytes);

/* ---- sealing that glaked asks for ------------------------------------------------------------- */

/*
 * The session follows glaked's wishes for sealing: @ask is called with no lock held, by any thread that calls
 * the library, with an id for glake__seal_tell(). Set it before other threads use the session.
 */
typedef void glake__seal_ask_fn(void *user, uint64_t id, bool is_dry_run);
void glake__seal_follow(struct glake_session *session, glake__seal_ask_fn *ask, void *user);

/* The memory of a session: what looks like weights, and what does not, by reason. */
struct glake__candidates {
	struct glake_span *spans; /* owned: free(). Each becomes blocks of its own */
	size_t n_spans;
	uint64_t n_bytes;      /* of the spans */
	uint64_t sealed_bytes; /* of n_bytes */
	uint64_t small_bytes;
	uint64_t unfilled_bytes;
	uint64_t rewritten_bytes;
};
/* 0 or -ENOMEM. */
int glake__candidates_find(struct glake_session *session, struct glake__candidates *candidates_out);

/* Was all that it would look at allocated in one of these contexts, in none, or before @generation? */
bool glake__candidates_are_in(struct glake_session *session, void *const *contexts, size_t n,
                              uint64_t generation);

/* glake_seal() of @n of the spans. What has been freed or written to meanwhile is left out. */
int glake__candidates_seal(const struct glake_span *spans, size_t n,
                           struct glake_sealed *sealed_out);

struct glake__seal_report {
	uint64_t done_bytes;
	uint64_t total_bytes;
	bool is_over;
	int error; /* an error of glake.h, if it is over and nothing was sealed, and its text: */
	const char *why;
	/* Else what was. */
	const struct glake__candidates *candidates;
	const struct glake_sealed *sealed;
	uint64_t failed_bytes;
	const char *failed_why; /* NULL: nothing failed */
	uint64_t took_ns;
};
/* Tell glaked. Does not wait for its answer. */
void glake__seal_tell(struct glake_session *session, uint64_t id,
                      const struct glake__seal_report *report);

/* ---- the program's own virtual memory management ---------------------------------------------- */

/*
 * The shim makes the driver's calls and notes their effects here. A call that can fail has a
 * function before it and one after it, which is told the result.
 */
struct glake__chunk;

/*
 * Addresses of the window for cuMemAddressReserve(), or, where that has none, the driver's.
 * -EINVAL: not a multiple of 2 MiB, or before glake__space_start(); else as the driver:
 * GLAKE_E_CUDA, -ENOMEM.
 */
int glake__program_reserve(uint64_t n_bytes, uint64_t alignment, glake_ptr hint,
                           glake_ptr *ptr_out);
/* -ENOENT: it is no reservation of those; -EINVAL: another size, or not empty. */
int glake__program_unreserve(glake_ptr ptr, uint64_t n_bytes);

/*
 * The driver has made @handle. When its last handle, mapping and use is gone, @release is called
 * with @user and no lock held. @device: CUDA's, -1: none. With one use and one handle. NULL
 * without memory.
 */
struct glake__chunk *glake__program_made(unsigned long long handle, uint64_t n_bytes, int device,
                                         void *user, void (*release)(void *user));
/* The same, of memory of another process, or of ours that has come back by an fd. */
void glake__program_imported(unsigned long long handle, int device);

/*
 * The chunk of a handle, with a use more, until glake__program_give(); NULL if it is not known.
 * Around each call of the driver that takes or gives up a handle or a mapping.
 */
struct glake__chunk *glake__program_take(unsigned long long handle);
void glake__program_give(struct glake__chunk *chunk);
void *glake__program_user(const struct glake__chunk *chunk);
void glake__program_pin(struct glake__chunk *chunk, enum glake__pin pin);

/* The driver has released @handle once; it has retained the memory at @address as @handle. */
void glake__program_released(unsigned long long handle);
void glake__program_retained(unsigned long long handle, glake_ptr address);

/* Around a mapping. */
struct glake__mapping;
/*
 * 0 and *mapping_out; -ENOENT: nothing of ours is there, the driver knows; -EINVAL: it must not be.
 * @chunk may be NULL, of a handle that is not known.
 */
int glake__program_map(glake_ptr ptr, uint64_t n_bytes, struct glake__chunk *chunk,
                       struct glake__mapping **mapping_out);
/* The same around an unmapping. */
int glake__program_unmap(glake_ptr ptr, uint64_t n_bytes, struct glake__mapping **mapping_out);
/* NULL is fine. */
void glake__program_settle(struct glake__mapping *mapping, bool is_done);

/*
 * The same around a call that changes the access to what is mapped there, or takes a handle of it. What is
 * mapped stays as it is until glake__program_settle().
 */
int glake__program_hold(glake_ptr ptr, uint64_t n_bytes, struct glake__mapping **mapping_out);
/* The program has given @device access: to read, also to write, or none. */
void glake__program_opened(glake_ptr ptr, uint64_t n_bytes, int device, bool may_read,
                           bool may_write);

/* ---- memory in the order of streams: contexts that end ---------------------------------------- */

/*
 * Around a driver call that may end a context: hold, hide, the call, then drop or show, then let.
 * No other thread uses the context meanwhile. It is hidden first, because a new context may get
 * its handle before the call returns. If the context has ended, its work is over and its events
 * are gone: drop the hidden state; let releases all that was parked there. If it has not ended,
 * show it again.
 */
void glake__order_hold_contexts(struct glake_order *order);
/* False: another thread holds them. */
bool glake__order_try_hold_contexts(struct glake_order *order);
void glake__order_let_contexts(struct glake_order *order);
void glake__order_hide_context(struct glake_order *order, void *context);
void glake__order_show_context(struct glake_order *order, void *context);
void glake__order_drop_context(struct glake_order *order);

/* glake_order_stream_ends() for a stream that is being captured: whoever asks for its id ends the capture. */
void glake__order_handle_ends(struct glake_order *order, const void *handle);

/* @stream may wait for what other streams do later: none waits for it, for memory that it frees. */
void glake__order_stream_waits(struct glake_order *order, const struct glake_stream *stream);

/* ---- the session ------------------------------------------------------------------------------ */

/*
 * True: the session has no connection and gets none any more. False while the library may make
 * one. Local.
 */
bool glake__session_is_gone(struct glake_session *session);

/* glake_connect(), which waits up to @timeout_ms to be accepted, and as long for an answer. */
int glake__connect(const struct glake_connect_options *options, unsigned timeout_ms,
                   struct glake_session **session_out);

/* ---- faults of the program -------------------------------------------------------------------- */

/* A kernel that was given sealed memory, or a graph that may have such. */
struct glake__suspect {
	const char *kernel; /* its name, as the driver has it; borrowed */
	glake_ptr ptr;      /* 0: not known, nor is what follows */
	glake_ptr range;    /* that ptr lies in: an allocation, or the range of a model */
	uint64_t range_bytes;
};

/* A context of the program is lost. */
struct glake__fault {
	int error;        /* the driver's */
	const char *name; /* of the error; borrowed */
	uint64_t sealed_bytes;
	struct glake__suspect suspects[GLAKE_MAX_SUSPECTS]; /* the most suspect first */
	size_t n_suspects;
};

/* Tell glaked, for an operator. Blocks until it answers. Calls no driver. */
int glake__report_fault(struct glake_session *session, const struct glake__fault *fault);

/* ---- reports of the program ------------------------------------------------------------------- */

/*
 * Driver usage: memory of one device that a program has from the driver, without contexts and
 * code.
 */
struct glake__driver_memory {
	uint32_t device;        /* glaked's index */
	uint64_t managed_bytes; /* as asked for: how much of it is on the device is not known */
	uint64_t array_bytes;
	uint64_t graph_bytes; /* kept for the allocations of graphs */
	uint64_t other_bytes; /* allocations and pools */
};

struct glake__program_usage {
	uint64_t n_owned;  /* allocations served with memory of glaked */
	uint64_t n_passed; /* allocations left to the driver that glaked should have served */
	const struct glake__driver_memory *driver; /* borrowed; each device at most once */
	size_t n_driver;
};

/*
 * Set the numbers that only the program knows. The next report tells glaked, for listings. They
 * replace the earlier ones. Local. Errors, after which nothing has changed: -ENODEV (no such
 * device), -EINVAL (a device is there twice).
 */
int glake__set_program_usage(struct glake_session *session,
                             const struct glake__program_usage *usage);

/* Tell glaked now what the session uses, and wait until it has heard. Errors: request errors. */
int glake__tell_usage(struct glake_session *session);

#endif
