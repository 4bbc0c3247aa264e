/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/world.h"

#include <dirent.h>
#include <inttypes.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "libclient/link/socket.h"
#include "tests/harness/connection.h"
#include "tests/harness/models.h"

#define MAX_SESSIONS 4096u
/* Memory that an allocator may keep or place differently from one round to the next. */
#define RSS_SLACK_BYTES (4u * 1024 * 1024)

struct harness harness;
struct glake_session *eye;
int witness = -1;
struct cudrv drv;
struct books books_before;
atomic_int *world_stage;

static size_t n_fds_before;
static uint64_t n_chunks_before;
static bool has_driver; /* this process has opened it */
/* The sessions of the test's process; children have their own. */
static struct {
	pthread_mutex_t lock;
	struct glake_session *all[MAX_SESSIONS];
	size_t n;
} sessions = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- the books ------------------------------------------------------------------------------- */

static int add_status(void *user, const struct glake_status *status)
{
	struct books *books = user;
	books->n_models = status->n_models;
	books->n_blocks = status->n_blocks;
	books->n_sessions = status->n_sessions;
	books->fds_used = status->fds_used;
	for (uint32_t i = 0; i < status->n_devices; i++) {
		const struct glake_device_status *device = &status->devices[i];
		books->physical_bytes += device->physical_bytes;
		books->private_bytes += device->private_bytes;
		books->block_bytes += device->block_bytes;
		books->used_block_bytes += device->used_block_bytes;
		books->logical_bytes += device->logical_bytes;
	}
	for (uint32_t i = 0; i < status->n_hosts; i++) {
		books->host_bytes += status->hosts[i].physical_bytes;
	}
	return 0;
}

static int add_tenant(void *user, const struct glake_tenant_row *row)
{
	struct books *books = user;
	books->charged_fds += row->n_fds;
	books->charged_manifest_bytes += row->manifest_bytes;
	for (uint32_t i = 0; i < row->n_devices; i++) {
		books->charged_bytes += row->devices[i].used_bytes;
	}
	for (uint32_t i = 0; i < row->n_hosts; i++) {
		books->charged_host_bytes += row->hosts[i].used_bytes;
	}
	return 0;
}

struct books world_books(void)
{
	struct books books = {0};
	assert_ok(glake_get_status(eye, add_status, &books));
	assert_ok(glake_list_tenants(eye, add_tenant, &books));
	return books;
}

static void print_books(const char *title, const struct books *books)
{
	fprintf(stderr,
	        "%s: physical %llu private %llu block %llu used %llu logical %llu models %llu "
	        "blocks %llu sessions %llu fds %llu charged %llu, %llu fds, manifests %llu, host "
	        "%llu charged %llu\n",
	        title, (unsigned long long)books->physical_bytes,
	        (unsigned long long)books->private_bytes, (unsigned long long)books->block_bytes,
	        (unsigned long long)books->used_block_bytes,
	        (unsigned long long)books->logical_bytes, (unsigned long long)books->n_models,
	        (unsigned long long)books->n_blocks, (unsigned long long)books->n_sessions,
	        (unsigned long long)books->fds_used, (unsigned long long)books->charged_bytes,
	        (unsigned long long)books->charged_fds,
	        (unsigned long long)books->charged_manifest_bytes,
	        (unsigned long long)books->host_bytes,
	        (unsigned long long)books->charged_host_bytes);
}

/* Has the config a pool? Then chunks that are made ahead come and go at any time. */
static bool has_pool(void)
{
	return !harness.options.config || !strstr(harness.options.config, "pool = ()");
}

static bool books_are(const struct books *want, uint64_t since_ms)
{
	struct books now = world_books();
	if (has_pool()) {
		now.physical_bytes = want->physical_bytes;
		now.fds_used = want->fds_used;
	}
	if (memcmp(&now, want, sizeof(now)) == 0) {
		return true;
	}
	if (harness_now_ms() - since_ms > HARNESS_TIMEOUT_MS) {
		print_books("want", want);
		print_books("have", &now);
		ck_abort_msg("the books are not level");
	}
	harness_sleep_ms(2);
	return false;
}

void world_wait_books(const struct books *want)
{
	uint64_t since_ms = harness_now_ms();
	while (!books_are(want, since_ms)) {
	}
}

struct metric {
	const char *name;
	uint64_t value;
};

