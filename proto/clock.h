/* SPDX-License-Identifier: Apache-2.0 */
/* The clock that durations are measured by: monotonic, in nanoseconds, without a system call. */
#ifndef GLAKE_PROTO_CLOCK_H
#define GLAKE_PROTO_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void clock_sleep_ns(uint64_t ns)
{
	const struct timespec pause = {.tv_sec = (time_t)(ns / 1000000000u),
	                               .tv_nsec = (long)(ns % 1000000000u)};
	nanosleep(&pause, NULL);
}

#endif
