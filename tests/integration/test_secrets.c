/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What lets a process have memory is told to nobody else: keys of sessions and tickets of chunks are in no log, in
 * no listing, and in one file, which is glaked's alone.
 */
#include <ctype.h>
#include <stdlib.h>

#include "tests/harness/connection.h"
#include "tests/harness/run.h"
#include "tests/harness/world.h"

#define LOUD "log_level = \"debug\"; drain_ms = 100;"

struct secret {
	uint8_t bytes[GLAKE_KEY_BYTES];
	size_t n_bytes;
	uint64_t number; /* as that; 0: it is none */
};

static const char *spell(const uint8_t *bytes, size_t n_bytes)
{
	static char text[2 * GLAKE_KEY_BYTES + 1];
	for (size_t i = 0; i < n_bytes; i++) {
		snprintf(text + 2 * i, 3, "%02x", bytes[i]);
	}
	return text;
}

static bool has(const char *all, size_t n_all, const void *part, size_t n_part)
{
	return memmem(all, n_all, part, n_part) != NULL;
}

/* Whether @all has it, or half of it, as bytes or spelled in any usual way. */
static bool tells(const char *all, size_t n_all, const struct secret *secret)
{
	char number[32];
	for (size_t at = 0; at < secret->n_bytes; at += 8) {
		const char *hex = spell(secret->bytes + at, 8);
		if (has(all, n_all, secret->bytes + at, 8) || has(all, n_all, hex, strlen(hex))) {
			return true;
		}
	}
	snprintf(number, sizeof(number), "%llu", (unsigned long long)secret->number);
	if (secret->number && has(all, n_all, number, strlen(number))) {
		return true;
	}
	snprintf(number, sizeof(number), "%llx", (unsigned long long)secret->number);
	return secret->number && has(all, n_all, number, strlen(number));
}

/* Its text, in lower case if @is_text; the caller's. */
static char *read_file(const char *path, bool is_text, size_t *n_bytes_out)
{
	struct stat stat;
	cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
	ck_assert_msg(fd >= 0 && fstat(fd, &stat) == 0, "%s", path);
	char *all = malloc((size_t)stat.st_size + 1);
	ssize_t n = read(fd, all, (size_t)stat.st_size);
	ck_assert_int_gt(n, 0);
	for (ssize_t i = 0; is_text && i < n; i++) {
		all[i] = (char)tolower((unsigned char)all[i]);
	}
	*n_bytes_out = (size_t)n;
	return all;
}

static bool file_tells(const char *path, const struct secret *secret)
{
	size_t n_bytes;
	cleanup_free char *plain = read_file(path, false, &n_bytes);
	bool is_told = tells(plain, n_bytes, secret);
	cleanup_free char *text = read_file(path, true, &n_bytes);
	return is_told || tells(text, n_bytes, secret);
}

/* All that an admin can ask for, and a map that shows it. */
static const char *ask_everything(void)
{
	static const char *const commands[] = {"status", "sessions", "tenants", "models", "blocks",
	                                       "events", "dedup",    "metrics", "doctor"};
	const char *path = world_path("told");
	char command[4 * HARNESS_PATH_BYTES];
	for (size_t i = 0; i < n_elements(commands); i++) {
		const char *ctl = run_in_build("bin/glakectl");
		snprintf(command, sizeof(command),
		         "{ '%s' -s '%s' %s; '%s' -s '%s' --json %s; } >>'%s' 2>&1", ctl,
		         harness.socket_path, commands[i], ctl, harness.socket_path, commands[i],
		         path);
		/* The doctor finds much. */
		ck_assert_int_ge(system(command), 0);
	}
	snprintf(command, sizeof(command), "'%s' -s '%s' map --html='%s'",
	         run_in_build("bin/glakectl"), harness.socket_path, world_path("map"));
	ck_assert_int_eq(system(command), 0);
	return path;
}

static struct secret share(int connection, uint64_t *id_out)
{
	cleanup_fdlist struct fdlist fds;
	struct secret ticket = {.n_bytes = 8};
	fdlist_init(&fds);
	ck_assert_int_eq(connection_alloc(connection, 0, CHUNK_BYTES, 1, id_out, &fds),
	                 GLAKE__WIRE__STATUS__OK);
	ck_assert_int_eq(connection_share(connection, id_out, 1, &ticket.number),
	                 GLAKE__WIRE__STATUS__OK);
	memcpy(ticket.bytes, &ticket.number, sizeof(ticket.number));
	return ticket;
}

static void greet(struct connection_identity *identity, Glake__Wire__Status status)
{
	int connection = connection_open(&harness);
	ck_assert_int_eq(connection_greet_as(connection, identity), status);
	if (status != GLAKE__WIRE__STATUS__OK) {
		connection_drop(&connection);
	}
}

/* Lines about it are provoked: keys that are wrong, requests that are, a connection closed for one. */
static void err(int connection, const struct connection_identity *identity, uint64_t chunk,
                const struct secret *ticket)
{
	struct connection_identity wrong = *identity;
	wrong.key[GLAKE_KEY_BYTES - 1] ^= 1;
	greet(&wrong, GLAKE__WIRE__STATUS__NOT_FOUND);
	ck_assert_int_ne(connection_status(connection,
	                                   REQUEST(CHUNK_OPEN, ChunkOpen, chunk_open,
	                                           .session = identity->session, .ids = &chunk,
	                                           .n_ids = 1, .ticket = ticket->number ^ 1),
	                                   NULL, 0),
	                 GLAKE__WIRE__STATUS__INTERNAL);
	connection_send_bytes(connection, identity->key, sizeof(identity->key), NULL, 0);
	connection_expect_closed(connection);
}

START_TEST(keys_and_tickets_are_told_to_nobody)
{
	struct connection_identity identity = {0};
	struct connection_identity other = {0};
	struct secret key = {.n_bytes = GLAKE_KEY_BYTES};
	struct stat stat;
	uint64_t chunk;
	world_begin_unseen(.config = LOUD, .has_keeper = true);
	int connection = connection_hello_as(&harness, &identity);
	memcpy(key.bytes, identity.key, sizeof(key.bytes));
	struct secret ticket = share(connection, &chunk);
	int victim = connection_hello_as(&harness, &other);
	err(victim, &other, chunk, &ticket);

	harness_kill(&harness);
	harness_restart(&harness);
	connection_drop(&connection);
	identity.has_key = true;
	greet(&identity, GLAKE__WIRE__STATUS__OK);

	const char *told = ask_everything();
	const struct secret *secrets[] = {&key, &ticket};
	const char *state = world_path("glaked.sock.state");
	/* There it is: so it would be found elsewhere. */
	ck_assert(file_tells(state, &key));
	for (size_t i = 0; i < n_elements(secrets); i++) {
		ck_assert(!file_tells(harness.log_path, secrets[i]));
		ck_assert(!file_tells(told, secrets[i]));
		ck_assert(!file_tells(world_path("map"), secrets[i]));
	}
	ck_assert_int_eq(lstat(state, &stat), 0);
	ck_assert_uint_eq(stat.st_mode, S_IFREG | 0600);
	ck_assert_uint_eq(stat.st_uid, geteuid());
}
END_TEST
