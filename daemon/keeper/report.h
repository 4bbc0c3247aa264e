/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines on stderr of a process that must neither wait nor die because nobody reads them.
 *
 * Threads: any.
 */
#ifndef GLAKE_DAEMON_KEEPER_REPORT_H
#define GLAKE_DAEMON_KEEPER_REPORT_H

/* One line behind the program's name. It is lost if stderr has no room for 10 ms. SIGPIPE is ignored. */
__attribute__((format(printf, 1, 2))) void report(const char *format, ...);

#endif
