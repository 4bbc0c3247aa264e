/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Are the weights that a program is given those that its file has? Files that change without a sign,
 * file systems that are told by nothing that statx() says, and files that must be found again.
 *
 * What is mounted lives in a mount namespace of the test and its daemon. Without root, or where a
 * file system cannot be had, a test says SKIP.
 */
#include <linux/capability.h>
#include <linux/fs.h>
#include <linux/fsverity.h>
#include <linux/loop.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <time.h>

#include <stdarg.h>
#include "tests/harness/world.h"

#define TENSOR_BYTES 65536u
#define HEADER "{\"w\":{\"dtype\":\"U8\",\"shape\":[65536],\"data_offsets\":[0,65536]}}   "
#define DATA_OFFSET (8 + sizeof(HEADER) - 1)
/* The longest that a file system or a loop device may take to be let go. */
#define WAIT_S 20

static struct glake_session *session;

/* ---- files ------------------------------------------------------------------------------------ */

/* A model with one tensor of equal bytes. */
static void write_model(const char *path, uint8_t value)
{
	static uint8_t bytes[DATA_OFFSET + TENSOR_BYTES];
	uint64_t n_header = sizeof(HEADER) - 1;
	memcpy(bytes, &n_header, 8);
	memcpy(bytes + 8, HEADER, n_header);
	memset(bytes + DATA_OFFSET, value, TENSOR_BYTES);
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	ck_assert_msg(fd >= 0, "%s: %s", path, strerror(errno));
	ck_assert_int_eq(write(fd, bytes, sizeof(bytes)), (ssize_t)sizeof(bytes));
	close(fd);
}

/* The index of the first byte that is not @value; TENSOR_BYTES if all are. */
TEST_BYTE_LOOP static size_t first_other(const volatile uint8_t *bytes, uint8_t value)
{
	size_t i = 0;
	while (i < TENSOR_BYTES && bytes[i] == value) {
		i++;
	}
	return i;
}

/* Open it, check that every byte is @value, close it. Returns whether the store had it. */
static bool was_known(const char *path, uint8_t value)
{
	static uint8_t got[TENSOR_BYTES];
	struct glake_model *model;
	struct glake_tensor tensor = {.size = sizeof(tensor)};
	struct glake_model_info info = {.size = sizeof(info)};
	assert_ok(glake_model_open(session, path, NULL, &model));
	assert_ok(glake_model_tensor(model, "w", &tensor));
	assert_ok(glake_read(session, 0, got, tensor.ptr, TENSOR_BYTES));
	size_t i = first_other(got, value);
	ck_assert_msg(i == TENSOR_BYTES, "%s: byte %zu is %u, the file has %u", path, i, got[i],
	              value);
	assert_ok(glake_model_info(model, &info));
	glake_model_close(model);
	return info.was_loaded;
}

struct listed {
	const char *name;
	int n;
	char reason[300]; /* of the last */
};

static int count_row(void *user, const struct glake_model_row *row)
{
	struct listed *listed = user;
	if (strcmp(row->name, listed->name) == 0) {
		listed->n++;
		snprintf(listed->reason, sizeof(listed->reason), "%s", row->reload_reason);
	}
	return 0;
}

static struct listed listed(const char *path)
{
	struct listed found = {.name = path};
	assert_ok(glake_list_models(session, count_row, &found));
	return found;
}

static void check_reason(const char *path, const char *part)
{
	struct listed found = listed(path);
	ck_assert_int_eq(found.n, 1);
	ck_assert_msg(part[0] ? strstr(found.reason, part) != NULL : !found.reason[0],
	              "'%s', expected '%s'", found.reason, part);
}

static void pin_it(const char *path)
{
	struct glake_model_options options = {.size = sizeof(options), .pin = 1};
	struct glake_model *model;
	assert_ok(glake_model_open(session, path, &options, &model));
	glake_model_close(model);
}

