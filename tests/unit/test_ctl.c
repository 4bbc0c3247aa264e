/* SPDX-License-Identifier: Apache-2.0 */
/*
 * glakectl over a library that is made up here: every command line, every form of output, and what
 * a daemon of ill will could put into names. The linker takes these functions and not the real ones.
 */
#include "tests/check_glake.h"
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ctl/ctl.h"
#include "ctl/doctor.h"
#include "ctl/map.h"
#include "ctl/table.h"
#include "ctl/text.h"
#include "glake_admin.h"
#include "tests/harness/golden.h"

#define GIB (1024ull * 1024 * 1024)

/* ---- the made-up library -------------------------------------------------------------------- */

static struct {
	int error; /* of the next call but glake_connect() */
	int connect_error;
	const char *cause;
	int connected;
	char socket_path[64];
	char call[256]; /* the last steering call with its arguments */
	const char *name;
	bool is_old;
	bool waits_to_wake;
	bool has_woken;       /* the sleeper, before it slept again */
	bool has_demoted;     /* a model that only host memory has, besides */
	bool stitches;        /* the session with memory */
	uint64_t cannot_seal; /* that session; and both are of one process */
	uint64_t n_crowd;     /* sessions and models besides, by size */
	bool is_one_crowd;    /* they are sessions of one process */
	unsigned n_asked;     /* sessions, to seal, to sleep or to wake */
	uint64_t kept_fds;
	uint64_t max_kept_fds;
	uint64_t unkept_blocks;
} fake;

#define MIB (1024ull * 1024)

static int list_crowd(glake_session_fn row, void *user)
{
	int err = 0;
	/* The largest and youngest first: the order of ids is not for granted. */
	for (uint64_t i = fake.n_crowd; err == 0 && i > 0; i--) {
		const struct glake_session_device device = {.device = 0, .reserved_bytes = i * MIB};
		const struct glake_session_row session = {
			.session = 1000 + i,
			.pid = (uint32_t)(1000 + (fake.is_one_crowd ? 0 : i)),
			.program = "crowd",
			.tenant = "default",
			.realm = "r",
			.reserved_bytes = i * MIB,
			.live_bytes = i * MIB / 2,
			.n_devices = 1,
			.devices = &device,
		};
		err = row(user, &session);
	}
	return err;
}

static int list_crowd_models(glake_model_fn row, void *user)
{
	int err = 0;
	for (uint64_t i = 1; err == 0 && i <= fake.n_crowd; i++) {
		char name[32];
		snprintf(name, sizeof(name), "model%llu", (unsigned long long)i);
		const struct glake_model_row model = {
			.id = 1000 + i,
			.name = name,
			.realm = "r",
			.state = "ready",
			.span_bytes = i * MIB,
			.part_bytes = i * MIB,
			.n_open = i % 2,
		};
		err = row(user, &model);
	}
	return err;
}

const char *glake_strerror(int error)
{
	return error == GLAKE_E_OVER_QUOTA ? "over quota" : "some error";
}

const char *glake_error(void)
{
	return fake.cause ? fake.cause : "";
}

const char *glake_version(void)
{
	return "0.1.0";
}

int glake_connect(const struct glake_connect_options *options, struct glake_session **session_out)
{
	ck_assert_uint_eq(options->size, sizeof(*options));
	ck_assert_int_ne(options->no_cuda, 0);
	snprintf(fake.socket_path, sizeof(fake.socket_path), "%s",
	         options->socket_path ? options->socket_path : "(default)");
	if (fake.connect_error) {
		return fake.connect_error;
	}
	fake.connected++;
	*session_out = (struct glake_session *)(void *)&fake;
	return 0;
}

void glake_disconnect(struct glake_session *session)
{
	fake.connected -= session != NULL;
}

int glake_get_status(struct glake_session *session, glake_status_fn row, void *user)
{
	const struct glake_device_status devices[] = {
		{
			.index = 0,
			.name = fake.name,
			.uuid = {0xab, 0xcd},
			.total_bytes = 24 * GIB,
			.physical_bytes = 4 * GIB,
			.private_bytes = 1 * GIB,
			.block_bytes = 3 * GIB,
			.used_block_bytes = 2 * GIB,
			.logical_bytes = 7 * GIB,
			.logical_block_bytes = 6 * GIB,
			.free_bytes = 12 * GIB,
			.context_bytes = 1 * GIB,
			.managed_bytes = GIB / 2,
			.array_bytes = GIB / 4,
			.graph_bytes = GIB / 8,
			.other_bytes = GIB / 16,
			.mover_bytes = GIB / 2,
			.foreign_bytes = 5 * GIB,
			.n_foreign = 2,
			.unaccounted_bytes = GIB,
			.fabric = "no: not permitted",
			.rdma = 1,
		},
		{.index = 1, .name = "idle", .fabric = "yes", .total_bytes = 24 * GIB},
	};
	struct glake_status status = {
		.version = "0.1.0",
		.driver = "13.0",
		.config = "",
		.mover = "idle",
		.pid = 42,
		.uptime_ms = 61000,
		.n_sessions = 3,
		.fds_used = 7,
		.fds_budget = 100,
		.n_devices = 2,
		.devices = devices,
		.kept_fds = fake.kept_fds,
		.max_kept_fds = fake.max_kept_fds,
		.unkept_blocks = fake.unkept_blocks,
		.unparked_bytes = 3 * GIB,
		.n_hosts = 1,
		.hosts = &(const struct glake_host_status){.node = 1,
	                                                   .total_bytes = 64 * GIB,
	                                                   .limit_bytes = 16 * GIB,
	                                                   .physical_bytes = 3 * GIB,
	                                                   .private_bytes = GIB,
	                                                   .copy_bytes = 2 * GIB,
	                                                   .used_copy_bytes = GIB,
	                                                   .sleep_copy_bytes = GIB / 2,
	                                                   .model_copy_bytes = GIB / 8,
	                                                   .cached_copy_bytes = GIB / 4,
	                                                   .slept_bytes = 4 * GIB},
		.hosts_lacking = "node 0: CUDA_ERROR_INVALID_VALUE",
	};
	return fake.error ? fake.error : row(user, &status);
}

int glake_get_stats(struct glake_session *session, glake_metric_fn row, void *user)
{
	return fake.error ? fake.error : row(user, "loads", 12, "models loaded");
}

int glake_get_histograms(struct glake_session *session, glake_histogram_fn row, void *user)
{
	static const uint64_t bounds[] = {1000, 3000000, 5000000000};
	static const uint64_t counts[] = {5, 4, 0, 1};
	static const uint64_t none[4];
	struct glake_histogram histogram = {
		.name = "load",
		.help = "time of a load",
		.n_bounds = 3,
		.bounds_ns = bounds,
		.counts = counts,
		.sum_ns = 7000000000,
	};
	int err = fake.error ? fake.error : row(user, &histogram);
	histogram.name = "alloc";
	histogram.counts = none;
	histogram.sum_ns = 0;
	return err ? err : row(user, &histogram);
}

int glake_list_sessions(struct glake_session *session, glake_session_fn row, void *user)
{
	const struct glake_session_device devices[] = {
		{.device = 0,
	         .reserved_bytes = 4 * GIB,
	         .managed_bytes = GIB,
	         .process_bytes = 2 * GIB,
	         .promise_bytes = 24 * GIB,
	         .left_bytes = 20 * GIB,
	         .shared_bytes = 16 * GIB},
		{.device = 3, .array_bytes = GIB / 4, .graph_bytes = GIB / 4},
	};
	const struct glake_unsealed unsealed[] = {
		{"written to by the driver's API", GIB},
		{"named for other processes", GIB / 2},
	};
	struct glake_session_row rows[] = {
		{
			.session = 1,
			.pid = 100,
			.uid = 12345678,
			.program = fake.name,
			.tenant = "default",
			.realm = "uid:1000",
			.reserved_bytes = 4 * GIB,
			.live_bytes = 3 * GIB,
			.warm_bytes = 1 * GIB,
			.peak_bytes = 7 * GIB / 2,
			.n_owned = 12345,
			.n_passed = 67,
			.n_devices = 2,
			.devices = devices,
			.shared_bytes = 16 * GIB,
			.sealed_bytes = 12 * GIB,
			.sealed_common_bytes = 10 * GIB,
			.part_bytes = 8 * GIB,
			.n_seals = 3,
			.seal_ns = 412 * 1000000ull,
			.held_ns = 18 * 1000000ull,
			.n_unsealed = 2,
			.unsealed = unsealed,
		},
		{.session = 2,
	         .pid = 101,
	         .program = "glakectl",
	         .tenant = "default",
	         .realm = "r"},
	};
	const struct glake_session_pool pools[] = {
		{
			.device = 0,
			.live_bytes = 2 * GIB,
			.peak_live_bytes = 5 * GIB / 2,
			.reserved_bytes = 2 * GIB + GIB / 8,
			.peak_reserved_bytes = 3 * GIB,
			.n_allocs = 1234567,
			.n_stitches = 89,
			.stitched_bytes = 33 * GIB,
			.n_reuses = 4567,
			.n_grows = 21,
			.n_mapped = 700,
			.n_unmapped = 300,
			.n_kept = 17,
			.kept_bytes = 6 * GIB,
		},
	};
	if (fake.cannot_seal) {
		rows[1].pid = rows[0].pid;
	}
	if (fake.stitches) {
		rows[0].n_pools = 1;
		rows[0].pools = pools;
	}
	int err = fake.error;
	for (size_t i = 0; err == 0 && i < 2; i++) {
		err = row(user, &rows[i]);
	}
	return err ? err : list_crowd(row, user);
}

