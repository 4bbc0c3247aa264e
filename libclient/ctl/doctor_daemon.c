/* SPDX-License-Identifier: Apache-2.0 */
/* The doctor's look at glaked, through its socket, or at why there is no way through it. */
#include <errno.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <sys/un.h>
#include <unistd.h>

#include "ctl/doctor.h"
#include "ctl/rows.h"
#include "ctl/text.h"
#include "glake.h"
#include "glake_admin.h"

#define DEFAULT_SOCKET "/run/glake/glaked.sock"

/* Below this a few models of the usual size leave no fds for anything else. */
#define LOW_BUDGET 4096u

static const char *socket_path(const struct ctl *ctl)
{
	const char *path = ctl->socket_path ? ctl->socket_path : getenv("GLAKE_SOCKET");
	return path && *path ? path : DEFAULT_SOCKET;
}

/* ---- no way in -------------------------------------------------------------------------------- */

/* A socket may listen though no glaked accepts: one that is stopped, or whose unit does not start. */
static bool is_listening(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	/* EAGAIN: the queue is full. */
	bool is = fd >= 0 &&
	          (connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0 ||
	           errno == EAGAIN);
	if (fd >= 0) {
		close(fd);
	}
	return is;
}

static const char *remedy_of(int err, const char *path)
{
	struct stat status;
	switch (err) {
	case GLAKE_E_VERSION:
	case GLAKE_E_PROTOCOL:
		return "only one of glaked and this library was upgraded: restart glaked and the "
		       "programs";
	case GLAKE_E_OVER_QUOTA:
		return "max_sessions, max_sessions_per_user, tenants.max_sessions; as root it "
		       "connects anyway";
	case GLAKE_E_SHUTTING_DOWN:
		return "wait for it, then: systemctl start glaked";
	case GLAKE_E_NO_DRIVER:
		return "see the driver above; where this user may use it and glaked may not: the "
		       "unit's "
		       "group and its device nodes; systemctl restart glaked looks again at once";
	case GLAKE_E_DRAINED:
		return "an operator did that: glakectl drain --undo";
	case -EACCES:
		return "socket_mode, SocketMode= of glaked.socket, and the modes of its folders";
	default:
		break;
	}
	if (stat(path, &status) < 0) {
		return "systemctl start glaked.socket, or glaked --config /etc/glake/glaked.conf; "
		       "in a container: mount the socket's folder";
	}
	if (is_listening(path)) {
		return "glaked is stopped (kill -CONT), hangs, or its unit does not start: "
		       "systemctl "
		       "status glaked, journalctl -u glaked; systemctl restart glaked loses "
		       "nothing";
	}
	return S_ISSOCK(status.st_mode)
	               ? "nobody listens: systemctl restart glaked.socket glaked, and "
	                 "journalctl -u glaked for why it ended"
	               : "it is not a socket: remove it, and start glaked";
}

static void check_rights(struct findings *findings, const char *path)
{
	struct stat status;
	char folder[4096];
	snprintf(folder, sizeof(folder), "%s", path);
	if (stat(path, &status) == 0 && (status.st_mode & 0222) != 0222) {
		finding_add(findings, "socket", FINDING_NOTE,
		            "socket_mode = \"0666\": glaked decides by realm and tenant",
		            "%s has mode %04o: only some users may connect", path,
		            (unsigned)status.st_mode & 07777);
	} else if (stat(dirname(folder), &status) == 0 && !(status.st_mode & 0001)) {
		finding_add(findings, "socket", FINDING_NOTE,
		            "chmod 0755, if others are to connect",
		            "%s has mode %04o: only some users may enter it", folder,
		            (unsigned)status.st_mode & 07777);
	} else {
		finding_add(findings, "socket", FINDING_OK, NULL, "%s", path);
	}
}

/* ---- its limits ------------------------------------------------------------------------------- */

static bool is_called(uint64_t pid, const char *want)
{
	char path[64];
	char name[32];
	snprintf(path, sizeof(path), "/proc/%" PRIu64 "/comm", pid);
	return doctor_read_line(path, "", name, sizeof(name)) && strcmp(name, want) == 0;
}

