/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What glaked is told of the program: its calls, and what it has of the driver. What there are books
 * of comes from them; what graphs and pools keep, only the driver knows.
 *
 * Threads: the service's.
 */
#ifndef GLAKE_SHIM_REPORT_H
#define GLAKE_SHIM_REPORT_H

#include "shim/owner.h"

/*
 * Hand the numbers to @owner's session, for its next report. Asks the driver, of devices that have a
 * primary context here; not during captures.
 */
void report_program(struct owner *owner);

#endif