int glake_list_uses(struct glake_session *session, glake_use_fn row, void *user)
{
	static const uint64_t models[] = {9, 77, 77};
	const struct glake_use_row use = {.session = 1, .n_models = 3, .models = models};
	/* As from an older glaked. */
	int err = fake.error ? fake.error : fake.is_old ? GLAKE_E_BAD_REQUEST : row(user, &use);
	for (uint64_t i = 1; err == 0 && i <= fake.n_crowd; i++) {
		/* Opened twice. */
		const uint64_t own[] = {1000 + i, 9, 9};
		const struct glake_use_row of = {.session = 1000 + i, .n_models = 3, .models = own};
		err = row(user, &of);
	}
	return err;
}

int glake_list_tenants(struct glake_session *session, glake_tenant_fn row, void *user)
{
	const struct glake_tenant_device devices[] = {
		{.device = 0, .used_bytes = GIB, .quota_bytes = 2 * GIB, .peak_bytes = GIB},
		{.device = 1, .used_bytes = GIB / 2},
	};
	const struct glake_tenant_device host = {.device = 1, .used_bytes = 5 * GIB};
	struct glake_tenant_row tenant = {
		.name = "default",
		.n_sessions = 2,
		.priority = -5,
		.n_devices = 2,
		.devices = devices,
		.n_hosts = 1,
		.hosts = &host,
	};
	return fake.error ? fake.error : row(user, &tenant);
}

int glake_list_models(struct glake_session *session, glake_model_fn row, void *user)
{
	struct glake_model_row model = {
		.id = 9,
		.name = fake.name,
		.realm = "uid:0",
		.state = "ready",
		.pinned = 1,
		.reload_reason = "",
		.span_bytes = 4 * GIB,
		.n_open = 2,
		.part_bytes = 3 * GIB,
		.copied_bytes = GIB,
	};
	const struct glake_model_row demoted = {
		.id = 10,
		.name = "demoted",
		.realm = "uid:0",
		.state = "host",
		.span_bytes = 2 * GIB,
		.copied_bytes = 2 * GIB,
	};
	int err = fake.error ? fake.error : row(user, &model);
	err = err || !fake.has_demoted ? err : row(user, &demoted);
	return err ? err : list_crowd_models(row, user);
}

int glake_list_blocks(struct glake_session *session, glake_block_fn row, void *user)
{
	struct glake_block_row blocks[] = {
		{.id = 5, .realm = "uid:0", .chunk_bytes = 2 * 1024 * 1024, .n_mappings = 3},
		{.id = 6, .realm = "uid:1000", .chunk_bytes = 4 * 1024 * 1024},
	};
	blocks[0].digest.bytes[15] = 0xfe;
	blocks[0].digest.bytes[0] = 0x01;
	int err = fake.error;
	for (size_t i = 0; err == 0 && i < 2; i++) {
		err = row(user, &blocks[i]);
	}
	return err;
}

int glake_list_events_after(struct glake_session *session, uint64_t after, glake_event_fn row,
                            void *user)
{
	return after < 3 ? glake_list_events(session, row, user) : fake.error;
}

int glake_session_info(struct glake_session *session, struct glake_session_info *info)
{
	ck_assert_uint_eq(info->size, sizeof(*info));
	snprintf(info->tenant, sizeof(info->tenant), "default");
	snprintf(info->realm, sizeof(info->realm), "uid:1000");
	info->n_devices = 2;
	return fake.error;
}

int glake_list_events(struct glake_session *session, glake_event_fn row, void *user)
{
	struct glake_event_row event = {
		.id = 3,
		.time_ms = 1700000000999,
		.kind = "block_damaged",
		.realm = "uid:0",
		.pid = 77,
		.text = fake.name,
	};
	return fake.error ? fake.error : row(user, &event);
}

int glake_pin(struct glake_session *session, const char *model, int pin)
{
	snprintf(fake.call, sizeof(fake.call), "pin %s %d", model, pin);
	return fake.error;
}

int glake_evict(struct glake_session *session, const char *model, uint64_t *n_models_out,
                uint64_t *freed_bytes_out)
{
	snprintf(fake.call, sizeof(fake.call), "evict %s", model ? model : "(all)");
	*n_models_out = 1;
	*freed_bytes_out = 3 * GIB;
	return fake.error;
}

int glake_seal_session(struct glake_session *session, uint64_t id,
                       const struct glake_seal_options *options, struct glake_seal_report *report)
{
	fake.n_asked++;
	snprintf(fake.call, sizeof(fake.call), "seal %llu %d", (unsigned long long)id,
	         options->dry_run);
	*report = (struct glake_seal_report){
		.size = sizeof(*report),
		.sealed_bytes = 3 * GIB,
		.shared_bytes = 2 * GIB,
		.failed_bytes = 1024,
		.took_ns = 250000000,
		.failed_why = "no room",
	};
	return id == fake.cannot_seal ? GLAKE_E_BAD_REQUEST : fake.error;
}

int glake_sleep_session(struct glake_session *session, uint64_t id,
                        const struct glake_sleep_options *options, glake_sleep_fn report,
                        void *user)
{
	static const struct glake_stay stays[] = {{"memory has a handle", 2 * MIB}};
	const struct glake_sleep_report done = {
		.is_asleep = !options->wakes,
		.private_bytes = 3 * GIB,
		.shared_bytes = 2 * GIB,
		.took_ns = 250000000,
		.n_stays = 1,
		.stays = stays,
		.waited_ms = options->wakes ? 150 : 0,
	};
	for (uint32_t place = 2; options->wakes && place > 0; place--) {
		options->waiting(options->progress_user, place, 60000);
		options->waiting(options->progress_user, place, 61000);
	}
	options->progress(options->progress_user, GIB, 4 * GIB);
	fake.n_asked++;
	size_t used = strlen(fake.call);
	snprintf(fake.call + used, sizeof(fake.call) - used, "%s%s %llu", used ? " " : "",
	         options->wakes ? "wake" : "sleep", (unsigned long long)id);
	return fake.error ? fake.error : report(user, &done);
}

int glake_list_sleepers(struct glake_session *session, glake_sleeper_fn row, void *user)
{
	static const struct glake_stay stays[] = {{"memory has a handle", 2 * MIB}};
	static const char *const models[] = {"other", "forgotten"};
	const struct glake_sleeper_row sleeper = {
		.session = 1,
		.pid = 100,
		.program = fake.name,
		.tenant = "default",
		.realm = "r",
		.state = "asleep",
		.why = "asked",
		.asleep_ms = 1000,
		.private_bytes = GIB,
		.shared_bytes = 3 * GIB,
		.gpu_bytes = 2 * GIB,
		.place = fake.waits_to_wake ? 2 : 0,
		.waiting_ms = fake.waits_to_wake ? 3000 : 0,
		.woke_ns = fake.has_woken ? 340000000 : 0,
		.woke_waited_ms = fake.has_woken ? 62000 : 0,
		.stays_bytes = 2 * MIB,
		.n_sleeps = 1,
		.n_stays = 1,
		.stays = stays,
		.n_models = 2,
		.models = models,
	};
	return fake.error ? fake.error : fake.is_old ? GLAKE_E_BAD_REQUEST : row(user, &sleeper);
}

int glake_list_candidates(struct glake_session *session, uint64_t id, glake_candidate_fn row,
                          void *user, uint64_t *n_out)
{
	const struct glake_candidate_row candidates[] = {
		{id, 0x7f0000000000, GIB, GIB - 2 * MIB, "sealed", "", 1},
		{id, 0x7f0080000000, 2 * MIB, 2 * MIB, "refused", "gemm is in no table", 0},
	};
	int r = fake.error ? fake.error : fake.is_old ? -ENOTSUP : row(user, &candidates[0]);
	*n_out = 5;
	return r ? r : row(user, &candidates[1]);
}

int glake_list_layout(struct glake_session *session, uint64_t id, glake_layout_fn row, void *user)
{
	const struct glake_layout_row all = {.session = 9,
	                                     .pid = 100,
	                                     .unshared_bytes = 3 * GIB,
	                                     .looked_bytes = 2 * GIB,
	                                     .equal_bytes = GIB};
	const struct glake_layout_row none = {.session = 10, .pid = 101, .unshared_bytes = GIB};
	struct glake_layout_row beside = all;
	beside.with = 12;
	beside.with_pid = 102;
	if (fake.error || fake.is_old) {
		return fake.error ? fake.error : GLAKE_E_BAD_REQUEST;
	}
	int r = row(user, id ? &beside : &all);
	return r || id ? r : row(user, &none);
}

int glake_list_mistakes(struct glake_session *session, glake_mistake_fn row, void *user)
{
	const struct glake_mistake_row mistake = {
		.id = 7,
		.uid = 12345678,
		.program = "python3",
		.script = "serve.py",
		.executable = "build-id 00ff",
		.n_faults = 2,
		.n_words = 1,
		.kernels = "gemm at 0x1000",
	};
	return fake.error ? fake.error : fake.is_old ? GLAKE_E_BAD_REQUEST : row(user, &mistake);
}

int glake_forgive(struct glake_session *session, uint64_t id)
{
	size_t used = strlen(fake.call);
	snprintf(fake.call + used, sizeof(fake.call) - used, "%sforgive %llu", used ? " " : "",
	         (unsigned long long)id);
	return fake.error;
}

static int note_quota(const char *how, const char *tenant, uint32_t device, uint64_t quota_bytes)
{
	size_t used = strlen(fake.call);
	snprintf(fake.call + used, sizeof(fake.call) - used, "%s%s %s %u %llu", used ? " " : "",
	         how, tenant, device, (unsigned long long)quota_bytes);
	return fake.error;
}