/* A shared mapping of the file; its fd is closed. */
static volatile uint8_t *map_file(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	volatile uint8_t *bytes = mmap(NULL, DATA_OFFSET + TENSOR_BYTES, PROT_READ | PROT_WRITE,
	                               MAP_SHARED, fd, 0);
	ck_assert_ptr_ne((void *)bytes, MAP_FAILED);
	close(fd);
	return bytes;
}

static void unmap_file(volatile uint8_t *bytes)
{
	ck_assert_int_eq(munmap((void *)bytes, DATA_OFFSET + TENSOR_BYTES), 0);
}

TEST_BYTE_LOOP static void store(volatile uint8_t *bytes, uint8_t value)
{
	for (size_t i = 0; i < TENSOR_BYTES; i++) {
		bytes[DATA_OFFSET + i] = value;
	}
}

/* ---- file systems ----------------------------------------------------------------------------- */

__attribute__((format(printf, 1, 2))) static bool run(const char *format, ...)
{
	char command[1500];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(command, sizeof(command), format, arguments);
	va_end(arguments);
	return system(command) == 0;
}

static bool skip(const char *what)
{
	printf("SKIP: %s\n", what);
	return false;
}

/* From here on mounts are ours alone. */
static bool own_mounts(void)
{
	return (unshare(CLONE_NEWNS) == 0 &&
	        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0) ||
	       skip("no mount namespace of one's own");
}

/* An image of ext4, in the file @name. */
static bool make_ext4(const char *name, const char *options)
{
	return run("truncate -s 16M '%s' && mkfs.ext4 -q -F %s '%s' >/dev/null 2>&1",
	           world_path(name), options, world_path(name)) ||
	       skip("no mkfs.ext4 here");
}

/* The bytes from @bytes on, before @end, that are like the first. */
static size_t run_of(const uint8_t *bytes, const uint8_t *end)
{
	const uint8_t *at = bytes;
	while (at < end && *at == *bytes) {
		at++;
	}
	return (size_t)(at - bytes);
}

/*
 * Copy the image, with other weights in its model: they were 0x51 and are 0x52. Short runs are the file system's own: its
 * superblock has random numbers, and the name of the folder where it was mounted.
 */
static void change_weights(const char *from, const char *to)
{
	ck_assert(run("cp '%s' '%s'", world_path(from), world_path(to)));
	int fd = open(world_path(to), O_RDWR | O_CLOEXEC);
	struct stat stat;
	ck_assert_int_eq(fstat(fd, &stat), 0);
	uint8_t *image = mmap(NULL, (size_t)stat.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
	                      0);
	ck_assert_ptr_ne(image, MAP_FAILED);
	const uint8_t *end = image + stat.st_size;
	size_t n_changed = 0;
	for (uint8_t *at = image; at < end;) {
		size_t n = run_of(at, end);
		if (*at == 0x51 && n >= DATA_OFFSET) {
			memset(at, 0x52, n);
			n_changed += n;
		}
		at += n;
	}
	ck_assert_uint_ge(n_changed, TENSOR_BYTES);
	munmap(image, (size_t)stat.st_size);
	close(fd);
}

static bool attach(const char *loop, const char *image)
{
	return run("losetup '%s' '%s' 2>/dev/null", loop, world_path(image));
}

static bool attach_new(char *loop, size_t n_bytes, const char *image)
{
	char command[700];
	snprintf(command, sizeof(command), "losetup -f --show '%s' 2>/dev/null", world_path(image));
	FILE *answer = popen(command, "r");
	bool is_there = answer && fgets(loop, (int)n_bytes, answer);
	if (answer) {
		pclose(answer);
	}
	if (!is_there) {
		return skip("no loop device");
	}
	loop[strcspn(loop, "\n")] = '\0';
	return true;
}

/* Closing what was a client's is left to threads of the daemon. */
static void unmount(const char *folder_name)
{
	for (int i = 0; i < WAIT_S * 100 && umount2(world_path(folder_name), 0) < 0; i++) {
		ck_assert_int_eq(errno, EBUSY);
		usleep(10000);
	}
}

