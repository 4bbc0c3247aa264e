/* SPDX-License-Identifier: Apache-2.0 */
/*
 * With GLAKE_SHIM_SAY=refused: a line on stderr when the program is refused memory, with glaked's reason. The program itself
 * gets a code without a text. At most one line is written a second; the next one says how many refusals came between.
 *
 * Threads: any.
 */
#ifndef GLAKE_SHIM_REFUSED_H
#define GLAKE_SHIM_REFUSED_H

/* Report that memory was refused, by this thread's last call of the library or by the connection. @error: CONNECTION_E_*. */
void refused_say(int error);

#endif
