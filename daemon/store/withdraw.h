/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block whose content has changed is withdrawn: nobody else shares it from now on. It is not found any more, nor are
 * models with it, and those that are idle go. Whoever uses it keeps it.
 *
 * Models have millions of places, and nothing but the places says which models have the block. So they are looked at in
 * steps, between other things. A model that somebody finds before its step is looked at then, by the store.
 *
 * Owner: the store. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_WITHDRAW_H
#define GLAKE_DAEMON_WITHDRAW_H

#include "daemon/store/store.h"

/* The caller has the block from store_begin_compare(), until withdraw_end(). No other is being withdrawn. */
void withdraw_begin(struct store *store, struct block *block);

/* A model that has the block, before it goes if it is idle. */
typedef void (*withdraw_fn)(void *user, const struct model *model);

/*
 * Take *@n_steps steps at most, each a model or a place, and subtract them. Returns whether all models were looked at;
 * before that, it is to be called again later.
 */
bool withdraw_step(struct store *store, size_t *n_steps, withdraw_fn on_model, void *user);

void withdraw_end(struct store *store);

#endif
