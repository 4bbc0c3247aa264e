/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several programs of several threads that do random things with memory of each kind (tests/shim/sleep_random.c), while
 * two operators put them to sleep, wake them and seal their memory, policy puts them to sleep as well, and programs,
 * glake-mover and glaked are killed. The device and the host tier have less than all of them want. Each program compares
 * all its bytes; in the end glaked has everything back.
 */
#include <time.h>

#include "tests/harness/churn.h"
#include "tests/harness/run.h"
#include "tests/harness/world.h"

#define N_PROGRAMS 3u
#define N_OPERATORS 2u
#define SECONDS 6u
#define CONFIG \
	WORLD_CONFIG \
	"warm_bytes = \"4MiB\"; host_bytes = \"96MiB\"; " \
	"pressure = \"wait\"; wait_ms = 300; wake_wait_ms = 3000; min_awake_ms = 100; " \
	"tenants = ({ name = \"default\"; idle_ms = 500; on_pressure = \"sleep\"; });"

static unsigned seed;

/* ---- operators: processes of their own ---------------------------------------------------------- */

enum { MAX_FOUND = 16 };

struct found {
	uint64_t ids[MAX_FOUND];
	unsigned n;
};

static int find_program(void *user, const struct glake_session_row *row)
{
	struct found *found = user;
	if (strcmp(row->program, "sleep_random") == 0 && found->n < MAX_FOUND) {
		found->ids[found->n++] = row->session;
	}
	return 0;
}

/* An operator may get these while programs, mover and glaked die, and others ask as well. */
static bool is_refusal(int r)
{
	static const int all[] = {GLAKE_E_GONE,           GLAKE_E_NOT_FOUND,
	                          GLAKE_E_BUSY,           GLAKE_E_BAD_REQUEST,
	                          GLAKE_E_NO_HOST_MEMORY, GLAKE_E_NO_DEVICE_MEMORY,
	                          GLAKE_E_MOVER,          GLAKE_E_NO_FDS,
	                          GLAKE_E_SHUTTING_DOWN,  GLAKE_E_OVER_QUOTA};
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		if (r == all[i]) {
			return true;
		}
	}
	return false;
}

static int note_report(void *user, const struct glake_sleep_report *report)
{
	*(bool *)user = report->is_asleep;
	return 0;
}

static int operate_on(struct glake_session *session, uint64_t id)
{
	struct glake_sleep_options options = {.size = sizeof(options)};
	struct glake_seal_report sealed = {.size = sizeof(sealed)};
	bool is_asleep;
	switch (churn_pick(&seed, 8)) {
	case 0:
	case 1:
		return glake_seal_session(session, id, NULL, &sealed);
	case 2:
	case 3:
		options.wakes = 1;
		break;
	default:
		break;
	}
	return glake_sleep_session(session, id, &options, note_report, &is_asleep);
}

static void operate(void *user)
{
	struct glake_session *session = world_connect_blind();
	seed += 1000 * (unsigned)(uintptr_t)user;
	while (atomic_load(world_stage) == 0) {
		struct found found = {.n = 0};
		int r = glake_list_sessions(session, find_program, &found);
		if (r == 0 && found.n > 0) {
			r = operate_on(session, found.ids[churn_pick(&seed, found.n)]);
		}
		ck_assert_msg(r == 0 || is_refusal(r), "%d: %s", r, glake_error());
		harness_sleep_ms(churn_pick(&seed, 200));
	}
	world_disconnect(session);
}

/* ---- programs ----------------------------------------------------------------------------------- */

static void start(struct run *run, unsigned seconds)
{
	churn_start(run, churn_pick(&seed, 2) ? "GLAKE_ALLOC=stitch" : NULL,
	            "tests/shim/sleep_random", churn_pick(&seed, 1000000), seconds);
}

/* One whose time is over has ended well, and the next one comes. */
static void look_after(struct run *run)
{
	siginfo_t info = {.si_pid = 0};
	ck_assert_int_eq(waitid(P_PID, (id_t)run->pid, &info, WEXITED | WNOHANG | WNOWAIT), 0);
	if (info.si_pid != 0) {
		run_end_well(run);
		start(run, 1 + churn_pick(&seed, 4));
	} else if (churn_pick(&seed, 100) == 0) {
		churn_kill(run);
		start(run, 1 + churn_pick(&seed, 4));
	}
}

/* These are summed up over all glakeds. */
static const char *const metrics[] = {"sleeps", "sleeps_idle",   "sleeps_pressure",
                                      "wakes",  "wakes_refused", "blocks_sealed"};
#define N_METRICS (sizeof(metrics) / sizeof(metrics[0]))
static uint64_t counts[N_METRICS];

static void count(void)
{
	for (size_t i = 0; i < N_METRICS; i++) {
		counts[i] += world_metric(metrics[i]);
	}
}

static void kill_mover(void)
{
	pid_t mover = world_mover();
	if (mover) {
		kill(mover, SIGKILL);
	}
}

static void disturb(void)
{
	switch (churn_pick(&seed, 100)) {
	case 0:
		count();
		harness_kill(&harness);
		harness_restart(&harness);
		break;
	case 1:
	case 2:
		kill_mover();
		break;
	default:
		break;
	}
}

START_TEST_WITH(no_byte_is_lost, .timeout_s = 1200)
{
	static struct run runs[N_PROGRAMS];
	pid_t operators[N_OPERATORS];
	seed = churn_seed();
	time_t end = time(NULL) + (time_t)churn_seconds(SECONDS);
	world_begin(.config = CONFIG, .devices = "1x72MiB", .has_keeper = true);
	for (unsigned i = 0; i < N_PROGRAMS; i++) {
		start(&runs[i], 2 + i);
	}
	for (unsigned i = 0; i < N_OPERATORS; i++) {
		operators[i] = world_client(operate, (void *)(uintptr_t)(i + 1));
	}
	/* On a slow machine the first sleep may come late; if it never does, the test's own limit ends this. */
	while (time(NULL) < end || counts[0] + world_metric("sleeps") == 0) {
		for (unsigned i = 0; i < N_PROGRAMS; i++) {
			look_after(&runs[i]);
		}
		harness_sleep_ms(50);
		disturb();
	}
	world_reach(1);
	for (unsigned i = 0; i < N_OPERATORS; i++) {
		world_join(operators[i]);
	}
	churn_end(runs, N_PROGRAMS);
	count();
	for (size_t i = 0; i < N_METRICS; i++) {
		printf("%s %llu%s", metrics[i], (unsigned long long)counts[i],
		       i + 1 < N_METRICS ? ", " : "\n");
	}
}
END_TEST