static int find_metric(void *user, const char *name, uint64_t value, const char *help)
{
	struct metric *wanted = user;
	if (strcmp(name, wanted->name) != 0) {
		return 0;
	}
	wanted->value = value;
	return 1;
}

uint64_t world_metric(const char *name)
{
	struct metric wanted = {name, 0};
	ck_assert_int_eq(glake_get_stats(eye, find_metric, &wanted), 1);
	return wanted.value;
}

void world_wait_metric(const char *name, uint64_t value)
{
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	while (world_metric(name) != value) {
		ck_assert_msg(harness_now_ms() < end_ms, "%s is %llu, not %llu", name,
		              (unsigned long long)world_metric(name), (unsigned long long)value);
		harness_sleep_ms(2);
	}
}

uint64_t world_n_chunks(void)
{
	return world_metric("chunks_created") - world_metric("chunks_released");
}

static int copy_status(void *user, const struct glake_status *status)
{
	*(struct glake_status *)user = *status;
	return 0;
}

struct glake_status world_status(void)
{
	struct glake_status status = {.pid = 0};
	assert_ok(glake_get_status(eye, copy_status, &status));
	return status;
}

static int copy_device(void *user, const struct glake_status *status)
{
	struct glake_device_status *device = user;
	ck_assert_uint_lt(device->index, status->n_devices);
	*device = status->devices[device->index];
	return 0;
}

struct glake_device_status world_device(uint32_t index)
{
	struct glake_device_status device = {.index = index};
	assert_ok(glake_get_status(eye, copy_device, &device));
	return device;
}

static int copy_host(void *user, const struct glake_status *status)
{
	if (status->n_hosts > 0) {
		*(struct glake_host_status *)user = status->hosts[0];
	}
	return 0;
}

struct glake_host_status world_host(void)
{
	struct glake_host_status host = {.node = 0};
	assert_ok(glake_get_status(eye, copy_host, &host));
	return host;
}

uint64_t world_copy_bytes(void)
{
	return world_host().used_copy_bytes;
}

struct wanted_session {
	uint32_t pid;
	uint64_t session;
};

static int find_session(void *user, const struct glake_session_row *row)
{
	struct wanted_session *wanted = user;
	wanted->session = row->pid == wanted->pid ? row->session : wanted->session;
	return 0;
}

uint64_t world_session_of(pid_t pid)
{
	struct wanted_session wanted = {.pid = (uint32_t)pid};
	assert_ok(glake_list_sessions(eye, find_session, &wanted));
	ck_assert_uint_ne(wanted.session, 0);
	return wanted.session;
}

static int see_asleep(void *user, const struct glake_sleep_report *report)
{
	*(bool *)user = report->is_asleep;
	return 0;
}

void world_put_to_sleep(pid_t pid)
{
	bool is_asleep = false;
	assert_ok(glake_sleep_session(eye, world_session_of(pid), NULL, see_asleep, &is_asleep));
	ck_assert(is_asleep);
}

static int copy_mover(void *user, const struct glake_status *status)
{
	unsigned *pid = user;
	if (sscanf(status->mover, "running %u", pid) != 1) {
		*pid = 0;
	}
	return 0;
}

pid_t world_mover(void)
{
	unsigned pid;
	assert_ok(glake_get_status(eye, copy_mover, &pid));
	return (pid_t)pid;
}

pid_t world_running_mover(void)
{
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	pid_t pid;
	while ((pid = world_mover()) == 0) {
		ck_assert(harness_now_ms() < end_ms);
		usleep(1000);
	}
	return pid;
}

char world_state_of(pid_t pid, pid_t *parent_out)
{
	char path[64];
	char state;
	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	FILE *file = fopen(path, "re");
	if (!file) {
		return 'Z';
	}
	if (fscanf(file, "%*d (%*[^)]) %c %d", &state, parent_out) != 2) {
		state = 'Z';
	}
	fclose(file);
	return state;
}

pid_t world_parent_of(pid_t pid)
{
	pid_t parent;
	ck_assert_int_ne(world_state_of(pid, &parent), 'Z');
	return parent;
}

int world_find_row(void *user, const struct glake_session_row *row)
{
	struct glake_session_row *wanted = user;
	if (row->session != wanted->session) {
		return 0;
	}
	*wanted = *row;
	return 1;
}

struct glake_session_row world_row(struct glake_session *session)
{
	struct glake_session_info info = {.size = sizeof(info)};
	assert_ok(glake_session_info(session, &info));
	struct glake_session_row row = {.session = info.session};
	ck_assert_int_eq(glake_list_sessions(session, world_find_row, &row), 1);
	return row;
}

