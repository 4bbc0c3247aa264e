/* SPDX-License-Identifier: Apache-2.0 */
/* From a path to the files that are sent: indexes, shards, and what is refused. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libclient/glake.h"
#include "libclient/model/model_files.h"
#include "tests/check_glake.h"

static char folder[200];

static const char *path_of(const char *name)
{
	static char paths[4][300];
	static unsigned next;
	char *path = paths[next++ % 4];
	snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
	return path;
}

static void write_text(const char *name, const char *text)
{
	FILE *file = fopen(path_of(name), "we");
	ck_assert_ptr_nonnull(file);
	fputs(text, file);
	fclose(file);
}

static void begin(void)
{
	const char *base = getenv("TMPDIR");
	snprintf(folder, sizeof(folder), "%s/files.XXXXXX", base ? base : "/tmp");
	ck_assert_ptr_nonnull(mkdtemp(folder));
}

static void end(void)
{
	char command[300];
	snprintf(command, sizeof(command), "rm -rf '%s'", folder);
	ck_assert_int_eq(system(command), 0);
}
BEGIN_EACH(begin)
END_EACH(end)

static int n_open_fds(void)
{
	int n_fds = 0;
	for (int fd = 0; fd < 1024; fd++) {
		n_fds += fcntl(fd, F_GETFD) >= 0;
	}
	return n_fds;
}

/* Opening @path ends with @expected, a text of @part, and nothing open. */
static void refused(const char *path, int expected, const char *part)
{
	struct glake__model_files files;
	int n_fds = n_open_fds();
	int r = glake__model_files_open(&files, path);
	ck_assert_msg(r == expected, "%s: %d (%s), not %d", path, r, glake_error(), expected);
	ck_assert_msg(strstr(glake_error(), part), "'%s' is not in: %s", part, glake_error());
	glake__model_files_deinit(&files);
	ck_assert_int_eq(n_open_fds(), n_fds);
}

#define INDEX "model.safetensors.index.json"

START_TEST(shards_come_sorted_and_once)
{
	write_text("b.safetensors", "");
	write_text("a.safetensors", "");
	write_text(INDEX, "{\"weight_map\": {\"x\": \"b.safetensors\", \"y\": \"a.safetensors\","
	                  "\"z\": \"b.safetensors\"}}");
	struct glake__model_files files;
	ck_assert_int_eq(glake__model_files_open(&files, folder), 0);
	ck_assert(files.is_ours);
	ck_assert_uint_eq(files.n_files, 2);
	ck_assert_str_eq(files.names[0], "a.safetensors");
	ck_assert_str_eq(files.names[1], "b.safetensors");
	ck_assert_str_eq(files.index_name, INDEX);
	ck_assert_str_eq(files.name, folder);
	/* The index's fd is behind those of the files, and all are close-on-exec. */
	struct stat index;
	struct stat sent;
	ck_assert_int_eq(stat(path_of(INDEX), &index), 0);
	ck_assert_int_eq(fstat(files.fds[2], &sent), 0);
	ck_assert_uint_eq(index.st_ino, sent.st_ino);
	for (int i = 0; i < 3; i++) {
		ck_assert_int_eq(fcntl(files.fds[i], F_GETFD), FD_CLOEXEC);
		ck_assert_int_eq(fcntl(files.fds[i], F_GETFL) & O_ACCMODE, O_RDONLY);
	}
	glake__model_files_deinit(&files);
}
END_TEST

START_TEST(links_are_followed_and_names_are_real)
{
	write_text("blob", "");
	ck_assert_int_eq(symlink("blob", path_of("model.safetensors")), 0);
	struct glake__model_files files;
	ck_assert_int_eq(glake__model_files_open(&files, path_of("model.safetensors")), 0);
	ck_assert_str_eq(files.names[0], "model.safetensors");
	ck_assert_str_eq(files.name, path_of("blob"));
	ck_assert_ptr_null(files.index_name);
	glake__model_files_deinit(&files);
	ck_assert_int_eq(chdir(folder), 0);
	ck_assert_int_eq(glake__model_files_open(&files, "."), 0);
	ck_assert_str_eq(files.name, folder);
	ck_assert_uint_eq(files.n_files, 1);
	glake__model_files_deinit(&files);
}
END_TEST

