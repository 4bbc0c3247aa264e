/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/service.h"

#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#include "glake_shim.h"
#include "proto/clock.h"
#include "shim/auto.h"
#include "shim/capture.h"
#include "shim/doubts.h"
#include "shim/gate.h"
#include "shim/graphmem.h"
#include "shim/idle.h"
#include "shim/order.h"
#include "shim/record.h"
#include "shim/report.h"
#include "shim/seal_ask.h"
#include "shim/sleep.h"
#include "shim/turn.h"

#define REPORT_MS 2000
/* A program that stitches seldom asks glaked, so it reports often: else `glakectl` would show old numbers. */
#define STITCH_REPORT_MS 250
/* A program that works reports often, because others who want its memory wait until it is known to be idle. */
#define BUSY_REPORT_MS 250
/* Another thread may be reading the packet that woke the service: wait for it first. */
#define LET_NS 100000
/* If that thread has read the packet, it will read the next ones, too: rest. */
#define REST_NS 5000000
/* After this long without glaked, warm memory is given up. */
#define AWAY_MS 5000

/* Nothing is collected while the process sleeps, because that would wake it. */
static void collect(void)
{
	if (!gate_is_asleep()) {
		order_collect_all();
		graphmem_collect();
	}
}

/* ---- the thread ------------------------------------------------------------------------------- */

/* Called when glaked is away and so cannot ask for warm memory. */
static void give_up_warm(struct connection *connection)
{
	struct glake_device device;
	collect();
	for (uint32_t i = 0; glake_device_at(connection->session, i, &device) == 0; i++) {
		glake_trim(connection->session, device.index, 0);
	}
}

struct turns {
	uint64_t reported_ns;
	bool has_refuge;  /* memory of the program is in host memory, and stderr has said so */
	uint64_t away_ns; /* since when glaked is away; 0: it is there */
};

/* Bring back memory that went to the host because the GPU was full. stderr is told only if GLAKE_SHIM_SAY asks (policy.h). */
static void bring_back(struct turns *turns)
{
	const uint64_t before = glake__refuge_bytes();
	if (before > 0 && !gate_is_asleep()) {
		glake__refuge_return();
	}
	const uint64_t n_bytes = glake__refuge_bytes();
	if (!shim_policy()->says_refused) {
		return;
	}
	if (n_bytes > 0 && !turns->has_refuge) {
		turns->has_refuge = true;
		dprintf(STDERR_FILENO,
		        "glake: the GPU is full: %.1f MiB of sealed memory that the program writes "
		        "to are in host memory, and slow, until there is room\n",
		        (double)n_bytes / (1 << 20));
	} else if (n_bytes == 0 && turns->has_refuge) {
		turns->has_refuge = false;
		dprintf(STDERR_FILENO, "glake: all of the program's memory is on the GPU again\n");
	}
}

static uint64_t report_ms(void)
{
	return idle_is_still() ? REPORT_MS : BUSY_REPORT_MS;
}

static int wait_ms(void)
{
	uint64_t ms = shim_policy()->stitches ? STITCH_REPORT_MS : report_ms();
	return (int)(auto_turn_ms() && auto_turn_ms() < ms ? auto_turn_ms() : ms);
}

static void take_turn(struct connection *connection, struct turns *turns)
{
	uint64_t now_ns = clock_now_ns();
	collect();
	if (now_ns - turns->reported_ns >= report_ms() * 1000000ull) {
		turns->reported_ns = now_ns;
		bring_back(turns);
		report_program(connection);
		record_flush();
	}
	int r = glake_dispatch(connection->session);
	connection_note(connection, r);
	if (r != GLAKE_E_GONE) {
		turns->away_ns = 0;
	} else if (turns->away_ns == 0) {
		turns->away_ns = now_ns;
	} else if (now_ns - turns->away_ns >= AWAY_MS * 1000000ull) {
		give_up_warm(connection);
	}
	sleep_serve(connection);
	seal_ask_serve(connection);
	auto_serve(connection);
}

static bool has_packet(const struct connection *connection, int wait_ms)
{
	struct pollfd ready = {.fd = glake_fd(connection->session), .events = POLLIN};
	return poll(&ready, 1, wait_ms) != 0;
}

/* Wait until a packet comes that no other thread reads, or for @wait_ms. */
static void await_packet(const struct connection *connection, int wait_ms)
{
	if (!has_packet(connection, wait_ms)) {
		return;
	}
	clock_sleep_ns(LET_NS);
	if (!has_packet(connection, 0)) {
		clock_sleep_ns(REST_NS);
	}
}

static void *serve(void *user)
{
	struct connection *connection = user;
	struct turns turns = {.reported_ns = clock_now_ns()};
	bool is_over = false;
	if (!turn_begin()) {
		return NULL;
	}
	capture_relax();
	turn_end();
	while (!is_over) {
		if (!connection->is_dead) {
			await_packet(connection, wait_ms());
		}
		if (!turn_begin()) {
			return NULL;
		}
		is_over = connection->is_dead;
		if (is_over) {
			give_up_warm(connection);
			connection_unref(connection);
		} else {
			take_turn(connection, &turns);
		}
		turn_end();
	}
	return NULL;
}

/*
 * Any thread of the program may read a Reclaim, and the library answers it with warm memory. Parked
 * memory that is no longer in use follows here.
 */
static void on_notice(void *user, const struct glake_notice *notice)
{
	const struct connection *connection = user;
	/* The release of parked memory may end a dead connection, and a session cannot end in its own handler. */
	if (notice->kind == GLAKE_NOTICE_RECLAIM && !connection->is_dead) {
		collect();
	}
}

void service_start(struct connection *connection)
{
	turn_watch_exit();
	order_set_calls(capture_ask_idle, graphmem_keep);
	glake_set_notice_handler(connection->session, on_notice, connection);
	doubts_begin(connection->session);
	auto_begin(connection);
	seal_ask_follow(connection);
	sleep_follow(connection);
	connection_ref(connection);
	if (!turn_start_thread(serve, connection)) {
		connection_unref(connection);
	}
}
