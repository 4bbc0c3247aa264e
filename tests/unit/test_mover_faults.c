/* SPDX-License-Identifier: Apache-2.0 */
/* A real glake-mover on the simulator: loads that are cancelled, or fail in any of many ways. */
#include <sys/resource.h>

#include "tests/harness/fuse_file.h"
#include "tests/unit/mover_loads.h"

static struct peer peer;
static struct made_model model;
static struct known_plan plan;

/* A model of ten blocks whose load waits for grants after the first two. */
static void begin_load(const char *rules)
{
	peer_start(&peer, rules);
	for (unsigned i = 0; i < 10; i++) {
		char name[64];
		snprintf(name, sizeof(name), "t%u", i);
		made_add(&model, name, 9 * MIB);
	}
	made_write(&model, peer.folder, "m");
	peer_load(&peer, 7, "m");
	take_plan(&peer, 7, &plan);
	ck_assert_uint_eq(plan.n_blocks, 10);
	make_chunks(&peer, &plan);
	grant(&peer, 7, &plan, 0, 2);
	for (unsigned i = 0; i < 2; i++) {
		peer_free_report(peer_expect(&peer, 7, GLAKE__MOVER__REPORT__BODY_BLOCK_LOADED));
	}
}

/* After a failure the mover holds nothing of the load and works on. */
static void still_works(void)
{
	struct made_model another = {0};
	struct result result;
	const char *name = "after";
	made_add(&another, "w", 5 * MIB);
	made_write(&another, peer.folder, name);
	load_and_check(&peer, &name, 1, NULL, false, &another, 4, &result);
	made_free(&another);
}

static void end_failed(void)
{
	drop_plan(&peer, &plan);
	made_free(&model);
	still_works();
	peer_end(&peer);
}

START_TEST(a_load_can_be_cancelled)
{
	begin_load(NULL);
	unsigned n_fds = peer_mover_fds(&peer);
	grant(&peer, 7, &plan, 2, 8);
	peer_cancel(&peer, 7);
	peer_expect_failed(&peer, 7, GLAKE__WIRE__STATUS__BUSY, "cancelled");
	/* The file's is gone, and all of the chunks'. */
	ck_assert_uint_lt(peer_mover_fds(&peer), n_fds);
	/* Late orders for it are no bugs. */
	grant(&peer, 7, &plan, 0, 1);
	peer_cancel(&peer, 7);
	end_failed();
}
END_TEST

START_TEST(a_waiting_load_can_be_cancelled)
{
	begin_load(NULL);
	peer_cancel(&peer, 7);
	peer_expect_failed(&peer, 7, GLAKE__WIRE__STATUS__BUSY, "cancelled");
	end_failed();
}
END_TEST

/* At any moment, with other loads beside it. */
START_TEST(cancelling_at_any_moment_is_fine)
{
	enum { N_LOADS = 40 };
	unsigned n_ended = 0;
	begin_load(NULL);
	for (unsigned i = 0; i < N_LOADS; i++) {
		peer_load(&peer, 100 + i, "m");
		usleep((useconds_t)(made_random() % 3000));
		if (i % 2) {
			/* Before its plan that is a mistake, after it right: both end the load. */
			grant(&peer, 100 + i, &plan, 0, 10);
		}
		usleep((useconds_t)(made_random() % 3000));
		peer_cancel(&peer, 100 + i);
	}
	peer_cancel(&peer, 7);
	while (n_ended < N_LOADS + 1) {
		Glake__Mover__Report *report = peer_next(&peer);
		ck_assert_ptr_nonnull(report);
		n_ended += report->body_case == GLAKE__MOVER__REPORT__BODY_FAILED ||
		           report->body_case == GLAKE__MOVER__REPORT__BODY_LOAD_DONE;
		peer_free_report(report);
	}
	end_failed();
}
END_TEST

START_TEST(truncation_is_noticed)
{
	char path[512];
	begin_load(NULL);
	snprintf(path, sizeof(path), "%s/m", peer.folder);
	ck_assert_int_eq(truncate(path, (off_t)(model.data_begin + 30 * MIB)), 0);
	grant(&peer, 7, &plan, 2, 8);
	peer_expect_failed(&peer, 7, GLAKE__WIRE__STATUS__FILE_CHANGED, "'m': tensor 't");
	end_failed();
}
END_TEST

