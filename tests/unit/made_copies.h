/* SPDX-License-Identifier: Apache-2.0 */
/* Copies in host memory with a mover that does what the test says. Node 0 is the second location. */
#ifndef GLAKE_TESTS_MADE_COPIES_H
#define GLAKE_TESTS_MADE_COPIES_H

#include "daemon/store/copies.h"
#include "daemon/store/load.h"
#include "tests/unit/fake_parts.h"

static struct copies copies;
static struct location *host;
FAKE_UNUSED static void copies_begin(uint64_t host_bytes)
{
	begin();
	host = &devices[1].at;
	host->kind = LOCATION_HOST;
	host->usable_bytes = host_bytes;
	ck_assert_int_eq(copies_init(&copies, &store, &fake_link, &allocator, host, 1), 0);
	copies.nodes[0].large_bytes = 64 * MIB;
	store.copies = &copies;
	fake_link.loads = (struct pot){.row = USER_LOADS, .limit = GLAKE_MAX_LOADS};
	copies_set(&copies, true);
}

/* The oldest of a mover that lives. NULL: there is none. */
FAKE_UNUSED static struct mover_job *find_job(enum job_kind kind)
{
	struct mover_job *job = fake_mover.jobs;
	while (job && (job->kind != kind || job->held_by)) {
		job = job->hh.next;
	}
	return job;
}

FAKE_UNUSED static bool has_job(enum job_kind kind)
{
	return find_job(kind) != NULL;
}

FAKE_UNUSED static unsigned n_jobs(enum job_kind kind)
{
	unsigned n = 0;
	for (struct mover_job *job = fake_mover.jobs; job; job = job->hh.next) {
		n += job->kind == kind && !job->held_by;
	}
	return n;
}

/* The mover forgets what it is to forget. */
FAKE_UNUSED static bool forget(void)
{
	struct mover_job *job = find_job(JOB_FORGET);
	if (job) {
		struct forget_job *forget_job = container_of(job, struct forget_job, job);
		fake_mover_forget(job);
		forget_job->on_forgotten(forget_job);
	}
	return job != NULL;
}

/* Nothing is left of movers that could not end; what that begins is another mover's. */
FAKE_UNUSED static void end_dead_movers(void)
{
	struct mover_job *job = fake_mover.jobs;
	while (job) {
		if (job->held_by) {
			fake_mover_forget(job);
			job->on_gone(job);
			job = fake_mover.jobs;
		} else {
			job = job->hh.next;
		}
	}
}

/* The oldest copy that is being made is right. */
FAKE_UNUSED static bool finish_copy(void)
{
	if (list_is_empty(&copies.writing) || !has_job(JOB_DIGEST)) {
		return false;
	}
	struct copy *copy = NULL;
	for (copy = copies.table; copy && copy->state != COPY_WRITING; copy = copy->hh.next) {
	}
	ck_assert_ptr_nonnull(copy);
	fake_mover_digested(find_job(JOB_DIGEST), copy->key.digest);
	return true;
}

/* All that is under way, until nothing is: no load may be. */
FAKE_UNUSED static void settle(void)
{
	do {
		run_workers();
	} while (finish_copy() || forget());
}

FAKE_UNUSED static void copies_end(void)
{
	settle();
	store_evict_all(&store, NULL, NULL);
	settle();
	copies_close(&copies);
	settle();
	ck_assert_uint_eq(copies.bytes, 0);
	copies_deinit(&copies);
	pot_deinit(&fake_link.loads);
	store.copies = NULL;
	end();
}

FAKE_UNUSED static bool has_copy(unsigned name)
{
	struct digest of_name = digest(name);
	return copies_find(&copies, realm, &of_name) != NULL;
}

#endif
