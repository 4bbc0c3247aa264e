/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The report to glaked about the program: its calls and its driver usage. Most numbers come from
 * the shim's tables; the driver is asked for the memory that graphs and pools keep.
 *
 * Threads: the service's, if not said otherwise.
 */
#ifndef GLAKE_SHIM_REPORT_H
#define GLAKE_SHIM_REPORT_H

#include "shim/connection.h"

/*
 * Hand the numbers to @connection's session, for its next report. Asks the driver, of devices that
 * have a primary context here; not during captures.
 */
void report_program(struct connection *connection);

/*
 * Tell glaked now about memory that the program has freed. Exported for glake's NVML library in the same process.
 * Any thread. Blocks until glaked answers.
 */
void glake_shim_tell(void);

#endif
