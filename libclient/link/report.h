/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reports of a program under the shim to glaked: faults, and the outcome of a wish to seal it.
 *
 * Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_REPORT_H
#define GLAKE_LIBCLIENT_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "glake.h"
#include "proto/limits.h"

/*
 * True: the session has no connection and gets none any more. False while the library may make
 * one. Local.
 */
bool glake__session_is_gone(struct glake_session *session);

/*
 * As glake_fd(), with the socket's inode: by its number alone a caller could take another file for the socket, which another thread
 * may make anew meanwhile. If it is negative, the inode says nothing.
 */
int glake__session_socket(struct glake_session *session, uint64_t *inode_out);

/* The tenant's wish for sealing unasked, as its session was told when it began. */
enum glake__dedup { GLAKE__DEDUP_OFF, GLAKE__DEDUP_AUTO, GLAKE__DEDUP_OBSERVED };
enum glake__dedup glake__session_dedup(const struct glake_session *session);

/*
 * What faults taught while memory was sealed that nobody had asked for: why this program is not to be sealed by itself, and
 * which words of its user's programs are no readers (glake__suspect.word).
 */
#define GLAKE__DOUBT_BYTES 192u
struct glake__doubts {
	const char *why; /* "": it may be; the session's, and so the next */
	const uint64_t *words;
	size_t n_words;
};
struct glake__doubts glake__session_doubts(const struct glake_session *session);
/* Such a fault of another process, later: @doubt is called with no lock held, by any thread that calls the library. */
typedef void glake__doubt_fn(void *user, const char *why);
void glake__doubt_follow(struct glake_session *session, glake__doubt_fn *doubt, void *user);

/* A kernel that was given sealed memory, or a graph that may have such. */
struct glake__suspect {
	const char *kernel; /* its name, as the driver has it; borrowed */
	glake_ptr ptr;      /* 0: not known, nor is what follows */
	glake_ptr range;    /* that ptr lies in: an allocation, or the range of a model */
	uint64_t range_bytes;
	uint64_t word; /* which word of which function that a table calls a reader; 0: of none */
};

/* A context of the program is lost. */
struct glake__fault {
	bool is_alone;    /* memory was sealed that nobody had asked to seal */
	int error;        /* the driver's */
	const char *name; /* of the error; borrowed */
	uint64_t sealed_bytes;
	struct glake__suspect suspects[GLAKE_MAX_SUSPECTS]; /* the most suspect first */
	size_t n_suspects;
};

/* Tell glaked, for an operator. Blocks until it answers. Calls no driver. */
int glake__report_fault(struct glake_session *session, const struct glake__fault *fault);

/* ---- sealing that glaked asks for ------------------------------------------------------------- */

/*
 * The session follows glaked's wishes for sealing: @ask is called with no lock held, by any thread that calls
 * the library, with an id for glake__seal_tell(). Set it before other threads use the session.
 */
enum glake__seal_what { GLAKE__SEAL, GLAKE__SEAL_DRY_RUN, GLAKE__SEAL_CANDIDATES };
typedef void glake__seal_ask_fn(void *user, uint64_t id, enum glake__seal_what what);
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

/* A candidate is an allocation that is sealed without being asked (GLAKE__SEAL_CANDIDATES). */
struct glake__candidate {
	glake_ptr ptr;
	uint64_t n_bytes;
	uint64_t filled_bytes; /* of its pages that look like weights */
	uint32_t state;        /* enum CandidateState of glake.proto */
	uint32_t n_unsealed;
	const char *why; /* of a refused one; "" */
};

/* The largest of what is sealed without being asked. */
struct glake__candidate_list {
	size_t n;                      /* here, at most GLAKE_MAX_CANDIDATES */
	size_t n_all;                  /* that there are */
	struct glake__candidate *rows; /* borrowed */
};
/* Tell glaked, as glake__seal_tell() does when it is over. */
void glake__candidates_tell(struct glake_session *session, uint64_t id,
                            const struct glake__candidate_list *list);

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

/* ---- sleep that glaked asks for --------------------------------------------------------------- */

/* Called for wishes that the program sleeps or wakes, and for glake__sleep_tell(). @why: enum glake__sleep_why. */
typedef void glake__sleep_ask_fn(void *user, uint64_t id, bool wakes, uint32_t why);
void glake__sleep_follow(struct glake_session *session, glake__sleep_ask_fn *ask, void *user);

struct glake__sleep_report {
	uint64_t done_bytes;
	uint64_t total_bytes;
	bool is_over;
	int error; /* an error of glake.h, if it is over and came to nothing, and its text: */
	const char *why;
	/* Else what was done. */
	bool is_asleep;
	const struct glake_slept *slept;
};
/* Tell glaked. Does not wait for its answer. */
void glake__sleep_tell(struct glake_session *session, uint64_t id,
                       const struct glake__sleep_report *report);

#endif
