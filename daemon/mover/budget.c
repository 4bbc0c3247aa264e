/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/mover/budget.h"

void budget_init(struct budget *budget, uint64_t max_bytes)
{
	*budget = (struct budget){.max_bytes = max_bytes};
	pthread_mutex_init(&budget->lock, NULL);
	pthread_cond_init(&budget->changed, NULL);
}

uint64_t budget_share(const struct budget *budget)
{
	return budget->max_bytes / 2;
}

/* Called with the lock held. */
static bool has_room(const struct budget *budget, uint32_t uid, uint64_t bytes)
{
	uint64_t own_bytes = 0;
	uint64_t other_bytes = 0;
	for (const struct budget_claim *claim = budget->claims; claim; claim = claim->next) {
		*(claim->uid == uid ? &own_bytes : &other_bytes) += claim->bytes;
	}
	return own_bytes + bytes <= (budget->max_bytes - other_bytes) / 2;
}

int budget_take(struct budget *budget, struct budget_claim *claim, uint64_t bytes,
                const atomic_bool *is_cancelled)
{
	if (bytes > budget_share(budget)) {
		return BUDGET_E_NEVER;
	}
	pthread_mutex_lock(&budget->lock);
	while (!atomic_load(is_cancelled) && !has_room(budget, claim->uid, bytes)) {
		pthread_cond_wait(&budget->changed, &budget->lock);
	}
	int error = atomic_load(is_cancelled) ? BUDGET_E_CANCELLED : 0;
	if (!error) {
		claim->bytes = bytes;
		claim->next = budget->claims;
		budget->claims = claim;
	}
	pthread_mutex_unlock(&budget->lock);
	return error;
}

void budget_keep(struct budget *budget, struct budget_claim *claim, uint64_t bytes)
{
	pthread_mutex_lock(&budget->lock);
	struct budget_claim **link = &budget->claims;
	while (*link && *link != claim) {
		link = &(*link)->next;
	}
	claim->bytes = bytes < claim->bytes ? bytes : claim->bytes;
	if (*link && claim->bytes == 0) {
		*link = claim->next;
	}
	pthread_cond_broadcast(&budget->changed);
	pthread_mutex_unlock(&budget->lock);
}

void budget_look(struct budget *budget)
{
	pthread_mutex_lock(&budget->lock);
	pthread_cond_broadcast(&budget->changed);
	pthread_mutex_unlock(&budget->lock);
}
