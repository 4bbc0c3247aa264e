/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The admission of a chunk to the store: the chunk becomes a block, or an equal block is found.
 *
 *    NEW ---.-> EXPORTING ---.-> DIGESTING ---.-> COMPARING ---.-> ENDED
 *            '----------------'----------------'----------------'
 *    EXPORTING, DIGESTING, COMPARING -- admit_cancel() --> LEAVING -> ENDED
 *
 *   EXPORTING  only a handle holds the chunk: the device's worker makes an fd. Unused things may be evicted
 *              for it
 *   DIGESTING  the digest is unknown: the mover computes it, and compares the chunk with a block that it may equal
 *   COMPARING  the realm has a block of that digest: the mover compares all bytes, because a digest alone
 *              is never trusted. If that block is found damaged meanwhile, it is as if it were not there
 *   LEAVING    nobody wants the block any more; the worker or the mover still has the chunk
 *
 * A failure ends it from any state; states that are not needed are skipped. How it ends:
 *
 *   a new block        no block has that digest. Or one has it, with other bytes (a digest collision): then
 *                      the new one is never found by its digest, and never shared
 *   an existing block  all bytes are equal, and the chunk is released, unless the callee keeps a program's
 *   an error           the caller has the chunk again, as it was (but it keeps an fd that was made). If a dead
 *                      mover that cannot end still has it, it comes back when that mover is gone. The chunk of
 *                      a load is released then
 *   cancelled          the chunk is released when worker and mover are done with it
 *
 * The charge (decisions/003) stays with the chunk to the end, so the mover's memory is always paid
 * for. Then it moves into the new block. Or it pays for the existing block, if only the built-in
 * tenant did. Or it is refunded, because another tenant pays. Nothing else is charged, so no quota
 * can refuse an admission.
 *
 * Two admissions of one content: the first known digest is sealed at once; the other admission
 * finds that block and compares. A block stays while it is compared, whoever stops using it.
 *
 * Owner: embedded by the caller. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_ADMIT_H
#define GLAKE_DAEMON_ADMIT_H

#include "daemon/memory/alloc.h"
#include "daemon/memory/chunk_export.h"
#include "daemon/base/status.h"
#include "daemon/store/mover_link.h"
#include "daemon/store/store.h"

enum admit_state {
	ADMIT_NEW,
	ADMIT_EXPORTING,
	ADMIT_DIGESTING,
	ADMIT_COMPARING,
	ADMIT_LEAVING,
	ADMIT_ENDED,
	ADMIT_N_STATES,
};

/* The parts that all admissions use. */
struct admit_context {
	struct store *store;
	struct allocator *allocator;
	struct mover_link *mover;
};

struct admit_result {
	struct block *block; /* the callee uses it from now on; NULL: there is none */
	bool was_known;      /* the block existed */
	enum status status;  /* STATUS_OK with a block */
	const char *error;   /* one line if there is no block; valid during the call */
};

struct admit;

struct admit_ops {
	/*
	 * The result; not called after a cancel. With a block that existed, the callee may move a program's chunk away,
	 * which is released otherwise. Without a block there are two cases. ADMIT_ENDED:
	 * the callee moves admit->chunk away; the chunk of a load is released otherwise.
	 * ADMIT_LEAVING: a dead mover still has the chunk.
	 */
	void (*done)(struct admit *admit, const struct admit_result *result);
	/*
	 * The last call, in any case: worker and mover are done, and the callee owns @admit. If
	 * admit->chunk is still there, it is a program's; the callee moves it away.
	 */
	void (*gone)(struct admit *admit);
};

/* Written by admit.c; the owner may read it. */
struct admit {
	const struct admit_context *context; /* borrowed */
	enum admit_state state;
	bool has_digest;
	struct realm *realm; /* borrowed until the end or the cancel */
	struct user *maker;  /* owned reference, until it is gone */
	struct user_charge
		probe;      /* of a program's chunk: for it, and one that it is compared with */
	struct chunk chunk; /* owned until the end */
	uint64_t content_bytes;
	struct digest digest;    /* with has_digest */
	uint64_t number;         /* of the guess; 0: it was not digested */
	struct block *candidate; /* the block that is being compared with the chunk, or NULL */
	const struct admit_ops *ops;
	union {
		struct chunk_export export; /* EXPORTING */
		struct digest_job digest_job;
		struct compare_job compare_job;
	};
};

/*
 * Admit @chunk, which is charged and taken over, to @realm. @maker pays for what the block takes. Its first @content_bytes are
 * the content; nobody writes to it any more. If the mover filled the chunk itself, @digest is the content's digest, and the
 * rest of the chunk is zero. NULL: the mover computes it, and refuses a rest that is not zero. All may be over when this
 * returns.
 */
void admit_start(struct admit *admit, const struct admit_context *context, struct realm *realm,
                 struct user *maker, struct chunk *chunk, uint64_t content_bytes,
                 const struct digest *digest, const struct admit_ops *ops);

/*
 * Nobody wants the block or the chunk any more. The admission must not be gone; `gone` comes later.
 * Harmless if it was cancelled already.
 */
void admit_cancel(struct admit *admit);

#endif