/* The device is let go with the last mount, so with the test's process if it fails. */
static bool mount_loop(const char *loop, const char *at, const char *type, unsigned long flags)
{
	struct loop_info64 info;
	int fd = open(loop, O_RDWR | O_CLOEXEC);
	bool is_mounted = fd >= 0 && mount(loop, world_path(at), type, flags, NULL) == 0;
	if (is_mounted) {
		ck_assert_int_eq(ioctl(fd, LOOP_GET_STATUS64, &info), 0);
		info.lo_flags |= LO_FLAGS_AUTOCLEAR;
		ck_assert_int_eq(ioctl(fd, LOOP_SET_STATUS64, &info), 0);
	}
	if (fd >= 0) {
		close(fd);
	}
	return is_mounted;
}

static void detach(const char *loop)
{
	run("losetup -d '%s' 2>/dev/null", loop);
	for (int i = 0; i < WAIT_S * 100 && run("losetup '%s' >/dev/null 2>&1", loop); i++) {
		usleep(10000);
	}
}

static void make_folder(const char *name)
{
	ck_assert_int_eq(mkdir(world_path(name), 0755), 0);
}

/* Returns the loop device in @loop, or says SKIP. */
static bool mount_ext4(const char *image, const char *options, const char *at, char *loop,
                       size_t n_bytes)
{
	if (!make_ext4(image, options) || !attach_new(loop, n_bytes, image)) {
		return false;
	}
	make_folder(at);
	if (!mount_loop(loop, at, "ext4", 0)) {
		detach(loop);
		return skip("cannot mount ext4");
	}
	return true;
}

static void begin(const char *config)
{
	world_begin(.config = config, .devices = "2x16GiB");
	session = world_connect();
}

static bool begin_with_mounts(void)
{
	if (!own_mounts()) {
		return false;
	}
	begin("");
	return true;
}

/* ---- tests ------------------------------------------------------------------------------------ */

START_TEST(a_file_is_found_again)
{
	begin("");
	const char *path = world_path("m.safetensors");
	write_model(path, 1);
	/* However fresh it is. */
	ck_assert(!was_known(path, 1));
	ck_assert(was_known(path, 1));
	check_reason(path, "");
	/* A writer who has gone leaves what he wrote, and nothing else. */
	volatile uint8_t *bytes = map_file(path);
	store(bytes, 2);
	unmap_file(bytes);
	ck_assert(!was_known(path, 2));
	ck_assert(was_known(path, 2));
}
END_TEST

/*
 * As systemd starts the unit again: all mounts are others, and no file has changed. But one of a file system that was
 * there before, at the same place, is another file.
 */
START_TEST(a_restart_in_a_mount_namespace_of_its_own_finds_files_again)
{
	char loop[64] = "";
	char path[PATH_MAX];
	char loop_path[PATH_MAX];
	if (!own_mounts()) {
		return;
	}
	world_begin(.config = "", .devices = "1x1GiB", .is_activated = true, .keeps_fds = true);
	session = world_connect();
	snprintf(path, sizeof(path), "%s", world_path("m.safetensors"));
	write_model(path, 1);
	ck_assert(!was_known(path, 1));
	/* A superblock has the name of its folder: two bytes as in the weights. */
	bool has_loop = mount_ext4("image", "", "QQ", loop, sizeof(loop));
	snprintf(loop_path, sizeof(loop_path), "%s", world_path("QQ/m.safetensors"));
	if (has_loop) {
		write_model(loop_path, 0x51);
		ck_assert(!was_known(loop_path, 0x51));
	}
	cleanup_fd int home = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
	for (int i = 0; i < 3; i++) {
		harness_kill(&harness);
		ck_assert_int_eq(setns(home, CLONE_NEWNS), 0);
		if (has_loop && i == 1) {
			unmount("QQ");
			detach(loop);
			change_weights("image", "other");
			ck_assert(attach(loop, "other"));
			ck_assert(mount_loop(loop, "QQ", "ext4", 0));
		}
		ck_assert(own_mounts());
		harness_restart(&harness);
		ck_assert(was_known(path, 1));
		if (has_loop) {
			ck_assert_int_eq(was_known(loop_path, i < 1 ? 0x51 : 0x52), i != 1);
		}
	}
}
END_TEST

