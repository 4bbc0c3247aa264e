/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several programs that seal, write and free memory at random, some of which are killed, as the mover is: each
 * compares all its bytes with a model of its own (tests/shim/seal_random.c). In the end glaked has everything back.
 *
 * $GLAKE_RANDOM_SEED (printed; timing makes each run different all the same) and $GLAKE_RANDOM_SECONDS.
 */
#include <stdlib.h>
#include <time.h>

#include "tests/check_glake.h"
#include "tests/harness/run.h"
#include "tests/harness/world.h"

#define N_PROGRAMS 3u
#define SECONDS 3u

static unsigned number_of(const char *name, unsigned otherwise)
{
	const char *value = getenv(name);
	return value && *value ? (unsigned)strtoul(value, NULL, 10) : otherwise;
}

static void start(struct run *run, unsigned seed, unsigned seconds)
{
	char words[2][16];
	snprintf(words[0], sizeof(words[0]), "%u", seed);
	snprintf(words[1], sizeof(words[1]), "%u", seconds);
	run_start(run, NULL, run_in_build("tests/shim/seal_random"), words[0], words[1], NULL);
}

/* Fewer bytes than all of them want, so that writes find no memory for their copies now and then. */
START_TEST_WITH(no_byte_is_lost, .timeout_s = 600)
{
	unsigned seed = number_of("GLAKE_RANDOM_SEED", (unsigned)time(NULL));
	unsigned seconds = number_of("GLAKE_RANDOM_SECONDS", SECONDS);
	struct run runs[N_PROGRAMS];
	struct run killed;
	printf("GLAKE_RANDOM_SEED=%u\n", seed);
	fflush(stdout);
	world_begin(.config = WORLD_CONFIG "warm_bytes = \"16MiB\";", .devices = "1x80MiB");
	for (unsigned i = 0; i < N_PROGRAMS; i++) {
		start(&runs[i], seed + i, seconds);
	}
	/* Others come, and are killed at any moment. */
	unsigned n_kills = 0;
	time_t end = time(NULL) + (time_t)seconds;
	while (time(NULL) < end) {
		start(&killed, ++seed, seconds + 60);
		usleep(200000 + (useconds_t)rand_r(&seed) % 300000);
		kill(killed.pid, SIGKILL);
		int status = run_end(&killed);
		ck_assert_msg(status == SIGKILL, "status 0x%x, after:\n%s", status, killed.text);
		pid_t mover = world_mover();
		if (mover && ++n_kills % 3 == 0) {
			kill(mover, SIGKILL);
		}
	}
	for (unsigned i = 0; i < N_PROGRAMS; i++) {
		run_end_well(&runs[i]);
		printf("%s", runs[i].text);
	}
}
END_TEST
