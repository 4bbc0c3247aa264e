/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tenants' limits on GPUs, and sleepers. A limit that is less than what one sleeper alone needs keeps it asleep for as
 * long as it holds. Those who together need more than the limit take turns, as others do. Limits of host memory are of
 * no concern: copies stay.
 *
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_SLEEP_LIMIT_H
#define GLAKE_DAEMON_SLEEP_LIMIT_H

#include "daemon/holders/sleeper.h"

/*
 * Whether each sleeper of @tenant could wake if the limit at @at was @quota_bytes (0 = none). If not, *error_out (of
 * SLEEP_ERROR_BYTES) names those who could not, and their bytes.
 */
bool sleep_limit_lets_wake(const struct holders *holders, const struct tenant *tenant,
                           const struct location *at, uint64_t quota_bytes, char *error_out);

/* An event about each sleeper that cannot wake by the limits that there are, of @tenant, or NULL: of all. */
void sleep_limit_tell(const struct holders *holders, const struct tenant *tenant);

#endif
