/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Captures. capture.c keeps them; captureapi.c begins and ends them.
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
	struct stream *stream; /* where it began */
	CUstreamCaptureMode mode;
	pthread_t thread;
	bool is_broken;
	bool is_given; /* the program owns the graph */
	struct graph *graph;
};

/* A stream that is captured. */
struct member {
	struct stream *stream;   /* NULL: a free place */
	struct capture *capture; /* borrowed */
	struct node **deps;      /* owned: the nodes that the next one depends on */
	size_t n_deps;
};

extern pthread_mutex_t capture_lock;
extern struct member capture_members[CAPTURE_MAX_MEMBERS];

/* NULL finds a free place. */
struct member *capture_find(const struct stream *stream);
/* 0 finds a free place. */
struct capture *capture_of_id(uint64_t id);
/* Count one capture more. */
void capture_count(void);
/* Add a captured stream. NULL: there is no free place. */
struct member *capture_enter(struct stream *s, struct capture *capture);
void capture_leave(struct member *member);
CUresult capture_stand_at(struct member *member, struct node *const *deps, size_t n);
/* Let the next node depend on these nodes, too. */
CUresult capture_stand_also_at(struct member *member, struct node *const *deps, size_t n);
/* End the capture; the graph stays. */
void capture_end(struct capture *capture);
/* End the capture, and free the graph unless the program owns it. */
void capture_drop(struct capture *capture);
/* Would the legacy default stream have to wait for a captured one? Breaks the capture if told so. */
bool capture_is_implicit(const struct stream *s, bool is_breaking);

#endif
