/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elastic ranges, for authors of allocators whose need comes and goes, such as the KV cache of an engine: addresses that are
 * reserved once and never move, and memory that comes to them and goes in large steps.
 *
 * A range has lanes, one for each layer for example, and each lane has the same steps: step i is one chunk at
 * base + lane * lane_stride + i * chunk_bytes in every lane. A step has its memory in all lanes, or in none:
 *
 *   HOLE --commit--> HELD --lend--> LENT --take--> HELD      LENT --(others need memory)--> GOING --> HOLE
 *
 * What a program does not need now it lends: that costs nanoseconds, the memory stays mapped, and it has it back in
 * nanoseconds as long as nobody needed it. When others need memory, the library gives lent steps to glaked, those with
 * the highest numbers first; the program is not asked. So an allocator that fills the lowest steps first loses the
 * coldest. A session's own allocations get lent steps as well, before they fail. A sleeping session keeps none, but a guard.
 *
 * Memory of a step that was committed anew reads zero. Work that is queued on the GPU must not use a step that is lent:
 * lend what work has ended with. What glaked wants is followed in calls of the session, by the shim's thread, or, with
 * GLAKE_ELASTIC_SERVE, by one of the library: only then an idle program gives as fast as a busy one.
 *
 * Memory that another device may have, since the program had a dma-buf of it made (RDMA), bound it to a multicast object (NCCL) or set
 * SYNC_MEMOPS there, is never given, also if it was lent: under the shim, which sees such calls. Without the shim do not lend it.
 * Of a guard no dma-buf is made: it would not be what comes in its place. Nor is of a second place (glake_elastic_show()).
 *
 * Like vAttention (arXiv 2405.04437) and kvcached, which take and return such memory themselves; lending is ours.
 *
 * Threads: any. Different steps may be worked on at once. Errors: as in glake.h.
 */
#ifndef GLAKE_ELASTIC_H
#define GLAKE_ELASTIC_H

#include "glake.h"