int glake_set_quota(struct glake_session *session, const char *tenant, uint32_t device,
                    uint64_t quota_bytes)
{
	return note_quota("quota", tenant, device, quota_bytes);
}

int glake_force_quota(struct glake_session *session, const char *tenant, uint32_t device,
                      uint64_t quota_bytes)
{
	return note_quota("force", tenant, device, quota_bytes);
}

int glake_drain(struct glake_session *session, const char *reason)
{
	snprintf(fake.call, sizeof(fake.call), "drain %s", reason ? reason : "-");
	return fake.error;
}

int glake_undrain(struct glake_session *session)
{
	snprintf(fake.call, sizeof(fake.call), "undrain");
	return fake.error;
}

int glake_set_max_sessions(struct glake_session *session, const char *tenant, uint32_t max_sessions)
{
	size_t used = strlen(fake.call);
	snprintf(fake.call + used, sizeof(fake.call) - used, " sessions %s %u", tenant,
	         max_sessions);
	return fake.error;
}

int glake_set_manifest_quota(struct glake_session *session, const char *tenant,
                             uint64_t quota_bytes)
{
	size_t used = strlen(fake.call);
	snprintf(fake.call + used, sizeof(fake.call) - used, " manifests %s %llu", tenant,
	         (unsigned long long)quota_bytes);
	return fake.error;
}

int glake_model_open_shards(struct glake_session *session, const char *const *paths, size_t n_paths,
                            const struct glake_model_options *options,
                            struct glake_model **model_out)
{
	ck_assert_int_ne(options->no_map, 0);
	snprintf(fake.call, sizeof(fake.call), "load %s +%zu device %u name %s pin %d", paths[0],
	         n_paths - 1, options->device, options->name ? options->name : "-", options->pin);
	for (uint64_t done = 0; done <= 1000; done += 5) {
		options->progress(options->progress_user, done * GIB, 1000 * GIB);
	}
	*model_out = (struct glake_model *)(void *)&fake;
	return fake.error;
}

int glake_model_open(struct glake_session *session, const char *path,
                     const struct glake_model_options *options, struct glake_model **model_out)
{
	return glake_model_open_shards(session, &path, 1, options, model_out);
}

int glake_model_info(const struct glake_model *model, struct glake_model_info *info)
{
	ck_assert_uint_eq(info->size, sizeof(*info));
	info->name = "m";
	info->n_tensors = 10;
	info->content_bytes = 2 * GIB;
	info->load_ns = 500000000;
	return 0;
}

void glake_model_close(struct glake_model *model)
{
	ck_assert_ptr_nonnull(model);
}

/* ---- running it ----------------------------------------------------------------------------- */

#define MAX_ARGUMENTS 16

static char *out_text; /* of the last run */
static char *err_text;

static int run(const char *line)
{
	char *words[MAX_ARGUMENTS] = {(char *)"glakectl"};
	int n_words = 1;
	char *copy = strdup(line);
	for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) {
		words[n_words++] = word;
	}
	free(out_text);
	free(err_text);
	size_t n_out;
	size_t n_err;
	FILE *out = open_memstream(&out_text, &n_out);
	FILE *err = open_memstream(&err_text, &n_err);
	int code = ctl_run(n_words, words, out, err);
	fclose(out);
	fclose(err);
	free(copy);
	ck_assert_int_eq(fake.connected, 0);
	return code;
}

/* Run with success, and read the answer as JSON. */
static json_t *run_json(const char *line)
{
	ck_assert_int_eq(run(line), 0);
	ck_assert_str_eq(err_text, "");
	json_error_t error;
	json_t *document = json_loads(out_text, 0, &error);
	ck_assert_msg(document != NULL, "%s: %s", error.text, out_text);
	return document;
}

static void setup(void)
{
	memset(&fake, 0, sizeof(fake));
	fake.name = "plain";
}
BEGIN_EACH(setup)

static void teardown(void)
{
	free(out_text);
	free(err_text);
	out_text = NULL;
	err_text = NULL;
}
END_EACH(teardown)

#define assert_contains(text, part) \
	ck_assert_msg(strstr((text), (part)) != NULL, "no '%s' in: %.4000s", (part), (text))

/* A screen is 80 columns wide. */
static void assert_narrow(const char *text)
{
	for (const char *line = text; *line; line += strcspn(line, "\n") + 1) {
		ck_assert_msg(strcspn(line, "\n") <= 80, "too wide: %s", line);
	}
}

/* ---- a session on a terminal, for tests/golden ------------------------------------------------ */

static char *told;
static size_t n_told;
static FILE *telling;

/* An object of JSON: a line for each member, and for each row of a list. */
static void tell_json(json_t *document)
{
	const char *key;
	json_t *value;
	json_object_foreach(document, key, value)
	{
		bool is_list = json_is_array(value);
		size_t n = is_list ? json_array_size(value) : 1;
		fprintf(telling, is_list ? "%s: %zu\n" : "%s: ", key, n);
		for (size_t i = 0; i < n; i++) {
			char *row = json_dumps(is_list ? json_array_get(value, i) : value,
			                       JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
			fprintf(telling, "%s%s\n", is_list ? "  " : "", row);
			free(row);
		}
	}
	json_decref(document);
}

/* Run it, and tell what it says and with what it ends. */
static void tell(const char *line)
{
	if (!telling) {
		setenv("TZ", "UTC", 1);
		tzset();
		telling = open_memstream(&told, &n_told);
	}
	int code = run(line);
	json_t *document = strstr(line, "--json") ? json_loads(out_text, 0, NULL) : NULL;
	fprintf(telling, "$ glakectl %s\n%s%s", line, document ? "" : out_text, err_text);
	if (document) {
		tell_json(document);
	}
	if (code != 0) {
		fprintf(telling, "exit status %d\n", code);
	}
	if (fake.call[0]) {
		fprintf(telling, "# asked for: %s\n", fake.call);
		fake.call[0] = '\0';
	}
}

/* The text that was told since the last call is that of tests/golden/ctl-@name.txt. */
static void expect_told(const char *name)
{
	char file[64];
	snprintf(file, sizeof(file), "ctl-%s", name);
	fclose(telling);
	golden_expect(file, told);
	free(told);
	telling = NULL;
}

/* ---- tests ---------------------------------------------------------------------------------- */

START_TEST(sizes_are_short_and_rounded)
{
	static const struct {
		uint64_t bytes;
		const char *text;
	} cases[] = {
		{0, "0"},
		{1, "1 B"},
		{1023, "1023 B"},
		{1024, "1.0 KiB"},
		{1536, "1.5 KiB"},
		{1024 * 1024 - 1, "1.0 MiB"},
		{24 * GIB, "24.0 GiB"},
		{UINT64_MAX, "16.0 EiB"},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char text[TEXT_NUMBER_BYTES];
		text_size(cases[i].bytes, text);
		ck_assert_str_eq(text, cases[i].text);
	}
}
END_TEST

START_TEST(sizes_are_read_back)
{
	uint64_t bytes;
	ck_assert_int_eq(text_parse_size("24GiB", &bytes), 0);
	ck_assert_uint_eq(bytes, 24 * GIB);
	ck_assert_int_eq(text_parse_size("1.5 MiB", &bytes), 0);
	ck_assert_uint_eq(bytes, 3 * 512 * 1024);
	ck_assert_int_eq(text_parse_size("2GB", &bytes), 0);
	ck_assert_uint_eq(bytes, 2000000000);
	ck_assert_int_eq(text_parse_size("1.5G", &bytes), 0);
	ck_assert_uint_eq(bytes, 3 * GIB / 2);
	ck_assert_int_eq(text_parse_size("4096", &bytes), 0);
	ck_assert_uint_eq(bytes, 4096);
	ck_assert_int_eq(text_parse_size("none", &bytes), 0);
	ck_assert_uint_eq(bytes, 0);
	static const char *const bad[] = {
		"",    "0",   "-1",   "1.2.3GiB", "GiB",  "24gb",
		"24g", "1e3", "0x10", "1GiBs",    "9EiB", "99999999999999999999",
		" 1",  "inf", ".",
	};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		bytes = 77;
		ck_assert_msg(text_parse_size(bad[i], &bytes) == -EINVAL, "took '%s'", bad[i]);
		ck_assert_uint_eq(bytes, 77);
	}
}
END_TEST

START_TEST(durations_have_two_parts)
{
	static const struct {
		uint64_t ms;
		const char *text;
	} cases[] = {
		{0, "0 ms"},       {999, "999 ms"},         {1250, "1.2 s"},
		{61000, "1m 01s"}, {3 * 3600000, "3h 00m"}, {25 * 3600000ull, "1d 1h"},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char text[TEXT_NUMBER_BYTES];
		text_duration(cases[i].ms, text);
		ck_assert_str_eq(text, cases[i].text);
	}
}
END_TEST

START_TEST(names_cannot_steer_a_terminal)
{
	static const struct {
		const char *from;
		const char *to;
	} cases[] = {
		{"llama/8B é 漢", "llama/8B é 漢"},
		{"\033[2J\a\n\r\t", "\\x1b[2J\\x07\\x0a\\x0d\\x09"},
		{"\x7f \xc2\x9b", "\\x7f \\xc2\\x9b"},
		{"back\\slash", "back\\x5cslash"},
		{"\xe2\x80\xae"
	         "evil",
	         "\\xe2\\x80\\xae"
	         "evil"},
		{"cut \xe6\xbc", "cut \\xe6\\xbc"},
		{"overlong \xc0\xaf", "overlong \\xc0\\xaf"},
		{"surrogate \xed\xa0\x80", "surrogate \\xed\\xa0\\x80"},
		{"\xff\xfe", "\\xff\\xfe"},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char *text = text_escape(cases[i].from);
		ck_assert_str_eq(text, cases[i].to);
		free(text);
	}
}
END_TEST