/* Its page is writable and dirty already, so that a store is seen by nobody. */
START_TEST(a_mapping_that_is_written_through_hides_no_change)
{
	begin("");
	const char *path = world_path("m.safetensors");
	write_model(path, 1);
	volatile uint8_t *bytes = map_file(path);
	for (uint8_t value = 2; value < 6; value++) {
		store(bytes, value);
		ck_assert(!was_known(path, value));
	}
	check_reason(path, "open for writing");
	harness_wait_log(&harness, "each open loads it again: open for writing: 'm.safetensors");
	unmap_file(bytes);
	ck_assert(!was_known(path, 5));
	ck_assert(was_known(path, 5));
}
END_TEST

/* tmpfs sets no time when a page is stored to that was read first. */
START_TEST(tmpfs_hides_no_change)
{
	if (!begin_with_mounts()) {
		return;
	}
	make_folder("mem");
	if (mount("none", world_path("mem"), "tmpfs", 0, "size=4m") < 0) {
		skip("cannot mount tmpfs");
		return;
	}
	const char *path = world_path("mem/m.safetensors");
	write_model(path, 1);
	ck_assert(!was_known(path, 1));
	volatile uint8_t *bytes = map_file(path);
	ck_assert_uint_eq(first_other(bytes + DATA_OFFSET, 1), TENSOR_BYTES);
	store(bytes, 2);
	unmap_file(bytes);
	ck_assert(!was_known(path, 2));
	check_reason(path, "on tmpfs");
	unmount("mem");
}
END_TEST

/* A mapping through an overlay is of the file below: no lease on the overlay's sees it. */
START_TEST(an_overlay_hides_no_change)
{
	if (!begin_with_mounts()) {
		return;
	}
	make_folder("low");
	make_folder("up");
	make_folder("work");
	make_folder("over");
	char options[900];
	snprintf(options, sizeof(options), "lowerdir=%s,upperdir=%s,workdir=%s", world_path("low"),
	         world_path("up"), world_path("work"));
	if (mount("none", world_path("over"), "overlay", 0, options) < 0) {
		skip("cannot mount an overlay");
		return;
	}
	const char *path = world_path("over/m.safetensors");
	write_model(path, 1);
	volatile uint8_t *bytes = map_file(path);
	store(bytes, 2);
	ck_assert(!was_known(path, 2));
	store(bytes, 3);
	ck_assert(!was_known(path, 3));
	check_reason(path, "on an overlay");
	unmap_file(bytes);
	unmount("over");
}
END_TEST

/* One loop device takes an image after the other: all that stat() says is equal. */
static void check_images(const char *loop, const char *type, const char *const images[2])
{
	struct stat stats[2];
	for (int i = 0; i < 2; i++) {
		if (!attach(loop, images[i])) {
			skip("the loop device was taken by somebody else");
			break;
		}
		ck_assert(mount_loop(loop, "mnt", type, MS_RDONLY));
		const char *path = world_path("mnt/m.safetensors");
		ck_assert_int_eq(stat(path, &stats[i]), 0);
		stats[i].st_atim = (struct timespec){0};
		ck_assert(!was_known(path, i == 0 ? 0x51 : 0x52));
		ck_assert(was_known(path, i == 0 ? 0x51 : 0x52));
		unmount("mnt");
		detach(loop);
		ck_assert(i == 0 || memcmp(&stats[0], &stats[1], sizeof(stats[0])) == 0);
	}
}

