/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/link/session.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/link/report.h"
#include "libclient/link/fork.h"
#include "libclient/link/sized.h"

int glake__session_check(const struct glake_session *session)
{
	if (!session) {
		return glake__fail(-EINVAL, "the session is NULL");
	}
	if (session->link.fork_generation != glake__fork_generation()) {
		return glake__fail(GLAKE_E_FORKED,
		                   "the session was made before a fork: connect anew in the child");
	}
	return 0;
}

int glake__session_awake(struct glake_session *session)
{
	int r = glake__session_check(session);
	return r == 0 && session->asleep ? session->wake(session) : r;
}

bool glake__session_is_gone(struct glake_session *session)
{
	return glake__link_is_gone(&session->link);
}

enum glake__dedup glake__session_dedup(const struct glake_session *session)
{
	return session->dedup;
}

struct glake__doubts glake__session_doubts(const struct glake_session *session)
{
	return (struct glake__doubts){session->doubt, session->doubted, session->n_doubted};
}

void glake__session_ref(struct glake_session *session)
{
	session->n_refs++;
}

void glake__session_unref(struct glake_session *session)
{
	if (--session->n_refs > 0) {
		return;
	}
	glake__link_deinit(&session->link);
	free(session->program.driver);
	free(session->program.alone);
	free(session->devices);
	free(session->hosts);
	free(session->doubted);
	free(session);
}

/* ---- looking ---------------------------------------------------------------------------------- */

struct glake__device *glake__session_device(struct glake_session *session, uint32_t index)
{
	for (uint32_t i = 0; i < session->n_devices; i++) {
		if (session->devices[i].public.index == index) {
			return &session->devices[i];
		}
	}
	glake__fail(-ENODEV, "the daemon has no device %u", index);
	return NULL;
}

const struct glake__host *glake__session_host(const struct glake_session *session, uint32_t node)
{
	for (uint32_t i = 0; i < session->n_hosts; i++) {
		if (session->hosts[i].node == node) {
			return &session->hosts[i];
		}
	}
	glake__fail(-ENOTSUP, "the daemon has no chunks in host memory of node %u", node);
	return NULL;
}

struct glake__device *glake__session_at_ordinal(const struct glake_session *session, int ordinal)
{
	for (uint32_t i = 0; ordinal >= 0 && i < session->n_devices; i++) {
		if (session->devices[i].public.ordinal == ordinal) {
			return &session->devices[i];
		}
	}
	return NULL;
}

int glake__session_mappable(struct glake_session *session, uint32_t index,
                            struct glake__device **device_out)
{
	struct glake__device *device = glake__session_device(session, index);
	if (!device) {
		return -ENODEV;
	}
	if (!session->has_driver) {
		return glake__fail(GLAKE_E_NO_DRIVER, "the session was made without the driver");
	}
	if (device->public.ordinal < 0) {
		return glake__fail(-ENODEV, "device %u (%s) is not visible in this process", index,
		                   device->public.name);
	}
	*device_out = device;
	return 0;
}

int glake__session_check_device(struct glake_session *session, uint32_t index,
                                struct glake__device **device_out)
{
	int r = glake__session_check(session);
	return r < 0 ? r : glake__session_mappable(session, index, device_out);
}

int glake_session_info(struct glake_session *session, struct glake_session_info *info)
{
	int r = glake__session_check(session);
	if (r < 0) {
		return r;
	}
	struct glake_session_info full = {
		.session = session->id,
		.is_admin = session->is_admin,
		.n_devices = session->n_devices,
	};
	memcpy(full.tenant, session->tenant, sizeof(full.tenant));
	memcpy(full.realm, session->realm, sizeof(full.realm));
	memcpy(full.daemon_version, session->daemon_version, sizeof(full.daemon_version));
	return glake__sized_out(info, &full, sizeof(full));
}

int glake_device_at(struct glake_session *session, uint32_t position,
                    struct glake_device *device_out)
{
	int r = glake__session_check(session);
	if (r < 0) {
		return r;
	}
	if (position >= session->n_devices) {
		return glake__fail(-ENOENT, "the daemon has %u devices", session->n_devices);
	}
	*device_out = session->devices[position].public;
	return 0;
}

int glake_device_index(struct glake_session *session, int ordinal)
{
	int r = glake__session_check(session);
	if (r < 0) {
		return r;
	}
	const struct glake__device *device = glake__session_at_ordinal(session, ordinal);
	return device ? (int)device->public.index
	              : glake__fail(-ENOENT,
	                            "the daemon does not own CUDA device %d of this process",
	                            ordinal);
}
