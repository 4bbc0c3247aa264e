/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of which a service manager keeps the fds, or has no room for them. It never answers. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/keep/fdstore.h"
#include "proto/cleanup.h"
#include "tests/unit/made_store.h"

static struct fdstore *fdstore;
static int manager;

/* The manager keeps one fd. */
static void begin(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int n_bytes = snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1,
	                       "glake-store-park-%d", (int)getpid());
	char name[128];
	snprintf(name, sizeof(name), "@%s", address.sun_path + 1);
	manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(
		bind(manager, (struct sockaddr *)&address,
	             (socklen_t)offsetof(struct sockaddr_un, sun_path) + 1 + (socklen_t)n_bytes),
		0);
	setenv("NOTIFY_SOCKET", name, 1);
	setenv("FDSTORE", "1", 1);
	store_begin();
	ck_assert_int_eq(fdstore_open(&loop, &fdstore), 0);
	store.parking = parking_new(&loop, fdstore);
	ck_assert_ptr_nonnull(store.parking);
}

static void end(void)
{
	parking_free(store.parking);
	store.parking = NULL;
	fdstore_close(fdstore);
	store_end();
	fd_close(&manager);
}

BEGIN_EACH(begin)
END_EACH(end)

/* Nobody published it: it goes with its user. */
static struct block *seal(unsigned name)
{
	struct charge charge;
	struct chunk chunk;
	struct digest of_name = digest(name);
	ck_assert_int_eq(tenant_charge(payer, 0, 2 * MIB, 1, &charge), 0);
	chunk_init(&chunk, &devices[0].at, &books, 2 * MIB, open("/dev/null", O_RDONLY | O_CLOEXEC),
	           0, CHUNK_BLOCK, &charge);
	struct block *block = store_seal(&store, realm, NULL, &of_name, 2 * MIB, &chunk, false);
	ck_assert_ptr_nonnull(block);
	return block;
}

START_TEST(a_block_that_goes_waits_for_no_room)
{
	struct block *kept = seal(1);
	struct block *roomless = seal(2);
	ck_assert_int_eq(kept->keeping, BLOCK_PARKING);
	ck_assert_int_eq(roomless->keeping, BLOCK_ROOMLESS);
	ck_assert_uint_eq(store.n_roomless, 1);
	ck_assert_uint_eq(store_unparked_block(roomless), 0);
	store_unuse_block(&store, roomless, 0);
	ck_assert_uint_eq(store.n_roomless, 0);
	ck_assert(list_is_empty(&store.roomless));
	ck_assert(parking_is_full(store.parking));
	store_unuse_block(&store, kept, 0);
}
END_TEST

START_TEST(a_block_that_goes_while_it_is_parked_leaves_its_room)
{
	struct block *first = seal(1);
	struct block *second = seal(2);
	ck_assert_uint_gt(store_unparked_block(first), 0);
	store_unuse_block(&store, first, 0);
	ck_assert_int_eq(second->keeping, BLOCK_PARKING);
	ck_assert_uint_gt(store_unparked_block(second), 0);
	ck_assert_uint_eq(store.n_roomless, 0);
	store_unuse_block(&store, second, 0);
}
END_TEST

static unsigned n_told;
static unsigned n_gone;

static void on_block(void *user, const struct block *block)
{
	n_told++;
}

static void on_gone(void *user, const struct block *block)
{
	n_gone++;
}

/* Else the books would name a block whose fd nobody keeps. */
START_TEST(who_watches_is_told_of_a_block_when_it_is_parked_or_cannot_be)
{
	static const struct store_watch watch = {.block = on_block, .block_gone = on_gone};
	store.watch = &watch;
	struct block *kept = seal(1);
	store_set_published(&store, kept, true);
	ck_assert_uint_eq(n_told, 0);
	struct block *roomless = seal(2);
	ck_assert_uint_eq(n_told, 1);
	store_set_published(&store, kept, false);
	ck_assert_uint_eq(n_told, 1);
	store_unuse_block(&store, kept, 0);
	ck_assert_uint_eq(n_gone, 0);
	store_unuse_block(&store, roomless, 0);
	ck_assert_uint_eq(n_gone, 1);
	store.watch = NULL;
}
END_TEST

/* Who wants room waits for what is used only. */
START_TEST(what_is_idle_goes_for_the_room_of_what_is_used)
{
	struct block *idle = seal(1);
	store_set_published(&store, idle, true);
	store_unuse_block(&store, idle, 0);
	ck_assert_uint_eq(store.n_blocks, 1);
	struct block *used = seal(2);
	ck_assert_uint_eq(store.n_blocks, 1);
	ck_assert_int_eq(used->keeping, BLOCK_PARKING);
	store_unuse_block(&store, used, 0);
}
END_TEST
