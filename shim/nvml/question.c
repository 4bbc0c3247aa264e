/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/nvml/question.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "glake_admin.h"
#include "proto/clock.h"
#include "proto/uuid.h"
#include "shim/nvml/nvml.h"

/* A connection that fails this slowly was not refused. */
#define HUNG_NS 1000000000u
#define RETRY_SHARE 10u

struct question {
	struct glake_session *session; /* owned */
	uint32_t index;                /* glaked's number of the device */
	uint64_t own_session;
	uint32_t own_pid;    /* our pid for glaked; 0: glaked does not see it */
	uint64_t warm_bytes; /* this process's */

	/* for question_add() */
	char *rows; /* borrowed */
	unsigned n_rows;
	size_t row_bytes;
};

static _Atomic uint64_t n_connects;

__attribute__((visibility("default"))) uint64_t glake_nvml_connects(void)
{
	return n_connects;
}

/* ---- connecting ------------------------------------------------------------------------------- */

static bool is_named(const struct glake_device *device, const char *name)
{
	char text[UUID_TEXT_BYTES];
	uuid_name_gpu(device->uuid, text);
	return strcmp(text, name) == 0;
}

static bool find_device(struct question *question, const char *name)
{
	struct glake_device device;
	for (uint32_t i = 0; glake_device_at(question->session, i, &device) == 0; i++) {
		if (is_named(&device, name)) {
			question->index = device.index;
			return true;
		}
	}
	return false;
}

static int find_own_pid(void *user, const struct glake_session_row *row)
{
	struct question *question = user;
	if (row->session == question->own_session) {
		question->own_pid = row->pid;
	}
	return 0;
}

/* Our own pid for glaked, which may be in another pid namespace. */
static bool find_self(struct question *question)
{
	struct glake_session_info info = {.size = sizeof(info)};
	if (glake_session_info(question->session, &info) < 0) {
		return false;
	}
	question->own_session = info.session;
	return glake_list_sessions(question->session, find_own_pid, question) == 0;
}

/* After waiting in vain, do not ask again for ten times as long. */
static bool connect_unless_hung(struct glake_session **session_out)
{
	static _Atomic uint64_t retry_ns;
	struct glake_connect_options options = {.size = sizeof(options), .no_cuda = 1};
	uint64_t began_ns = clock_now_ns();
	if (began_ns < retry_ns) {
		return false;
	}
	int r = glake_connect(&options, session_out);
	uint64_t took_ns = clock_now_ns() - began_ns;
	if (r < 0 && took_ns >= HUNG_NS) {
		retry_ns = clock_now_ns() + took_ns * RETRY_SHARE;
	}
	return r == 0;
}

/* Let the shim of this process, if there is one, tell glaked about memory that has become warm since its last report. */
static void tell(void)
{
	void (*shim_tell)(void);
	*(void **)&shim_tell = dlsym(RTLD_DEFAULT, "glake_shim_tell");
	if (shim_tell) {
		shim_tell();
	}
}

static bool question_begin(struct question *question, void *device)
{
	char name[NVML_UUID_BYTES];
	if (nvml_real.nvmlDeviceGetUUID(device, name, sizeof(name)) != NVML_SUCCESS ||
	    !connect_unless_hung(&question->session)) {
		return false;
	}
	n_connects++;
	tell();
	if (!find_device(question, name) || !find_self(question)) {
		glake_disconnect(question->session);
		return false;
	}
	return true;
}

/* The bytes of a session on the device; all 0 if it has none. */
static struct glake_session_device share_of(const struct question *question,
                                            const struct glake_session_row *row)
{
	for (uint32_t i = 0; i < row->n_devices; i++) {
		if (row->devices[i].device == question->index) {
			return row->devices[i];
		}
	}
	return (struct glake_session_device){0};
}

/* ---- how much there is ------------------------------------------------------------------------ */

static int add_warm(void *user, const struct glake_session_row *row)
{
	struct question *question = user;
	if (row->pid != question->own_pid || row->pid == 0) {
		return 0;
	}
	/*
	 * Warm bytes are reported for all devices together: at most those reserved on this one
	 * count.
	 */
	uint64_t reserved_bytes = share_of(question, row).reserved_bytes;
	question->warm_bytes += row->warm_bytes < reserved_bytes ? row->warm_bytes : reserved_bytes;
	return 0;
}

bool question_view(void *device, struct view *view)
{
	struct question question = {0};
	if (!question_begin(&question, device)) {
		return false;
	}
	bool is_answered = glake_list_sessions(question.session, add_warm, &question) == 0 &&
	                   view_apply(question.session, question.index, question.warm_bytes,
	                              view) == 0;
	glake_disconnect(question.session);
	return is_answered;
}

/* ---- who has it ------------------------------------------------------------------------------- */

/*
 * In a pid namespace other than glaked's only our own process can be found, by either of its two
 * numbers, as NVML may show either.
 */
static bool is_same(const struct question *question, uint32_t nvml_pid, uint32_t glaked_pid)
{
	uint32_t here = (uint32_t)getpid();
	if (question->own_pid == here) {
		return nvml_pid == glaked_pid;
	}
	return question->own_pid != 0 && glaked_pid == question->own_pid &&
	       (nvml_pid == here || nvml_pid == glaked_pid);
}

static int add_session(void *user, const struct glake_session_row *row)
{
	struct question *question = user;
	struct glake_session_device share = share_of(question, row);
	for (unsigned i = 0; i < question->n_rows; i++) {
		void *at = question->rows + i * question->row_bytes;
		struct nvml_process *process = at;
		if (is_same(question, process->pid, row->pid) &&
		    process->used_bytes != NVML_UNKNOWN_BYTES) {
			process->used_bytes += share.reserved_bytes + share.shared_bytes;
		}
	}
	return 0;
}

void question_add(void *device, void *rows, unsigned n, size_t row_bytes)
{
	struct question question = {.rows = rows, .n_rows = n, .row_bytes = row_bytes};
	if (n == 0 || !question_begin(&question, device)) {
		return;
	}
	glake_list_sessions(question.session, add_session, &question);
	glake_disconnect(question.session);
}
