/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A realm: who may share. Interned, so that two realms are equal when their pointers are.
 *
 * Owner: reference counted; sessions, models and blocks hold references.
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_REALM_H
#define GLAKE_DAEMON_REALM_H

#include <stdint.h>

#include "daemon/config/config.h"
#include "daemon/base/list.h"

struct realm {
	struct list link; /* link: the head given to realm_get() */
	uint64_t id;
	unsigned n_refs;
	uint64_t idle_manifest_bytes; /* of its models that nobody uses; the store's to count */
	char name[CONFIG_NAME_BYTES];
};

/* The realm of that name, made if need be, with one more reference. NULL: no memory. */
struct realm *realm_get(struct list *realms, const char *name);
struct realm *realm_ref(struct realm *realm);
/* NULL is fine. */
void realm_unref(struct realm *realm);

#endif
