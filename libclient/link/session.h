/* SPDX-License-Identifier: Apache-2.0 */
/*
 * struct glake_session: what the modules of the library share.
 *
 * The two halves have separate locks, so memory served from the warm cache never waits for another
 * thread's request:
 *
 *   link    the connection: requests under way, waiting notices (link.h)
 *   books   the session's memory, models, blocks and counters; under the lock of the space
 *           (space/space.h), like their ranges
 *
 * Higher parts include this file. The session reaches them by callbacks, which glake_connect() sets.
 *
 * Owner: the caller, from glake_connect() to glake_disconnect().
 * Threads: any. Fields without a remark are written by glake_connect() alone.
 */
#ifndef GLAKE_LIBCLIENT_SESSION_H
#define GLAKE_LIBCLIENT_SESSION_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/cudrv.h"
#include "proto/limits.h"
#include "libclient/glake.h"
#include "libclient/link/error.h"
#include "libclient/link/link.h"
#include "libclient/link/report.h"

struct glake__allocation;
struct glake__elastic_calls;
struct glake__server;
struct glake__ahead;

struct glake__device {
	struct glake_session *session; /* that it is of */
	struct glake_device public;
	CUdevice handle;          /* valid if public.ordinal >= 0 */
	struct glake__heap *heap; /* borrowed: its private memory (heap/heap.h) */
	uint64_t promise_bytes; /* that the process wants to be promised; 0 = nothing (promise.h) */
	_Atomic bool is_promised; /* and was */
	uint64_t
		reclaim_debt; /* that glaked wanted when less was warm: memory that is freed next pays it */
};

struct glake__books {
	struct glake__backing *live;    /* owned list by newer: glake_alloc() */
	struct glake__placed *placed;   /* owned list: glake_reserve() */
	struct glake_elastic *elastics; /* owned list: glake_elastic_open() */
	struct glake_model *models;     /* owned list */
	struct glake_model
		*late; /* owned list: of models that ended while their memory was asleep */
	struct glake_block *blocks; /* owned list */
	uint64_t live_bytes;
	uint64_t peak_bytes; /* the highest live_bytes */
	uint64_t reserved_bytes;
	uint64_t shared_bytes;
	uint64_t n_warm_allocs;
	uint64_t n_cold_allocs;
	uint64_t unsealed_bytes[GLAKE_N_UNSEALED]; /* of live memory, by cause (space/unsealed.h) */
	uint64_t n_seals;
	uint64_t seal_ns;
	uint32_t n_holds; /* calls that have held its memory, and are not over (heap/heap.h) */
};

/* The program holds @n_bytes more. Called with the lock held. */
static inline void glake__books_add_live(struct glake__books *books, uint64_t n_bytes)
{
	books->live_bytes += n_bytes;
	if (books->live_bytes > books->peak_bytes) {
		books->peak_bytes = books->live_bytes;
	}
}

/* The numbers of the last report. Of the program, only the version of its numbers. */
struct glake__usage {
	uint64_t live_bytes;
	uint64_t warm_bytes;
	uint64_t peak_bytes;
	uint64_t program_version;
	uint64_t unsealed_bytes[GLAKE_N_UNSEALED];
	uint64_t n_seals;
	uint64_t seal_ns;
	uint64_t held_ns; /* of the process */
	uint64_t pools_hash;
	uint64_t reusable_hash; /* of the bytes by device */
	uint64_t connection; /* its glaked, which may be a new one, knows nothing of earlier ones */
};

struct glake__program {
	uint64_t version; /* counts the changes of what follows */
	uint64_t n_owned;
	uint64_t n_passed;
	uint64_t idle_since_ns;
	struct glake__alone *alone;          /* owned; NULL: it seals when asked */
	struct glake__driver_memory *driver; /* owned; by position in devices, NULL until set */
};

/* Host memory of a NUMA node, of which glaked has chunks. */
struct glake__host {
	uint32_t node;
	uint64_t total_bytes;
	uint64_t limit_bytes; /* that glaked gives out at most */
	uint64_t quota_bytes; /* the tenant's; 0 = none */
};

/* A wish of glaked that has come and is not followed yet. */
struct glake__asked {
	uint64_t id; /* 0: there is none */
	bool wakes;
	uint32_t why;
};