#ifdef __cplusplus
extern "C" {
#endif

struct glake_elastic;

enum glake_elastic_state {
	GLAKE_ELASTIC_HOLE,   /* addresses only: touching them is a fault; with a guard, writing */
	GLAKE_ELASTIC_COMING, /* some thread commits it */
	GLAKE_ELASTIC_HELD,
	GLAKE_ELASTIC_LENT,
	GLAKE_ELASTIC_GOING, /* glaked gets it */
	GLAKE_ELASTIC_LOST, /* the driver did half of a change, and not undo it: of no use any more */
	GLAKE_ELASTIC_SHOWN, /* held, and read in a second place: not lent, nor unsealed, before that is hidden */
	GLAKE_ELASTIC_READ, /* read-only: a second place of another step, or of another session */
};

enum glake_elastic_flags {
	/* A thread of the library follows the session's notices from now on: handlers (glake.h) run on it. It has all
	 * signals blocked, and ends with the session. */
	GLAKE_ELASTIC_SERVE = 1,
	/*
	 * Holes read zero: one chunk of chunk_bytes, which the session pays for, stands in all of them, read-only, and once
	 * behind the last lane. So it does no harm if a kernel reads there by a stale table, or more than it needs. What
	 * lies between two lanes is none. A read of a step in the moment in which it comes or goes, tens of microseconds for each lane,
	 * can still be a fault. It takes a driver call for each hole of each lane to open the range, and two more for each
	 * chunk that comes or goes.
	 */
	GLAKE_ELASTIC_GUARD = 2,
	/*
	 * Other sessions of the user and realm may read what is sealed, see glake_elastic_read(), while this one has it. As long as one does
	 * it is not unsealed. Without this only what a process has left is found.
	 */
	GLAKE_ELASTIC_SHARED = 4,
};

#define GLAKE_ELASTIC_KEY_BYTES 64
#define GLAKE_ELASTIC_RECORD_BYTES 32768

struct glake_elastic_desc {
	size_t size;      /* sizeof(struct glake_elastic_desc) */
	uint32_t device;  /* glaked's index */
	uint32_t n_lanes; /* 1 .. 4096 */
	uint64_t
		lane_stride; /* bytes from lane to lane: a multiple of 2 MiB, at least n_steps * chunk_bytes */
	uint64_t
		chunk_bytes; /* of one step in one lane: a multiple of 2 MiB. The driver's calls cost by the chunk */
	uint32_t n_steps;     /* at least 1 */
	uint32_t floor_steps; /* the steps from 0 on that are committed at once, and stay */
	uint32_t flags;       /* of enum glake_elastic_flags */
	/*
	 * For glake_elastic_seal() and glake_elastic_adopt(): what has to be the same for the content of a step to be of use, such as a
	 * digest of the weights and the layout. 1 .. GLAKE_ELASTIC_KEY_BYTES, copied; 0 = no step of this range is sealed or adopted.
	 */
	const void *key;
	uint32_t n_key;
};

/*
 * Reserve the addresses of a range, n_lanes * lane_stride bytes (a chunk more with a guard), at *base_out, and commit its floor. Blocks as
 * glake_elastic_commit(). The range ends with glake_elastic_close(), or with the session.
 * Errors: request errors; map errors; grant errors; -EINVAL (@desc); -EAGAIN (no thread can be started).
 */
GLAKE_API int glake_elastic_open(struct glake_session *session,
                                 const struct glake_elastic_desc *desc,
                                 struct glake_elastic **elastic_out, glake_ptr *base_out);

/*
 * Give all memory and the addresses back. NULL is fine. No work uses the range, and no other thread: neither memory
 * nor @elastic.
 * Errors: GLAKE_E_FORKED; -EBUSY (another range shows one of its steps: nothing has happened); GLAKE_E_CUDA (addresses that the driver does
 * not let go stay reserved; @elastic is gone).
 */
GLAKE_API int glake_elastic_close(struct glake_elastic *elastic);

/*
 * Make the steps [first, first + n) HELD. What is lent is taken, what is a hole gets memory, which blocks for a request to
 * glaked and 30 us a chunk, and waits for memory as the configuration says. *@n_out (may be NULL) is how many, from @first on,
 * are HELD; each step has come in all lanes, or not at all. With an error those before it stay.
 * Errors: request errors; grant errors; -EINVAL (no such steps); -ENOMEM; -EBUSY (a step is READ); GLAKE_E_CUDA (of the driver, or a step is LOST).
 */
GLAKE_API int glake_elastic_commit(struct glake_elastic *elastic, uint32_t first, uint32_t n,
                                   uint32_t *n_out);

/*
 * Those of [first, first + n) that are holes will be needed: a thread of the library makes them LENT, one after the other from the
 * lowest on, of memory that is free. It waits for no memory, and nobody gives any for it; a step that does not get
 * any is a hole still, and nothing is tried again before the next call. Never blocks, but to start the thread, which is as the one
 * of GLAKE_ELASTIC_SERVE. An earlier glaked cannot tell what is free: then nothing happens.
 * Errors: session errors; -EINVAL (no such steps); -ENOMEM; -EAGAIN (no thread can be started).
 */
GLAKE_API int glake_elastic_ahead(struct glake_elastic *elastic, uint32_t first, uint32_t n);

/*
 * The steps [first, first + n) that are HELD are not needed now: they are LENT. Local, never blocks.
 * Errors: -EINVAL (no such steps, or of the floor); -EBUSY (one is SHOWN or READ: none is lent).
 */
GLAKE_API int glake_elastic_lend(struct glake_elastic *elastic, uint32_t first, uint32_t n);

/*
 * Make those of [first, first + n) HELD that are LENT, up to the first that is neither. Returns how many, from @first on,
 * are HELD or SHOWN then. Local, never blocks. Of an @elastic of a parent process: 0.
 */
GLAKE_API uint32_t glake_elastic_take(struct glake_elastic *elastic, uint32_t first, uint32_t n);

/*
 * Give the steps of [first, first + n) that are LENT to glaked now. Blocks for the driver. Those that sleep or are worked on
 * stay LENT. Returns how many went, or an error: session errors; -EINVAL (no such steps).
 */
GLAKE_API int glake_elastic_return(struct glake_elastic *elastic, uint32_t first, uint32_t n);

/*
 * If this process is killed or crashes, glaked keeps the memory of this HELD step for the next one, with @n_record bytes of @record (NULL
 * if 0) that say what it has, up to GLAKE_ELASTIC_RECORD_BYTES. Nothing else changes. From the call on nobody writes to what the record describes, no work
 * that is queued either, before glake_elastic_unseal() has returned 0. A seal may be repeated with another record, and is over when the memory goes: lent
 * memory that others got, a sleep, the end of the range or of the session, a restart of glaked. Memory that others may write to, see above,
 * is not sealed, and its seal is over before such a call returns. A range of more than 253 lanes has no such steps.
 * Blocks for one request to glaked. What is kept is cache: it goes when anybody needs memory, and after a time.
 * Errors: request errors; -EINVAL (no such step, not HELD, no key, the record is too long); -EBUSY (others may write to it);
 * GLAKE_E_NO_PERMISSION (glaked keeps nothing); GLAKE_E_NO_FDS (glaked has no fd of this memory: it had too few, or was restarted since).
 * An error leaves the seal that the step had, or none.
 */
GLAKE_API int glake_elastic_seal(struct glake_elastic *elastic, uint32_t step, const void *record,
                                 size_t n_record);

/*
 * All of the steps [first, first + n) may be written to when this has returned 0: nothing of them will be kept. Local for what is not sealed;
 * else blocks for a request each. With an error some may be sealed still, and are not to be written to.
 * Errors: request errors (GLAKE_E_BUSY: another session reads one, see glake_elastic_read(); lent and returned it is left to that session);
 * -EINVAL (no such steps); -EBUSY (one is SHOWN, sealed or not, or READ).
 */
GLAKE_API int glake_elastic_unseal(struct glake_elastic *elastic, uint32_t first, uint32_t n);

/*
 * A step that a process of the same user and realm has sealed and left behind comes to the hole @step, which is HELD then and has its
 * content. It is of a range with the same key, device, chunk_bytes and n_lanes; the one that was sealed last comes first. *n_record_out bytes are
 * written to @record, which has room for GLAKE_ELASTIC_RECORD_BYTES. It comes sealed: if this process ends, the next one
 * gets it, and before it is written to it is unsealed. Of several who ask for one, one gets it. Blocks as glake_elastic_commit(), but does
 * not wait for memory.
 * Errors: request errors; -ENOENT (there is none; *n_living_out, may be NULL, is how many such steps processes have sealed that have
 * not ended yet); -EINVAL (no such step, no key); -EBUSY (it is no hole); GLAKE_E_OVER_QUOTA and GLAKE_E_NO_FDS (it is kept still); -ENOMEM, -EMFILE,
 * GLAKE_E_CUDA (it could not be mapped, and is gone).
 */
GLAKE_API int glake_elastic_adopt(struct glake_elastic *elastic, uint32_t step, void *record,
                                  size_t *n_record_out, uint32_t *n_living_out);

/*
 * The steps steps[0 .. n) of @of stand a second time, read-only and in this order, in the holes [first, first + n) of @at: so a kernel reads
 * steps that lie anywhere at addresses that follow each other. All of them, or none; what is lent is taken. @at has the session, device, chunk_bytes and
 * n_lanes of @of, and may be @of; it needs no memory of its own for them, and nothing is charged again. A second place faults
 * if it is written to. As long as there is one the step is SHOWN: it is not lent, returned or unsealed, and @of not closed (-EBUSY); from the call on
 * nobody writes to what is read there, though the driver would let the first place. Both sleep and wake with the session, at their
 * addresses. Blocks for the driver: 30 us a chunk.
 * Errors: session errors; -EINVAL (no such steps, or ranges that do not match); -EBUSY (a step is not held, or no hole); -ENOMEM;
 * GLAKE_E_CUDA (a step may be LOST).
 */
GLAKE_API int glake_elastic_show(struct glake_elastic *at, uint32_t first, struct glake_elastic *of,
                                 const uint32_t *steps, uint32_t n);

/*
 * A step that another session of the same user and realm has sealed, in a range that is SHARED, comes to the hole @step to be read, without a copy: one of which the record begins with
 * the @n_name bytes of @name (up to GLAKE_ELASTIC_KEY_BYTES; 0: of any record), and which this session does not read yet. It is of a range with the same
 * key, device, chunk_bytes and n_lanes. Sessions that live come first, then what processes have left behind (see glake_elastic_adopt()), each the one that was sealed
 * last. *n_record_out bytes are written to @record, which has room for GLAKE_ELASTIC_RECORD_BYTES.
 *
 * The step is READ until it is hidden. Its owner goes on to have it, pays for it, and may go on to write to what the record does not describe; to unseal
 * it is GLAKE_E_BUSY for him meanwhile. If he lends it and it goes, sleeps, closes the range or ends, this session has the memory, with its content, and pays
 * from then on, whatever its quota is; so it does for what a process left. If he was killed others can find it here. It stays mapped while this session sleeps.
 * Blocks as glake_elastic_adopt().
 * Errors: request errors; -ENOENT (there is none); -EINVAL (no such step, no key, @name is too long); -EBUSY (it is no hole); GLAKE_E_OVER_QUOTA and GLAKE_E_NO_FDS (of
 * what a process left: it is kept still); -ENOMEM, -EMFILE, GLAKE_E_CUDA (it could not be mapped).
 */
GLAKE_API int glake_elastic_read(struct glake_elastic *at, uint32_t step, const void *name,
                                 size_t n_name, void *record, size_t *n_record_out);

/*
 * Those of [first, first + n) that are second places are holes again. No work reads there. With the last one of a step that is HELD.
 * Blocks for the driver: 20 us a chunk; and for a request, if it was another session's. Errors: session errors; -EINVAL (no such steps); -ENOMEM; GLAKE_E_CUDA (a step may be LOST).
 */
GLAKE_API int glake_elastic_hide(struct glake_elastic *at, uint32_t first, uint32_t n);

/*
 * The states of all steps, of enum glake_elastic_state, for reading at any time, each by an atomic load: others change them
 * meanwhile. Valid until the range ends.
 */
GLAKE_API const uint32_t *glake_elastic_states(const struct glake_elastic *elastic);

struct glake_elastic_stats {
	size_t size;     /* set by the caller */
	uint32_t n_held; /* steps, with those that are shown */
	uint32_t n_lent;
	uint64_t step_bytes; /* in all lanes together */
	uint64_t n_commits;  /* steps that came from glaked, ever */
	uint64_t n_takes;    /* that were taken back in place of that */
	uint64_t n_returns;  /* that went to glaked */
	uint64_t n_ahead;    /* of n_commits: by glake_elastic_ahead() */
	uint64_t n_read;     /* second places */
};
/* Local. Errors: -EINVAL (@elastic, @stats). */
GLAKE_API int glake_elastic_stats(const struct glake_elastic *elastic,
                                  struct glake_elastic_stats *stats);

/*
 * A range of which another process keeps the books: an engine's scheduler for example, with a range in each of its workers. The
 * library has the socket attended by a thread in the process with the range, which is so fast though that process does
 * something else. The other one writes a request as one packet and reads one answer, in the byte order and layout of this machine:
 * both have the same version of the library.
 */
enum glake_elastic_verb {
	GLAKE_ELASTIC_LOOK =
		1, /* the states of [first, first + n), up to GLAKE_ELASTIC_LOOK_STEPS of them; n = 0: numbers only */
	GLAKE_ELASTIC_TAKE,
	GLAKE_ELASTIC_LEND,
	GLAKE_ELASTIC_AHEAD,
	GLAKE_ELASTIC_COMMIT, /* may wait for memory, and what is asked behind it too: over a socket of its own */
};

#define GLAKE_ELASTIC_LOOK_STEPS 65536

struct glake_elastic_request {
	uint64_t number; /* any: the answer has it */
	uint32_t verb;
	uint32_t first;
	uint32_t n;
	uint32_t zero;
};

struct glake_elastic_reply {
	uint64_t number; /* the request's */
	int32_t result; /* 0, or the error of the call with that name; -EOPNOTSUPP: there is no such verb */
	uint32_t
		n; /* GLAKE_ELASTIC_TAKE and _COMMIT: steps that are HELD, from first on; _LOOK: of the states that follow, a byte each */
	uint64_t passed; /* the highest mark that has passed, see glake_elastic_mark(); 0: none */
	struct glake_elastic_stats stats; /* when it was done */
};

/*
 * Have a thread of the library do with the range what comes over the socket @fd: a connected SOCK_SEQPACKET socket of AF_UNIX, to a process of the
 * same user, which may do all of the above with it from now on. A range may have several. The thread is as the one of GLAKE_ELASTIC_SERVE. It ends, and closes @fd,
 * when the other end is closed, sends what is no request or does not read its answers; and with the range, which waits for a commit that
 * it is at. What is held then stays. @fd is the library's when this has returned 0. Never blocks.
 * Errors: session errors; -EINVAL (@elastic, @fd); -EPERM (of another user); -ENOMEM; -EAGAIN (no thread can be started).
 */
GLAKE_API int glake_elastic_attend(struct glake_elastic *elastic, int fd);

/*
 * Set a mark behind the work that is queued on @stream (CUstream of the current context; NULL: its default stream) by now; all marks of a range are set on one stream, which is
 * not captured. It has passed when that work has ended. @number is higher than that of the last one, and not 0. Of more than 16 that have not passed the
 * last ones pass together. The context lives as long as the range. Never blocks.
 * Errors: session errors; -EINVAL (@elastic, @number); GLAKE_E_CUDA.
 */
GLAKE_API int glake_elastic_mark(struct glake_elastic *elastic, uint64_t number, void *stream);

#ifdef __cplusplus
}
#endif
#endif
