/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pressure: everything that wants device memory or fds and does not find them waits here.
 *
 *            is charged
 *   NEW ------------------> MAKING ---------- all is made ---------> GRANTED
 *    |  \                   ^ |  ^ \
 *    |   \ tenant has       | |  |  '-------- its owner cancels ---> CANCELLED
 *    |    \ no room         | |  | look again
 *    |     v    is charged  | v  |
 *    |    IN_LINE ----------' SHORT  (the device is full)
 *    |     |                  |
 *    '-----+------------------+----- never fits, or patience is over -> REFUSED
 *
 *   IN_LINE and SHORT become CANCELLED at once. MAKING does too, but the maker still has the request:
 *   it is over with pressure_made().
 *
 * 1. NEW. A request that can never fit is refused at once, before anybody gives anything up for it: one
 *    that is larger than the device, than all that the tenant may have there, or than all fds.
 *
 * 2. IN_LINE. The request is charged to its tenant. If the tenant's bytes on the device do not allow
 *    that, the tenant's clients are asked for their warm memory, and the request stands in line.
 *    Nobody is asked if all that the clients hold would not be enough. Nothing is evicted: the tenant does
 *    not pay for what nobody uses.
 *
 * 3. MAKING, SHORT. A charged request is made. If the device is full, memory is taken back in rounds:
 *      made ahead   the pool is given up,
 *      unused       models and blocks that nobody uses are evicted, the longest unused first,
 *      (sleepers and then lower priorities will be rounds between these two and the last),
 *      warm         all clients are asked for their warm memory, and the request waits.
 *    After each round that made room the request is made again. No round begins if blocks in use leave so
 *    little that the request would not fit after all rounds.
 *    The last round is the only one that takes time. So it comes last: a full device with a cache is
 *    the normal state, and an allocation does not wait for clients then.
 *
 * fds: blocks and big chunks may have the whole budget, small private chunks three quarters. For blocks
 * and big chunks the first two rounds give up fds, on any device, if that gives all that the request
 * lacks. Private chunks are held by handle otherwise, and blocks are refused: nobody waits for fds.
 * Host memory: manifests are charged as a model's header is read (charge_grow_manifest()), before its
 * first chunk is asked for. Nobody waits for it, either.
 *
 * Patience: a request waits `wait_ms` if the config says `pressure = "wait"`, less what its client has
 * waited for the same memory already. In any case it waits for clients that were asked and have not
 * answered, PRESSURE_LATE_MS at most, and PRESSURE_AFTER_MS longer for what they give back behind their
 * answer. Then it is refused.
 *
 * Fairness: a tenant's requests for one device are charged in the order of their coming. A small request
 * does not pass a big one that waits, so the big one gets its turn. No request waits longer than its
 * own time, so a small one behind a big one gets its turn too. Other tenants and devices do not
 * notice. After the charge there is no order: the first request that fits is served.
 *
 * Nothing here knows sessions, the wire, the store or the driver. Sources take memory back, clients
 * are asked for it, and owners of requests make it. Whether a source gave anything is read from the
 * device's books, not from its word.
 *
 * Owner: the allocator. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_PRESSURE_H
#define GLAKE_DAEMON_PRESSURE_H

#include "daemon/base/list.h"
#include "daemon/base/stats.h"
#include "daemon/base/status.h"
#include "daemon/memory/chunk.h"

/*
 * A request is not refused for so long while memory is on its way: while a client was asked and has not
 * answered, and while the books have room and only the driver says no. What was released is then
 * still mapped by a process that is about to end, or by a load being cancelled.
 */
#define PRESSURE_LATE_MS 1000

/*
 * A client may still be giving back so long after its answer: memory that streams were done with goes
 * piece by piece, and what was in use just then follows when it is freed.
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

/* In the order in which they are asked. Clients come after the last. */
enum pressure_round {
	PRESSURE_MADE_AHEAD,
	PRESSURE_UNUSED,
	N_PRESSURE_ROUNDS,
};

enum pressure_fds {
	PRESSURE_FDS_SMALL, /* of the lower three quarters of the budget, or none */
	PRESSURE_FDS_BIG,   /* of the whole budget, also taken from what nobody uses, or none */
	PRESSURE_FDS_MUST,  /* the same, or the request is refused */
};

/* Memory that can be taken back at once. */
struct pressure_source {
	/* Have @bytes of @device released, or as much as there is. */
	void (*take_bytes)(void *user, struct device *device, uint64_t bytes);
	/* The same for @n_fds of any device. */
	void (*take_fds)(void *user, uint64_t n_fds);
	void *user;
};

struct pressure_client;

struct pressure_client_ops {
	/* What it holds on @device that it could give back: the books' number, not its own. */
	uint64_t (*held_bytes)(const struct pressure_client *client, const struct device *device);
	/* Ask for @bytes of warm memory; @id names the asking. Returns whether that was sent. */
	bool (*ask)(struct pressure_client *client, const struct device *device, uint64_t bytes,
	            uint64_t id);
	/* An answer may lie unread. */
	bool (*has_unread)(const struct pressure_client *client);
};

