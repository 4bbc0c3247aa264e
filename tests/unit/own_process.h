/* SPDX-License-Identifier: Apache-2.0 */
/* Something that ends its process, run in a process of its own. */
#ifndef GLAKE_TESTS_UNIT_OWN_PROCESS_H
#define GLAKE_TESTS_UNIT_OWN_PROCESS_H

#include <sys/wait.h>
#include <unistd.h>

#include "tests/check_glake.h"

/* Run it in a child, and return the child's status, as of waitpid(). If @run returns, the child exits with 99. */
static inline int status_of(void (*run)(void))
{
	int status;
	pid_t child = fork();
	ck_assert_int_ge(child, 0);
	if (child == 0) {
		run();
		_exit(99);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	return status;
}

#endif
