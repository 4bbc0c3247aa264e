/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link to a mover that does what the test says. Included instead of being linked, since its functions are
 * those of mover_link.c.
 */
#ifndef GLAKE_TESTS_FAKE_MOVER_H
#define GLAKE_TESTS_FAKE_MOVER_H

#include "daemon/store/mover_link.h"
#include "tests/check_glake.h"

#define FAKE_UNUSED __attribute__((unused))

static struct {
	struct mover_job *jobs; /* table by id, in the order of their coming */
	uint64_t last_job;
	int refusal;      /* of the next order; 0: none */
	size_t n_granted; /* chunks, to all loads */
	size_t n_guesses; /* digests with a second chunk */
	size_t n_zeros;   /* chunks that are to read zero */
} fake_mover;

static int fake_mover_take(struct mover_job *job, enum job_kind kind)
{
	int r = fake_mover.refusal;
	fake_mover.refusal = 0;
	if (r == 0) {
		job->kind = kind;
		job->is_cancelled = false;
		job->held_by = NULL;
		job->id = ++fake_mover.last_job;
		HASH_ADD(hh, fake_mover.jobs, id, sizeof(job->id), job);
	}
	return r;
}

static void fake_mover_forget(struct mover_job *job)
{
	HASH_DEL(fake_mover.jobs, job);
	job->id = 0;
}

int mover_digest(struct mover_link *link, struct digest_job *digest, const struct device *device,
                 int fd, int other_fd, uint64_t chunk_bytes, uint64_t content_bytes)
{
	ck_assert_int_ge(fd, 0);
	fake_mover.n_guesses += other_fd >= 0;
	ck_assert_uint_le(content_bytes, chunk_bytes);
	return fake_mover_take(&digest->job, JOB_DIGEST);
}

int mover_compare(struct mover_link *link, struct compare_job *compare, const struct device *device,
                  int fd, uint64_t chunk_bytes, const struct mover_host *other)
{
	ck_assert_int_ge(fd, 0);
	ck_assert_int_ge(other->fd, 0);
	ck_assert_int_ne(fd, other->fd);
	return fake_mover_take(&compare->job, JOB_COMPARE);
}

int mover_copy(struct mover_link *link, struct digest_job *copy, const struct device *device,
               int fd, uint64_t chunk_bytes, uint64_t content_bytes, const struct mover_host *host,
               bool to_host)
{
	ck_assert_int_ge(fd, 0);
	ck_assert_int_ge(host->fd, 0);
	return fake_mover_take(&copy->job, JOB_DIGEST);
}

int mover_zero(struct mover_link *link, struct digest_job *zero, const struct device *device,
               int fd, uint64_t chunk_bytes, uint64_t content_bytes)
{
	ck_assert_int_ge(fd, 0);
	fake_mover.n_zeros++;
	return fake_mover_take(&zero->job, JOB_DIGEST);
}

int mover_forget(struct mover_link *link, struct forget_job *forget, uint64_t host_chunk)
{
	return fake_mover_take(&forget->job, JOB_FORGET);
}

int mover_load(struct mover_link *link, struct load_job *load, const struct device *device,
               const char *const *names, const char *index, const int *fds, size_t n_fds,
               bool may_direct)
{
	return fake_mover_take(&load->job, JOB_LOAD);
}

size_t mover_reserve(struct mover_link *link, struct load_job *load, size_t n)
{
	return n;
}

void mover_grant(struct mover_link *link, struct load_job *load, uint64_t first, const int *fds,
                 size_t n_fds)
{
	ck_assert_uint_ne(load->job.id, 0);
	for (size_t i = 0; i < n_fds; i++) {
		ck_assert_int_ge(fds[i], 0);
	}
	fake_mover.n_granted += n_fds;
}

void mover_cancel(struct mover_link *link, struct mover_job *job)
{
	if (job->id) {
		job->is_cancelled = true;
	}
}

bool mover_is_busy(const struct mover_link *link)
{
	return fake_mover.jobs != NULL;
}

int mover_link_pid(const struct mover_link *link)
{
	return 1;
}

/* The oldest job of that kind. */
FAKE_UNUSED static struct mover_job *fake_mover_job(enum job_kind kind)
{
	struct mover_job *job = fake_mover.jobs;
	while (job && job->kind != kind) {
		job = job->hh.next;
	}
	ck_assert_ptr_nonnull(job);
	return job;
}

FAKE_UNUSED static void fake_mover_digested(struct mover_job *job, struct digest digest)
{
	struct digest_job *digest_job = container_of(job, struct digest_job, job);
	ck_assert_int_eq(job->kind, JOB_DIGEST);
	fake_mover_forget(job);
	digest_job->on_digested(digest_job, &digest);
}

/* And the second chunk is equal. */
FAKE_UNUSED static void fake_mover_guessed(struct mover_job *job, struct digest digest)
{
	container_of(job, struct digest_job, job)->is_equal = true;
	fake_mover_digested(job, digest);
}

FAKE_UNUSED static void fake_mover_compared(struct mover_job *job, bool equal)
{
	struct compare_job *compare_job = container_of(job, struct compare_job, job);
	ck_assert_int_eq(job->kind, JOB_COMPARE);
	fake_mover_forget(job);
	compare_job->on_compared(compare_job, equal);
}

FAKE_UNUSED static void fake_mover_loaded(struct load_job *load, uint64_t block,
                                          struct digest digest)
{
	ck_assert_int_eq(load->ops->on_block_loaded(load, block, &digest), 0);
}

FAKE_UNUSED static void fake_mover_load_done(struct load_job *load)
{
	fake_mover_forget(&load->job);
	load->ops->on_done(load, 0, 0);
}

FAKE_UNUSED static void fake_mover_failed(struct mover_job *job, enum status status)
{
	fake_mover_forget(job);
	job->on_failed(job, status, "the fake mover failed it");
}

/* Every job fails, the oldest first. */
FAKE_UNUSED static void fake_mover_die(void)
{
	while (fake_mover.jobs) {
		fake_mover_failed(fake_mover.jobs, STATUS_MOVER_FAILED);
	}
}

/* As fake_mover_die(), but a file system keeps the mover from ending: it still has the chunks. */
FAKE_UNUSED static void fake_mover_die_slowly(void)
{
	uint64_t last_job = fake_mover.last_job;
	struct mover_job *job = fake_mover.jobs;
	while (job && job->id <= last_job) {
		if (!job->held_by) {
			job->held_by = (struct mover_process *)&fake_mover;
			job->on_failed(job, STATUS_MOVER_FAILED, "the fake mover died");
		} else {
			job = job->hh.next;
			continue;
		}
		job = fake_mover.jobs;
	}
}

/* And now nothing is left of it. */
FAKE_UNUSED static void fake_mover_gone(void)
{
	while (fake_mover.jobs) {
		struct mover_job *job = fake_mover.jobs;
		ck_assert_ptr_nonnull(job->held_by);
		fake_mover_forget(job);
		job->on_gone(job);
	}
}

FAKE_UNUSED static unsigned fake_mover_n_jobs(void)
{
	return HASH_COUNT(fake_mover.jobs);
}

#endif
