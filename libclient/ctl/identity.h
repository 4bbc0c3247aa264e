/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who a session is, for people: what its program is called, its user, its pod. Programs say what they are called,
 * so all texts here are foreign: text_escape() before they are shown.
 *
 * Names of pods come from the folders where the kubelet puts logs, pods/ and containers/ in /var/log or $GLAKE_POD_LOGS:
 * root makes them, and no server is asked.
 *
 * Owner: whoever has the struct. Lifetime: identities_init() to identities_deinit(); what is found lives as long.
 * Threads: one.
 */
#ifndef GLAKE_CTL_IDENTITY_H
#define GLAKE_CTL_IDENTITY_H

#include <stdbool.h>

#include "ctl/rows.h"
#include "glake_admin.h"

struct identities {
	struct rows users;      /* struct identity_user */
	struct rows containers; /* struct identity_container */
	struct rows pods;       /* struct identity_pod */
	bool has_looked;        /* for containers and pods, */
	uint64_t looked_ms;     /* then, */
	bool has_missed;        /* and did not find one of them */
};

struct identity {
	const char *label;     /* what to call it: the given name, the script, the program */
	const char *user;      /* name, or number */
	const char *pod;       /* name; "" = not known, or in no pod */
	const char *namespace; /* the same */
	const char *container; /* the same */
};

void identities_init(struct identities *identities);
void identities_deinit(struct identities *identities);

/*
 * Between two lists that show the same again: what is new on the node since is looked for, from time to time. All texts that were handed
 * out for pods end.
 */
void identities_refresh(struct identities *identities);

/* All texts are there, "" at least. Without memory some are. May ask name services for the user. */
struct identity identity_of(struct identities *identities, const struct glake_session_row *row);

/* An identity without the user: the call asks nobody, and waits for nobody. */
struct identity identity_place(struct identities *identities, const struct glake_session_row *row);

/* Write where a session runs, for lists: "NAMESPACE/POD", the pod's UID if nobody knows its name, or "". */
void identity_pod(const struct identity *identity, const struct glake_session_row *row,
                  char *text_out, size_t n_bytes);

/* The name by which lists call a process, of what is known of it. */
const char *identity_label(const char *name, const char *script, const char *program);

#endif
