/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several programs that seal, write and free memory at random, some of which are killed, as the mover is: each
 * compares all its bytes with a model of its own (tests/shim/seal_random.c). In the end glaked has everything back.
 */
#include <time.h>

#include "tests/check_glake.h"
#include "tests/harness/churn.h"
#include "tests/harness/run.h"
#include "tests/harness/world.h"

#define N_PROGRAMS 3u
#define SECONDS 3u

static void start(struct run *run, unsigned seed, unsigned seconds)
{
	churn_start(run, NULL, "tests/shim/seal_random", seed, seconds);
}

/* Fewer bytes than all of them want, so that writes find no memory for their copies now and then. */
START_TEST_WITH(no_byte_is_lost, .timeout_s = 600)
{
	unsigned seed = churn_seed();
	unsigned seconds = churn_seconds(SECONDS);
	struct run runs[N_PROGRAMS];
	struct run killed;
	world_begin(.config = WORLD_CONFIG "warm_bytes = \"16MiB\";", .devices = "1x80MiB");
	for (unsigned i = 0; i < N_PROGRAMS; i++) {
		start(&runs[i], seed + i, seconds);
	}
	/* More programs come, and are killed at any moment. */
	unsigned n_kills = 0;
	time_t end = time(NULL) + (time_t)seconds;
	while (time(NULL) < end) {
		start(&killed, ++seed, seconds + 60);
		usleep(200000 + churn_pick(&seed, 300000));
		churn_kill(&killed);
		pid_t mover = world_mover();
		if (mover && ++n_kills % 3 == 0) {
			kill(mover, SIGKILL);
		}
	}
	churn_end(runs, N_PROGRAMS);
}
END_TEST