/* A process that may have warm memory. Embedded in a session. */
struct pressure_client {
	struct list link; /* link: pressure.clients */
	const struct pressure_client_ops *ops;
	const struct tenant *tenant; /* borrowed */
	uint64_t last_id;            /* of the last asking; 0 = none yet */
	uint64_t answered_id;        /* of the last that it answered */
	uint64_t since_ms;           /* since when it owes an answer, or when it gave the last */
};

struct pressure_request;

struct pressure_ops {
	/*
	 * Have all of it charged, and set what is missing: the rest was there already. Returns 0, or
	 * TENANT_E_*: nothing is charged.
	 */
	int (*charge)(struct pressure_request *request);
	/*
	 * Make what is missing, and say so by pressure_made(), before this returns only if nothing
	 * is.
	 */
	void (*make)(struct pressure_request *request);
	/* It is over; the request is the owner's again. */
	void (*done)(struct pressure_request *request, enum status status);
};

/* What clients were asked for, and whether that is still to come. */
struct pressure_asked {
	uint64_t asked_ms; /* when last */
	uint64_t n_looks;  /* pressure.n_looks when is_awaited was found out */
	bool is_awaited;
};

/* Embedded in what is wanted. The owner sets the first part, zeroes the rest, and reads all. */
struct pressure_request {
	const struct pressure_ops *ops;
	struct device *device;
	struct tenant *tenant; /* borrowed: while it has charges of it, or a place in its queue */
	enum pressure_fds fds;
	uint64_t bytes;
	uint64_t n_chunks;
	uint64_t waited_ms; /* for the same memory before; when it is over, with its own time */

	/* Of ops->charge(). */
	uint64_t missing_bytes;
	uint64_t n_missing;

	enum pressure_state state;
	bool has_fds; /* what is missing has fds of the budget */
	struct pressure *pressure;
	struct list link;    /* link: pressure.waiting, IN_LINE and SHORT */
	struct list place;   /* link: the tenant's queue on the device, IN_LINE */
	uint64_t n_reserved; /* fds, until they are made */
	uint64_t since_ms;   /* when it began to wait */
	bool has_waited;
	bool has_asked;              /* for the room that it lacks now */
	struct pressure_asked asked; /* of the tenant's clients */
};

/* Time, for the owner to give. */
struct pressure_clock {
	uint64_t (*now_ms)(void *user);
	/* Call pressure_look() in @ms, or earlier if that was asked for. 0: as soon as possible. */
	void (*wake)(void *user, uint64_t ms);
	void *user;
};

struct pressure {
	struct pressure_clock clock;
	struct stats *stats; /* borrowed, as the next two */
	struct chunk_books *books;
	const struct tenant *cache; /* pays for what nobody uses */
	uint64_t wait_ms;           /* 0: nobody waits but for what was asked for */
	struct pressure_source sources[N_PRESSURE_ROUNDS];
	struct list clients;
	struct list waiting;
	uint64_t n_looks; /* at those that wait */
	uint32_t n_devices;
	struct pressure_asked *asked; /* owned, one per device: of all clients */
};

/* Returns 0 or -ENOMEM. Sources that nobody sets have nothing. */
int pressure_init(struct pressure *pressure, uint32_t n_devices, struct chunk_books *books,
                  const struct tenant *cache, struct stats *stats,
                  const struct pressure_clock *clock);
/* Nobody waits, and all clients have left. */
void pressure_deinit(struct pressure *pressure);

void pressure_client_enter(struct pressure *pressure, struct pressure_client *client,
                           const struct pressure_client_ops *ops, const struct tenant *tenant);
/* Nothing to do for a zeroed client, or for one that has left. */
void pressure_client_leave(struct pressure_client *client);
/* It says that it has given what it can for all askings up to @id. Others are ignored. */
void pressure_client_answer(struct pressure *pressure, struct pressure_client *client, uint64_t id);

/*
 * Returns STATUS_OK: ops->done() follows, before this returns only if nothing was missing. Otherwise
 * why it is REFUSED; ops->done() is not called, and what ops->charge() has charged is the owner's to
 * refund.
 */
enum status pressure_start(struct pressure *pressure, struct pressure_request *request);

/*
 * STATUS_OK: all is made, and the request GRANTED. STATUS_NO_DEVICE_MEMORY: there was no room. Other
 * statuses end it.
 */
void pressure_made(struct pressure_request *request, enum status status);

/*
 * The owner does not want it any more. Returns whether it is over: if not, the maker has it, and
 * ops->done() follows.
 */
bool pressure_cancel(struct pressure_request *request);

/* Look at all that wait: what the clock calls. */
void pressure_look(struct pressure *pressure);

/*
 * One fd of the budget for a chunk that has none, if need be taken from what nobody uses. The chunk's
 * release gives it back, or pressure_give_fd(). Returns STATUS_OK or STATUS_NO_FDS.
 */
enum status pressure_take_fd(struct pressure *pressure);
void pressure_give_fd(struct pressure *pressure);

/*
 * What could come together if everybody gave back all his private memory and nothing were kept that
 * nobody uses: bytes on @device, and fds, for which private memory is not asked.
 */
uint64_t pressure_most_bytes(const struct pressure *pressure, const struct device *device);
uint64_t pressure_most_fds(const struct pressure *pressure);

#endif
