/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The admission of a chunk to the store: what it holds becomes a block, or is found to be one already.
 *
 *    NEW ---.-> EXPORTING ---.-> DIGESTING ---.-> COMPARING ---.-> ENDED
 *            '----------------'----------------'----------------'
 *    EXPORTING, DIGESTING, COMPARING -- admit_cancel() --> LEAVING -> ENDED
 *
 *   EXPORTING  only a handle holds the chunk: the device's worker makes an fd, for which things that
 *              nobody uses may be evicted
 *   DIGESTING  nobody knows its digest: the mover finds it out
 *   COMPARING  the realm has a block of that digest: the mover compares all bytes, since a digest alone
 *              is never trusted
 *   LEAVING    nobody wants the block any more; the worker or the mover still has the chunk
 *
 * Any failure ends it from where it is; what is not needed is left out. How it ends:
 *
 *   a new block        no block has that digest. Or one has, with other bytes (a digest collision): then
 *                      the new one is never found by its digest, and shared with nobody
 *   an existing block  all bytes are equal, and the chunk is released
 *   an error           the chunk is the caller's again, as it was (but it keeps an fd that was made). A
 *                      mover that is dead but cannot end may still have it: then it comes back only when
 *                      that mover is gone, and the chunk of a load is released then
 *   cancelled          the chunk is released as soon as worker and mover have done with it
 *
 * Who pays (decisions/003): the chunk's charge stays with it to the end, so what the mover has is always
 * paid for. It goes into the new block; or pays for the existing one, if only the built-in tenant did;
 * or is refunded, because somebody else pays. Nothing is charged besides, so no quota can refuse here.
 *
 * Two admissions of one content: whoever first knows the digest seals at once, and the other one
 * finds that block and compares. A block stays for as long as it is compared, whoever lets go of it.
 *
 * Owner: embedded in what wants the block. Threads: loop thread.
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

/* What admissions work with; the server's, for all of them. */
struct admit_context {
	struct store *store;
	struct allocator *allocator;
	struct mover_link *mover;
};

struct admit_result {
	struct block *block; /* used, by the callee from now on; NULL: there is none */
	bool was_known;      /* an existing one */
	enum status status;  /* STATUS_OK with a block */
	const char *error;   /* one line without a block; valid in the call */
};

struct admit;

struct admit_ops {
	/*
	 * How it has ended; not after a cancel. Without a block, and with the state ADMIT_ENDED, admit->chunk is
	 * to be moved away, or is released if it is a load's. With ADMIT_LEAVING a dead mover still has it.
	 */
	void (*done)(struct admit *admit, const struct admit_result *result);
	/*
	 * Nobody has anything of it any more, and @admit is the callee's: the last of it, in any case. A private
	 * chunk that is still there is the program's again, and to be moved away.
	 */
	void (*gone)(struct admit *admit);
};

/* To be read by whoever embeds it; written by admit.c. */
struct admit {
	const struct admit_context *context; /* borrowed */
	enum admit_state state;
	bool has_digest;
	struct realm *realm; /* borrowed until the end or the cancel */
	struct chunk chunk;  /* owned until the end */
	uint64_t content_bytes;
	struct digest digest;    /* with has_digest */
	struct block *candidate; /* while it is compared with the chunk; else NULL */
	const struct admit_ops *ops;
	union {
		struct chunk_export export; /* EXPORTING */
		struct digest_job digest_job;
		struct compare_job compare_job;
	};
};

/*
 * Admit @chunk, which is charged and is taken over, to @realm. Its first @content_bytes are the content, and
 * nobody writes to it any more. @digest is theirs if the mover filled it itself, and what is behind them
 * is zero then; NULL: nobody knows, the mover looks, and refuses a padding that is not zero.
 * It may all be over when this returns.
 */
void admit_start(struct admit *admit, const struct admit_context *context, struct realm *realm,
                 struct chunk *chunk, uint64_t content_bytes, const struct digest *digest,
                 const struct admit_ops *ops);

/*
 * The block is wanted no more, and neither is the chunk, of an admission that is not gone: that comes later.
 * Harmless for one that was cancelled already.
 */
void admit_cancel(struct admit *admit);

#endif
