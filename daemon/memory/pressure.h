/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pressure: requests for memory or fds that do not fit wait here.
 *
 *            is charged
 *   NEW ------------------> MAKING ---------- all is made ---------> GRANTED
 *    |  \                   ^ |  ^ \
 *    |   \ tenant has       | |  |  '-------- its owner cancels ---> CANCELLED
 *    |    \ no room         | |  | look again
 *    |     v    is charged  | v  |
 *    |    IN_LINE ----------' SHORT  (the location is full)
 *    |     |                  |
 *    '-----+------------------+----- never fits, or patience is over -> REFUSED
 *
 *   IN_LINE and SHORT become CANCELLED at once. MAKING does too, but the maker still has the request:
 *   it is over with pressure_made().
 *
 * 1. NEW. A request that can never fit is refused at once, before anything is taken back for it: if
 * it is
 *    larger than the location, than the tenant's quota there, or than all fds.
 *
 * 2. IN_LINE. The request is charged to its tenant. If the tenant's bytes there do not allow
 *    that, the tenant's clients are asked for their warm memory, and the request stands in line.
 *    No client is asked if all that the clients hold would not be enough. Nothing is evicted: the tenant
 *    does not pay for unused models and blocks.
 *
 * 3. MAKING, SHORT. A charged request is made. If the location is full, memory is taken back in rounds:
 *      kept         what outlived its process and waits for an heir goes,
 *      made ahead   the stock is given up,
 *      unused       unused models and blocks are evicted, the longest unused first; in host memory copies, of which
 *                   the request waits until the mover has forgotten them. For a block that the mover looks at unasked it
 *                   waits as well,
 *      warm         all clients are asked for their warm memory, and the request waits,
 *      asleep       if its tenant wants that, idle programs are put to sleep, and the request waits.
 *    After each round that made room the request is tried again. No round begins if blocks in use leave so
 *    little that the request would not fit after all rounds.
 *    The last two take time. So they come last: a full GPU with a cache is the normal state, and an allocation does
 *    not wait for clients then. Warm memory comes in a moment, and costs its program little; a program falls asleep in
 *    seconds, so nobody is put to sleep while clients are still awaited.
 *
 * fds: blocks and big chunks may use the whole budget, small private chunks three quarters. For blocks
 * and big chunks the first two rounds give up fds of any location, if that is enough for the request.
 * Otherwise private chunks are held by handle, and blocks are refused. No request waits for fds.
 * Host memory: manifests are charged as a model's header is read (charge_grow_manifest()), before its
 * first chunk is requested. No request waits for it, either.
 *
 * Patience: with `pressure = "wait"` a request waits `wait_ms`, minus the time that earlier requests waited for the same
 * memory; a request may have more patience of its own. In any case it waits for clients that were asked and have not answered,
 * PRESSURE_LATE_MS at most, and PRESSURE_AFTER_MS longer for memory that they give back after their answer. Then it is refused.
 * While programs are falling asleep it is not refused, however long they take. They are put to sleep when no answer is due any
 * more, and after PRESSURE_LATE_MS in any case.
 *
 * Fairness: a tenant's requests for one location are charged in the order of their arrival. A small
 * request does not overtake a big one that waits, so the big one gets its turn. No request waits
 * longer than its own time, so a small one behind a big one gets its turn too. Other tenants and
 * locations do not wait. After the charge there is no order, the first request that fits is served, with one exception:
 * a request that keeps its place, of a program that wakes. While it is SHORT, later requests there whose priority is not
 * higher leave it its room: they are SHORT as well, unless there is room for both. Otherwise small requests would take
 * each piece of its room as it comes. They are refused when their patience is over: its memory was lent to them.
 *
 * Sleep: a program that waits here can be put to sleep for an earlier request. What it waits for is held back until it is
 * awake: else two programs could each have what the other needs to wake.
 *
 * Reserve: a request that unseals takes from the reserve what room lacks (reserve.h). All others meet it as memory that is in
 * use: nothing is taken back for what is reserved, and nobody waits for it.
 *
 * Cache: for what the built-in tenant wants, copies in host memory, nothing is taken back, and it does not wait. The same goes
 * for a spare request, of a program that would use memory if it is free: it leaves the room to all who wait. A request of
 * somebody who has waited already, for other memory of the same work, does not wait either, but the first three rounds make
 * room for it.
 *
 * Nothing here knows sessions, the wire, the store or the driver. Sources take memory back, clients
 * are asked for it, and owners of requests make it. The location's books show whether a source gave
 * anything; its own report does not count.
 *
 * Owner: the allocator. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_PRESSURE_H
#define GLAKE_DAEMON_PRESSURE_H

#include "daemon/base/list.h"
#include "daemon/base/stats.h"
#include "daemon/base/status.h"
#include "daemon/memory/chunk.h"
#include "daemon/memory/refusal.h"

/*
 * A request waits this long for memory that is on its way: while a client has not answered, and while
 * the books have room but the driver has none. In that case a process that is about to end, or a
 * load that is being cancelled, still has released memory mapped.
 */