/* glake-mover's own limits while it runs, else those of glaked, from which it usually has them. */
static void check_memlock(struct findings *findings, const struct glake_status *status)
{
	struct rlimit locked;
	uint64_t pid = 0;
	/* In another pid namespace the numbers are somebody else's. */
	if (sscanf(status->mover, "running %" SCNu64, &pid) != 1 ||
	    !is_called(pid, "glake-mover")) {
		pid = is_called(status->pid, "glaked") ? status->pid : 0;
	}
	if (pid == 0 || prlimit((pid_t)pid, RLIMIT_MEMLOCK, NULL, &locked) < 0) {
		return;
	}
	if (locked.rlim_cur < 1ull << 30) {
		finding_add(findings, "limits", FINDING_NOTE,
		            "LimitMEMLOCK=infinity of the unit. Host memory that glaked gives out "
		            "does not count in it",
		            "glake-mover may lock %llu KiB of memory, and pins what it copies "
		            "through",
		            (unsigned long long)locked.rlim_cur / 1024);
	}
}

static void check_memory(struct findings *findings, uint64_t pid)
{
	char path[64];
	snprintf(path, sizeof(path), "/proc/%" PRIu64 "/cgroup", pid);
	if (is_called(pid, "glaked")) {
		doctor_check_memory(findings, path, "/sys/fs/cgroup");
	}
}

static void check_fds(struct findings *findings, const struct glake_status *status)
{
	static const char remedy[] = "LimitNOFILE=65536 of glaked.service, and fd_budget";
	bool is_low = status->fds_budget < LOW_BUDGET;
	bool is_short = status->fds_used > status->fds_budget / 4 * 3;
	finding_add(findings, "fds", is_low || is_short ? FINDING_WARNING : FINDING_OK,
	            is_low || is_short ? remedy : NULL, "%" PRIu64 " of %" PRIu64 " in use",
	            status->fds_used, status->fds_budget);
}

/* Find what a restart would lose. */
static void check_kept(struct findings *findings, const struct glake_status *status)
{
	static const char remedy[] =
		"FileDescriptorStoreMax= and FDSTORE= of glaked.service, or LimitNOFILE= and "
		"--max-fds of glake-keeper; larger files in place of many small ones";
	uint64_t n = status->kept_fds;
	uint64_t max = status->max_kept_fds;
	if (max == 0) {
		finding_add(findings, "restart", FINDING_NOTE,
		            "glaked.service, or glake-keeper -- glaked; its log says what is "
		            "missing",
		            "nobody keeps glaked's fds: a restart loses the store");
	} else if (status->unkept_blocks > 0) {
		finding_add(findings, "restart", FINDING_WARNING, remedy,
		            "the fd store is full with %" PRIu64 " fds: a restart loses %" PRIu64
		            " blocks",
		            n, status->unkept_blocks);
	} else {
		bool is_near_full = n > max / 8 * 7;
		finding_add(findings, "restart", is_near_full ? FINDING_WARNING : FINDING_OK,
		            is_near_full ? remedy : NULL,
		            "%" PRIu64 " of %" PRIu64 " fds are kept for the next glaked", n, max);
	}
}

/* ---- its devices ------------------------------------------------------------------------------ */

/* glaked asks NVML each five seconds, for the first time a while after it has started. */
#define NVML_MS 10000

static void check_device(struct findings *findings, const struct glake_status *status,
                         const struct glake_device_status *device)
{
	if (strcmp(device->fabric, "yes") != 0) {
		finding_add(findings, "fabric", FINDING_NOTE,
		            "only to share memory between nodes: an IMEX channel "
		            "(nvidia-modprobe -i 0), and nvidia-imex running",
		            "device %" PRIu32 ": %s", device->index, device->fabric);
	}
	if (device->free_bytes == 0 && status->uptime_ms < NVML_MS) {
		return;
	}
	if (device->free_bytes == 0) {
		finding_add(findings, "nvml", FINDING_NOTE,
		            "libnvidia-ml.so.1 for glaked; in a container: the driver capability "
		            "utility. A MIG instance has none",
		            "device %" PRIu32 ": nobody tells what is free", device->index);
	} else if (device->unaccounted_bytes > device->total_bytes / 20) {
		char size[TEXT_NUMBER_BYTES];
		text_size(device->unaccounted_bytes, size);
		finding_add(findings, "memory", FINDING_WARNING,
		            "nvidia-smi: graphics programs; or programs that keep mapped what "
		            "they gave back",
		            "device %" PRIu32 ": %s are unaccounted", device->index, size);
	}
}