START_TEST(bad_indexes_are_refused_by_name)
{
	static const struct {
		const char *text;
		const char *part;
	} bad[] = {
		{"", INDEX},
		{"{", "line 1"},
		{"[]", "weight_map"},
		{"{\"weight_map\": []}", "weight_map"},
		{"{\"weight_map\": {}}", "weight_map"},
		{"{\"weight_map\": {\"t\": 1}}", "tensor t"},
		{"{\"weight_map\": {\"t\": \"\"}}", "tensor t"},
		{"{\"weight_map\": {\"t\": \"..\"}}", ".."},
		{"{\"weight_map\": {\"t\": \"../secret\"}}", "../secret"},
		{"{\"weight_map\": {\"t\": \"/etc/passwd\"}}", "/etc/passwd"},
		{"{\"weight_map\": {\"t\": \"a\\u0000b\"}}", INDEX},
	};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		write_text(INDEX, bad[i].text);
		refused(folder, GLAKE_E_BAD_FILE, bad[i].part);
		ck_assert_ptr_nonnull(strstr(glake_error(), INDEX));
	}
}
END_TEST

START_TEST(a_missing_shard_is_named_with_its_tensor)
{
	write_text("a.safetensors", "");
	write_text(INDEX,
	           "{\"weight_map\": {\"x\": \"a.safetensors\", \"y\": \"gone.safetensors\"}}");
	refused(folder, GLAKE_E_BAD_FILE, "gone.safetensors");
	ck_assert_ptr_nonnull(strstr(glake_error(), "tensor y"));
	ck_assert_ptr_nonnull(strstr(glake_error(), INDEX));
	ck_assert_int_eq(mkfifo(path_of("gone.safetensors"), 0600), 0);
	refused(folder, GLAKE_E_BAD_FILE, "gone.safetensors");
}
END_TEST

START_TEST(too_many_shards_are_refused)
{
	char *text = malloc(64 * 300);
	size_t n = (size_t)sprintf(text, "{\"weight_map\": {");
	for (int i = 0; i < 253; i++) {
		n += (size_t)sprintf(text + n, "%s\"t%d\": \"s%d\"", i ? "," : "", i, i);
	}
	sprintf(text + n, "}}");
	write_text(INDEX, text);
	free(text);
	refused(folder, GLAKE_E_BAD_FILE, "253 shards");
}
END_TEST

START_TEST(what_is_no_file_is_refused_without_waiting)
{
	ck_assert_int_eq(mkfifo(path_of("fifo"), 0600), 0);
	refused(path_of("fifo"), GLAKE_E_BAD_FILE, "fifo");
	refused("/dev/zero", GLAKE_E_BAD_FILE, "/dev/zero");
	refused(path_of("none"), -ENOENT, "none");
	refused(folder, -ENOENT, "neither");
	refused(NULL, -EINVAL, "NULL");
	ck_assert_int_eq(mkdir(path_of("model.safetensors"), 0700), 0);
	refused(folder, GLAKE_E_BAD_FILE, "model.safetensors");
}
END_TEST

START_TEST(borrowed_files_stay_open)
{
	write_text("f", "");
	int fd = open(path_of("f"), O_RDONLY | O_CLOEXEC);
	const char *name = "some/where/f";
	struct glake__model_files files;
	ck_assert_int_eq(glake__model_files_borrow(&files, &fd, &name, 1), 0);
	ck_assert(!files.is_ours);
	ck_assert_str_eq(files.names[0], "f");
	glake__model_files_deinit(&files);
	ck_assert_int_ge(fcntl(fd, F_GETFD), 0);
	int pipes[2];
	ck_assert_int_eq(pipe2(pipes, O_CLOEXEC), 0);
	ck_assert_int_eq(glake__model_files_borrow(&files, pipes, NULL, 1), GLAKE_E_BAD_FILE);
	glake__model_files_deinit(&files);
	int none = 1000;
	ck_assert_int_eq(glake__model_files_borrow(&files, &none, NULL, 1), -EBADF);
	glake__model_files_deinit(&files);
	close(fd);
}
END_TEST
