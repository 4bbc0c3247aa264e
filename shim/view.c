/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/view.h"

#include <string.h>

#include "glake_admin.h"
#include "shim/owner.h"

struct question {
	uint32_t index; /* of the device, with glaked */
	char tenant[64];
	uint64_t idle_bytes; /* made ahead, or blocks that nobody uses: to be had */
	uint64_t used_bytes; /* of the tenant */
	uint64_t quota_bytes;
};

static int take_status(void *user, const struct glake_status *status)
{
	struct question *question = user;
	for (uint32_t i = 0; i < status->n_devices; i++) {
		const struct glake_device_status *device = &status->devices[i];
		if (device->index == question->index) {
			question->idle_bytes = device->pool_bytes + device->block_bytes -
			                       device->used_block_bytes;
		}
	}
	return 0;
}

static int take_tenant(void *user, const struct glake_tenant_row *row)
{
	struct question *question = user;
	if (strcmp(row->name, question->tenant) != 0) {
		return 0;
	}
	for (uint32_t i = 0; i < row->n_devices; i++) {
		if (row->devices[i].device == question->index) {
			question->used_bytes = row->devices[i].used_bytes;
			question->quota_bytes = row->devices[i].quota_bytes;
		}
	}
	return 1;
}

static int ask(struct owner *owner, CUdevice device, struct question *question)
{
	int index = glake_device_index(owner->session, device);
	struct glake_session_info info = {.size = sizeof(info)};
	int r = glake_session_info(owner->session, &info);
	if (index < 0 || r < 0) {
		return index < 0 ? index : r;
	}
	question->index = (uint32_t)index;
	memcpy(question->tenant, info.tenant, sizeof(question->tenant));
	owner_enter(owner);
	r = glake_get_status(owner->session, take_status, question);
	if (r >= 0) {
		r = glake_list_tenants(owner->session, take_tenant, question);
	}
	owner_leave(owner);
	owner_is_gone(owner, r);
	return r;
}

static uint64_t at_most(uint64_t value, uint64_t limit)
{
	return value < limit ? value : limit;
}

void view_apply(CUdevice device, struct view *view)
{
	bool is_refused;
	struct owner *owner = owner_get(&is_refused);
	if (!owner) {
		return;
	}
	struct question question = {0};
	struct glake_usage usage = {.size = sizeof(usage)};
	if (ask(owner, device, &question) >= 0 && glake_usage(owner->session, &usage) == 0) {
		/* Our own warm memory is the program's for the asking. */
		uint64_t free_bytes = view->free_bytes + question.idle_bytes + usage.warm_bytes;
		if (question.quota_bytes > 0) {
			uint64_t used = question.used_bytes -
			                at_most(usage.warm_bytes, question.used_bytes);
			uint64_t left = question.quota_bytes - at_most(used, question.quota_bytes);
			view->total_bytes = at_most(view->total_bytes, question.quota_bytes);
			free_bytes = at_most(free_bytes, left);
		}
		view->free_bytes = at_most(free_bytes, view->total_bytes);
	}
	owner_unref(owner);
}
