/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server: the loop and everything on it. There is one in a process.
 *
 *   RUNNING -- SIGTERM, SIGINT --> DRAINING -- no sessions, or time is up --> STOPPED
 *
 * If somebody keeps its fds, SIGTERM leaves everything to the next glaked instead, and stops at once. The
 * exit status says so (SERVER_LEAVES), whoever sent the signal: the service manager starts the next one.
 *
 * While it drains, no session is let in and nothing is granted. Sessions keep what they have until
 * they leave or the time is up.
 *
 * Owner: main. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_SERVER_H
#define GLAKE_DAEMON_SERVER_H

#include <stdbool.h>
#include <uv.h>

#include "daemon/base/events.h"
#include "daemon/base/stats.h"
#include "daemon/books/books.h"
#include "daemon/config/config.h"
#include "daemon/keep/fdstore.h"
#include "daemon/memory/alloc.h"
#include "daemon/memory/node.h"
#include "daemon/memory/nvml.h"
#include "daemon/memory/tenant.h"
#include "daemon/holders/kept_step.h"
#include "daemon/holders/sleeper.h"
#include "daemon/net/keeper.h"
#include "daemon/net/owner.h"
#include "daemon/rpc/damage.h"
#include "daemon/rpc/rpc_context.h"
#include "daemon/store/admit.h"
#include "daemon/store/copies.h"
#include "daemon/store/layout.h"
#include "daemon/store/load.h"
#include "daemon/store/mover_link.h"
#include "daemon/store/patrol.h"
#include "daemon/store/store.h"
#include "proto/cudrv.h"

#define SERVER_LEAVES 75 /* EX_TEMPFAIL */

enum server_state {
	SERVER_RUNNING,
	SERVER_DRAINING,
	SERVER_STOPPED,
};

/* The configuration is being read again. */
enum reload_state {
	RELOAD_NONE,
	RELOAD_READS,
	RELOAD_AGAIN, /* and must be read once more after that */
};

struct server {
	uv_loop_t loop;
	struct fdstore *fdstore; /* owned */
	enum server_state state;
	struct config *config; /* owned */
	struct cudrv drv;
	uint32_t n_devices;
	struct device *devices; /* owned */
	struct nodes nodes;
	uint32_t n_locations;
	struct location **locations; /* owned; by slot: the devices, and behind them the nodes */
	struct stats stats;
	struct events events;
	struct tenant_table *tenants; /* owned */
	struct allocator allocator;
	struct store store;
	struct superblocks superblocks;
	struct keeper keeper;
	struct mover_link mover;
	struct copies copies;
	struct kept_steps kept;
	struct admit_context admit_context;
	struct load_context load_context;
	struct sleep_context sleep_context;
	struct patrol patrol;
	struct layout layout;
	struct damage damage;
	struct books *books; /* owned; NULL: nobody keeps fds */
	struct nvml *nvml;   /* owned; NULL: no memory for it */

	struct listener *listener; /* owned; NULL while draining */
	struct owners *owners;     /* owned: of connections, before they are sessions */
	struct rpc_context rpc;    /* with all holders and sessions */
	char lacking[512];         /* why there are no devices */
	bool is_left;              /* to the next glaked */
	bool is_paused;            /* the listener, for the owners */
	enum reload_state reload;

	uv_timer_t
		tick; /* once a second: stocks, greetings that never came, NVML, the status line */
	unsigned n_ticks;
	uv_timer_t looks; /* of rpc */
	uv_timer_t drain;
	uv_timer_t watchdog;
	uv_signal_t on_term;
	uv_signal_t on_int;
	uv_signal_t on_hup;
};

struct server_options {
	const char *config_path; /* NULL: defaults */
	const char *socket_path; /* NULL: the config's */
	const char *nodes_path;  /* NULL: NODE_SYSFS */
	bool waits_for_gpu;      /* see waiting.h */
	int keeper_socket; /* from keeper_starter_begin(), taken over; 0: there is no keeper */
};

/*
 * Open the driver, the devices and the socket; notify the service manager; serve until a signal;
 * close everything. Returns the exit status of the program: 0, 1, 2 if the configuration is wrong, or
 * SERVER_LEAVES.
 */
int server_run(const struct server_options *options);

#endif