static void check_drained(struct findings *findings, const struct glake_status *status)
{
	char age[TEXT_NUMBER_BYTES];
	uint64_t now_ms = (uint64_t)time(NULL) * 1000;
	text_duration(now_ms > status->drained_at_ms ? now_ms - status->drained_at_ms : 0, age);
	finding_add(findings, "daemon", FINDING_WARNING, "glakectl drain --undo lets them in again",
	            "glaked is drained: it takes no new programs; %" PRIu32
	            " are left; by uid %" PRIu32 ", for %s%s%s",
	            status->n_programs, status->drained_by, age, *status->drain_reason ? ": " : "",
	            status->drain_reason);
}

static int check_status(void *user, const struct glake_status *status)
{
	struct findings *findings = user;
	bool differs = strcmp(status->version, glake_version()) != 0;
	finding_add(findings, "daemon", differs ? FINDING_WARNING : FINDING_OK,
	            differs ? "restart what is older" : NULL,
	            "glaked %s, pid %" PRIu64 "; this is glakectl %s", status->version, status->pid,
	            glake_version());
	if (status->drained) {
		check_drained(findings, status);
	} else if (status->draining) {
		finding_add(findings, "daemon", FINDING_WARNING,
		            "it ends when its clients have left, or after drain_ms",
		            "glaked is draining: it takes no new sessions");
	}
	check_fds(findings, status);
	check_kept(findings, status);
	check_memlock(findings, status);
	check_memory(findings, status->pid);
	doctor_check_hosts(findings, status, "/sys/devices/system/node");
	doctor_check_sleep(findings, status);
	for (uint32_t i = 0; i < status->n_devices; i++) {
		check_device(findings, status, &status->devices[i]);
	}
	return 0;
}

/* Refusals of one program in one tenant, by one bound. */
struct refused {
	char *program; /* owned, as the next */
	char *tenant;
	char *bound;
	char *text; /* of the last event */
	uint64_t n;
};

struct seen_events {
	struct rows refused; /* of struct refused */
	uint64_t n_refused;
	uint64_t n_others;
};

static void forget_events(struct seen_events *seen)
{
	for (size_t i = 0; i < seen->refused.n; i++) {
		struct refused *refused = rows_at(&seen->refused, i);
		free(refused->program);
		free(refused->tenant);
		free(refused->bound);
		free(refused->text);
	}
	rows_deinit(&seen->refused);
}

static struct refused *find_refused(struct seen_events *seen, const struct glake_event_row *row)
{
	for (size_t i = 0; i < seen->refused.n; i++) {
		struct refused *refused = rows_at(&seen->refused, i);
		if (strcmp(refused->program, row->program) == 0 &&
		    strcmp(refused->tenant, row->tenant) == 0 &&
		    strcmp(refused->bound, row->bound) == 0) {
			return refused;
		}
	}
	struct refused *refused = rows_add(&seen->refused, sizeof(*refused));
	if (refused) {
		refused->program = strdup(row->program);
		refused->tenant = strdup(row->tenant);
		refused->bound = strdup(row->bound);
	}
	bool is_whole = refused && refused->program && refused->tenant && refused->bound;
	return is_whole ? refused : NULL;
}

static int see_event(void *user, const struct glake_event_row *row)
{
	struct seen_events *seen = user;
	if (row->n_refused == 0) {
		seen->n_others++;
		return 0;
	}
	struct refused *refused = find_refused(seen, row);
	char *text = strdup(row->text);
	if (!refused || !text) {
		free(text);
		return -ENOMEM;
	}
	free(refused->text);
	refused->text = text;
	refused->n += row->n_refused;
	seen->n_refused += row->n_refused;
	return 0;
}

