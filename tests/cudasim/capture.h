/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Captures: what capture.c keeps, and captureapi.c begins and ends.
 *
 * Owner:    capture.c.
 * Lifetime: a capture from its begin to its end, on the stream that it began on.
 * Threads:  all below is used with capture_lock held. It is taken before the space's lock.
 */
#ifndef CUDASIM_CAPTURE_H
#define CUDASIM_CAPTURE_H

#include "graph.h"

#include <pthread.h>

#define CAPTURE_MAX_MEMBERS 256

struct capture {
	uint64_t id;           /* never used again; 0: a free place */
	struct stream *stream; /* that it began on */
	CUstreamCaptureMode mode;
	pthread_t thread;
	bool is_broken;
	bool is_given; /* the graph is the program's, not ours */
	struct graph *graph;
};

/* A stream that is captured. */
struct member {
	struct stream *stream;   /* NULL: a free place */
	struct capture *capture; /* borrowed */
	struct node **deps;      /* owned: what the next node comes after */
	size_t n_deps;
};

extern pthread_mutex_t capture_lock;
extern struct member capture_members[CAPTURE_MAX_MEMBERS];

/* NULL finds a free place. */
struct member *capture_find(const struct stream *stream);
/* 0 finds a free place. */
struct capture *capture_of_id(uint64_t id);
/* There is one more. */
void capture_count(void);
/* NULL: no place. */
struct member *capture_enter(struct stream *s, struct capture *capture);
void capture_leave(struct member *member);
CUresult capture_stand_at(struct member *member, struct node *const *deps, size_t n);
/* Beside those that it stands at. */
CUresult capture_stand_also_at(struct member *member, struct node *const *deps, size_t n);
/* Ends it; the graph stays where it is. */
void capture_end(struct capture *capture);
/* The same, and the graph goes, unless it is the program's. */
void capture_drop(struct capture *capture);
/* Would the legacy default stream have to wait for a captured one? Breaks the capture if told so. */
bool capture_is_implicit(const struct stream *s, bool is_breaking);

#endif
