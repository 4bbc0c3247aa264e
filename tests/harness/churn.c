/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/churn.h"

#include <signal.h>
#include <stdio.h>
#include <time.h>

#include "tests/check_glake.h"
#include "tests/harness/run.h"

static unsigned number_of(const char *name, unsigned otherwise)
{
	const char *value = getenv(name);
	return value && *value ? (unsigned)strtoul(value, NULL, 0) : otherwise;
}

unsigned churn_seed(void)
{
	unsigned seed = number_of("GLAKE_RANDOM_SEED", (unsigned)time(NULL));
	printf("GLAKE_RANDOM_SEED=%u\n", seed);
	fflush(stdout);
	return seed;
}

unsigned churn_seconds(unsigned otherwise)
{
	return number_of("GLAKE_RANDOM_SECONDS", otherwise);
}

void churn_start(struct run *run, const char *extra, const char *program, unsigned seed,
                 unsigned number)
{
	char words[2][16];
	snprintf(words[0], sizeof(words[0]), "%u", seed);
	snprintf(words[1], sizeof(words[1]), "%u", number);
	run_start(run, extra, run_in_build(program), words[0], words[1], NULL);
}

void churn_kill(struct run *run)
{
	kill(run->pid, SIGKILL);
	int status = run_end(run);
	ck_assert_msg(status == SIGKILL || status == 0, "status 0x%x, after:\n%s", status,
	              run->text);
}

void churn_end(struct run *runs, size_t n_runs)
{
	for (size_t i = 0; i < n_runs; i++) {
		run_end_well(&runs[i]);
		printf("%s", runs[i].text);
	}
}