START_TEST(tables_are_aligned)
{
	struct table table;
	char *text;
	size_t n_bytes;
	table_init(&table);
	table_column(&table, "NAME", false);
	table_column(&table, "SIZE", true);
	table_column(&table, "LAST", false);
	/* One of a wide script has two columns for each character, and what looks like an escape is not one of the table's. */
	const char *cells[] = {"é",     "1",      "x",     "模型", "22",
	                       "\\x1b", "longer", "12345", "y",    "unfinished"};
	text_set_locale();
	for (size_t i = 0; i < sizeof(cells) / sizeof(cells[0]); i++) {
		table_cell(&table, cells[i]);
	}
	FILE *out = open_memstream(&text, &n_bytes);
	ck_assert_int_eq(table_print(&table, out), 0);
	fclose(out);
	ck_assert_str_eq(text, "NAME         SIZE  LAST\n"
	                       "é               1  x\n"
	                       "模型           22  \\x1b\n"
	                       "longer      12345  y\n"
	                       "unfinished         \n");
	free(text);
	table_deinit(&table);
}
END_TEST

START_TEST(tables_fold_where_they_do_not_fit)
{
	static const struct {
		size_t width;
		const char *text;
	} cases[] = {
		{0, "ID  ONE  TWO  TEXT\n 1   11   22  a long one\n"},
		{30, "ID  ONE  TWO  TEXT\n 1   11   22  a long one\n"},
		/* The text runs over, as its title fits. */
		{20, "ID  ONE  TWO  TEXT\n 1   11   22  a long one\n"},
		{16, "ID  ONE  TWO\n 1   11   22\n\nID  TEXT\n 1  a long one\n"},
		{8, "ID  ONE\n 1   11\n\nID  TWO\n 1   22\n\nID  TEXT\n 1  a long one\n"},
		{1, "ID  ONE\n 1   11\n\nID  TWO\n 1   22\n\nID  TEXT\n 1  a long one\n"},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct table table;
		char *text;
		size_t n_bytes;
		table_init(&table);
		table_column(&table, "ID", true);
		table_column(&table, "ONE", true);
		table_column(&table, "TWO", true);
		table_column(&table, "TEXT", false);
		table_cell(&table, "1");
		table_cell(&table, "11");
		table_cell(&table, "22");
		table_cell(&table, "a long one");
		FILE *out = open_memstream(&text, &n_bytes);
		ck_assert_int_eq(table_print_width(&table, out, cases[i].width), 0);
		fclose(out);
		ck_assert_str_eq(text, cases[i].text);
		free(text);
		table_deinit(&table);
	}
}
END_TEST

START_TEST(every_command_has_help_without_a_daemon)
{
	static const char *const names[] = {
		"status", "stats",      "sessions", "fragmentation", "dedup",    "tenants",
		"models", "blocks",     "events",   "load",          "pin",      "unpin",
		"evict",  "quota",      "sleep",    "wake",          "sleepers", "seal",
		"doctor", "completion", "metrics",  "top",           "map",      "tiers",
	};
	fake.connect_error = GLAKE_E_GONE;
	ck_assert_int_eq(run("--help"), 0);
	char *all = strdup(out_text);
	ck_assert_int_eq(run("help"), 0);
	ck_assert_str_eq(out_text, all);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		char line[64];
		assert_contains(all, names[i]);
		snprintf(line, sizeof(line), "%s --help", names[i]);
		ck_assert_int_eq(run(line), 0);
		char *one = strdup(out_text);
		assert_contains(one, names[i]);
		snprintf(line, sizeof(line), "help %s", names[i]);
		ck_assert_int_eq(run(line), 0);
		ck_assert_str_eq(out_text, one);
		free(one);
	}
	free(all);
	ck_assert_int_eq(run("--version"), 0);
	ck_assert_str_eq(out_text, "glakectl 0.1.0\n");
}
END_TEST

START_TEST(bad_command_lines_are_usage_errors)
{
	static const char *const lines[] = {
		"",
		"nonsense",
		"help nonsense",
		"--nonsense",
		"status extra",
		"status --device 1",
		"--socket",
		"pin",
		"pin a b",
		"evict",
		"evict a --all",
		"seal",
		"seal serve.py",
		"seal 0",
		"quota t",
		"quota t --device 1",
		"quota t --device 1 --sessions 3",
		"quota t --force --sessions 3",
		"quota t --bytes 24gb",
		"quota t --sessions 0",
		"quota t --sessions many",
		"load",
		"load x --device -1",
		"load x --device 4294967296",
		"load x --pin=yes",
		"fragmentation serve.py",
		"fragmentation 0",
		"fragmentation 1 2",
		"fragmentation --seconds 3",
		"fragmentation --watch --seconds 0",
		"fragmentation --html --seconds 0",
		"fragmentation --html --watch",
		"fragmentation --html x.html y.html",
		"fragmentation --watch --seconds 99999999",
		"events --seconds 1",
		"events x",
		"completion",
		"completion tcsh",
		"metrics --serve 0.0.0.0:80",
		"metrics --serve [::]:80",
		"metrics --serve 127.0.0.1.example:80 --token-file t",
		"metrics --serve [::1:80",
		"metrics --serve []:80 --token-file t",
		"metrics --serve :80 --token-file t",
		"metrics --token-file t",
		"metrics --serve 127.0.0.1:70000",
		"metrics --serve unix:relative",
		"metrics x",
		"map",
		"map x --html",
		"top --once --seconds 2",
	};
	fake.connect_error = GLAKE_E_INTERNAL;
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		ck_assert_msg(run(lines[i]) == CTL_USAGE, "not a usage error: %s", lines[i]);
		ck_assert_str_eq(out_text, "");
		assert_contains(err_text, "glakectl: ");
	}
	ck_assert_int_eq(run("fragmentation --html --json"), CTL_USAGE);
	ck_assert_int_eq(run("quota t --json"), CTL_USAGE);
	ck_assert_str_eq(err_text, "");
	assert_contains(out_text, "\"code\": -22");
}
END_TEST

START_TEST(an_unknown_option_is_named)
{
	static const char *const lines[][2] = {
		{"--nonsense status", "unknown option, or one that takes no value: --nonsense\n"},
		{"status --json=1", "unknown option, or one that takes no value: --json=1\n"},
		{"status --help=1", "unknown option, or one that takes no value: --help=1\n"},
		{"-x", "glakectl: unknown option: -x\n"},
		{"-xs", "glakectl: unknown option: -x\n"},
		{"status -js", "glakectl: status: unknown option: -j\n"},
	};
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		ck_assert_int_eq(run(lines[i][0]), CTL_USAGE);
		assert_contains(*out_text ? out_text : err_text, lines[i][1]);
	}
}
END_TEST

START_TEST(errors_have_their_exit_codes)
{
	static const struct {
		int error;
		int code;
	} cases[] = {
		{GLAKE_E_GONE, 3},
		{GLAKE_E_PROTOCOL, 3},
		{GLAKE_E_VERSION, 3},
		{GLAKE_E_SHUTTING_DOWN, 3},
		{GLAKE_E_NO_PERMISSION, 4},
		{-EACCES, 4},
		{GLAKE_E_NOT_FOUND, 5},
		{-ENOENT, 5},
		{GLAKE_E_BUSY, 6},
		{GLAKE_E_OVER_QUOTA, 7},
		{GLAKE_E_NO_DEVICE_MEMORY, 7},
		{GLAKE_E_NO_FDS, 7},
		{GLAKE_E_BAD_FILE, 8},
		{GLAKE_E_FILE_CHANGED, 8},
		{GLAKE_E_READ, 8},
		{GLAKE_E_BAD_REQUEST, 1},
		{GLAKE_E_MOVER, 1},
		{GLAKE_E_INTERNAL, 1},
		{-EIO, 1},
		{-99999, 1},
	};
	static const char *const lines[] = {
		"status",
		"stats",
		"sessions",
		"fragmentation",
		"dedup",
		"tenants",
		"models",
		"blocks",
		"events",
		"pin m",
		"evict m",
		"load m",
		"quota t --sessions 1",
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		fake.connect_error = cases[i].error;
		ck_assert_int_eq(run("status"), cases[i].code);
		fake.connect_error = 0;
		fake.error = cases[i].error;
		ck_assert_int_eq(run(lines[i % (sizeof(lines) / sizeof(lines[0]))]), cases[i].code);
		ck_assert_str_eq(out_text, "");
	}
}
END_TEST

START_TEST(errors_are_told_once_with_their_cause)
{
	fake.error = GLAKE_E_OVER_QUOTA;
	fake.cause = "tenant \033 is full";
	tell("models");
	tell("--json models");
	expect_told("errors");
	/* As a terminal gets it. */
	ck_assert_ptr_null(strchr(out_text, '\033'));
	ck_assert_str_eq(ctl_error_name(-ENOENT), "ENOENT");
	ck_assert_str_eq(ctl_error_name(-12345), "UNKNOWN");
}
END_TEST

/* With what the doctor says, but for what is well and for notes. */
START_TEST(status_at_a_glance)
{
	tell("status");
	tell("sessions -v");
	expect_told("status");
	fake.name = "\033[31m\n";
	ck_assert_int_eq(run("status"), 0);
	ck_assert_ptr_null(strchr(out_text, '\033'));
}
END_TEST

