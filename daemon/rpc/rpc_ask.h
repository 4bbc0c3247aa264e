/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asking programs: a client, or glaked itself, wants the program of a session to seal what looks like weights, to sleep, or to
 * wake. That program gets a notice, does it, and reports. glaked passes on what it reports, and waits for it no longer than it
 * goes on reporting.
 *
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_RPC_ASK_H
#define GLAKE_DAEMON_RPC_ASK_H

#include "daemon/holders/sleeper.h"
#include "daemon/rpc/rpc_context.h"

enum rpc_wish_kind {
	RPC_WISH_SEAL,
	RPC_WISH_DRY_RUN,
	RPC_WISH_CANDIDATES, /* a dry run, of what it seals without being asked */
	RPC_WISH_SLEEP,
	RPC_WISH_WAKE,
};

/* A wish that a program is asked to fulfil. */
struct rpc_wish {
	enum rpc_wish_kind kind;
	enum sleep_why why; /* of SLEEP */
	/* rpc_ask() calls it, unless it is NULL: the program has done so (STATUS_OK), or not. @holder may have ended. */
	void (*done)(void *user, struct holder *holder, enum status status);
	void *user;
};

/* Whether it can be asked now: it has a connection, follows such wishes, and is not being asked already. */
bool rpc_may_ask(const struct rpc_context *rpc, const struct holder *holder,
                 const struct rpc_wish *wish);
/* Nobody waits for the answer; a failure is a line in the log. */
void rpc_ask(struct rpc_context *rpc, struct holder *holder, const struct rpc_wish *wish);

/* Whether somebody has asked it to sleep, and it has not answered yet. */
bool rpc_falls_asleep(const struct rpc_context *rpc, const struct holder *holder);

/* Whether somebody has asked the process of @holder to wake, by any of its sessions, and it has not answered yet. */
bool rpc_is_asked_to_wake(const struct rpc_context *rpc, const struct holder *holder);

/* Refuse what no program will answer any more. To be called once in a while, and when a session has ended. */
void rpc_asks_tick(struct rpc_context *rpc);

#endif
