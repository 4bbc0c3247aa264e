/* SPDX-License-Identifier: Apache-2.0 */
/* Programs that cannot be awake together, on two devices, wake and sleep: each comes to its turn, with its bytes. */
#include <pthread.h>

#include "tests/harness/words.h"

#define N_SLEEPERS 3u
#define N_TURNS (TEST_SANITIZED ? 2u : 6u)
#define BYTES (40 * MIB)

static void begin(void)
{
	world_begin(.config = WORLD_CONFIG "warm_bytes = \"0\"; wake_wait_ms = 60000;",
	            .devices = "2x64MiB");
	words_open_driver();
}
BEGIN_EACH(begin)

struct sleeper {
	pthread_t thread;
	struct glake_session *session;
	glake_ptr first;  /* on the first device */
	glake_ptr second; /* on the second one */
	uint64_t content;
};

static struct sleeper begin_sleeper(uint64_t content)
{
	struct sleeper sleeper = {.session = world_connect(), .content = content};
	words_use_device(0);
	sleeper.first = words_alloc(sleeper.session, BYTES, content);
	assert_ok(glake_alloc(sleeper.session, 1, BYTES, 0, &sleeper.second));
	words_use_device(1);
	words_write(sleeper.second, BYTES, content + 100);
	words_fall_asleep(sleeper.session);
	return sleeper;
}

/* Another thread's change of the process's memory may be under way: then again. */
static void fall_asleep(struct glake_session *session)
{
	int r;
	do {
		r = glake_sleep(session, 1000, NULL);
	} while (r == -EBUSY);
	assert_ok(r);
}

static void *take_turns(void *user)
{
	struct sleeper *sleeper = user;
	for (unsigned i = 0; i < N_TURNS; i++) {
		words_use_device(0);
		assert_ok(glake_wake(sleeper->session, NULL));
		words_check(sleeper->first, BYTES, sleeper->content);
		words_use_device(1);
		words_check(sleeper->second, BYTES, sleeper->content + 100);
		fall_asleep(sleeper->session);
	}
	return NULL;
}

/* Each needs both devices, of which the others may have one. */
START_TEST_WITH(sleepers_that_need_the_room_of_each_other_take_turns, .timeout_s = 120)
{
	struct sleeper sleepers[N_SLEEPERS];
	for (unsigned i = 0; i < N_SLEEPERS; i++) {
		sleepers[i] = begin_sleeper(i);
	}
	for (unsigned i = 0; i < N_SLEEPERS; i++) {
		pthread_create(&sleepers[i].thread, NULL, take_turns, &sleepers[i]);
	}
	for (unsigned i = 0; i < N_SLEEPERS; i++) {
		pthread_join(sleepers[i].thread, NULL);
	}
	ck_assert_uint_eq(world_metric("wakes_refused"), 0);
}
END_TEST
