/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The environment variables, read once; docs/compatibility.md has the table. In a program that
 * gains privileges from its file they are ignored.
 *
 * Threads: any.
 */
#ifndef GLAKE_SHIM_POLICY_H
#define GLAKE_SHIM_POLICY_H

#include <stdbool.h>

/* GLAKE_DEDUP: whether memory is sealed without anybody asking. If it is not set, the tenant's choice counts. */
enum shim_dedup {
	SHIM_DEDUP_UNTOLD,   /* no, as long as glaked has not told the tenant's choice */
	SHIM_DEDUP_ASKED,    /* no; also GLAKE_DEDUP=off */
	SHIM_DEDUP_AUTO,     /* yes, while all launched kernels are in tables */
	SHIM_DEDUP_OBSERVED, /* yes; kernels that are in no table are taken to hide no pointers */
	SHIM_DEDUP_LEARN,    /* no: the process finds out which kernels read (learn.h) */
};

struct shim_policy {
	bool is_off;           /* GLAKE_SHIM=off: every call goes to the driver */
	bool refuses_absent;   /* GLAKE_SHIM_ABSENT=refuse: no memory without glaked */
	bool owns_alloc;       /* GLAKE_SHIM_OWN: cuMemAlloc and its family */
	bool owns_async;       /* GLAKE_SHIM_OWN: cuMemAllocAsync and its family */
	bool owns_vmm;         /* GLAKE_SHIM_OWN: cuMemCreate and its family */
	enum shim_dedup dedup; /* the program's choice; see shim_dedup() */
	bool stitches;         /* GLAKE_ALLOC=stitch: memory in stream order is stitched */
	bool says_refused;     /* GLAKE_SHIM_SAY=refused: why memory is refused, on stderr */
};

const struct shim_policy *shim_policy(void);

/* The choice in force. It leaves SHIM_DEDUP_UNTOLD once, with the first session, and then stays. */
enum shim_dedup shim_dedup(void);
/* Tell the choice of the tenant when a session begins. The first one counts. */
void shim_dedup_tell(enum shim_dedup of_tenant);

/* Does any memory come from glaked? If not, the driver's own view is correct. */
bool shim_policy_owns_any(void);

#endif