#define PRESSURE_LATE_MS 1000

/*
 * A client may still give memory back for this long after its answer: it returns memory of finished
 * streams piece by piece, and memory that was in use when the program frees it.
 */
#define PRESSURE_AFTER_MS 30

enum pressure_state {
	PRESSURE_NEW,
	PRESSURE_IN_LINE,
	PRESSURE_MAKING,
	PRESSURE_SHORT,
	PRESSURE_GRANTED,
	PRESSURE_REFUSED,
	PRESSURE_CANCELLED,
	N_PRESSURE_STATES,
};

/* The rounds in the order in which the sources are asked. Clients come after the last. */
enum pressure_round {
	PRESSURE_KEPT,
	PRESSURE_MADE_AHEAD,
	PRESSURE_UNUSED,
	N_PRESSURE_ROUNDS,
};

enum pressure_fds {
	PRESSURE_FDS_SMALL, /* of the lower three quarters of the budget, or none */
	PRESSURE_FDS_BIG,   /* of the whole budget, also from unused things, or none */
	PRESSURE_FDS_MUST,  /* the same, or the request is refused */
};

/* Memory that can be taken back at once. */
struct pressure_source {
	/* Have @bytes of @at released, or as much as there is. */
	void (*take_bytes)(void *user, struct location *at, uint64_t bytes);
	/* Have chunks with @n_fds fds released at any location, or as many as there are. */
	void (*take_fds)(void *user, uint64_t n_fds);
	void *user;
};

struct pressure_request;

/* Programs that can be put to sleep. */
struct pressure_sleepers {
	/*
	 * Have programs fall asleep so that @bytes of @request->at become free for @request; those count that are on
	 * their way already. Nobody is put to sleep if all would not be enough. Returns whether any is on its way.
	 */
	bool (*ask)(void *user, const struct pressure_request *request, uint64_t bytes);
	void *user;
};

struct pressure_client;

struct pressure_client_ops {
	/* The bytes at @at that it could give back, by glaked's books. */
	uint64_t (*held_bytes)(const struct pressure_client *client, const struct location *at);
	/* Ask for @bytes of warm memory; @id numbers the request. Returns whether it was sent. */
	bool (*ask)(struct pressure_client *client, const struct location *at, uint64_t bytes,
	            uint64_t id);
	/* An answer may lie unread. */
	bool (*has_unread)(const struct pressure_client *client);
};

/* A process that may have warm memory. Embedded in a session. */
struct pressure_client {
	struct list link; /* link: pressure.clients */
	const struct pressure_client_ops *ops;
	const struct tenant *tenant; /* borrowed */
	uint64_t last_id;            /* of the last request to it; 0 = none yet */
	uint64_t answered_id;        /* of the last one that it answered */
	uint64_t since_ms; /* when the unanswered request was sent, or the last answer came */
};

struct pressure_ops {
	/*
	 * Charge all of it, and set what is missing beside ready chunks. Returns 0, or TENANT_E_*:
	 * nothing is charged.
	 */
	int (*charge)(struct pressure_request *request);
	/*
	 * Make the missing chunks, and call pressure_made(): from within here only if none is
	 * missing.
	 */
	void (*make)(struct pressure_request *request);
	/* The request is over; its owner has it again. */
	void (*done)(struct pressure_request *request, enum status status);
};

/* Clients were asked, and may still answer. */
struct pressure_asked {
	uint64_t asked_ms; /* the last time */
	uint64_t n_looks;  /* pressure.n_looks when is_awaited was computed */
	bool is_awaited;
};

/* Embedded by its owner, who sets the first part, zeroes the rest, and may read all. */
struct pressure_request {
	const struct pressure_ops *ops;
	struct location *at;
	struct tenant *tenant; /* borrowed: while it has charges of it, or a place in its queue */
	enum pressure_fds fds;
	uint64_t bytes;
	uint64_t n_chunks;
	uint64_t
		waited_ms; /* by earlier requests for the same memory; in the end with its own time */
	uint64_t patience_ms; /* its wait at least, whatever pressure.wait_ms says */
	bool keeps_place;     /* while it waits for room, later ones leave that to it */
	bool is_spare; /* only of what is free: nothing is taken back, and it does not wait */
	bool no_wait; /* what can be taken back at once is, but nobody is asked, and it does not wait */
	bool is_promised; /* the memory is paid for: no limit of bytes, and no line */
	bool may_unseal; /* the request may have the reserve (reserve.h): no limit and no line, if that has all of it */
	const bool *
		is_held_back; /* NULL: never; while that is so, a request that waits for room goes on waiting */

	/* ops->charge() sets these. */
	uint64_t missing_bytes;
	uint64_t n_missing;