static const char *refused_remedy(const char *bound)
{
	static const char *const remedies[][2] = {
		{"quota", "glakectl tenants: what it uses; glakectl quota gives it more, or end "
	                  "what it does not need"},
		{"promise", "a larger GLAKE_PROMISE, glake run --promise"},
		{"room", "glakectl status, glakectl map: what holds the rest; pressure = \"wait\" "
	                 "lets requests wait"},
		{"reserve",
	         "glakectl dedup: what was sealed by itself; a lower dedup_reserve leaves "
	         "more to others"},
		{"tenant_fds", "tenants.max_fds"},
		{"fds", "LimitNOFILE= of glaked.service, and fd_budget"},
		{"manifests", "glakectl quota --manifests, or close models"},
		{"user_share", "glakectl quota --manifests: a user may have half of what the "
	                       "tenant's others leave"},
	};
	for (size_t i = 0; i < sizeof(remedies) / sizeof(remedies[0]); i++) {
		if (strcmp(remedies[i][0], bound) == 0) {
			return remedies[i][1];
		}
	}
	return "glakectl events";
}

static void check_refused(struct findings *findings, const struct seen_events *seen)
{
	const struct refused *most = NULL;
	for (size_t i = 0; i < seen->refused.n; i++) {
		const struct refused *refused = rows_at(&seen->refused, i);
		most = !most || refused->n > most->n ? refused : most;
	}
	if (!most) {
		finding_add(findings, "refused", FINDING_OK, NULL,
		            "no program was refused memory lately");
		return;
	}
	finding_add(findings, "refused", FINDING_WARNING, refused_remedy(most->bound),
	            "tenant %s, %s: %" PRIu64 " of the last %" PRIu64
	            " refusals of memory, most of all. The last: %s",
	            most->tenant, most->program, most->n, seen->n_refused, most->text);
}

static void check_events(struct ctl *ctl, struct findings *findings)
{
	struct seen_events seen = {.n_others = 0};
	int err = glake_list_events(ctl->session, see_event, &seen);
	if (err == 0) {
		check_refused(findings, &seen);
		finding_add(findings, "events", seen.n_others > 0 ? FINDING_WARNING : FINDING_OK,
		            seen.n_others > 0 ? "glakectl events" : NULL,
		            "%" PRIu64 " since glaked started", seen.n_others);
	}
	forget_events(&seen);
}

static void check_session(struct ctl *ctl, struct findings *findings)
{
	struct glake_session_info info = {.size = sizeof(info)};
	if (glake_session_info(ctl->session, &info) < 0) {
		return;
	}
	finding_add(findings, "rights", info.is_admin ? FINDING_OK : FINDING_NOTE,
	            info.is_admin ? NULL : "as root or a member of admin_group one sees all",
	            "tenant %s, realm %s%s", info.tenant, info.realm,
	            info.is_admin ? ", an admin" : "; other realms are not shown");
}

int doctor_check_connected(struct ctl *ctl, struct findings *findings)
{
	int err = glake_get_status(ctl->session, check_status, findings);
	if (err < 0) {
		finding_add(findings, "daemon", FINDING_ERROR, "glaked's log: journalctl -u glaked",
		            "it does not tell its status: %s", glake_strerror(err));
	} else {
		check_session(ctl, findings);
		check_events(ctl, findings);
	}
	return err;
}

void doctor_add_unreachable(const struct ctl *ctl, int err, const char *cause,
                            struct findings *findings)
{
	const char *path = socket_path(ctl);
	finding_add(findings, "daemon", FINDING_ERROR, remedy_of(err, path), "%s: %s",
	            glake_strerror(err), *cause ? cause : path);
}

int doctor_check_daemon(struct ctl *ctl, struct findings *findings)
{
	const char *path = socket_path(ctl);
	int err = ctl_connect(ctl);
	if (err < 0) {
		doctor_add_unreachable(ctl, err, glake_error(), findings);
		return err;
	}
	check_rights(findings, path);
	err = doctor_check_connected(ctl, findings);
	ctl_disconnect(ctl);
	return err;
}