struct glake_usage world_usage(struct glake_session *session)
{
	struct glake_usage usage = {.size = sizeof(usage)};
	assert_ok(glake_usage(session, &usage));
	return usage;
}

size_t world_own_n_fds(void)
{
	struct harness self = {.pid = getpid()};
	return harness_n_fds(&self);
}

/* A running mover takes two: its socket, and a pidfd. */
static size_t n_fds_now(void)
{
	return harness_n_fds(&harness) - (world_mover() ? 2 : 0) - (witness >= 0 ? 1 : 0);
}

size_t world_n_more_fds(void)
{
	return n_fds_now() - n_fds_before;
}

void world_wait_n_fds(size_t n_more)
{
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	size_t now;
	while ((now = world_n_more_fds()) != n_more) {
		if (harness_now_ms() >= end_ms) {
			/* There are fewer than at the beginning, when a thread had just opened a file. */
			if (n_more == 0 && (ssize_t)now < 0) {
				return;
			}
			harness_print_fds(&harness);
			ck_abort_msg("glaked has %zd fds more than before, not %zu", (ssize_t)now,
			             n_more);
		}
		harness_sleep_ms(2);
	}
}

void world_evict_until(const struct books *want)
{
	uint64_t since_ms = harness_now_ms();
	do {
		assert_ok(glake_evict(eye, NULL, NULL, NULL));
	} while (!books_are(want, since_ms));
}

void world_assert_level(void)
{
	world_evict_until(&books_before);
	if (!has_pool()) {
		world_wait_n_fds(0);
		ck_assert_uint_eq(world_n_chunks(), n_chunks_before);
	}
}

void world_serves_in_time(void)
{
	uint64_t start_ms = harness_now_ms();
	connection_ping(witness);
	uint64_t took_ms = harness_now_ms() - start_ms;
	ck_assert_msg(took_ms < PATIENCE_MS, "a Ping took %llu ms", (unsigned long long)took_ms);
}

static uint64_t rss_after_two(void (*round)(void))
{
	for (unsigned i = 0; i < 2; i++) {
		round();
		world_wait_n_fds(0);
	}
	return harness_rss_bytes(&harness);
}

void world_repeat_without_growth(void (*round)(void))
{
	uint64_t before = rss_after_two(round);
	uint64_t after = rss_after_two(round);
	ck_assert_msg(TEST_SANITIZED || after <= before + RSS_SLACK_BYTES,
	              "resident %llu KiB, then %llu KiB", (unsigned long long)before / 1024,
	              (unsigned long long)after / 1024);
}

/* ---- files ----------------------------------------------------------------------------------- */

static const char *in_folder(const char *name, char *path, size_t size)
{
	snprintf(path, size, "%s/%s", harness.folder, name);
	return path;
}

const char *world_path(const char *name)
{
	static _Thread_local char paths[8][512];
	static _Thread_local unsigned next;
	return in_folder(name, paths[next++ % 8], sizeof(paths[0]));
}

void world_write_file(const char *name, const void *bytes, size_t n_bytes)
{
	char path[HARNESS_PATH_BYTES + 256];
	in_folder(name, path, sizeof(path));
	FILE *file = fopen(path, "we");
	ck_assert_msg(file && fwrite(bytes, 1, n_bytes, file) == n_bytes && fclose(file) == 0,
	              "%s: %s", path, strerror(errno));
}

void world_write_text(const char *name, const char *text)
{
	world_write_file(name, text, strlen(text));
}

/* Replace the rules at once, as a whole. */
static void set_faults(const char *name, const char *rules)
{
	char path[HARNESS_PATH_BYTES + 256];
	char new_path[HARNESS_PATH_BYTES + 256];
	in_folder(name, path, sizeof(path));
	in_folder(".faults.new", new_path, sizeof(new_path));
	if (!rules) {
		unlink(path);
		return;
	}
	world_write_file(".faults.new", rules, strlen(rules));
	ck_assert_int_eq(rename(new_path, path), 0);
}

void world_set_faults(const char *rules)
{
	set_faults(".faults", rules);
}

void world_set_own_faults(const char *rules)
{
	set_faults(".own-faults", rules);
}

