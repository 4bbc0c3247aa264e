/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/realm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct realm *realm_get(struct list *realms, const char *name)
{
	/* Never reused: a block's key holds the id, not the name. */
	static uint64_t last_id;
	struct realm *realm;
	list_for_each (realm, realms, link) {
		if (strcmp(realm->name, name) == 0) {
			return realm_ref(realm);
		}
	}
	realm = calloc(1, sizeof(*realm));
	if (!realm) {
		return NULL;
	}
	realm->id = ++last_id;
	realm->n_refs = 1;
	snprintf(realm->name, sizeof(realm->name), "%s", name);
	list_insert(realms, &realm->link);
	return realm;
}

struct realm *realm_ref(struct realm *realm)
{
	realm->n_refs++;
	return realm;
}

void realm_unref(struct realm *realm)
{
	if (realm && --realm->n_refs == 0) {
		list_remove(&realm->link);
		free(realm);
	}
}
