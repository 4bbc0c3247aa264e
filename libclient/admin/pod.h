/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which pod of Kubernetes a process is in, by its cgroup: the kubelet names cgroups after pods.
 *
 * Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_POD_H
#define GLAKE_LIBCLIENT_POD_H

#define GLAKE__POD_UID_BYTES 40u
#define GLAKE__CONTAINER_BYTES 72u

struct glake__pod {
	char uid[GLAKE__POD_UID_BYTES]; /* with dashes; that of a static pod has none. "": in no pod */
	char container
		[GLAKE__CONTAINER_BYTES]; /* its id, 64 hexadecimal digits; "": none is named */
};

/* @cgroup is a path in the unified hierarchy. */
void glake__pod_of_cgroup(const char *cgroup, struct glake__pod *pod_out);

#endif
