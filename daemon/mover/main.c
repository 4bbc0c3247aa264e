/* SPDX-License-Identifier: Apache-2.0 */
/*
 * glake-mover: the hands of glaked. Only glake-keeper starts it, for glaked, with a SOCK_SEQPACKET
 * socket as fd 3 (proto/mover.proto), and it ends when that socket does.
 *
 * Environment: GLAKE_LIBCUDA (the driver library), GLAKE_MOVER_READERS (reader threads),
 * GLAKE_MOVER_SLOT_KIB (staging slot; a multiple of 4) and GLAKE_MOVER_HEADERS_MIB (memory for
 * headers and plans), for measurements.
 */
#include <argp.h>
#include <fcntl.h>
#include <jansson.h>
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/mover/jobs.h"
#include "proto/cudrv.h"
#include "proto/limits.h"
#include "proto/wire.h"

#define SOCKET_FD 3
#define DEFAULT_READERS 8
#define DEFAULT_SLOT_KIB 4096
/* Files are read past the page cache in pages. */
#define SLOT_STEP_KIB 4
#define MMAP_BYTES (256 * 1024)
/* The largest valid header fits half of it. */
#define DEFAULT_HEADERS_MIB 1024
/* SIGALRM ends the process if its orderly end hangs, for example in a dead file system. */
#define END_SECONDS 10

/* libc looks it up by its name. */
__attribute__((visibility("default")))
const char *argp_program_version = "glake-mover " GLAKE_VERSION;

struct mover {
	struct cudrv drv;
	struct report report;
	struct devices devices;
	struct pump pump;
	struct prober prober;
	struct refuser refuser;
	struct budget budget;
	struct jobs jobs;
};

/* A multiple of @least from the environment, or @fallback. */
static unsigned long setting(const char *name, unsigned long fallback, unsigned long least,
                             unsigned long most)
{
	const char *text = getenv(name);
	if (!text || !*text) {
		return fallback;
	}
	char *end;
	unsigned long value = strtoul(text, &end, 10);
	if (*end || value == 0 || value > most || value % least != 0) {
		say("%s is not a number from %lu to %lu, in steps of %lu: %lu is used", name, least,
		    most, least, fallback);
		return fallback;
	}
	return value;
}

static unsigned n_readers(void)
{
	long n_processors = sysconf(_SC_NPROCESSORS_ONLN);
	long fallback = n_processors < 2                 ? 2
	                : n_processors < DEFAULT_READERS ? n_processors
	                                                 : DEFAULT_READERS;
	return (unsigned)setting("GLAKE_MOVER_READERS", (unsigned long)fallback, 1,
	                         PUMP_MAX_THREADS);
}

/*
 * Large memory goes back when it is freed. By itself malloc learns to keep what is freed often, once for
 * each thread, which for headers came to more than what was in use.
 */
static void keep_no_memory(void)
{
	mallopt(M_MMAP_THRESHOLD, MMAP_BYTES);
}

/* Grants bring hundreds of fds. */
static void raise_fd_limit(void)
{
	struct rlimit limit;
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

static int check_socket(void)
{
	int type;
	socklen_t length = sizeof(type);
	if (getsockopt(SOCKET_FD, SOL_SOCKET, SO_TYPE, &type, &length) < 0 ||
	    type != SOCK_SEQPACKET) {
		say("fd %d is not glaked's socket: this program is started by glaked only",
		    SOCKET_FD);
		return MOVER_E_FAULT;
	}
	fcntl(SOCKET_FD, F_SETFD, FD_CLOEXEC);
	return 0;
}

/*
 * A context costs time and memory per hardware queue, and our few streams lose nothing by sharing
 * one: on an H200 it is there in 44 ms instead of 90, and loads run at the same speed.
 */
static void want_small_contexts(void)
{
	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 0);
}

static int start_driver(struct mover *mover)
{
	char error[256];
	struct fault fault;
	if (cudrv_open(&mover->drv, NULL, error, sizeof(error)) < 0) {
		say("%s", error);
		return MOVER_E_FAULT;
	}
	CUresult result = mover->drv.cuInit(0);
	if (result != CUDA_SUCCESS) {
		say("cuInit: %s", cudrv_error(&mover->drv, result));
		return MOVER_E_FAULT;
	}
	if (devices_init(&mover->devices, &mover->drv, &fault)) {
		say("%s", fault.text);
		return MOVER_E_FAULT;
	}
	return 0;
}

/* Serve until glaked closes its end. Returns the exit status. */
static int serve(struct mover *mover)
{
	static uint8_t packet[GLAKE_MAX_PACKET_BYTES];
	for (;;) {
		struct fdlist fds;
		size_t n_bytes;
		fdlist_init(&fds);
		int error = wire_recv(SOCKET_FD, packet, sizeof(packet), &n_bytes, &fds, 0);
		if (error == WIRE_E_EOF) {
			return EXIT_SUCCESS;
		}
		if (error < 0) {
			say("receiving an order: %s", strerror(-error));
			return EXIT_FAILURE;
		}
		if (error || jobs_order(&mover->jobs, packet, n_bytes, &fds)) {
			say("glaked sent a packet that is not an order");
			return EXIT_FAILURE;
		}
	}
}

static error_t refuse_arguments(int key, char *value, struct argp_state *state)
{
	if (key != ARGP_KEY_ARG) {
		return ARGP_ERR_UNKNOWN;
	}
	argp_error(state, "unexpected argument: '%s'", value);
	return EINVAL;
}

int main(int argc, char **argv)
{
	static const struct argp argp = {
		.parser = refuse_arguments,
		.doc = "Loads, digests and compares GPU memory for glaked, which starts it.",
	};
	static struct mover mover;
	argp_err_exit_status = 2;
	argp_parse(&argp, argc, argv, 0, NULL, NULL);
	/* The mover ends with glake-keeper, which ends with glaked. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGPIPE, SIG_IGN);
	/* A lease may be broken while settle() has it. */
	signal(SIGIO, SIG_IGN);
	keep_no_memory();
	raise_fd_limit();
	json_object_seed(0);
	want_small_contexts();
	if (check_socket() || start_driver(&mover)) {
		return EXIT_FAILURE;
	}
	report_init(&mover.report, SOCKET_FD);
	budget_init(&mover.budget, setting("GLAKE_MOVER_HEADERS_MIB", DEFAULT_HEADERS_MIB, 1, 65536)
	                                   << 20);
	pump_init(&mover.pump, &mover.drv, n_readers(),
	          setting("GLAKE_MOVER_SLOT_KIB", DEFAULT_SLOT_KIB, SLOT_STEP_KIB, 65536) * 1024);
	int error = prober_init(&mover.prober, &mover.devices, &mover.report);
	if (!error) {
		error = refuser_init(&mover.refuser, &mover.report);
	}
	if (error < 0) {
		say("no thread: %s", strerror(-error));
		return EXIT_FAILURE;
	}
	jobs_init(&mover.jobs, &mover.drv, &mover.devices, &mover.pump, &mover.prober,
	          &mover.refuser, &mover.budget, &mover.report);
	report_ready(&mover.report);

	int status = serve(&mover);

	alarm(END_SECONDS);
	jobs_deinit(&mover.jobs);
	refuser_deinit(&mover.refuser);
	prober_deinit(&mover.prober);
	pump_deinit(&mover.pump);
	devices_deinit(&mover.devices);
	report_deinit(&mover.report);
	return status;
}