START_TEST(status_shows_all_words)
{
	tell("status -v");
	fake.kept_fds = 31;
	fake.max_kept_fds = 32;
	ck_assert_int_eq(run("status --verbose"), 0);
	assert_contains(out_text, "kept          31 of 32 fds, unparked 3.0 GiB\n");
	fake.unkept_blocks = 2;
	tell("--bytes status -v");
	tell("status --json");
	expect_told("status-v");
}
END_TEST

/* All sessions of the process are asked; one that sleeps with a model is found by that, also if the store has none of the name. */
START_TEST(programs_are_put_to_sleep_by_the_models_that_they_have_open)
{
	fake.name = "llama";
	ck_assert_int_eq(run("sleep llama"), 0);
	ck_assert_str_eq(fake.call, "sleep 1");
	fake.call[0] = 0;
	ck_assert_int_eq(run("wake forgotten"), 0);
	ck_assert_str_eq(fake.call, "wake 1");
	fake.has_demoted = true;
	ck_assert_int_eq(run("sleep demoted"), CTL_NOT_FOUND);
	assert_contains(err_text, "nobody has such a model open");
	ck_assert_int_eq(run("sleepers --json"), 0);
	assert_contains(out_text, "\"forgotten\"");
}
END_TEST

START_TEST(programs_are_put_to_sleep_by_pid_session_or_tenant)
{
	ck_assert_int_eq(run("sleep 100"), 0);
	ck_assert_str_eq(fake.call, "sleep 1");
	assert_contains(out_text, "memory has a handle");
	assert_contains(err_text, "100: 25 %: 1.0 GiB of 4.0 GiB, ");
	assert_contains(err_text, "\n100: 100 %: 5.0 GiB of 5.0 GiB, ");
	fake.call[0] = 0;
	/* Its place is said when it changes. */
	ck_assert_int_eq(run("wake 100"), 0);
	ck_assert_ptr_eq(strstr(err_text, "100: waits for room, place 2, for 1m 00s\n"
	                                  "100: waits for room, place 1, for 1m 00s\n"
	                                  "100: 25 %: "),
	                 err_text);
	assert_contains(out_text, "250 ms      0 ms    150 ms\n");
	fake.call[0] = 0;
	ck_assert_int_eq(run("wake default --json"), 0);
	ck_assert_str_eq(fake.call, "wake 1 wake 2");
	assert_contains(out_text, "\"is_asleep\": false");
	ck_assert_int_eq(run("sleep 4711"), CTL_NOT_FOUND);
	ck_assert_int_eq(run("sleep nobody"), CTL_NOT_FOUND);
	assert_contains(err_text, "nobody");
	fake.error = GLAKE_E_NO_HOST_MEMORY;
	ck_assert_int_eq(run("sleep 1"), CTL_LIMIT);
}
END_TEST

START_TEST(sleepers_tell_what_their_last_wake_cost)
{
	tell("sleepers");
	fake.has_woken = true;
	tell("sleepers");
	tell("sleepers --json");
	expect_told("sleepers");
}
END_TEST

START_TEST(lists_have_their_columns_and_keys)
{
	static const char *const lists[] = {"models", "blocks", "tenants", "events", "stats"};
	for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
		char line[64];
		tell(lists[i]);
		snprintf(line, sizeof(line), "%s --json", lists[i]);
		tell(line);
	}
	expect_told("lists");
}
END_TEST

/* Each byte that exists is in one column of its tier. */
START_TEST(tiers_say_where_the_bytes_are)
{
	fake.has_demoted = true;
	tell("tiers");
	tell("tiers --json");
	/* Without sleepers it still tells the rest. */
	fake.is_old = true;
	tell("tiers");
	expect_told("tiers");
}
END_TEST

START_TEST(events_are_followed_once_each)
{
	ck_assert_int_eq(run("events --follow --seconds 1"), 0);
	const char *line = strstr(out_text, "block_damaged   uid:0          77  plain\n");
	ck_assert_ptr_nonnull(line);
	ck_assert_ptr_null(strstr(line + 1, "block_damaged"));
	ck_assert_int_eq(run("events --follow --seconds 0 --json"), 0);
	json_t *row = json_loads(out_text, 0, NULL);
	ck_assert_int_eq(json_integer_value(json_object_get(row, "id")), 3);
	json_decref(row);
}
END_TEST

static void add_lines(const char *path, const char *lines)
{
	FILE *file = fopen(path, "w");
	ck_assert_ptr_nonnull(file);
	fputs(lines, file);
	fclose(file);
}

static const struct finding *finding(const struct findings *findings, size_t i)
{
	ck_assert_uint_lt(i, findings->list.n);
	return rows_at(&findings->list, i);
}

