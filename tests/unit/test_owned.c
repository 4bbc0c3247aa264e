/* SPDX-License-Identifier: Apache-2.0 */
/* Who may have written a file, and the folders on the way to it. As root, since files of others are made. */
#include "proto/owned.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "tests/check_glake.h"

#define OWNER 1000
#define OTHER 1001
#define MAX_BYTES 64u

static char root[128];
static char folder[160];

static const char *at(const char *name)
{
	static char paths[4][256];
	static unsigned n;
	char *path = paths[n++ % 4];
	snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
	return path;
}

static void put(const char *name, const char *text, mode_t mode, uid_t uid)
{
	FILE *file = fopen(at(name), "w");
	ck_assert_ptr_nonnull(file);
	fputs(text, file);
	fclose(file);
	ck_assert_int_eq(chown(at(name), uid, 0), 0);
	ck_assert_int_eq(chmod(at(name), mode), 0);
}

static void begin(void)
{
	const char *temporary = getenv("TMPDIR");
	snprintf(root, sizeof(root), "%s/owned.XXXXXX", temporary ? temporary : "/tmp");
	ck_assert_ptr_nonnull(mkdtemp(root));
	ck_assert_int_eq(chmod(root, 0755), 0);
	snprintf(folder, sizeof(folder), "%s/tables", root);
	ck_assert_int_eq(mkdir(folder, 0755), 0);
	if (geteuid() == 0) {
		put("good", "one\ntwo\n", 0644, OWNER);
	}
}

BEGIN_EACH(begin)

static int read_as(const char *name, uid_t owner, const char **why_out)
{
	cleanup_free char *text = NULL;
	size_t n = 0;
	cleanup_fd int fd = owned_open_folder(folder, owner, why_out);
	int r = fd < 0 ? fd : owned_read(fd, name, owner, MAX_BYTES, &text, &n, why_out);
	if (r == 0) {
		ck_assert_uint_eq(n, strlen(text));
		ck_assert(n == 0 || text[n - 1] == '\n');
	}
	return r;
}

static void refused(const char *name, int error, const char *why)
{
	const char *told = NULL;
	ck_assert_int_eq(read_as(name, OWNER, &told), error);
	ck_assert_str_eq(told, why);
}

static bool is_root(void)
{
	if (geteuid() != 0) {
		puts("SKIP: not root");
	}
	return geteuid() == 0;
}

START_TEST(the_owners_and_roots_are_read)
{
	const char *why;
	if (!is_root()) {
		return;
	}
	put("roots", "x\n", 0600, 0);
	put("empty", "", 0644, OWNER);
	ck_assert_int_eq(read_as("good", OWNER, &why), 0);
	ck_assert_int_eq(read_as("roots", OWNER, &why), 0);
	ck_assert_int_eq(read_as("empty", OWNER, &why), 0);
	/* Whose word does not count is not asked by its owner alone. */
	ck_assert_int_eq(read_as("good", 0, &why), -EPERM);
	ck_assert_int_eq(read_as("good", OTHER, &why), -EPERM);
}
END_TEST

START_TEST(what_others_may_have_written_is_not)
{
	if (!is_root()) {
		return;
	}
	put("others", "x\n", 0644, OTHER);
	refused("others", -EPERM, "others may write to it");
	put("open", "x\n", 0646, OWNER);
	refused("open", -EPERM, "others may write to it");
	put("group", "x\n", 0664, OWNER);
	refused("group", -EPERM, "others may write to it");
	ck_assert_int_eq(chmod(folder, 0775), 0);
	refused("good", -EPERM, "others may write to its folder");
	ck_assert_int_eq(chmod(folder, 01777), 0);
	refused("good", -EPERM, "others may write to its folder");
	ck_assert_int_eq(chmod(folder, 0755), 0);
	ck_assert_int_eq(chown(folder, OTHER, 0), 0);
	refused("good", -EPERM, "others may write to its folder");
}
END_TEST

/* Nothing holds up who reads, and no link leads elsewhere. */
START_TEST(what_is_no_file_is_not)
{
	if (!is_root()) {
		return;
	}
	ck_assert_int_eq(symlink("good", at("link")), 0);
	refused("link", -ELOOP, strerror(ELOOP));
	ck_assert_int_eq(mkfifo(at("pipe"), 0644), 0);
	refused("pipe", -EINVAL, "it is not a file");
	ck_assert_int_eq(mkdir(at("folder"), 0755), 0);
	refused("folder", -EINVAL, "it is not a file");
	refused("nothing", -ENOENT, strerror(ENOENT));
}
END_TEST

START_TEST(what_is_not_whole_is_not)
{
	char large[MAX_BYTES + 2];
	if (!is_root()) {
		return;
	}
	/* A condition could be missing behind it. */
	put("cut", "reads 0 if u32 8 = 0", 0644, OWNER);
	refused("cut", -EINVAL, "its last line has no end");
	memset(large, '\n', sizeof(large) - 1);
	large[sizeof(large) - 1] = '\0';
	put("large", large, 0644, OWNER);
	refused("large", -EFBIG, "it is too large");
}
END_TEST

static int check(const char *path, const char **why_out)
{
	*why_out = "";
	return owned_check_path(path, OWNER, why_out);
}

START_TEST(nobody_puts_another_folder_there)
{
	const char *why;
	char link[256];
	if (!is_root()) {
		return;
	}
	ck_assert_int_eq(check(folder, &why), 0);
	ck_assert_int_eq(check("/", &why), 0);
	/* As /tmp is: nobody moves another's folder there. */
	ck_assert_int_eq(chmod(root, 01777), 0);
	ck_assert_int_eq(check(folder, &why), 0);
	ck_assert_int_eq(chmod(root, 0777), 0);
	ck_assert_int_eq(check(folder, &why), -EPERM);
	ck_assert_str_eq(why, "others may write to a folder above it");
	/* A link is another way to it, and no better one. */
	snprintf(link, sizeof(link), "%s.link", root);
	ck_assert_int_eq(symlink(folder, link), 0);
	ck_assert_int_eq(check(link, &why), -EPERM);
	ck_assert_int_eq(chmod(root, 0755), 0);
	ck_assert_int_eq(check(link, &why), 0);
	ck_assert_int_eq(chown(root, OTHER, 0), 0);
	ck_assert_int_eq(check(folder, &why), -EPERM);
	/* His sticky folder is his. */
	ck_assert_int_eq(chmod(root, 01755), 0);
	ck_assert_int_eq(check(folder, &why), -EPERM);
}
END_TEST
