/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `glakectl status` at a glance: a line per GPU, a line per tenant against its limits, then what is wrong.
 *
 * Threads: one.
 */
#ifndef GLAKE_CTL_GLANCE_H
#define GLAKE_CTL_GLANCE_H

#include "ctl/ctl.h"

/* Print it. Returns 0, a code of glake.h or CTL_E_OUTPUT. */
int glance_print(struct ctl *ctl);

#endif
