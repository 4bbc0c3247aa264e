/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <sys/resource.h>

#include "daemon/base/hash.h"
#include "tests/check_glake.h"

struct element {
	UT_hash_handle hh;
	uint64_t id;
};

START_TEST(no_memory_is_an_answer)
{
	/* A sanitizer's allocator ends the process when the system has nothing more. */
	if (TEST_SANITIZED) {
		return;
	}
	enum { N = 1 << 20 };
	static struct element elements[N];
	struct element *table = NULL;
	struct rlimit limit;
	uint64_t n_added = 0;
	/* Nothing more from the system: only what the heap has left. */
	ck_assert_int_eq(getrlimit(RLIMIT_AS, &limit), 0);
	limit.rlim_cur = 1;
	ck_assert_int_eq(setrlimit(RLIMIT_AS, &limit), 0);
	for (; n_added < N; n_added++) {
		struct element *element = &elements[n_added];
		element->id = n_added;
		HASH_ADD(hh, table, id, sizeof(element->id), element);
		if (!hash_has(element)) {
			break;
		}
	}
	limit.rlim_cur = limit.rlim_max;
	ck_assert_int_eq(setrlimit(RLIMIT_AS, &limit), 0);
	ck_assert_uint_gt(n_added, 0);
	ck_assert_uint_lt(n_added, N);
	/* The table is as it was: all that is in it is found, what was refused is not. */
	ck_assert_uint_eq(HASH_COUNT(table), n_added);
	for (uint64_t id = 0; id <= n_added; id++) {
		struct element *found;
		HASH_FIND(hh, table, &id, sizeof(id), found);
		ck_assert_ptr_eq(found, id < n_added ? &elements[id] : NULL);
	}
	HASH_CLEAR(hh, table);
}
END_TEST
