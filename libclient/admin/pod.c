/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kubelet's cgroup drivers write the same in two ways:
 *
 *   cgroupfs  /kubepods/burstable/podUID/CONTAINER
 *   systemd   /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice/cri-containerd-CONTAINER.scope
 *
 * The dashes of a UID are underscores for systemd, to which a dash is a slash. "burstable" may be "besteffort", or miss;
 * other folders may stand before (--cgroup-root), and "crio", "docker" before the container. A containerd that is
 * set to the other driver than the kubelet writes "kubepods-burstable-podUID.slice:cri-containerd:CONTAINER".
 *
 * Whoever may make cgroups can call them like this, too. So the outermost pod counts, which is the kubelet's own if there
 * is one, and none below a user's slice, where users make cgroups without asking anybody.
 */
#include "libclient/admin/pod.h"

#include <stdbool.h>
#include <string.h>

#define CONTAINER_DIGITS 64u

static bool is_hex(char digit)
{
	return (digit >= '0' && digit <= '9') || (digit >= 'a' && digit <= 'f');
}

/* 8-4-4-4-12 digits, or 32 of them, and then the component or its name ends. Returns its length, or 0. */
static size_t uid_bytes(const char *text)
{
	size_t n = 0;
	size_t n_digits = 0;
	for (; is_hex(text[n]) || text[n] == '-' || text[n] == '_'; n++) {
		bool is_gap = n == 8 || n == 13 || n == 18 || n == 23;
		if (!is_hex(text[n]) && !is_gap) {
			return 0;
		}
		n_digits += is_hex(text[n]);
	}
	bool is_end = text[n] == '\0' || text[n] == '/' || strncmp(text + n, ".slice", 6) == 0;
	return n_digits == 32 && (n == 32 || n == 36) && is_end ? n : 0;
}

/* The UID in the component at @at; NULL: it is not a pod's. @is_inside: a component before was the kubelet's. */
static const char *find_uid(const char *at, bool is_inside)
{
	const char *end = at + strcspn(at, "/");
	if (is_inside && strncmp(at, "pod", 3) == 0 && uid_bytes(at + 3) > 0) {
		return at + 3;
	}
	const char *kubepods = strstr(at, "kubepods");
	for (const char *pod = kubepods && kubepods < end ? strstr(kubepods, "-pod") : NULL;
	     pod && pod < end; pod = strstr(pod + 1, "-pod")) {
		if (uid_bytes(pod + 4) > 0) {
			return pod + 4;
		}
	}
	return NULL;
}

static void take_uid(const char *uid, char *to)
{
	size_t n = uid_bytes(uid);
	for (size_t i = 0; i < n; i++) {
		to[i] = uid[i];
		if (to[i] == '_') {
			to[i] = '-';
		}
	}
	to[n] = '\0';
}

/* The first row of 64 digits before @end. */
static void take_container(const char *at, const char *end, char *to)
{
	while (at < end) {
		size_t n = 0;
		while (is_hex(at[n])) {
			n++;
		}
		if (n == CONTAINER_DIGITS) {
			memcpy(to, at, n);
			to[n] = '\0';
			return;
		}
		at += n + 1;
	}
}

void glake__pod_of_cgroup(const char *cgroup, struct glake__pod *pod_out)
{
	bool is_inside = false;
	memset(pod_out, 0, sizeof(*pod_out));
	for (const char *at = cgroup; *at; at += strcspn(at, "/")) {
		at += strspn(at, "/");
		size_t n_bytes = strcspn(at, "/");
		if (strncmp(at, "user.slice", n_bytes) == 0 && n_bytes == strlen("user.slice")) {
			return;
		}
		const char *uid = find_uid(at, is_inside);
		if (uid) {
			const char *rest = uid + uid_bytes(uid);
			const char *end = at + n_bytes;
			take_uid(uid, pod_out->uid);
			/* In the rest of this component, or in the next. */
			end += *end == '/' ? 1 + strcspn(end + 1, "/") : 0;
			take_container(rest, end, pod_out->container);
			return;
		}
		is_inside |= strncmp(at, "kubepods", 8) == 0 &&
		             (n_bytes == 8 || strncmp(at + 8, ".slice", n_bytes - 8) == 0);
	}
}