START_TEST(a_change_is_noticed_at_the_end)
{
	char path[512];
	begin_load(NULL);
	snprintf(path, sizeof(path), "%s/m", peer.folder);
	FILE *file = fopen(path, "r+e");
	ck_assert_ptr_nonnull(file);
	fseek(file, 1000000, SEEK_SET);
	fputc('!', file);
	fclose(file);
	grant(&peer, 7, &plan, 2, 8);
	peer_expect_failed(&peer, 7, GLAKE__WIRE__STATUS__FILE_CHANGED,
	                   "'m': changed while it was loaded");
	end_failed();
}
END_TEST

START_TEST(senseless_grants_fail_the_load)
{
	begin_load(NULL);
	grant(&peer, 7, &plan, 4, 1);
	peer_expect_failed(&peer, 7, GLAKE__WIRE__STATUS__INTERNAL, "block 4");
	end_failed();
}
END_TEST

START_TEST(too_many_grants_fail_the_load)
{
	begin_load(NULL);
	int fds[9];
	for (unsigned i = 0; i < 9; i++) {
		fds[i] = plan.chunks[1].fd;
	}
	peer_grant(&peer, 7, 2, fds, 9);
	peer_expect_failed(&peer, 7, GLAKE__WIRE__STATUS__INTERNAL, "9 chunks from block 2");
	end_failed();
}
END_TEST

/* A chunk that is none, or is too small, is glaked's bug and ends this load only. */
START_TEST(a_wrong_chunk_fails_the_load)
{
	begin_load(NULL);
	int file = open("/dev/null", O_RDONLY | O_CLOEXEC);
	peer_grant(&peer, 7, 2, &file, 1);
	close(file);
	peer_expect_failed(&peer, 7, GLAKE__WIRE__STATUS__INTERNAL, "cuMem");
	end_failed();
}
END_TEST

START_TEST(files_that_are_none_are_refused)
{
	char path[512];
	peer_start(&peer, NULL);
	snprintf(path, sizeof(path), "%s/pipe", peer.folder);
	ck_assert_int_eq(mkfifo(path, 0600), 0);
	peer_load(&peer, 1, "pipe");
	peer_expect_failed(&peer, 1, GLAKE__WIRE__STATUS__BAD_REQUEST,
	                   "'pipe': is a FIFO, not a regular file");
	snprintf(path, sizeof(path), "%s/dir", peer.folder);
	ck_assert_int_eq(mkdir(path, 0700), 0);
	peer_load(&peer, 2, "dir");
	peer_expect_failed(&peer, 2, GLAKE__WIRE__STATUS__BAD_REQUEST, "'dir': is a directory");
	snprintf(path, sizeof(path), "%s/short", peer.folder);
	FILE *file = fopen(path, "we");
	ck_assert_ptr_nonnull(file);
	fputs("short", file);
	fclose(file);
	peer_load(&peer, 3, "short");
	peer_expect_failed(&peer, 3, GLAKE__WIRE__STATUS__BAD_FILE,
	                   "'short': not a safetensors file: only 5 bytes long");
	still_works();
	peer_end(&peer);
}
END_TEST

/* ---- what the mover has no room for --------------------------------------------------------- */

static void send_fds(uint64_t job, const int *fds, size_t n_fds)
{
	static char *names[GLAKE_MAX_PACKET_FDS];
	Glake__Mover__LoadStart body = GLAKE__MOVER__LOAD_START__INIT;
	Glake__Mover__Order order = ORDER(job, LOAD_START);
	for (size_t i = 0; i < n_fds; i++) {
		names[i] = (char *)"m";
	}
	body.device_uuid = peer_uuid(&peer, 0);
	body.n_files = n_fds;
	body.files = names;
	order.load_start = &body;
	peer_send(&peer, &order, fds, n_fds);
}

