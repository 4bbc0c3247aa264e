/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/service.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include "shim/capture.h"
#include "shim/order.h"
#include "shim/report.h"

#define STACK_BYTES (256u * 1024)
#define REPORT_MS 2000
/* Another thread may be reading what we were woken for: let it. */
#define REST_NS 5000000

static uint64_t now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void *serve(void *user)
{
	struct owner *owner = user;
	const struct timespec rest = {.tv_nsec = REST_NS};
	uint64_t reported_ms = now_ms();
	capture_relax();
	while (!owner->is_dead) {
		struct pollfd ready = {.fd = glake_fd(owner->session), .events = POLLIN};
		if (ready.fd < 0) {
			owner->is_dead = true;
			break;
		}
		if (poll(&ready, 1, REPORT_MS) != 0) {
			nanosleep(&rest, NULL);
		}
		order_collect_all();
		if (now_ms() - reported_ms >= REPORT_MS) {
			reported_ms = now_ms();
			report_program(owner);
		}
		owner_is_gone(owner, glake_dispatch(owner->session));
	}
	owner_unref(owner);
	return NULL;
}

void service_start(struct owner *owner)
{
	pthread_attr_t attributes;
	pthread_t thread;
	sigset_t all;
	sigset_t before;
	if (pthread_attr_init(&attributes) != 0) {
		return;
	}
	pthread_attr_setstacksize(&attributes, STACK_BYTES);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	owner_ref(owner);
	if (pthread_create(&thread, &attributes, serve, owner) != 0) {
		owner_unref(owner);
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
}
