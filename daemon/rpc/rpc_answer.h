/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers and notices, and other things that handlers share.
 *
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_RPC_ANSWER_H
#define GLAKE_DAEMON_RPC_ANSWER_H

#include "daemon/base/status.h"
#include "daemon/rpc/rpc_context.h"
#include "proto/glake.pb-c.h"
#include "proto/message.h"

typedef Glake__Wire__Request request_t;
typedef Glake__Wire__Answer answer_t;

/* An answer, or a notice, with that body (message.h). */
#define ANSWER_OF(CASE, member, body) \
	MESSAGE(answer_t, glake__wire__answer__descriptor, \
	        .body_case = GLAKE__WIRE__ANSWER__BODY_##CASE, .member = (body))

/* The most devices in one answer; others are left out. No host has so many. */
#define RPC_MAX_DEVICES 64u

/* Set id and status OK, pack, send. The caller keeps the fds. */
void rpc_answer(struct session *session, uint64_t id, answer_t *answer, const int *fds,
                size_t n_fds);
/* Answer OK without a body. */
void rpc_answer_ok(struct session *session, uint64_t id);
__attribute__((format(printf, 4, 5))) void rpc_refuse(struct session *session, uint64_t id,
                                                      enum status status, const char *format, ...);
bool rpc_notify(struct session *session, answer_t *notice);

/* The device of that number, or NULL after a refusal. */
struct device *rpc_device(struct session *session, uint64_t id, uint32_t index);
/* Find any location. @kind is a LocationKind of the wire. */
struct location *rpc_location(struct session *session, uint64_t id, int kind, uint32_t number);

/* The thing, a "chunk" or so, has no fd since glaked was restarted: only who has it mapped keeps it. */
void rpc_refuse_unparked(struct session *session, uint64_t id, const char *thing,
                         uint64_t thing_id);

/* Answer with the @error of store_hold_model() or store_pin_model(). */
void rpc_refuse_model(struct session *session, uint64_t id, const struct model *model, int error);

/* The thing that it opens cannot be recorded: see holder_add_model(). */
void rpc_refuse_open(struct session *session, uint64_t id);

/* Whether the session may see and change things of @realm. */
bool rpc_may_act(const struct session *session, const struct realm *realm);

/* The rows of one answer: as many as fit. */
struct rpc_page {
	void *rows; /* borrowed: an array of max_rows messages of one type */
	void *list; /* borrowed: an array of as many pointers to such messages */
	size_t max_rows;
	size_t n_rows;
	size_t n_bytes;
	uint64_t last; /* the id of the last row */
	uint64_t next; /* the same, once a row did not fit; 0: there is no further page */
};

/* Copies @row. Returns false if it does not fit: then the page is complete. */
bool rpc_page_add(struct rpc_page *page, uint64_t id, const ProtobufCMessage *row);

/* Declares an empty `page` of at most @n messages of type @Row. */
#define RPC_PAGE(Row, n) \
	static Row page_rows[n]; \
	static Row *page_list[n]; \
	struct rpc_page page = {.rows = page_rows, .list = page_list, .max_rows = (n)}

/* Answers @request with @page: its rows are the @name##s of a list answer called so. */
#define RPC_ANSWER_PAGE(session, request, page, Name, NAME, name) \
	do { \
		Glake__Wire__##Name##ListAnswer body = GLAKE__WIRE__##NAME##_LIST_ANSWER__INIT; \
		body.name##s = (page).list; \
		body.n_##name##s = (page).n_rows; \
		body.next = (page).next; \
		rpc_answer(session, (request)->id, ANSWER_OF(NAME##_LIST, name##_list, &body), \
		           NULL, 0); \
	} while (0)

/*
 * Notices. If answers wait because the client does not read, a notice is dropped and counted, not
 * sent.
 */
bool rpc_notify_reclaim(struct session *session, const struct location *at, uint64_t bytes,
                        uint64_t id);
void rpc_notify_shutting_down(struct session *session, uint64_t grace_ms);
void rpc_notify_evicted(struct session *session, const char *name);

#endif
