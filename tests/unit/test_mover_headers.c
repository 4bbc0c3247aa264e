/* SPDX-License-Identifier: Apache-2.0 */
/* A real glake-mover on the simulator, and headers that would take more memory than it may have. */
#include "tests/unit/mover_loads.h"

/* 64 MiB for all, 32 for a user: one header like ours while it is read, three plans at most. */
#define BUDGET_MIB 64
#define N_TENSORS 65000
#define HEADER_BYTES 4000000

/* Tensors of no bytes, and one of one, so that there is a block to wait for. */
static void write_file(const struct peer *peer, const char *name, size_t n_header)
{
	char path[512];
	snprintf(path, sizeof(path), "%s/%s", peer->folder, name);
	char *header = malloc(n_header + 100);
	ck_assert_ptr_nonnull(header);
	size_t at = (size_t)sprintf(
		header, "{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}");
	for (unsigned i = 0; i < N_TENSORS; i++) {
		at += (size_t)sprintf(header + at,
		                      ",\"%05x\":{\"dtype\":\"U8\",\"shape\":[0],"
		                      "\"data_offsets\":[0,0]}",
		                      i);
	}
	ck_assert_uint_lt(at, n_header);
	memset(header + at, ' ', n_header - at);
	header[n_header - 1] = '}';
	uint64_t length = htole64(n_header);
	FILE *file = fopen(path, "we");
	ck_assert_ptr_nonnull(file);
	ck_assert_uint_eq(fwrite(&length, 1, 8, file), 8);
	ck_assert_uint_eq(fwrite(header, 1, n_header, file), n_header);
	ck_assert_int_eq(fputc('w', file), 'w');
	ck_assert_int_eq(fclose(file), 0);
	free(header);
}

static void start(struct peer *peer)
{
	setenv("GLAKE_MOVER_HEADERS_MIB", "64", 1);
	setenv("GLAKE_MOVER_READERS", "1", 1);
	setenv("GLAKE_MOVER_SLOT_KIB", "64", 1);
	peer_start(peer, NULL);
	/* So that it has what it needs for any load. */
	struct made_model model = {0};
	struct result result;
	const char *name = "small";
	made_add(&model, "w", 100);
	made_write(&model, peer->folder, name);
	load_and_check(peer, &name, 1, NULL, false, &model, 4, &result);
	made_free(&model);
}

static void load_as(struct peer *peer, uint32_t uid, uint64_t job, const char *name)
{
	Glake__Mover__LoadStart body = GLAKE__MOVER__LOAD_START__INIT;
	Glake__Mover__Order order = ORDER(job, LOAD_START);
	char path[512];
	snprintf(path, sizeof(path), "%s/%s", peer->folder, name);
	cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	body.device_uuid = peer_uuid(peer, 0);
	body.n_files = 1;
	body.files = (char **)&name;
	body.uid = uid;
	order.load_start = &body;
	peer_send(peer, &order, &fd, 1);
}

/* The most memory it had so far. */
static unsigned peak_kib(const struct peer *peer)
{
	char path[64];
	char line[128];
	unsigned kib = 0;
	snprintf(path, sizeof(path), "/proc/%d/status", (int)peer->pid);
	FILE *file = fopen(path, "re");
	ck_assert_ptr_nonnull(file);
	while (fgets(line, sizeof(line), file)) {
		sscanf(line, "VmHWM: %u", &kib);
	}
	fclose(file);
	ck_assert_uint_gt(kib, 0);
	return kib;
}

struct crowd {
	unsigned n_planned;
	unsigned n_ended;
	uint64_t planned[64];
};

/* Take one report. Returns whether it is the plan's end of @job. */
static bool look(struct peer *peer, struct crowd *crowd, uint64_t job)
{
	Glake__Mover__Report *report = peer_next(peer);
	ck_assert_ptr_nonnull(report);
	bool is_planned = report->body_case == GLAKE__MOVER__REPORT__BODY_PLAN_END;
	if (is_planned) {
		crowd->planned[crowd->n_planned++] = report->job;
	} else if (report->body_case == GLAKE__MOVER__REPORT__BODY_FAILED) {
		ck_assert_str_eq(report->failed->error, "cancelled");
		crowd->n_ended++;
	}
	bool is_it = is_planned && report->job == job;
	peer_free_report(report);
	return is_it;
}

