/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers for file systems; what mounts have to do with it is test_file_identity's. */
#include <stdio.h>
#include <sys/stat.h>

#include "daemon/store/superblock.h"
#include "tests/check_glake.h"

/* Larger than any device's number, and than any mount's. */
#define NO_DEVICE (UINT64_MAX - 1)

static struct superblocks superblocks;

START_TEST(a_device_of_ours_has_one_number_through_all_mounts)
{
	struct stat stat_of_root;
	ck_assert_int_eq(stat("/", &stat_of_root), 0);
	uint64_t number = superblock_number(&superblocks, stat_of_root.st_dev, 1001);
	if (number == 1001) {
		/* A subvolume, or a kernel without statmount(). */
		printf("SKIP: the mount of / cannot be found by its device\n");
		return;
	}
	ck_assert_uint_eq(superblock_number(&superblocks, stat_of_root.st_dev, 1002), number);
	ck_assert_uint_eq(superblocks.next, 1);
}
END_TEST

START_TEST(a_device_of_others_is_told_by_the_mount)
{
	for (unsigned i = 0; i < 3; i++) {
		ck_assert_uint_eq(superblock_number(&superblocks, NO_DEVICE, 1001), 1001);
		ck_assert_uint_eq(superblock_number(&superblocks, NO_DEVICE, 1002), 1002);
	}
	/* Looked for once each. */
	ck_assert_uint_eq(superblocks.next, 2);
}
END_TEST

START_TEST(who_makes_mounts_does_not_hold_up_the_loop)
{
	for (uint64_t mount = 1; mount <= 100000; mount++) {
		ck_assert_uint_eq(superblock_number(&superblocks, NO_DEVICE, mount), mount);
	}
	ck_assert_uint_lt(superblocks.next, 100000);
}
END_TEST