struct glake_session {
	_Atomic uint32_t n_refs; /* the caller's, and one per exported model */
	_Atomic bool is_closing; /* glake_disconnect(): the daemon is told nothing any more */
	bool is_forked;          /* glake_disconnect() in a child: no driver call, no lock */
	bool has_driver;         /* false: no_cuda */
	bool stitches;           /* memory in stream order is cut of one range, and stitched */
	struct cudrv drv;
	uint64_t id;
	bool is_admin;
	char tenant[64];
	char realm[64];
	char daemon_version[32];
	uint32_t n_devices;
	struct glake__device *devices; /* owned */
	uint32_t n_hosts;
	struct glake__host *hosts; /* owned */
	uint64_t warm_bytes;       /* the most that may be warm, on each device */
	enum glake__dedup dedup;   /* of the tenant, when the session began */
	/* Faults that glaked remembered when the session began: see report.h. */
	char doubt[GLAKE__DOUBT_BYTES];
	uint64_t *doubted; /* owned */
	size_t n_doubted;
	struct glake__link link;
	struct glake__books books;
	struct glake__heap *heaps; /* owned; by position in devices */
	/* Report usage if that is due (heap/usage.h). Never blocks; no lock is held. */
	void (*report)(struct glake_session *session);
	/* Give back memory that the program does not need (heap/supply.h); NULL: it does so when it frees. */
	void (*settle)(struct glake_session *session);
	/* Do what glaked has asked for (sleep/asked.h). NULL: nobody may ask. No lock is held. */
	void (*follow)(struct glake_session *session);
	struct glake__asked asked; /* under the link's lock */
	/* Wake it; release a claimed allocation while it sleeps, unless that is false (sleep/wake.h, slept_free.h). */
	int (*wake)(struct glake_session *session);
	bool (*free_asleep)(struct glake_session *session, struct glake__allocation *allocation);
	pthread_mutex_t promise_lock; /* while one is asked for */
	pthread_mutex_t sleep_lock;   /* of the party, if it is alone (party.h) */
	struct glake_session *next;   /* of the process (party.h) */
	_Atomic bool sleeps_along; /* its memory is asleep with that of others, or falls asleep */
	_Atomic(struct glake__sleeping *) asleep; /* owned (sleeping.h); NULL: it is awake */
	/* Set with the first model: a program without models need not link their code. */
	void (*end_models)(struct glake_session *session);
	/* Ends the models of books.late, when they are not asleep any more. No lock is held. */
	void (*end_late_models)(struct glake_session *session);
	/* Set with the first elastic range (elastic/elastic.h); NULL: there was none. */
	const struct glake__elastic_calls *_Atomic elastic_calls;
	_Atomic(struct glake__server *) server; /* owned (elastic/serve.h) */
	_Atomic(struct glake__ahead *) ahead;   /* owned (elastic/ahead.h) */
	/* async.c: owned; made by the first call that wants it. */
	_Atomic(struct glake_order *) order;

	pthread_mutex_t usage_lock; /* for the fields of usage.c below */
	uint64_t usage_sent_ns;
	struct glake__usage usage_sent;
	struct glake__program program; /* of glake__set_program_usage() */
};

/*
 * The first line of every public function that takes a session: 0, -EINVAL for NULL, or
 * GLAKE_E_FORKED.
 */
int glake__session_check(const struct glake_session *session);

/*
 * The same for calls that give memory out, or change it: a session that sleeps is woken first, which waits for room. Or an
 * error of glake_wake().
 */
int glake__session_awake(struct glake_session *session);

/* The last one frees the struct. All else has ended by then. */
void glake__session_ref(struct glake_session *session);
void glake__session_unref(struct glake_session *session);

/* NULL after glake__fail(): -ENOTSUP. An earlier glaked has none, either. */
const struct glake__host *glake__session_host(const struct glake_session *session, uint32_t node);

/* The device of glaked's number @index, mappable or not; NULL with the error set. */
struct glake__device *glake__session_device(struct glake_session *session, uint32_t index);

/* The device, if its memory can be mapped in this process: 0, -ENODEV or GLAKE_E_NO_DRIVER. */
int glake__session_mappable(struct glake_session *session, uint32_t index,
                            struct glake__device **device_out);

/* glake__session_check(), then glake__session_mappable(). */
int glake__session_check_device(struct glake_session *session, uint32_t index,
                                struct glake__device **device_out);

/* The device with CUDA ordinal @ordinal in this process; NULL if there is none. */
struct glake__device *glake__session_at_ordinal(const struct glake_session *session, int ordinal);

#endif