START_TEST(another_file_system_in_the_same_place_is_another)
{
	static const char *const images[] = {"a.img", "b.img"};
	char loop[64];
	if (!begin_with_mounts() || !mount_ext4(images[0], "", "mnt", loop, sizeof(loop))) {
		return;
	}
	write_model(world_path("mnt/m.safetensors"), 0x51);
	unmount("mnt");
	detach(loop);
	change_weights(images[0], images[1]);
	check_images(loop, "ext4", images);
}
END_TEST

/* Built with the times of its sources. */
static bool make_squashfs(const char *name, uint8_t value)
{
	char source[600];
	snprintf(source, sizeof(source), "%s/%s.source", harness.folder, name);
	ck_assert_int_eq(mkdir(source, 0755), 0);
	char path[700];
	snprintf(path, sizeof(path), "%s/m.safetensors", source);
	write_model(path, value);
	return run("touch -d @1000000000 '%s' && "
	           "mksquashfs '%s' '%s' -quiet -no-progress >/dev/null 2>&1",
	           path, source, world_path(name)) ||
	       skip("no mksquashfs here");
}

START_TEST(another_image_in_the_same_place_is_another)
{
	static const char *const images[] = {"a.img", "b.img"};
	char loop[64];
	if (!begin_with_mounts() || !make_squashfs(images[0], 0x51) ||
	    !make_squashfs(images[1], 0x52) || !attach_new(loop, sizeof(loop), images[0])) {
		return;
	}
	detach(loop);
	make_folder("mnt");
	check_images(loop, "squashfs", images);
}
END_TEST

/* ctime in whole seconds: two writes within one set the same. */
START_TEST(a_change_within_the_tick_is_seen)
{
	char loop[64];
	struct timespec now;
	if (!begin_with_mounts() || !mount_ext4("old.img", "-I 128", "mnt", loop, sizeof(loop))) {
		return;
	}
	const char *path = world_path("mnt/m.safetensors");
	/* The mover is up before the second begins. */
	write_model(world_path("other.safetensors"), 9);
	ck_assert(!was_known(world_path("other.safetensors"), 9));
	do {
		usleep(1000);
		clock_gettime(CLOCK_REALTIME, &now);
		/* The clock that is taken for ctime is some milliseconds behind. */
	} while (now.tv_nsec < 20 * 1000 * 1000 || now.tv_nsec > 80 * 1000 * 1000);
	write_model(path, 1);
	ck_assert(!was_known(path, 1));
	write_model(path, 2);
	ck_assert(!was_known(path, 2));
	usleep(1100000);
	was_known(path, 2);
	ck_assert(was_known(path, 2));
	unmount("mnt");
	detach(loop);
}
END_TEST

/* A process of its own: CUDA does not survive a fork. */
static bool was_known_elsewhere(const char *path, bool in_container)
{
	fflush(NULL);
	pid_t pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		if (in_container &&
		    (unshare(CLONE_NEWNS) < 0 ||
		     mount(harness.folder, world_path("there"), NULL, MS_BIND, NULL) < 0)) {
			_exit(2);
		}
		session = world_connect();
		bool known = was_known(path, 1);
		world_disconnect(session);
		_exit(known);
	}
	int status;
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) <= 1);
	return WEXITSTATUS(status) == 1;
}

/* A container has a mount of its own of the host's folder. */
START_TEST(a_file_is_found_through_another_mount)
{
	if (!own_mounts()) {
		return;
	}
	world_begin(.config = "", .devices = "2x16GiB");
	make_folder("there");
	write_model(world_path("m.safetensors"), 1);
	ck_assert(!was_known_elsewhere(world_path("m.safetensors"), false));
	ck_assert(was_known_elsewhere(world_path("there/m.safetensors"), true));
}
END_TEST

/* The file is in a mount that glaked's namespace does not have. */
START_TEST(a_file_in_a_container_alone_is_found)
{
	begin("");
	char loop[64];
	if (!own_mounts() || !mount_ext4("a.img", "", "mnt", loop, sizeof(loop))) {
		return;
	}
	write_model(world_path("mnt/m.safetensors"), 1);
	ck_assert(!was_known(world_path("mnt/m.safetensors"), 1));
	ck_assert(was_known(world_path("mnt/m.safetensors"), 1));
	unmount("mnt");
	detach(loop);
}
END_TEST

