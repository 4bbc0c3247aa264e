/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host memory of all loads for headers and plans.
 *
 * The length of a header is known before it is read, and bounds the memory that it takes. So a load
 * first claims that much and waits for room. Then it keeps the size of its plan. The loads of a user
 * may have half of what other users leave. There is no order: the first claim that fits goes on.
 *
 * Owner: main; a claim belongs to its load. Lifetime: that of the process.
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

/* Zeroed memory is no claim. */
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

/* The most that the loads of one user may have while no other user has a claim. */
uint64_t budget_share(const struct budget *budget);

/*
 * Wait until @claim, which is empty, can have @bytes, or until *@is_cancelled is set and budget_look()
 * called. Returns 0 or BUDGET_E_*.
 */
int budget_take(struct budget *budget, struct budget_claim *claim, uint64_t bytes,
                const atomic_bool *is_cancelled);

/* Reduce @claim to @bytes. */
void budget_keep(struct budget *budget, struct budget_claim *claim, uint64_t bytes);

void budget_look(struct budget *budget);

#endif