/* Large chunks are files of glaked's, in which the simulator keeps their bytes. */
void world_damage_copies(void)
{
	char folder[64];
	unsigned n_damaged = 0;
	snprintf(folder, sizeof(folder), "/proc/%d/fd", harness.pid);
	DIR *dir = opendir(folder);
	ck_assert_ptr_nonnull(dir);
	for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir)) {
		char path[512];
		struct stat stat;
		snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
		if (entry->d_name[0] == '.' || fstatat(AT_FDCWD, path, &stat, 0) < 0 ||
		    !S_ISREG(stat.st_mode) || stat.st_size < (off_t)1 << 30) {
			continue;
		}
		int fd = open(path, O_RDWR);
		ck_assert_int_ge(fd, 0);
		ck_assert_int_eq(pwrite(fd, "damage", 6, 5 << 20), 6);
		close(fd);
		n_damaged++;
	}
	closedir(dir);
	ck_assert_uint_ge(n_damaged, 1);
}

/* ---- clients --------------------------------------------------------------------------------- */

static struct glake_session *connect_with(const struct glake_connect_options *options)
{
	struct glake_session *session = NULL;
	assert_ok(glake_connect(options, &session));
	pthread_mutex_lock(&sessions.lock);
	ck_assert_uint_lt(sessions.n, MAX_SESSIONS);
	sessions.all[sessions.n++] = session;
	pthread_mutex_unlock(&sessions.lock);
	return session;
}

struct glake_session *world_connect(void)
{
	has_driver = true;
	return connect_with(NULL);
}

struct glake_session *world_connect_blind(void)
{
	return connect_with(&(struct glake_connect_options){
		.size = sizeof(struct glake_connect_options), .no_cuda = 1});
}

void world_disconnect(struct glake_session *session)
{
	pthread_mutex_lock(&sessions.lock);
	for (size_t i = 0; i < sessions.n; i++) {
		if (sessions.all[i] == session) {
			sessions.all[i] = sessions.all[--sessions.n];
			break;
		}
	}
	pthread_mutex_unlock(&sessions.lock);
	glake_disconnect(session);
}

static void disconnect_all(void)
{
	while (sessions.n > 0) {
		world_disconnect(sessions.all[sessions.n - 1]);
	}
}

void world_open_driver(void)
{
	ck_assert_int_eq(cudrv_open(&drv, NULL, NULL, 0), 0);
	ck_assert_int_eq(drv.cuInit(0), CUDA_SUCCESS);
	has_driver = true;
}

pid_t world_client(world_fn fn, void *user)
{
	fflush(NULL);
	pid_t child = fork();
	ck_assert_int_ge(child, 0);
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		sessions.n = 0;
		fn(user);
		disconnect_all();
		fflush(NULL);
		_exit(0);
	}
	return child;
}

void world_join(pid_t client)
{
	int status;
	ck_assert_int_eq(waitpid(client, &status, 0), client);
	ck_assert_msg(status == 0, "a client ended with status 0x%x", status);
}

void world_kill(pid_t client)
{
	kill(client, SIGKILL);
	ck_assert_int_eq(waitpid(client, NULL, 0), client);
}

void world_reach(int stage)
{
	atomic_store(world_stage, stage);
}

void world_await(int stage)
{
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	while (atomic_load(world_stage) < stage) {
		ck_assert_msg(harness_now_ms() < end_ms, "stage %d is not reached", stage);
		harness_sleep_ms(1);
	}
}

/* ---- begin and end --------------------------------------------------------------------------- */

static void look(void)
{
	books_before = world_books();
	n_fds_before = n_fds_now();
	n_chunks_before = world_n_chunks();
	ck_assert_uint_eq(books_before.n_models, 0);
}

