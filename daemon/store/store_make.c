/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/store_parts.h"

#include <assert.h>

void store_init(struct store *store, uv_loop_t *loop, struct tenant *cache, struct stats *stats)
{
	*store = (struct store){
		.loop = loop, .cache = cache, .stats = stats, .places = {.row = USER_PLACES}};
	list_init(&store->block_list);
	list_init(&store->model_list);
	list_init(&store->idle);
	list_init(&store->demoted);
	list_init(&store->roomless);
}

void store_deinit(struct store *store)
{
	struct model *model;
	list_for_each (model, &store->model_list, link) {
		store_unpin_model(store, model);
		/* No eviction is logged: the store ends, or its things are the next glaked's. */
		model->is_in_log = false;
	}
	store->on_evicted = NULL;
	store_evict_all(store, NULL, NULL);
	assert(list_is_empty(&store->model_list) && list_is_empty(&store->block_list));
	assert(store->prints.n == 0);
	prints_deinit(&store->prints);
	pot_deinit(&store->places);
}
