/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Findings of `glakectl doctor`: what was looked at, how it stands, and what helps.
 *
 * Owner: whoever has the struct. Lifetime: {0} is empty; findings_deinit(). Threads: one.
 */
#ifndef GLAKE_CTL_DOCTOR_H
#define GLAKE_CTL_DOCTOR_H

#include "ctl/ctl.h"
#include "ctl/rows.h"

enum finding_level {
	FINDING_OK,
	FINDING_NOTE,    /* something does not work here that not everybody needs */
	FINDING_WARNING, /* it works, and may fail later */
	FINDING_ERROR,   /* it does not work */
};

struct finding {
	const char *check;  /* static */
	const char *level;  /* static */
	char *text;         /* owned */
	const char *remedy; /* static; "": none is needed */
};

struct findings {
	struct rows list; /* struct finding */
	uint32_t n_warnings;
	uint32_t n_errors;
	bool is_lost; /* no memory for one */
};

void findings_deinit(struct findings *findings);

/* Warnings and errors with what helps, or that there is none. */
void findings_print_wrong(const struct findings *findings, FILE *out);

/* @check and @remedy are static; @remedy may be NULL. */
void finding_add(struct findings *findings, const char *check, enum finding_level level,
                 const char *remedy, const char *format, ...) __attribute__((format(printf, 5, 6)));

/* Write the first line of a file that begins with @begin, without its end. False: there is none, and "" is written. */
bool doctor_read_line(const char *path, const char *begin, char *line_out, int n_bytes);

/* ---- of this host and this process (doctor_host.c) ---- */

/* The driver is started in a process of its own. */
void doctor_check_driver(struct findings *findings);
void doctor_check_limits(struct findings *findings);
void doctor_check_kernel(struct findings *findings);
void doctor_check_mps(struct findings *findings);
/* @path: /etc/subuid. */
void doctor_check_subuids(struct findings *findings, const char *path);
/* @path: /proc/self/cgroup. */
void doctor_check_cgroup(struct findings *findings, const char *path);

/* ---- of host memory, and of sleep (doctor_tier.c) ---- */

struct glake_status;

/* @sysfs: /sys/devices/system/node. */
void doctor_check_hosts(struct findings *findings, const struct glake_status *status,
                        const char *sysfs);
void doctor_check_sleep(struct findings *findings, const struct glake_status *status);
/* Check the memory of the process whose groups @cgroup has: /proc/PID/cgroup. @root: /sys/fs/cgroup. */
void doctor_check_memory(struct findings *findings, const char *cgroup, const char *root);

/* ---- of glaked (doctor_daemon.c) ---- */

/* Returns 0, or the code of glake.h that a connection failed with. */
int doctor_check_daemon(struct ctl *ctl, struct findings *findings);
/* Add that a connection failed with @err, because of @cause. */
void doctor_add_unreachable(const struct ctl *ctl, int err, const char *cause,
                            struct findings *findings);
/* Check glaked over the connection that there is, without looking at the socket's file. */
int doctor_check_connected(struct ctl *ctl, struct findings *findings);

#endif