/* The model's path. */
static const char *begin_without_lease(const char *config)
{
	if (geteuid() != 0 || prctl(PR_CAPBSET_DROP, CAP_LEASE) < 0) {
		skip("not root");
		return NULL;
	}
	begin(config);
	const char *path = world_path("m.safetensors");
	write_model(path, 1);
	ck_assert_int_eq(chown(path, 65534, 65534), 0);
	return path;
}

START_TEST(without_a_lease_a_file_is_loaded_again)
{
	const char *path = begin_without_lease("");
	if (!path) {
		return;
	}
	for (int i = 0; i < 3; i++) {
		ck_assert(!was_known(path, 1));
		check_reason(path, "no lease");
	}
	/* The one before has gone from the list, without a word to anybody. */
	ck_assert_uint_eq(world_metric("models_evicted"), 0);
	/* One pin takes the place of another. */
	pin_it(path);
	pin_it(path);
	check_reason(path, "no lease");
	ck_assert(!was_known(path, 1));
	ck_assert_int_eq(listed(path).n, 2);
	pin_it(path);
	ck_assert_int_eq(listed(path).n, 1);
	assert_ok(glake_pin(session, path, 0));
}
END_TEST

/* One who knows that nobody writes there can say so. */
START_TEST(without_a_lease_times_can_be_trusted)
{
	const char *path = begin_without_lease("trust_file_times = true;");
	if (!path) {
		return;
	}
	ck_assert(!was_known(path, 1));
	ck_assert(was_known(path, 1));
	check_reason(path, "");
}
END_TEST

/*
 * The program's fds stay its own, with what it has set on them. Its lease is as good as the mover's, which takes its
 * own on a description of its own: the program's may say that whoever has the lease gets SIGKILL when it is broken,
 * and a lease that was there for a moment would have reset that.
 */
START_TEST_WITH(what_the_program_has_set_on_a_file_stays, .n = 2)
{
	static const struct {
		int set;
		int get;
		int value;
	} cases[] = {{F_SETLEASE, F_GETLEASE, F_RDLCK}, {F_SETSIG, F_GETSIG, SIGKILL}};
	begin("");
	const char *path = world_path("m.safetensors");
	write_model(path, 1);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(fcntl(fd, cases[_i].set, cases[_i].value), 0);
	struct glake_model *model;
	assert_ok(glake_model_open_fds(session, &fd, NULL, 1, NULL, &model));
	glake_model_close(model);
	ck_assert_int_eq(fcntl(fd, cases[_i].get), cases[_i].value);
	close(fd);
	ck_assert(was_known(path, 1));
}
END_TEST

/* Two copies are one: the content is known before it is read. */
START_TEST(a_file_with_verity_is_known_wherever_it_is)
{
	char loop[64];
	if (!begin_with_mounts() ||
	    !mount_ext4("verity.img", "-O verity", "mnt", loop, sizeof(loop))) {
		return;
	}
	bool has_verity = true;
	for (int i = 0; i < 2 && has_verity; i++) {
		const char *path = world_path(i == 0 ? "mnt/a.safetensors" : "mnt/b.safetensors");
		write_model(path, 1);
		struct fsverity_enable_arg enable = {.version = 1,
		                                     .hash_algorithm = FS_VERITY_HASH_ALG_SHA256,
		                                     .block_size = 4096};
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		has_verity = ioctl(fd, FS_IOC_ENABLE_VERITY, &enable) == 0;
		close(fd);
		if (has_verity) {
			ck_assert(was_known(path, 1) == (i == 1));
			check_reason(world_path("mnt/a.safetensors"), "");
		} else {
			skip("no fs-verity in this kernel");
		}
	}
	unmount("mnt");
	detach(loop);
}
END_TEST