	enum pressure_state state;
	bool has_fds;  /* the missing chunks have fds of the budget */
	bool had_room; /* by the books, when the maker began last */
	struct pressure *pressure;
	struct list link;    /* link: pressure.waiting, IN_LINE and SHORT */
	struct list place;   /* link: the tenant's queue there, IN_LINE */
	struct list kept;    /* link: pressure.kept, from when it was SHORT first */
	uint64_t number;     /* in the order of arrival */
	uint64_t n_reserved; /* fds, until they are made */
	uint64_t since_ms;   /* when it began to wait */
	bool has_waited;
	bool is_counted;        /* as one that waits for room */
	struct refusal refusal; /* once it is REFUSED by a bound */
	uint64_t
		asked_bytes; /* clients were asked for this much at most, of the room that it lacks now */
	bool has_coming;             /* programs were falling asleep when that was asked last, */
	uint64_t naps_ms;            /* then; 0: never */
	uint64_t coming_ms;          /* when any was falling asleep last */
	struct pressure_asked asked; /* of the tenant's clients */
};

/* The time, provided by the owner. */
struct pressure_clock {
	uint64_t (*now_ms)(void *user);
	/*
	 * Call pressure_look() in @ms, or earlier if that was requested before. 0: as soon as
	 * possible.
	 */
	void (*wake)(void *user, uint64_t ms);
	void *user;
};

struct pressure {
	struct pressure_clock clock;
	struct stats *stats; /* borrowed, as the next two */
	struct chunk_books *books;
	const struct tenant *cache; /* pays for unused things */
	uint64_t wait_ms;           /* 0: requests wait only for the answers of clients */
	struct pressure_source sources[N_PRESSURE_ROUNDS];
	struct pressure_sleepers sleepers;
	struct list clients;
	struct list waiting;
	struct list kept; /* of requests that keep their place, and were SHORT */
	uint64_t n_requests;
	uint64_t n_looks; /* calls of pressure_look() */
	uint32_t n_locations;
	struct pressure_asked *asked; /* owned, one per location: of all clients */
};

/* Returns 0 or -ENOMEM. Sources that are not set have nothing. */
int pressure_init(struct pressure *pressure, uint32_t n_locations, struct chunk_books *books,
                  const struct tenant *cache, struct stats *stats,
                  const struct pressure_clock *clock);
/* No request may wait, and all clients must have left. */
void pressure_deinit(struct pressure *pressure);

void pressure_client_enter(struct pressure *pressure, struct pressure_client *client,
                           const struct pressure_client_ops *ops, const struct tenant *tenant);
/* Harmless for a zeroed client, or one that has left. */
void pressure_client_leave(struct pressure_client *client);
/* The client has given what it can for all requests up to @id. Other ids are ignored. */
void pressure_client_answer(struct pressure *pressure, struct pressure_client *client, uint64_t id);

/* Does any request wait for room at @at? */
bool pressure_is_short(const struct pressure *pressure, const struct location *at);

/* Is its part of the reserve there, all of it? Then no limit of bytes holds, and nobody is before it. */
bool pressure_has_reserve(const struct pressure_request *request);

/*
 * Returns STATUS_OK: ops->done() follows, before this returns only if nothing was missing. Otherwise
 * why it is REFUSED; ops->done() is not called, and what ops->charge() has charged is the owner's to
 * refund.
 */
enum status pressure_start(struct pressure *pressure, struct pressure_request *request);

/* The bound that keeps a request, not started, from ever being granted. BOUND_NONE: it could be. */
enum bound pressure_check(const struct pressure *pressure, const struct pressure_request *request);

/* Why @request does not fit: the bound, with the numbers of now. */
struct refusal pressure_explain(const struct pressure *pressure,
                                const struct pressure_request *request, enum bound bound);

/*
 * STATUS_OK: all is made, and the request GRANTED. STATUS_NO_DEVICE_MEMORY: there was no room. Other
 * statuses end it.
 */
void pressure_made(struct pressure_request *request, enum status status);

/*
 * The owner does not want it any more. Returns whether the request is over. If not, the maker still has
 * it, and ops->done() follows.
 */
bool pressure_cancel(struct pressure_request *request);

/* The number of a request that waits for room at its location; 0: it does not. */
uint64_t pressure_waiting_number(const struct pressure_request *request);

/* A request that waits. */
struct pressure_wait {
	enum bound bound; /* QUOTA: it is in line; ROOM: it lacks room. NONE: it does not wait */
	const struct location *at;
	uint64_t bytes;
	uint64_t ms; /* that it has waited */
};

struct pressure_wait pressure_wait_of(const struct pressure_request *request);

/* Look at all waiting requests. The clock calls this. */
void pressure_look(struct pressure *pressure);

/*
 * Take one fd of the budget for a chunk without one; unused things may be evicted for it. The
 * chunk's release gives it back, or pressure_give_fd(). Returns STATUS_OK or STATUS_NO_FDS.
 */
enum status pressure_take_fd(struct pressure *pressure);
void pressure_give_fd(struct pressure *pressure);

/*
 * The most that could become available: bytes at @at, if all private memory were given back and
 * everything unused were evicted; and fds, for which private memory does not count.
 */
uint64_t pressure_most_bytes(const struct pressure *pressure, const struct location *at);
uint64_t pressure_most_fds(const struct pressure *pressure);

#endif
