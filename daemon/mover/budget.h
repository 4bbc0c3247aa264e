/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host memory that loads may take for headers and plans, all together.
 *
 * What a header will take is bounded by its length, which is known before it is read. So a load claims
 * that much first, waits until there is room, and afterwards keeps what its plan really has. Of what
 * other users leave, a user's loads may have half. There is no order: who fits first goes on.
 *
 * Owner: main; a claim is its load's. Lifetime: the process's.
 * Threads: any.
 */
#ifndef GLAKE_MOVER_BUDGET_H
#define GLAKE_MOVER_BUDGET_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum {
	BUDGET_E_NEVER = 1, /* more than one user may ever have */
	BUDGET_E_CANCELLED,
};

/* Zeroed memory is none. */
struct budget_claim {
	struct budget_claim *next; /* link: budget.claims, while bytes > 0 */
	uint32_t uid;
	uint64_t bytes;
};

struct budget {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint64_t max_bytes;
	struct budget_claim *claims; /* under lock */
};

void budget_init(struct budget *budget, uint64_t max_bytes);

/* What the loads of one user may have at most, while nobody else has anything. */
uint64_t budget_share(const struct budget *budget);

/*
 * Wait until @claim, which has none, can have @bytes, or *@is_cancelled, after which budget_look() is
 * called. Returns 0 or BUDGET_E_*.
 */
int budget_take(struct budget *budget, struct budget_claim *claim, uint64_t bytes,
                const atomic_bool *is_cancelled);

/* Give back what @claim has beyond @bytes. */
void budget_keep(struct budget *budget, struct budget_claim *claim, uint64_t bytes);

void budget_look(struct budget *budget);

#endif