START_TEST(the_doctor_sees_ranges_that_overlap)
{
	char path[256];
	struct findings findings = {.n_errors = 0};
	snprintf(path, sizeof(path), "%s/subuid", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
	add_lines(path, "# a comment\nanna:100000:65536\nben:165536:65536\nanna:300000:1\n");
	doctor_check_subuids(&findings, path);
	ck_assert_str_eq(finding(&findings, 0)->level, "ok");
	add_lines(path, "ben:165535:65536\nanna:100000:65536\n");
	doctor_check_subuids(&findings, path);
	ck_assert_str_eq(finding(&findings, 1)->level, "warning");
	assert_contains(finding(&findings, 1)->text, "anna and ben overlap at 165535");
	ck_assert_uint_eq(findings.n_warnings, 1);
	add_lines(path, "0::/serving.slice/a\n");
	doctor_check_cgroup(&findings, path);
	assert_contains(finding(&findings, 2)->text, "/serving.slice/a");
	add_lines(path, "4:memory:/x\n");
	doctor_check_cgroup(&findings, path);
	ck_assert_str_eq(finding(&findings, 3)->level, "note");
	findings_deinit(&findings);
	unlink(path);
}
END_TEST

/* The memory of one node, number 0, as its host tells. */
static void have_node(const char *folder, uint64_t total_bytes, uint64_t free_bytes)
{
	char path[400];
	char lines[256];
	snprintf(path, sizeof(path), "%s/node0", folder);
	mkdir(path, 0755);
	snprintf(path, sizeof(path), "%s/node0/meminfo", folder);
	snprintf(lines, sizeof(lines),
	         "Node 0 MemTotal:  %llu kB\nNode 0 MemFree: %llu kB\nNode 0 MemUsed: 77 kB\n"
	         "Node 0 Active(anon): 7 kB\nNode 0 Inactive(file): 1048576 kB\n",
	         (unsigned long long)total_bytes / 1024, (unsigned long long)free_bytes / 1024);
	add_lines(path, lines);
}

static void ck_host(const char *folder, const struct glake_host_status *host, const char *level,
                    const char *text)
{
	struct findings findings = {.n_errors = 0};
	const struct glake_status status = {.n_hosts = 1, .hosts = host};
	doctor_check_hosts(&findings, &status, folder);
	ck_assert_uint_eq(findings.list.n, 1);
	ck_assert_str_eq(finding(&findings, 0)->level, level);
	assert_contains(finding(&findings, 0)->text, text);
	ck_assert_int_eq(*finding(&findings, 0)->remedy != 0, strcmp(level, "ok") != 0);
	findings_deinit(&findings);
}

START_TEST(the_doctor_holds_host_memory_against_what_the_node_has)
{
	char folder[256] = "";
	struct glake_host_status host = {
		.total_bytes = 64 * GIB, .limit_bytes = 32 * GIB, .physical_bytes = 2 * GIB};
	snprintf(folder, sizeof(folder), "%s/nodes", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
	mkdir(folder, 0755);
	ck_host("/nowhere", &host, "ok", "glaked has 2.0 GiB, and may take 32.0 GiB of 64.0 GiB");
	/* Free, or of the page cache. */
	have_node(folder, 64 * GIB, 29 * GIB);
	ck_host(folder, &host, "ok", "may take 32.0 GiB");
	have_node(folder, 64 * GIB, 28 * GIB);
	ck_host(folder, &host, "warning", "may take 30.0 GiB more, and the node has 29.0 GiB");
	/* The node is another host's. */
	have_node(folder, 32 * GIB, GIB);
	ck_host(folder, &host, "ok", "may take 32.0 GiB");
	host.ready_bytes = 33 * GIB;
	ck_host(folder, &host, "warning",
	        "33.0 GiB are to be kept ready, and glaked may take 32.0");
	host.limit_bytes = 60 * GIB;
	ck_host(folder, &host, "warning", "glaked may take 60.0 GiB of 64.0 GiB");
}
END_TEST

START_TEST(the_doctor_says_what_keeps_programs_from_sleeping_well)
{
	const struct glake_host_status host = {.total_bytes = 64 * GIB, .limit_bytes = 16 * GIB};
	struct glake_status status = {.mover_idle_ms = 30000, .hosts_lacking = "refused"};
	struct findings findings = {.n_errors = 0};
	doctor_check_sleep(&findings, &status);
	doctor_check_hosts(&findings, &status, "/nowhere");
	ck_assert_str_eq(finding(&findings, 0)->level, "ok");
	ck_assert_str_eq(finding(&findings, 1)->level, "note");
	status.sleeps_on_pressure = 1;
	doctor_check_hosts(&findings, &status, "/nowhere");
	ck_assert_str_eq(finding(&findings, 2)->level, "warning");
	assert_contains(finding(&findings, 2)->text, "programs cannot sleep, nor models");
	assert_contains(finding(&findings, 2)->text, "refused");
	status.n_hosts = 1;
	status.hosts = &host;
	doctor_check_sleep(&findings, &status);
	ck_assert_uint_eq(findings.list.n, 6);
	assert_contains(finding(&findings, 3)->text, "glake-mover ends when it has nothing to do");
	assert_contains(finding(&findings, 4)->text, "without pressure = \"wait\"");
	assert_contains(finding(&findings, 5)->text, "no host memory is made ahead");
	const struct glake_host_status ready = {.limit_bytes = 16 * GIB, .ready_bytes = GIB};
	status.hosts = &ready;
	status.mover_idle_ms = 0;
	status.waits = 1;
	status.sleeps_idle = 1;
	doctor_check_sleep(&findings, &status);
	ck_assert_uint_eq(findings.list.n, 7);
	ck_assert_str_eq(finding(&findings, 6)->level, "ok");
	assert_contains(finding(&findings, 6)->text, "idle, or others need");
	findings_deinit(&findings);
}
END_TEST

/* The smallest of the groups that it is in. */
START_TEST(the_doctor_finds_the_limit_of_glakeds_cgroup)
{
	char path[256];
	char folder[256];
	char place[400];
	struct findings findings = {.n_errors = 0};
	const char *temporary = getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp";
	snprintf(path, sizeof(path), "%s/cgroup", temporary);
	snprintf(folder, sizeof(folder), "%s/groups", temporary);
	add_lines(path, "0::/system.slice/glaked.service\n");
	mkdir(folder, 0755);
	snprintf(place, sizeof(place), "%s/system.slice", folder);
	mkdir(place, 0755);
	snprintf(place, sizeof(place), "%s/system.slice/glaked.service", folder);
	mkdir(place, 0755);
	snprintf(place, sizeof(place), "%s/system.slice/glaked.service/memory.max", folder);
	add_lines(place, "max\n");
	doctor_check_memory(&findings, path, folder);
	doctor_check_memory(&findings, "/nowhere", folder);
	ck_assert_uint_eq(findings.list.n, 0);
	snprintf(place, sizeof(place), "%s/system.slice/memory.max", folder);
	add_lines(place, "1073741824\n");
	doctor_check_memory(&findings, path, folder);
	ck_assert_uint_eq(findings.list.n, 1);
	assert_contains(finding(&findings, 0)->text, "may use 1.0 GiB");
	add_lines(place, "4294967296\n");
	doctor_check_memory(&findings, path, folder);
	ck_assert_uint_eq(findings.list.n, 1);
	findings_deinit(&findings);
}
END_TEST

START_TEST(the_doctor_works_without_a_daemon)
{
	fake.connect_error = -EACCES;
	fake.cause = "cannot connect";
	ck_assert_int_eq(run("doctor"), CTL_NO_PERMISSION);
	assert_contains(out_text, "error    daemon   some error: cannot connect\n");
	assert_contains(out_text, "-> socket_mode, ");
	ck_assert_str_eq(err_text, "");
	fake.connect_error = GLAKE_E_VERSION;
	ck_assert_int_eq(run("doctor --json"), CTL_UNREACHABLE);
	json_t *document = json_loads(out_text, 0, NULL);
	ck_assert_int_gt(json_integer_value(json_object_get(document, "n_errors")), 0);
	json_decref(document);
}
END_TEST

START_TEST(the_doctor_looks_at_the_daemon)
{
	fake.name = "H200";
	/* The driver of this machine may be none. */
	int code = run("doctor");
	ck_assert(code == CTL_OK || code == CTL_FAILED);
	assert_contains(out_text, "ok       daemon   glaked 0.1.0, pid 42");
	assert_contains(out_text, "warning  fds      7 of 100 in use\n");
	assert_contains(out_text, "note     fabric   device 0: no: not permitted\n");
	assert_contains(out_text, "note     nvml     device 1: nobody tells what is free\n");
	assert_contains(out_text, "warning  events   1 since glaked started\n");
	assert_contains(out_text,
	                "ok       host     node 1: glaked has 3.0 GiB, and may take 16.0 ");
	assert_contains(out_text, "ok       sleep    no program is put to sleep by itself\n");
	assert_contains(out_text, "note     rights   tenant default, realm uid:1000; ");
}
END_TEST

START_TEST(the_doctor_tells_what_a_restart_loses)
{
	run("doctor");
	assert_contains(out_text, "note     restart  nobody keeps glaked's fds: a restart loses");
	assert_contains(out_text, "-> glaked.service, or glake-keeper -- glaked");
	fake.kept_fds = 28;
	fake.max_kept_fds = 32;
	run("doctor");
	assert_contains(out_text, "ok       restart  28 of 32 fds are kept for the next glaked");
	fake.kept_fds = 29;
	run("doctor");
	assert_contains(out_text, "warning  restart  29 of 32 fds are kept for the next glaked");
	assert_contains(out_text, "-> FileDescriptorStoreMax= and FDSTORE= of glaked.service");
	fake.unkept_blocks = 3;
	run("doctor");
	assert_contains(out_text, "warning  restart  the fd store is full with 29 fds: a restart "
	                          "loses 3 blocks");
}
END_TEST

START_TEST(top_is_plain_where_there_is_no_terminal)
{
	fake.name = "python3";
	ck_assert_int_eq(run("top --once"), 0);
	assert_contains(out_text, "glaked 0.1.0, up 1m 01s  3 sessions");
	/* 1.5 columns to a GiB; what is there ends where it ends in sum. */
	assert_contains(
		out_text,
		" 0 python3      [PBBBccddddooooooouu.................] 12.0 GiB of 24.0 GiB\n");
	assert_contains(out_text, "] >= 0 of 24.0 GiB\n");
	assert_contains(
		out_text,
		"   4.0 GiB  3.0 GiB  75.0 %  16.0 GiB    2.0 GiB      -  default  python3\n");
	assert_contains(out_text, "  3  100  ");
	assert_contains(
		out_text,
		"         0        -       -         0  512.0 MiB      -  default  python3\n");
	ck_assert_ptr_null(strchr(out_text, '\033'));
	ck_assert_int_eq(run("top --seconds 1"), 0);
	const char *again = strstr(out_text + 1, "per second:");
	ck_assert_ptr_nonnull(strstr(again + 1, "per second:  requests 0.0"));
	json_t *document = run_json("top --once --json");
	json_t *row = json_array_get(json_object_get(document, "sessions"), 0);
	ck_assert(json_is_null(json_object_get(row, "requests")));
	ck_assert_uint_eq(json_array_size(json_object_get(document, "tenants")), 2);
	ck_assert_uint_eq(json_array_size(json_object_get(document, "devices")), 2);
	json_decref(document);
}
END_TEST

static unsigned count(const char *text, const char *part)
{
	unsigned n = 0;
	for (const char *at = strstr(text, part); at; at = strstr(at + 1, part)) {
		n++;
	}
	return n;
}

/* Have it write a page. Returns the path of that. */
static const char *run_html(const char *command)
{
	static char path[256];
	char line[300];
	snprintf(path, sizeof(path), "%s/page.html", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
	snprintf(line, sizeof(line), "%s --html=%s", command, path);
	ck_assert_int_eq(run(line), 0);
	return path;
}

static void take_page(const char *path, char *page, size_t n_bytes)
{
	FILE *file = fopen(path, "r");
	ck_assert_ptr_nonnull(file);
	page[fread(page, 1, n_bytes - 1, file)] = '\0';
	fclose(file);
	unlink(path);
}

/* The document in the page at @path. */
static json_t *take_document(const char *path)
{
	static char page[4 * 1024 * 1024];
	take_page(path, page, sizeof(page));
	ck_assert_ptr_nonnull(strstr(page, "</html>\n"));
	const char *begin = strstr(page, "<script type=\"application/json\"");
	begin = begin ? strchr(begin, '>') : NULL;
	ck_assert_ptr_nonnull(begin);
	/* Nothing in it ends the element that it is in. */
	const char *end = strchr(begin, '<');
	ck_assert_int_eq(strncmp(end, "</script>", 9), 0);
	json_t *document = json_loadb(begin + 1, (size_t)(end - begin - 1), 0, NULL);
	ck_assert_ptr_nonnull(document);
	/* Its script and style have a number that no other page has. */
	ck_assert_ptr_null(strstr(page, "@NONCE@"));
	ck_assert_ptr_null(strstr(page, "@DATA@"));
	ck_assert_ptr_null(strstr(page, "https://"));
	return document;
}

static json_t *first_of(json_t *document, const char *key)
{
	return json_array_get(json_object_get(document, key), 0);
}

static json_int_t number_of(json_t *object, const char *key)
{
	ck_assert_msg(json_is_integer(json_object_get(object, key)), "%s", key);
	return json_integer_value(json_object_get(object, key));
}

START_TEST(the_map_names_who_holds_what)
{
	fake.name = "<i>\"a\" & b\n</script>";
	fake.has_demoted = true;
	fake.waits_to_wake = true;
	for (int i = 0; i < 2; i++) {
		json_t *document = take_document(run_html("map --seconds 1"));
		assert_contains(out_text, "page.html: 2 samples of 2 devices\n");
		json_t *session = first_of(document, "sessions");
		json_t *device = first_of(document, "devices");
		json_t *model = first_of(document, "models");
		json_t *host = first_of(document, "hosts");
		ck_assert_int_eq(number_of(document, "version"), 1);
		ck_assert(json_is_null(json_object_get(document, "error")));
		ck_assert_str_eq(json_string_value(json_object_get(session, "label")), fake.name);
		ck_assert_int_eq(number_of(session, "live_bytes"), 3 * GIB);
		ck_assert_ptr_null(json_object_get(session, "arguments"));
		ck_assert_int_eq(number_of(first_of(session, "devices"), "process_bytes"), 2 * GIB);
		ck_assert_int_eq(number_of(device, "foreign_bytes"), 5 * GIB);
		ck_assert_int_eq(number_of(host, "slept_bytes"), 4 * GIB);
		/* An older glaked tells neither who has a model open, nor who sleeps. */
		ck_assert_int_eq(json_array_size(json_object_get(model, "sessions")) > 0,
		                 !fake.is_old);
		ck_assert_uint_eq(json_array_size(json_object_get(document, "sleepers")),
		                  !fake.is_old);
		ck_assert_uint_eq(json_array_size(json_object_get(document, "history_ms")), 2);
		ck_assert_uint_eq(
			json_array_size(json_object_get(first_of(document, "history"), "cached")),
			2);
		json_decref(document);
		fake.is_old = true;
	}
	ck_assert_int_eq(run("map --html=/nowhere/map.html"), CTL_FAILED);
}
END_TEST

START_TEST(a_map_names_each_session_of_a_model_once)
{
	fake.n_crowd = 2;
	json_t *document = take_document(run_html("map"));
	size_t i;
	json_t *model;
	json_array_foreach(json_object_get(document, "models"), i, model)
	{
		char *sessions = json_dumps(json_object_get(model, "sessions"), JSON_COMPACT);
		if (number_of(model, "id") == 9) {
			ck_assert_str_eq(sessions, "[1,1001,1002]");
		}
		free(sessions);
	}
	json_decref(document);
}
END_TEST

START_TEST(a_map_of_many_shows_the_largest)
{
	fake.n_crowd = 3000;
	json_t *document = take_document(run_html("map"));
	json_t *sessions = json_object_get(document, "sessions");
	ck_assert_uint_eq(json_array_size(sessions), 1000);
	ck_assert_int_eq(number_of(document, "n_sessions_left_out"), 2002);
	ck_assert_int_gt(number_of(document, "n_models_left_out"), 1999);
	size_t i;
	json_t *session;
	json_array_foreach(sessions, i, session)
	{
		bool is_crowd = number_of(session, "pid") >= 1000;
		ck_assert(!is_crowd ||
		          number_of(session, "reserved_bytes") > (json_int_t)(2000 * MIB));
	}
	json_t *model;
	json_array_foreach(json_object_get(document, "models"), i, model)
	{
		ck_assert_uint_le(json_array_size(json_object_get(model, "sessions")), 64);
	}
	json_decref(document);
}
END_TEST

static struct map_sample_head {
	uint64_t at_ms;
	uint32_t device;
} head_of(const struct map *map, size_t i)
{
	struct map_sample_head head;
	memcpy(&head, rows_at(&map->samples, i), sizeof(head));
	return head;
}

START_TEST(a_map_forgets_what_is_long_ago_first)
{
	struct map map = {.n_times = 0};
	struct snapshot snapshot = {.at_ms = 0};
	const struct glake_device_status devices[] = {{.index = 0}, {.index = 1}};
	for (size_t i = 0; i < 2; i++) {
		memcpy(rows_add(&snapshot.devices, sizeof(devices[0])), &devices[i],
		       sizeof(devices[0]));
	}
	for (uint64_t at = 1; at <= 10 * MAP_MAX_SAMPLES; at++) {
		snapshot.at_ms = at;
		ck_assert_int_eq(map_add(&map, &snapshot), 0);
		ck_assert_uint_le(map.n_times, MAP_MAX_SAMPLES);
		ck_assert_uint_eq(map.samples.n, 2 * map.n_times);
	}
	size_t n = map.n_times;
	ck_assert_uint_gt(n, MAP_MAX_SAMPLES / 2);
	ck_assert_uint_eq(head_of(&map, 0).at_ms, 1);
	ck_assert_uint_eq(head_of(&map, 2 * n - 1).at_ms, 10 * MAP_MAX_SAMPLES);
	for (size_t i = 1; i < n; i++) {
		ck_assert_uint_gt(head_of(&map, 2 * i).at_ms, head_of(&map, 2 * i - 1).at_ms);
		ck_assert_uint_eq(head_of(&map, 2 * i + 1).device, 1);
	}
	map_deinit(&map);
	snapshot_deinit(&snapshot);
}
END_TEST

/* The labels of device 0, with @more behind them. */
#define GPU(more) \
	"{gpu=\"0\",UUID=\"GPU-abcd0000-0000-0000-0000-000000000000\",Hostname=\"node\\\"7\"" more \
	"} "

START_TEST(metrics_have_their_format)
{
	setenv("NODE_NAME", "node\"7", 1);
	fake.name = "a \"b\" \\ c\nd \xff \033[2J";
	ck_assert_int_eq(run("metrics"), 0);
	assert_contains(out_text, "\nglake_device_bytes" GPU(",use=\"private\"") "1073741824\n");
	assert_contains(out_text, "\nglake_host_limit_bytes{node=\"1\"} 17179869184\n");
	assert_contains(out_text,
	                "\nglake_host_bytes{node=\"1\",use=\"copies_free\"} 1073741824\n");
	assert_contains(out_text,
	                "\nglake_device_bytes" GPU(",use=\"blocks_cached\"") "1073741824\n");
	/* Bytes that steer a terminal come out as text, and so do those that the format reads. */
	assert_contains(out_text, "\nglake_device_info" GPU(",name=\"a \\\"b\\\" \\\\x5c c\\\\x0ad "
	                                                    "\\\\xff \\\\x1b[2J\"") "1\n");
	assert_contains(out_text,
	                "\nglake_tenant_quota_bytes" GPU(",tenant=\"default\"") "2147483648\n");
	assert_contains(out_text, "\nglake_host_copy_bytes{node=\"1\",for=\"sleep\"} 536870912\n");
	assert_contains(out_text, "\nglake_host_copy_bytes{node=\"1\",for=\"cache\"} 268435456\n");
	assert_contains(out_text, "\nglake_host_slept_bytes{node=\"1\"} 4294967296\n");
	assert_contains(out_text, "\nglake_sleepers 1\n");
	assert_contains(out_text, "\nglake_sleepers_waking 0\n");
	assert_contains(out_text, "\nglake_asleep_bytes{kind=\"private\"} 1073741824\n");
	assert_contains(out_text, "\nglake_asleep_bytes{kind=\"on_gpu\"} 2147483648\n");
	assert_contains(out_text,
	                "\nglake_tenant_host_bytes{tenant=\"default\",node=\"1\"} 5368709120\n");
	/* No limit is not a limit of 0. */
	ck_assert_uint_eq(count(out_text, "\nglake_tenant_quota_bytes{"), 1);
	assert_contains(out_text,
	                "\nglake_pod_bytes" GPU(",namespace=\"\",pod=\"\",container=\"\",tenant="
	                                        "\"default\",kind=\"private\"") "4294967296\n");
	assert_contains(out_text, "\nglake_pod_driver_bytes" GPU(
					  ",namespace=\"\",pod=\"\",container=\"\",tenant="
					  "\"default\"") "2147483648\n");
	assert_contains(out_text, "\nglake_pod_live_bytes{namespace=\"\",pod=\"\",container=\"\","
	                          "tenant=\"default\"} 3221225472\n");
	assert_contains(out_text, "\n# TYPE glake_loads_total counter\nglake_loads_total 12\n");
	assert_contains(out_text, "\n# TYPE glake_load_seconds histogram\n"
	                          "glake_load_seconds_bucket{le=\"1e-06\"} 5\n"
	                          "glake_load_seconds_bucket{le=\"0.003\"} 9\n"
	                          "glake_load_seconds_bucket{le=\"5\"} 9\n"
	                          "glake_load_seconds_bucket{le=\"+Inf\"} 10\n"
	                          "glake_load_seconds_sum 7.000000000\n"
	                          "glake_load_seconds_count 10\n");
	fake.connect_error = GLAKE_E_GONE;
	ck_assert_int_eq(run("metrics"), CTL_UNREACHABLE);
	ck_assert_str_eq(out_text, "");
	assert_contains(err_text, "glakectl: metrics: ");
}
END_TEST

START_TEST(metrics_have_no_series_of_programs)
{
	setenv("NODE_NAME", "node\"7", 1);
	fake.name = "m";
	ck_assert_int_eq(run("metrics"), 0);
	unsigned n_lines = count(out_text, "\n");
	fake.n_crowd = 3000;
	ck_assert_int_eq(run("metrics"), 0);
	ck_assert_uint_eq(count(out_text, "\n"), n_lines);
	ck_assert_ptr_null(strstr(out_text, "crowd"));
	ck_assert_ptr_null(strstr(out_text, "glake_model_bytes"));
	assert_contains(out_text, "tenant=\"default\"} 3002\n");
	/* Models only if asked for, and the largest of them. */
	ck_assert_int_eq(run("metrics --models"), 0);
	ck_assert_uint_eq(count(out_text, "\nglake_model_bytes{"), 4 * (200 + 2));
	ck_assert_uint_eq(count(out_text, "\nglake_model_open{"), 200 + 2);
	assert_contains(out_text,
	                "\nglake_model_bytes" GPU(",model=\"m\",kind=\"span\"") "4294967296\n");
	assert_contains(out_text, "\nglake_model_bytes" GPU(
					  ",model=\"model3000\",kind=\"part\"") "3145728000\n");
	/* 2801 of the crowd. */
	assert_contains(out_text, "\nglake_model_bytes" GPU(",kind=\"part\"") "4114822987776\n");
}
END_TEST

/* Driver usage is NVML's on one device, and the session's own word on the other. */
START_TEST(sessions_show_what_each_process_has)
{
	tell("sessions");
	tell("sessions --json");
	expect_told("sessions");
}
END_TEST

/* The session of glakectl has nothing. */
START_TEST(dedup_adds_up_what_sharing_saves)
{
	fake.name = "python";
	tell("dedup");
	tell("dedup --json");
	expect_told("dedup");
}
END_TEST

START_TEST(dedup_of_one_process_lists_its_candidates)
{
	fake.name = "python";
	tell("dedup 100");
	tell("dedup --json 100");
	tell("dedup 99");
	tell("dedup some");
	tell("dedup 0");
	expect_told("dedup-of-one");
	fake.is_old = true;
	ck_assert_int_eq(run("dedup 100"), 0);
}
END_TEST

START_TEST(mistakes_are_forgiven)
{
	ck_assert_int_eq(run("dedup --forgive=7"), 0);
	ck_assert_str_eq(fake.call, "forgive 7");
	fake.call[0] = '\0';
	ck_assert_int_eq(run("dedup --forgive all"), 0);
	ck_assert_str_eq(fake.call, "forgive 0");
	ck_assert_int_eq(run("dedup --forgive=0"), CTL_USAGE);
	ck_assert_int_eq(run("dedup --forgive=some"), CTL_USAGE);
	fake.is_old = true;
	ck_assert_int_eq(run("dedup"), 0);
}
END_TEST

START_TEST(fragmentation_is_what_nobody_can_use)
{
	tell("fragmentation");
	tell("fragmentation --json");
	fake.stitches = true;
	fake.name = "python3";
	tell("fragmentation");
	assert_narrow(out_text);
	tell("fragmentation --json");
	expect_told("fragmentation");
}
END_TEST

START_TEST(one_process_can_be_asked_for)
{
	tell("fragmentation 100 --json");
	tell("fragmentation 1 --json");
	/* Process 101 is there, and has nothing: all is of others. */
	tell("fragmentation 101 --json");
	tell("fragmentation 77");
	tell("fragmentation 77 --html");
	tell("seal 77");
	expect_told("one-process");
}
END_TEST

START_TEST(fragmentation_is_watched_each_second)
{
	ck_assert_int_eq(run("fragmentation --watch --seconds 1"), 0);
	const char *again = strstr(out_text + 1, "PID  DEV");
	ck_assert_ptr_nonnull(again);
	ck_assert_ptr_null(strstr(again + 1, "PID  DEV"));
	/* No terminal is steered that is none. */
	ck_assert_ptr_null(strchr(out_text, '\033'));
}
END_TEST

START_TEST(a_picture_needs_nothing_else)
{
	static char page[1 << 16];
	char folder[] = "/tmp/glakectl-XXXXXX";
	fake.stitches = true;
	fake.name = "<b>&\"\033";
	ck_assert_ptr_nonnull(mkdtemp(folder));
	ck_assert_int_eq(chdir(folder), 0);
	ck_assert_int_eq(run("fragmentation --html --seconds 1"), 0);
	ck_assert_str_eq(out_text, "fragmentation.html: 3 samples of 1 sessions\n");
	assert_contains(err_text, "100 %: 1.0 of 1 s");
	FILE *file = fopen("fragmentation.html", "re");
	ck_assert_ptr_nonnull(file);
	ck_assert_uint_lt(fread(page, 1, sizeof(page), file), sizeof(page));
	fclose(file);
	assert_contains(page, "<h2>&lt;b&gt;&amp;&quot;\\x1b <small>pid 100");
	/* Its stitched memory and the rest of it are one curve. */
	assert_contains(page, "<title>0.0 s: live 3.0 GiB, reserved 4.0 GiB, utilization 75.0 %");
	ck_assert_uint_eq(count(page, "<path class=\"live\""), 1);
	assert_contains(page,
	                "Peaks of what is stitched: live 2.5 GiB of 3.0 GiB reserved, 83.3 %.");
	ck_assert_uint_eq(count(page, "<title>") - 1, 3);
	assert_contains(page, "<td>33.0 GiB<td>17<td title=\"1000 since the session began\">0");
	ck_assert_uint_eq(count(page, "<script") + count(page, "://") + count(page, "url("), 0);
	assert_contains(page, "prefers-color-scheme: dark");
	assert_contains(page, "</html>\n");
	ck_assert_int_eq(run("fragmentation 77 --html=none.html"), CTL_NOT_FOUND);
	ck_assert_int_ne(access("none.html", F_OK), 0);
	ck_assert_int_eq(unlink("fragmentation.html"), 0);
	ck_assert_int_eq(rmdir(folder), 0);
}
END_TEST

START_TEST(a_picture_of_many_has_charts_of_the_worst)
{
	static char page[1024 * 1024];
	fake.n_crowd = 50;
	take_page(run_html("fragmentation --seconds 1"), page, sizeof(page));
	/* All together, and twelve; half of the memory of each is live, so the largest are the worst. */
	ck_assert_uint_eq(count(page, "<path class=\"live\""), 13);
	assert_contains(page, "These 12 had most memory reserved that was not live. All 51 are ");
	const char *worst = strstr(page, "<small>pid 1050");
	ck_assert_ptr_nonnull(worst);
	ck_assert_ptr_nonnull(strstr(worst, "<small>pid 1049"));
	ck_assert_ptr_null(strstr(page, "<small>pid 1001"));
	ck_assert_ptr_nonnull(strstr(page, "<td>1001"));
}
END_TEST

START_TEST(a_picture_that_cannot_be_written_is_told_at_once)
{
	ck_assert_int_eq(run("fragmentation --html=/no/folder.html --seconds 86400"), CTL_FAILED);
	assert_contains(err_text, "/no/folder.html: No such file or directory\n");
}
END_TEST

START_TEST(foreign_names_are_escaped_everywhere)
{
	static const char *const commands[] = {"status", "sessions", "fragmentation", "models",
	                                       "events", "sleepers", "tiers"};
	fake.name = "\033]0;owned\a\xff";
	for (size_t i = 0; i < 7; i++) {
		char line[64];
		ck_assert_int_eq(run(commands[i]), 0);
		assert_contains(out_text, "\\x1b]0;owned\\x07\\xff");
		snprintf(line, sizeof(line), "%s --json", commands[i]);
		json_decref(run_json(line));
		ck_assert_ptr_null(strchr(out_text, '\033'));
	}
}
END_TEST

START_TEST(steering_passes_its_arguments)
{
	static const char *const lines[] = {
		"pin m",
		"unpin m",
		"evict m",
		"evict --all --json",
		/* A pid or a session. */
		"seal 101",
		"seal 2 --dry-run --bytes",
		"seal 2 --json",
		"quota t --device 3 --bytes 24G",
		"quota t --bytes none --sessions 5",
		"quota t --device 1 --bytes 1G --force",
		"quota --sessions none -- t",
	};
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		tell(lines[i]);
	}
	expect_told("steering");
	ck_assert_int_eq(run("--socket /a/b pin m"), 0);
	ck_assert_str_eq(fake.socket_path, "/a/b");
	ck_assert_int_eq(run("pin m --socket=/c"), 0);
	ck_assert_str_eq(fake.socket_path, "/c");
}
END_TEST

/* The process has two sessions. Asked for by its own number, the refusal is an error. */
START_TEST_WITH(a_session_that_cannot_be_sealed_keeps_no_other_from_it, .n = 2)
{
	fake.cannot_seal = 1 + (uint64_t)_i;
	ck_assert_int_eq(run("seal 100"), 0);
	assert_contains(out_text, _i ? "\n      1  100  3.0 GiB" : "\n      2  100  3.0 GiB");
	ck_assert_ptr_null(strstr(out_text, _i ? "\n      2  100" : "\n      1  100"));
	fake.cannot_seal = 1;
	ck_assert_int_eq(run("seal 1"), CTL_FAILED);
}
END_TEST

/* Also more than a node usually has. */
START_TEST(each_session_that_is_meant_is_asked)
{
	fake.name = "llama";
	fake.n_crowd = 300;
	ck_assert_int_eq(run("sleep default"), 0);
	ck_assert_uint_eq(fake.n_asked, 302);
	/* Model 9 is open in all but glakectl. */
	ck_assert_int_eq(run("wake llama"), 0);
	ck_assert_uint_eq(fake.n_asked, 302 + 301);
	fake.is_one_crowd = true;
	ck_assert_int_eq(run("seal 1000"), 0);
	ck_assert_uint_eq(fake.n_asked, 302 + 301 + 300);
}
END_TEST

START_TEST(load_reports_progress_by_lines)
{
	ck_assert_int_eq(run("load a b c --device 2 --name big --pin"), 0);
	ck_assert_str_eq(fake.call, "load a +2 device 2 name big pin 1");
	assert_contains(err_text, "10 %: 100.0 GiB of 1000.0 GiB");
	assert_contains(err_text, "100 %: ");
	int n_lines = 0;
	for (const char *at = err_text; *at; at++) {
		n_lines += *at == '\n';
	}
	ck_assert_int_eq(n_lines, 10);
	assert_contains(out_text, "loaded in 500 ms, 4.0 GiB/s");
	json_t *document = run_json("load a --json");
	ck_assert_str_eq(fake.call, "load a +0 device 0 name - pin 0");
	ck_assert_int_eq(json_integer_value(json_object_get(document, "bytes_per_second")),
	                 4 * GIB);
	json_decref(document);
}
END_TEST

START_TEST(an_answer_that_cannot_be_written_is_a_failure)
{
	char *arguments[] = {(char *)"glakectl", (char *)"status", NULL};
	FILE *full = fopen("/dev/full", "w");
	FILE *err = fopen("/dev/null", "w");
	ck_assert_ptr_nonnull(full);
	ck_assert_int_eq(ctl_run(2, arguments, full, err), CTL_FAILED);
	fclose(full);
	fclose(err);
}
END_TEST