/* Files that do not close keep nobody waiting but those whose they are. */
START_TEST(files_that_are_refused_stop_no_other_orders)
{
	static const struct fuse_file_faults endless = {.is_flush_endless = true};
	enum { N_REFUSED = 3 };
	struct fuse_file file;
	char folder[512];
	char path[512];
	peer_start(&peer, NULL);
	made_add(&model, "w", 5 * MIB);
	made_write(&model, peer.folder, "m");
	snprintf(path, sizeof(path), "%s/m", peer.folder);
	snprintf(folder, sizeof(folder), "%s/fuse", peer.folder);
	if (!fuse_file_start(&file, folder, path, &endless)) {
		peer_end(&peer);
		return;
	}
	for (unsigned i = 0; i < GLAKE_MAX_LOADS; i++) {
		peer_load(&peer, i, "m");
		take_plan(&peer, i, &plan);
	}
	int fd = open(file.path, O_RDONLY | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	for (unsigned i = 0; i < N_REFUSED; i++) {
		send_fds(1000 + i, &fd, 1);
	}
	make_chunks(&peer, &plan);
	for (unsigned i = 0; i < GLAKE_MAX_LOADS; i++) {
		grant(&peer, i, &plan, 0, 1);
		peer_free_report(peer_expect(&peer, i, GLAKE__MOVER__REPORT__BODY_BLOCK_LOADED));
		peer_free_report(peer_expect(&peer, i, GLAKE__MOVER__REPORT__BODY_LOAD_DONE));
	}
	fuse_file_await_held(&file);
	fuse_file_stop(&file);
	close(fd);
	for (unsigned i = 0; i < N_REFUSED; i++) {
		Glake__Mover__Report *report = peer_next(&peer);
		ck_assert_ptr_nonnull(report);
		ck_assert_int_eq(report->body_case, GLAKE__MOVER__REPORT__BODY_FAILED);
		ck_assert_uint_ge(report->job, 1000);
		ck_assert_uint_eq(report->failed->status, GLAKE__WIRE__STATUS__BUSY);
		peer_free_report(report);
	}
	end_failed();
}
END_TEST

static bool has_fd(rlim_t fd)
{
	char path[64];
	snprintf(path, sizeof(path), "/proc/%d/fd/%u", (int)peer.pid, (unsigned)fd);
	struct stat stat;
	return lstat(path, &stat) == 0;
}

/* From now on it may have so many more open than it has. The limit is one of their numbers. */
static void limit_fds(unsigned n_more)
{
	struct rlimit limit;
	ck_assert_int_eq(prlimit(peer.pid, RLIMIT_NOFILE, NULL, &limit), 0);
	for (limit.rlim_cur = 0; limit.rlim_cur < limit.rlim_max && n_more > 0; limit.rlim_cur++) {
		n_more -= !has_fd(limit.rlim_cur);
	}
	ck_assert_int_eq(prlimit(peer.pid, RLIMIT_NOFILE, &limit, NULL), 0);
}

START_TEST(what_has_no_room_in_the_fd_table_is_refused)
{
	int fds[20];
	begin_load(NULL);
	unsigned n_before = peer_mover_fds(&peer);
	limit_fds(4);
	for (unsigned i = 0; i < 20; i++) {
		fds[i] = plan.chunks[0].fd;
	}
	send_fds(8, fds, 20);
	peer_expect_failed(&peer, 8, GLAKE__WIRE__STATUS__NO_FDS, "files open");
	ck_assert_uint_eq(peer_mover_fds(&peer), n_before);
	limit_fds(1);
	peer_compare(&peer, 9, &plan.chunks[0], &plan.chunks[1]);
	peer_expect_failed(&peer, 9, GLAKE__WIRE__STATUS__NO_FDS, "files open");
	/* A load that gets its chunks in part would wait for the others for ever. */
	limit_fds(4);
	grant(&peer, 7, &plan, 2, 8);
	peer_expect_failed(&peer, 7, GLAKE__WIRE__STATUS__NO_FDS, "files open");
	grant(&peer, 7, &plan, 2, 8);
	limit_fds(UINT_MAX);
	end_failed();
}
END_TEST

START_TEST(a_mover_that_is_killed_is_just_gone)
{
	begin_load(NULL);
	grant(&peer, 7, &plan, 2, 8);
	kill(peer.pid, SIGKILL);
	ck_assert(WIFSIGNALED(peer_wait(&peer)));
	Glake__Mover__Report *report;
	while ((report = peer_next(&peer))) {
		ck_assert_int_eq(report->body_case, GLAKE__MOVER__REPORT__BODY_BLOCK_LOADED);
		peer_free_report(report);
	}
	/* The chunks that the mover was filling are still there, and readable. */
	read_span(&peer, &plan);
	drop_plan(&peer, &plan);
	made_free(&model);
	peer_remove_folder(&peer);
}
END_TEST

START_TEST(the_end_of_the_socket_ends_a_load)
{
	begin_load(NULL);
	grant(&peer, 7, &plan, 2, 5);
	drop_plan(&peer, &plan);
	made_free(&model);
	peer_end(&peer);
}
END_TEST

/* ---- injected faults ------------------------------------------------------------------------ */

static const struct {
	const char *rule;
	uint32_t status;
	const char *text;
} faults[] = {
	{"glake-mover/cuMemImportFromShareableHandle:3:fail=2",
         GLAKE__WIRE__STATUS__NO_DEVICE_MEMORY, "cuMemImportFromShareableHandle"},
	{"glake-mover/cuMemMap:4:fail=1", GLAKE__WIRE__STATUS__INTERNAL, "cuMemMap"},
	{"glake-mover/cuMemSetAccess:5:fail=1", GLAKE__WIRE__STATUS__INTERNAL, "cuMemSetAccess"},
	{"glake-mover/cuMemcpyHtoDAsync:12:fail=1", GLAKE__WIRE__STATUS__INTERNAL, "CUDA_ERROR"},
	{"glake-mover/cuLaunchKernel:7:fail=701", GLAKE__WIRE__STATUS__INTERNAL, "digesting"},
	{"glake-mover/cuMemUnmap:4:fail=1", GLAKE__WIRE__STATUS__INTERNAL, "cuMemUnmap"},
	{"glake-mover/cuMemcpyDtoHAsync:3:fail=1", GLAKE__WIRE__STATUS__INTERNAL, "digesting"},
	{"glake-mover/cuEventRecord:20:fail=1", GLAKE__WIRE__STATUS__INTERNAL, "CUDA_ERROR"},
	{"glake-mover/cuStreamWaitEvent:3:fail=1", GLAKE__WIRE__STATUS__INTERNAL, "digesting"},
};

START_TEST_WITH(a_driver_fault_fails_one_load, .n = n_elements(faults))
{
	begin_load(faults[_i].rule);
	grant(&peer, 7, &plan, 2, 8);
	peer_expect_failed(&peer, 7, faults[_i].status, faults[_i].text);
	end_failed();
}
END_TEST

static const char *const early_faults[] = {
	"glake-mover/cuDevicePrimaryCtxRetain:1:fail=2",
	"glake-mover/cuStreamCreate:1:fail=2",
	"glake-mover/cuModuleLoadData:1:fail=209",
	"glake-mover/cuMemAlloc:2:fail=1",
	"glake-mover/cuEventCreate:5:fail=1",
	"glake-mover/cuMemAddressReserve:1:fail=2",
};

START_TEST_WITH(a_fault_before_the_plan_fails_one_load, .n = n_elements(early_faults))
{
	peer_start(&peer, early_faults[_i]);
	made_add(&model, "w", 100);
	made_write(&model, peer.folder, "m");
	peer_load(&peer, 1, "m");
	peer_expect_failed(&peer, 1,
	                   strstr(early_faults[_i], "fail=2") && !strstr(early_faults[_i], "=209")
	                           ? GLAKE__WIRE__STATUS__NO_DEVICE_MEMORY
	                           : GLAKE__WIRE__STATUS__INTERNAL,
	                   "CUDA_ERROR");
	still_works();
	made_free(&model);
	peer_end(&peer);
}
END_TEST

/* The next load asks again for what loads need: the device may have been full. */
START_TEST(a_device_that_was_full_loads_later)
{
	peer_start(&peer, "glake-mover/cuMemAlloc:2:fail=2");
	still_works();
	peer_end(&peer);
}
END_TEST

/* Pinning by registration is refused: the driver's own pinned memory does. */
START_TEST(pinned_memory_has_a_second_way)
{
	peer_start(&peer, "glake-mover/cuMemHostRegister:*:fail=1");
	still_works();
	peer_end(&peer);
}
END_TEST

/* A lost context cannot be mended: the job's cause is told, then the process ends. */
START_TEST(a_lost_device_ends_the_mover)
{
	begin_load("glake-mover/cuLaunchKernel:6:killctx");
	grant(&peer, 7, &plan, 2, 8);
	peer_expect_failed(&peer, 7, GLAKE__WIRE__STATUS__MOVER_FAILED,
	                   "CUDA_ERROR_ILLEGAL_ADDRESS");
	int status = peer_wait(&peer);
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) != 0, "status 0x%x", status);
	drop_plan(&peer, &plan);
	made_free(&model);
	peer_remove_folder(&peer);
}
END_TEST