static void cancel_planned(struct peer *peer, struct crowd *crowd)
{
	while (crowd->n_planned > 0) {
		peer_cancel(peer, crowd->planned[--crowd->n_planned]);
	}
}

static struct peer peer;

START_TEST(headers_wait_until_there_is_memory_for_them)
{
	/* A sanitizer takes its time for each of them. */
	enum { N_LOADS = TEST_SANITIZED ? 16 : 40, OTHER = 100 };
	struct crowd crowd = {0};
	start(&peer);
	write_file(&peer, "m", HEADER_BYTES);
	unsigned before_kib = peak_kib(&peer);
	for (unsigned i = 0; i < N_LOADS; i++) {
		load_as(&peer, 1, i, "m");
	}
	/* Another user need not wait for any of them. */
	load_as(&peer, 2, OTHER, "m");
	while (!look(&peer, &crowd, OTHER)) {
	}
	ck_assert_uint_lt(crowd.n_planned, N_LOADS / 2);
	/* Loads that wait can be cancelled as well. */
	for (unsigned i = 0; i < N_LOADS; i += 2) {
		peer_cancel(&peer, i);
	}
	/* The others come in their turn, whenever one has ended. */
	while (crowd.n_ended < N_LOADS + 1) {
		cancel_planned(&peer, &crowd);
		look(&peer, &crowd, OTHER);
	}
	unsigned more_kib = peak_kib(&peer) - before_kib;
	ck_assert_msg(TEST_SANITIZED || more_kib < BUDGET_MIB * 1024, "%u KiB more", more_kib);
	peer_end(&peer);
}
END_TEST

START_TEST(a_header_that_never_has_room_is_refused)
{
	start(&peer);
	write_file(&peer, "m", 2 * HEADER_BYTES);
	load_as(&peer, 1, 1, "m");
	peer_expect_failed(&peer, 1, GLAKE__WIRE__STATUS__BAD_FILE, "of which a user may have 32");
	write_file(&peer, "m", HEADER_BYTES);
	load_as(&peer, 1, 2, "m");
	while (!look(&peer, &(struct crowd){0}, 2)) {
	}
	peer_end(&peer);
}
END_TEST

/* Its memory was claimed before it grew, if it came so far; else it never has room. */
START_TEST(an_index_that_grows_is_not_read)
{
	enum { HOLDER = 1, INDEXED = 2, WAIT_US = 300000 };
	struct crowd crowd = {0};
	char path[512];
	start(&peer);
	write_file(&peer, "m", HEADER_BYTES);
	write_file(&peer, "large", HEADER_BYTES / 2 * 3);
	load_as(&peer, 1, HOLDER, "m");
	while (!look(&peer, &crowd, HOLDER)) {
	}

	snprintf(path, sizeof(path), "%s/index", peer.folder);
	cleanup_fd int index = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	snprintf(path, sizeof(path), "%s/large", peer.folder);
	cleanup_fd int large = open(path, O_RDONLY | O_CLOEXEC);
	Glake__Mover__LoadStart body = GLAKE__MOVER__LOAD_START__INIT;
	Glake__Mover__Order order = ORDER(INDEXED, LOAD_START);
	char *names[] = {(char *)"large"};
	body.device_uuid = peer_uuid(&peer, 0);
	body.n_files = 1;
	body.files = names;
	body.index = (char *)"index";
	body.uid = 1;
	order.load_start = &body;
	const int fds[] = {large, index};
	peer_send(&peer, &order, fds, 2);
	/* The second load waits for the memory that the first one has. */
	usleep(WAIT_US);
	ck_assert_int_eq(ftruncate(index, (off_t)(BUDGET_MIB * 1024 * 1024)), 0);
	peer_cancel(&peer, HOLDER);
	while (crowd.n_ended == 0) {
		look(&peer, &crowd, HOLDER);
	}
	Glake__Mover__Report *report = peer_next(&peer);
	ck_assert_int_eq(report->body_case, GLAKE__MOVER__REPORT__BODY_FAILED);
	ck_assert_uint_eq(report->job, INDEXED);
	ck_assert_msg(strstr(report->failed->error, "grew while it was loaded") ||
	                      strstr(report->failed->error, "of which a user may have"),
	              "%s", report->failed->error);
	peer_free_report(report);
	peer_end(&peer);
}
END_TEST