/* Some tests have many sessions and files. */
static void raise_max_fds(void)
{
	struct rlimit limit;
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	limit.rlim_cur = limit.rlim_max;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static struct glake_session *connect_eye(void)
{
	struct glake_session *session = NULL;
	assert_ok(glake_connect(
		&(struct glake_connect_options){.size = sizeof(struct glake_connect_options),
	                                        .no_cuda = 1},
		&session));
	return session;
}

void world_start(const struct harness_options *options)
{
	ck_assert_msg(!harness.folder[0], "a test has one world");
	raise_max_fds();
	harness_start(&harness, options);
	harness_environment(&harness);
	setenv("CUDASIM_FAULT_FILE", world_path(".own-faults"), 1);
	world_stage = mmap(NULL, sizeof(*world_stage), PROT_READ | PROT_WRITE,
	                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(world_stage, MAP_FAILED);
}

void world_begin_as(const struct harness_options *options)
{
	world_start(options);
	eye = connect_eye();
	look();
	if (options->has_witness) {
		witness = connection_hello(&harness);
	}
}

void world_start_mover(void)
{
	struct glake_model *model;
	assert_ok(world_open_unmapped(eye, world_write_model("warm-up", 1, 1), &model));
	glake_model_close(model);
	world_running_mover();
	world_assert_level();
}

void world_restart(void)
{
	glake_disconnect(eye);
	harness_restart(&harness);
	eye = connect_eye();
	look();
	if (!harness.options.keeps_fds && !harness.options.has_keeper) {
		/* A program that outlived the last glaked asks this one for its session, and counts until it is refused. */
		books_before.n_sessions = 1;
	}
}

bool world_is_killed(void)
{
	const struct glake__patience before = glake__patience;
	glake__patience.hello_ms = 1;
	bool is_killed = glake_ping(eye) < 0;
	glake__patience = before;
	if (is_killed) {
		harness_wait_exit(&harness);
	}
	return is_killed;
}

static void assert_no_process(void)
{
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	pid_t pid;
	while ((pid = waitpid(-1, NULL, WNOHANG)) >= 0) {
		if (pid == 0) {
			ck_assert_msg(harness_now_ms() < end_ms, "a process is left");
			harness_sleep_ms(1);
		}
	}
}

uint64_t world_used_bytes(int device)
{
	CUcontext context;
	size_t free_bytes;
	size_t total_bytes;
	ck_assert_int_eq(drv.cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
	ck_assert_int_eq(drv.cuCtxSetCurrent(context), CUDA_SUCCESS);
	ck_assert_int_eq(drv.cuMemGetInfo(&free_bytes, &total_bytes), CUDA_SUCCESS);
	ck_assert_int_eq(drv.cuDevicePrimaryCtxRelease(device), CUDA_SUCCESS);
	return total_bytes - free_bytes;
}

static void look_at_devices(void *user)
{
	int n_devices;
	uint64_t used_bytes;
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	world_open_driver();
	ck_assert_int_eq(drv.cuDeviceGetCount(&n_devices), CUDA_SUCCESS);
	for (int i = 0; i < n_devices; i++) {
		/* The mover of a glaked that was killed ends on its own. */
		while ((used_bytes = world_used_bytes(i)) > 0) {
			ck_assert_msg(harness_now_ms() < end_ms,
			              "%" PRIu64 " bytes of device %d are left", used_bytes, i);
			harness_sleep_ms(1);
		}
	}
}

void world_stop(void)
{
	glake_disconnect(eye);
	eye = NULL;
	if (witness >= 0) {
		connection_close(&witness);
	}
	/* The keeper and the mover are somebody's children: from now on the test's. */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	harness_end(&harness);
}

void world_end(void)
{
	if (!harness.folder[0]) {
		return;
	}
	set_faults(".faults", NULL);
	set_faults(".own-faults", NULL);
	if (drv.cuCtxSynchronize) {
		drv.cuCtxSynchronize(); /* queued work may still use memory of a session */
	}
	disconnect_all();
	if (witness >= 0) {
		connection_ping(witness);
		connection_close(&witness);
	}
	connection_close_all();
	if (harness.pid != 0 && eye) {
		world_assert_level();
	}
	if (harness.pid != 0) {
		world_stop();
	} else {
		glake_disconnect(eye);
	}
	assert_no_process();
	if (has_driver) {
		look_at_devices(NULL);
	} else {
		world_join(world_client(look_at_devices, NULL));
	}
	harness_clean(&harness);
	harness.folder[0] = '\0';
}

void world_look_again(void)
{
	/* The first finds out that the connection is lost. */
	glake_ping(eye);
	glake_ping(eye);
	glake_disconnect(eye);
	assert_ok(glake_connect(
		&(struct glake_connect_options){.size = sizeof(struct glake_connect_options),
	                                        .no_cuda = 1},
		&eye));
}

bool world_is_all(struct glake_session *session, glake_ptr ptr, uint8_t value, uint64_t n_bytes)
{
	uint8_t *bytes = malloc(n_bytes);
	assert_ok(glake_read(session, 0, bytes, ptr, n_bytes));
	uint64_t i = 0;
	while (i < n_bytes && bytes[i] == value) {
		i++;
	}
	free(bytes);
	return i == n_bytes;
}
