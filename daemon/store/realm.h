/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A realm: the processes that may share. There is one object for each name, so pointers can be compared.
 *
 * Owner: reference counted, by holders, models and blocks.
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
	uint64_t idle_manifest_bytes; /* of its unused models; counted by the store */
	uint64_t n_prints;            /* of its blocks: prints.h */
	char name[CONFIG_NAME_BYTES];
};

/* The realm of that name, with one more reference. Makes it if there is none. NULL: no memory. */
struct realm *realm_get(struct list *realms, const char *name);
struct realm *realm_ref(struct realm *realm);
/* NULL is fine. */
void realm_unref(struct realm *realm);

#endif
