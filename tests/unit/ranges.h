/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges over the simulated driver and chunks of this process, for the tests of the map. */
#ifndef GLAKE_TESTS_RANGES_H
#define GLAKE_TESTS_RANGES_H

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libclient/api/placed.h"
#include "libclient/heap/backing.h"
#include "libclient/space/look.h"
#include "libclient/space/program.h"
#include "libclient/link/error.h"
#include "libclient/space/map.h"
#include "libclient/space/reback.h"
#include "libclient/space/window.h"
#include "tests/cudasim/test_driver.h"
#include "tests/reback_one.h"

static struct cudrv drv;
static char fault_path[256];

static inline void set_faults(const char *rules);

static inline void begin_with(const char *devices, const char *faults)
{
	char text[256];
	const char *tmp = getenv("TMPDIR");
	driver_setup(devices);
	snprintf(fault_path, sizeof(fault_path), "%s/range-faults-%d", tmp ? tmp : "/tmp",
	         (int)getpid());
	setenv("CUDASIM_FAULT_FILE", fault_path, 1);
	if (faults) {
		set_faults(faults);
	}
	const char *path = getenv("GLAKE_LIBCUDA");
	ck_assert_int_eq(
		cudrv_open(&drv, path ? path : "build/cudasim/libcuda.so.1", text, sizeof(text)),
		0);
	driver_start();
	glake__space_begin();
	glake__space_open(&drv);
}

static inline void begin_one(void)
{
	begin_with("1GiB", NULL);
}

/* From now on; "" is none. The simulator looks at the time of change. */
static inline void set_faults(const char *rules)
{
	char other[300];
	snprintf(other, sizeof(other), "%s.new", fault_path);
	FILE *file = fopen(other, "w");
	ck_assert_ptr_nonnull(file);
	fputs(rules, file);
	fclose(file);
	/* Two changes may come within one tick of the clock that files are stamped by. */
	static time_t n_changes;
	const struct timespec times[2] = {{.tv_sec = ++n_changes}, {.tv_sec = n_changes}};
	ck_assert_int_eq(utimensat(AT_FDCWD, other, times, 0), 0);
	ck_assert_int_eq(rename(other, fault_path), 0);
}

/* ---- chunks of this process: id is a number of the test's ---------------------------------------- */

static uint64_t last_id;
static size_t n_released;

static inline void note_release(struct glake__chunk *chunk)
{
	n_released++;
	free(chunk);
}

/* A fresh chunk whose every word is its id. */
static inline struct glake__part make_part(uint64_t n_mib)
{
	CUmemGenericAllocationHandle handle = chunk_new(n_mib * MIB);
	struct glake__part part = {
		.chunk = glake__chunk_new(++last_id, n_mib * MIB, 0, GLAKE__PAGE_CHUNK),
		.n_bytes = n_mib * MIB,
		.access = GLAKE__ACCESS_WRITE,
		.fd = chunk_export(handle),
	};
	ck_assert_ptr_nonnull(part.chunk);
	part.chunk->release = note_release;
	CUdeviceptr at = chunk_map(handle, n_mib * MIB, READ_WRITE);
	ck_ok(drv.cuMemsetD32Async(at, (unsigned)last_id, n_mib * MIB / 4, NULL));
	ck_ok(drv.cuCtxSynchronize());
	ck_ok(cu.MemUnmap(at, n_mib * MIB));
	ck_ok(cu.MemAddressFree(at, n_mib * MIB));
	ck_ok(cu.MemRelease(handle));
	return part;
}

static inline struct glake__part hole(uint64_t n_mib)
{
	return (struct glake__part){.n_bytes = n_mib * MIB, .fd = -1};
}

static inline void end_part(const struct glake__part *part)
{
	if (part->chunk) {
		glake__chunk_put(part->chunk);
	}
	if (part->fd >= 0) {
		close(part->fd);
	}
}

static inline uint32_t word_at(glake_ptr ptr)
{
	uint32_t word = 0;
	ck_ok(drv.cuMemcpyDtoH(&word, ptr, sizeof(word)));
	return word;
}

static inline struct glake__range *reserve_range(uint64_t n_mib)
{
	struct glake__range *range = NULL;
	ck_assert_int_eq(
		glake__range_reserve(&glake__use_placed, NULL, 0, n_mib * MIB, 0, 0, &range), 0);
	return range;
}

#endif
