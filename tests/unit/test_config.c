/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration: every value arrives, every mistake is refused with its exact line, and the
 * documentation has the keys and defaults that the code has.
 */
#include "daemon/config/config.h"

#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "tests/check_glake.h"

#define MIB (1ull << 20)
#define GIB (1ull << 30)

static char path[256];

static void write_file(const char *text, size_t n_bytes)
{
	const char *folder = getenv("TMPDIR");
	snprintf(path, sizeof(path), "%s/config.XXXXXX", folder ? folder : "/tmp");
	int fd = mkstemp(path);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, text, n_bytes), (ssize_t)n_bytes);
	close(fd);
}

static struct config *load(const char *text)
{
	char error[512] = "";
	struct config *config = NULL;
	write_file(text, strlen(text));
	int result = config_load(path, &config, error, sizeof(error));
	unlink(path);
	ck_assert_msg(result == 0, "%s", error);
	return config;
}

/* @want is what follows the path. */
static void refused_bytes(const char *text, size_t n_bytes, int want_result, const char *want)
{
	char error[512] = "";
	char line[768];
	struct config *config = (void *)&line;
	write_file(text, n_bytes);
	int result = config_load(path, &config, error, sizeof(error));
	unlink(path);
	snprintf(line, sizeof(line), "%s%s", path, want);
	ck_assert_msg(result == want_result, "result %d for %s", result, text);
	ck_assert_str_eq(error, line);
	ck_assert_ptr_eq(config, (void *)&line);
}

static void refused(const char *text, const char *want)
{
	refused_bytes(text, strlen(text), -EINVAL, want);
}

/* ---- what is right ---- */

static void check_defaults(const struct config *config)
{
	ck_assert_str_eq(config->socket_path, "/run/glake/glaked.sock");
	ck_assert_uint_eq(config->socket_mode, 0666);
	ck_assert_ptr_null(config->admin_group);
	ck_assert_ptr_null(config->libcuda);
	ck_assert_uint_eq(config->mover_idle_ms, 30000);
	ck_assert_int_eq(config->log_level, LOG_LEVEL_INFO);
	ck_assert_uint_eq(config->n_devices, 0);
	ck_assert_uint_eq(config->drain_ms, 5000);
	ck_assert_uint_eq(config->max_sessions, 4096);
	ck_assert_uint_eq(config_user_sessions(config), 1024);
	ck_assert_uint_eq(config->max_requests_in_flight, 16);
	ck_assert_uint_eq(config->fd_budget, 0);
	ck_assert_uint_eq(config->n_stock, 2);
	ck_assert_uint_eq(config->stock[0].chunk_bytes, 2 * MIB);
	ck_assert_uint_eq(config->stock[0].n_chunks, 16);
	ck_assert_uint_eq(config->stock[1].chunk_bytes, 64 * MIB);
	ck_assert_uint_eq(config->stock[1].n_chunks, 2);
	ck_assert_uint_eq(config->warm_bytes, 1024 * MIB);
	ck_assert_uint_eq(config->load_window_bytes, GIB);
	ck_assert(!config->trust_file_times);
	ck_assert(!config->demote);
	ck_assert(config->dedup_reserve == 0.1);
	ck_assert_int_eq(config->verify, CONFIG_VERIFY_SAMPLE);
	ck_assert(config->measure_layout);
	ck_assert_uint_eq(config->reserve_bytes, 0);
	ck_assert_int_eq(config->pressure, CONFIG_PRESSURE_REFUSE);
	ck_assert_uint_eq(config->wait_ms, 0);
	ck_assert_uint_eq(config->n_realms, 0);
	ck_assert_uint_eq(config->n_tenants, 1);
	ck_assert_str_eq(config->tenants[0].name, CONFIG_DEFAULT_TENANT);
	ck_assert_uint_eq(config_sizes_at(&config->tenants[0].device_bytes, 0), 0);
	ck_assert_uint_eq(config->tenants[0].max_sessions, 0);
	ck_assert_uint_eq(config->tenants[0].max_fds, 0);
	ck_assert_uint_eq(config->tenants[0].manifest_bytes, 256ull * 1024 * 1024);
	ck_assert_int_eq(config->tenants[0].priority, 0);
}

START_TEST(no_file_means_defaults)
{
	char error[256];
	struct config *config = NULL;
	ck_assert_int_eq(config_load(NULL, &config, error, sizeof(error)), 0);
	ck_assert_ptr_null(config->path);
	check_defaults(config);
	config_free(config);
	config_free(NULL);
}
END_TEST

START_TEST(empty_file_means_defaults)
{
	static const char *const texts[] = {"", "\n", "# nothing", "/* nothing */", "// x\n"};
	for (size_t i = 0; i < n_elements(texts); i++) {
		struct config *config = load(texts[i]);
		ck_assert_str_eq(config->path, path);
		check_defaults(config);
		config_free(config);
	}
}
END_TEST

START_TEST(mover_lies_beside_the_program)
{
	char own[4096];
	ssize_t n_bytes = readlink("/proc/self/exe", own, sizeof(own) - 1);
	ck_assert_int_gt(n_bytes, 0);
	own[n_bytes] = '\0';
	struct config *config = load("");
	size_t n_folder = (size_t)(strrchr(own, '/') - own);
	ck_assert_int_eq(strncmp(config->mover_path, own, n_folder), 0);
	ck_assert_str_eq(config->mover_path + n_folder, "/glake-mover");
	config_free(config);
}
END_TEST

START_TEST(every_scalar_arrives)
{
	struct config *config = load("socket_path = \"/tmp/a.sock\";\n"
	                             "socket_mode = \"0660\";\n"
	                             "admin_group = \"root\";\n"
	                             "mover_path = \"/opt/mover\";\n"
	                             "mover_idle_ms = 0;\n"
	                             "libcuda = \"libcuda.so.1\";\n"
	                             "devices = [3, 1];\n"
	                             "log_level = \"debug\";\n"
	                             "drain_ms = 1;\n"
	                             "max_sessions = 2;\n"
	                             "max_sessions_per_user = 1;\n"
	                             "max_requests_in_flight = 3;\n"
	                             "fd_budget = 100;\n"
	                             "pool = ( { n_chunks = 5; chunk_bytes = 4194304; } );\n"
	                             "warm_bytes = \"1 GiB\";\n"
	                             "load_window_bytes = 0x10000000;\n"
	                             "trust_file_times = true;\n"
	                             "demote = true;\n"
	                             "dedup_reserve = 1;\n"
	                             "verify = \"always\";\n"
	                             "measure_layout = false;\n"
	                             "reserve_bytes = \"2GB\";\n"
	                             "pressure = \"wait\";\n"
	                             "wait_ms = 250;\n");
	ck_assert_str_eq(config->socket_path, "/tmp/a.sock");
	ck_assert_uint_eq(config->socket_mode, 0660);
	ck_assert_str_eq(config->admin_group, "root");
	ck_assert_uint_eq(config->admin_gid, 0);
	ck_assert_str_eq(config->mover_path, "/opt/mover");
	ck_assert_uint_eq(config->mover_idle_ms, 0);
	ck_assert_str_eq(config->libcuda, "libcuda.so.1");
	ck_assert_uint_eq(config->n_devices, 2);
	ck_assert_uint_eq(config->devices[0], 3);
	ck_assert_uint_eq(config->devices[1], 1);
	ck_assert_int_eq(config->log_level, LOG_LEVEL_DEBUG);
	ck_assert_uint_eq(config->drain_ms, 1);
	ck_assert_uint_eq(config->max_sessions, 2);
	ck_assert_uint_eq(config_user_sessions(config), 1);
	ck_assert_uint_eq(config->max_requests_in_flight, 3);
	ck_assert_uint_eq(config->fd_budget, 100);
	ck_assert_uint_eq(config->n_stock, 1);
	ck_assert_uint_eq(config->stock[0].chunk_bytes, 4 * MIB);
	ck_assert_uint_eq(config->stock[0].n_chunks, 5);
	ck_assert_uint_eq(config->warm_bytes, GIB);
	ck_assert_uint_eq(config->load_window_bytes, 256 * MIB);
	ck_assert(config->trust_file_times);
	ck_assert(config->demote);
	ck_assert(config->dedup_reserve == 1);
	ck_assert_int_eq(config->verify, CONFIG_VERIFY_ALWAYS);
	ck_assert(!config->measure_layout);
	ck_assert_uint_eq(config->reserve_bytes, 2000000000);
	ck_assert_int_eq(config->pressure, CONFIG_PRESSURE_WAIT);
	ck_assert_uint_eq(config->wait_ms, 250);
	config_free(config);
}
END_TEST

START_TEST(pool_may_be_empty)
{
	struct config *config = load("pool = ();");
	ck_assert_uint_eq(config->n_stock, 0);
	config_free(config);
}
END_TEST

/* libconfig alone would wrap these to 32 bits. */
START_TEST(large_numbers_arrive_whole)
{
	struct config *config = load("reserve_bytes = 25769803776;\n"
	                             "warm_bytes = 4294967296L;\n"
	                             "load_window_bytes = 0x1ffffffff;\n"
	                             "tenants = ( { name = \"x\"; uids = [4294967294, 1, 0x10];\n"
	                             "  device_bytes = [25769803776, 1]; } );");
	ck_assert_uint_eq(config->reserve_bytes, 24 * GIB);
	ck_assert_uint_eq(config->warm_bytes, 4 * GIB);
	ck_assert_uint_eq(config->load_window_bytes, 0x1ffffffff);
	ck_assert_uint_eq(config->tenants[0].members.uids[0], 4294967294u);
	ck_assert_uint_eq(config->tenants[0].members.uids[2], 16);
	ck_assert_uint_eq(config->tenants[0].device_bytes.bytes[0], 24 * GIB);
	config_free(config);
}
END_TEST

/* The check before libconfig must see texts and comments where libconfig sees them. */
START_TEST(texts_and_comments_are_left_alone)
{
	struct config *config = load("libcuda = \"a \\\" 12 # /* @ \\\\\"; # 99999999999999999999\n"
	                             "/* \" 5x @include */ drain_ms = 7; // \"\n"
	                             "admin_group = \"ro\" \"ot\";");
	ck_assert_str_eq(config->libcuda, "a \" 12 # /* @ \\");
	ck_assert_uint_eq(config->drain_ms, 7);
	ck_assert_str_eq(config->admin_group, "root");
	config_free(config);
}
END_TEST

/* ---- what is wrong ---- */

START_TEST(mistakes_are_refused_with_their_line)
{
	static const struct {
		const char *text;
		const char *want;
	} cases[] = {
		/* syntax */
		{"drain_ms = 5;\n\nwait_ms = ;", ":3: syntax error"},
		{"drain_ms wait_ms = 5;", ":1: syntax error"},
		{"\n\n_x = 5;", ":3: syntax error"},
		{"hello", ":1: the file ends within an entry"},
		{"hello\n", ":1: the file ends within an entry"},
		{"\ndrain_ms =\n\n# none\n\n", ":2: the file ends within an entry"},
		{"tenants = (\n{ name = \"a\n b\" # /*\n", ":3: the file ends within an entry"},
		{"drain_ms = 5;\n/* \n\n", ":2: a comment is never closed"},
		{"\nlibcuda = \"abc\n\n;", ":2: a text in quotes is never closed"},
		{"libcuda = \"abc\\", ":1: a text in quotes is never closed"},
		{"drain_ms = 5;\n@include \"/tmp\"\n", ":2: @include is not supported"},
		{"\nwarm_bytes = 24GiB;", ":2: 24GiB is not a number; a text needs quotes"},
		{"drain_ms = -;", ":1: - is not a number; a text needs quotes"},
		{"drain_ms = 0x;", ":1: 0x is not a number; a text needs quotes"},
		{"\n\ndrain_ms = 99999999999999999999;",
	         ":3: 99999999999999999999 does not fit 64 bits"},
		{"drain_ms = 0xffffffffffffffff;", ":1: 0xffffffffffffffff does not fit 64 bits"},
		{"devices = [1, \"x\"];", ":1: mismatched element type in array"},

		/* keys */
		{"drain_ms = 5;\ndrain_sm = 5;", ":2: unknown key drain_sm"},
		{"drain_ms = 5;\n\n\ndrain_ms = 6;", ":4: duplicate setting name"},
		{"pool = ( { chunk_bytes = \"2MiB\"; n_chunks = 1;\n size = 3; } );",
	         ":2: unknown key size in pool"},
		{"realms = ( { name = \"x\";\n uid = 3; } );", ":2: unknown key uid in realms"},
		{"tenants = (\n{ name = \"x\"; uids = [1];\n\nquota = 3; } );",
	         ":4: unknown key quota in tenants"},
		{"tenants = ( { name = \"x\"; uids = [1];\n uids = [2]; } );",
	         ":2: duplicate setting name"},

		/* what a pool holds */
		{"pool = (\n{ chunk_bytes = \"2MiB\"; n_chunks = 65; } );",
	         ":2: n_chunks is 65, must be 1 to 64"},
		{"pool = ( { chunk_bytes = \"2MiB\"; n_chunks = 1; },"
	         "{ chunk_bytes = \"4MiB\"; n_chunks = 1; },"
	         "{ chunk_bytes = \"6MiB\"; n_chunks = 1; },"
	         "{ chunk_bytes = \"8MiB\"; n_chunks = 1; },"
	         "{ chunk_bytes = \"10MiB\"; n_chunks = 1; },"
	         "{ chunk_bytes = \"12MiB\"; n_chunks = 1; },"
	         "{ chunk_bytes = \"14MiB\"; n_chunks = 1; },"
	         "{ chunk_bytes = \"16MiB\"; n_chunks = 1; },"
	         "{ chunk_bytes = \"18MiB\"; n_chunks = 1; } );",
	         ":1: pool has more than 8 entries"},

		/* types */
		{"\nsocket_path = 5;", ":2: socket_path must be a text, not a number"},
		{"socket_path = [\"/a\"];", ":1: socket_path must be a text, not an array [ ... ]"},
		{"socket_mode = 0666;",
	         ":1: socket_mode must be an octal text like \"0660\", not a number"},
		{"drain_ms = \"5\";", ":1: drain_ms must be a whole number, not a text"},
		{"drain_ms = 1.5;", ":1: drain_ms must be a whole number, not a fraction"},
		{"drain_ms = true;", ":1: drain_ms must be a whole number, not true or false"},
		{"warm_bytes = 1.5;",
	         ":1: warm_bytes must be a size like \"24GiB\", not a fraction"},
		{"devices = 0;", ":1: devices must be a list of device numbers, not a number"},
		{"devices = (0,\n\"x\");",
	         ":2: an entry of devices must be a whole number, not a text"},
		{"pool = 5;", ":1: pool must be a list ( { ... }, ... ), not a number"},
		{"pool = { };", ":1: pool must be a list ( { ... }, ... ), not a group"},
		{"pool = [ 1 ];", ":1: pool must be a list ( { ... }, ... ), not an array [ ... ]"},
		{"pool = (\n5 );", ":2: an entry of pool must be a group { ... }, not a number"},
		{"realms = \"uid\";", ":1: realms must be a list ( { ... }, ... ), not a text"},
		{"tenants = ( ( ) );",
	         ":1: an entry of tenants must be a group { ... }, not a list"},
		{"realms = ( { name = \"x\"; uids = 5; } );",
	         ":1: uids must be a list of uids, not a number"},
		{"realms = ( { name = \"x\"; users = \"root\"; } );",
	         ":1: users must be a list of user names, not a text"},
		{"realms = ( { name = \"x\"; gids = (1,\n\"root\"); } );",
	         ":2: an entry of gids must be a whole number, not a text"},

		/* ranges and forms */
		{"socket_path = \"\";", ":1: socket_path is empty"},
		{"socket_path = \"a.sock\";", ":1: socket_path must begin with a slash"},
		{"mover_path = \"mover\";", ":1: mover_path must begin with a slash"},
		{"libcuda = \"\";", ":1: libcuda is empty"},
		{"socket_mode = \"666\";", ":1: socket_mode must be an octal text like \"0660\""},
		{"socket_mode = \"0888\";", ":1: socket_mode must be an octal text like \"0660\""},
		{"socket_mode = \"01777\";", ":1: socket_mode must be an octal text like \"0660\""},
		{"admin_group = \"no-such-group\";", ":1: no group is named \"no-such-group\""},
		{"log_level = \"loud\";",
	         ":1: log_level must be error, warning, info or debug, not \"loud\""},
		{"verify = \"on\";", ":1: verify must be off, sample or always, not \"on\""},
		{"dedup_reserve = \"much\";",
	         ":1: dedup_reserve must be a part like 0.1, not a text"},
		{"dedup_reserve = 1.5;", ":1: dedup_reserve is 1.5, must be 0 to 1"},
		{"dedup_reserve = -1;", ":1: dedup_reserve is -1, must be 0 to 1"},
		{"pressure = \"push\";", ":1: pressure must be refuse or wait, not \"push\""},
		{"drain_ms = -1;", ":1: drain_ms is -1, must be 0 to 86400000"},
		{"mover_idle_ms = 86400001;",
	         ":1: mover_idle_ms is 86400001, must be 0 to 86400000"},
		{"max_sessions = 0;", ":1: max_sessions is 0, must be 1 to 1000000"},
		{"max_sessions = 4294967297;",
	         ":1: max_sessions is 4294967297, must be 1 to 1000000"},
		{"max_requests_in_flight = 0;",
	         ":1: max_requests_in_flight is 0, must be 1 to 65536"},
		{"devices = [];", ":1: devices is empty"},
		{"devices = [-1];", ":1: an entry of devices is -1, must be 0 to 1023"},
		{"devices = (0,\n1,\n0);", ":3: device 0 is given twice"},
		{"warm_bytes = \"1.5GiB\";",
	         ":1: warm_bytes must be a size like \"24GiB\", not \"1.5GiB\""},
		{"warm_bytes = \"17000000TiB\";",
	         ":1: warm_bytes: \"17000000TiB\" does not fit 64 bits"},
		{"warm_bytes = \"9223372036854775808\";",
	         ":1: warm_bytes is 9223372036854775808 bytes, must be 0 to 9223372036854775807"},
		{"warm_bytes = -1;", ":1: warm_bytes is -1, must be 0 to 9223372036854775807"},
		{"load_window_bytes = \"32MiB\";", ":1: load_window_bytes is 33554432 bytes, must "
	                                           "be 134217728 to 9223372036854775807"},
		{"trust_file_times = 1;",
	         ":1: trust_file_times must be true or false, not a number"},
		{"\nwait_ms = 5;", ":2: wait_ms needs pressure = \"wait\""},
		{"\npressure = \"wait\";", ":2: pressure \"wait\" needs a wait_ms above 0"},
		{"pressure = \"wait\";\nwait_ms = 0;",
	         ":2: pressure \"wait\" needs a wait_ms above 0"},

		/* pool */
		{"pool = (\n{ n_chunks = 1; } );",
	         ":2: chunk_bytes is missing in an entry of pool"},
		{"pool = (\n\n{ chunk_bytes = \"2MiB\"; } );",
	         ":3: n_chunks is missing in an entry of pool"},
		{"pool = ( { chunk_bytes = \"3MiB\"; n_chunks = 1; } );",
	         ":1: chunk_bytes is not a multiple of 2 MiB"},
		{"pool = ( { chunk_bytes = \"1MiB\"; n_chunks = 1; } );",
	         ":1: chunk_bytes is 1048576 bytes, must be 2097152 to 549755813888"},
		{"pool = ( { chunk_bytes = \"2MiB\"; n_chunks = 0; } );",
	         ":1: n_chunks is 0, must be 1 to 64"},
		{"pool = ( { chunk_bytes = \"2MiB\"; n_chunks = 1; },\n"
	         "{ n_chunks = 1;\n chunk_bytes = 2097152; } );",
	         ":3: two entries of pool have the same chunk_bytes"},

		/* realms */
		{"realms = (\n{ uids = [1]; } );", ":2: name is missing in an entry of realms"},
		{"realms = (\n{ name = \"x\"; } );", ":2: realm \"x\" has no members"},
		{"realms = ( { name = \"x\"; uids = []; } );", ":1: uids is empty"},
		{"realms = ( { name = \"x y\"; uids = [1]; } );",
	         ":1: name \"x y\" may have letters, digits, '.', '_', '-' only"},
		{"realms = ( { name = \"uid:5\"; uids = [1]; } );",
	         ":1: name \"uid:5\" may have letters, digits, '.', '_', '-' only"},
		{"realms = ( { name = "
	         "\"1234567890123456789012345678901234567890123456789012345678901234\";"
	         "uids = [1]; } );",
	         ":1: name is longer than 63 bytes"},
		{"realms = ( { name = \"x\"; uids = [1]; },\n{ uids = [2];\nname = \"x\"; } );",
	         ":3: the name \"x\" is given twice"},
		{"realms = ( { name = \"x\"; users = [\"root\",\n\"no-such-user\"]; } );",
	         ":2: no user is named \"no-such-user\""},
		{"realms = ( { name = \"x\"; groups = (\n\"no-such-group\"); } );",
	         ":2: no group is named \"no-such-group\""},
		{"realms = ( { name = \"x\"; uids = [4294967295]; } );",
	         ":1: an entry of uids is 4294967295, must be 0 to 4294967294"},

		/* tenants */
		{"tenants = (\n\n{ uids = [1]; } );", ":3: name is missing in an entry of tenants"},
		{"tenants = (\n{ name = \"x\"; } );",
	         ":2: tenant \"x\" names nobody: give uids, users, gids, groups or a cgroup"},
		{"tenants = (\n{ name = \"default\"; uids = [1]; } );",
	         ":2: tenant \"default\" is for everyone else: it names nobody"},
		{"tenants = ( {\nname = \"cache\"; uids = [1]; } );",
	         ":2: the name \"cache\" is glaked's own"},
		{"tenants = ( { name = \"x\"; uids = [1]; },\n{ name = \"x\"; uids = [2]; } );",
	         ":2: the name \"x\" is given twice"},
		{"tenants = ( { name = \"x\"; cgroup = \"user.slice\"; } );",
	         ":1: cgroup must begin with a slash"},
		{"tenants = ( { name = \"x\"; uids = [1]; device_bytes = []; } );",
	         ":1: device_bytes is empty"},
		{"tenants = ( { name = \"x\"; uids = [1]; device_bytes = [\"1GiB\",\n\"lots\"]; } "
	         ");",
	         ":2: an entry of device_bytes must be a size like \"24GiB\", not \"lots\""},
		{"tenants = ( { name = \"x\"; uids = [1];\npriority = 1001; } );",
	         ":2: priority is 1001, must be -1000 to 1000"},
		{"tenants = ( { name = \"x\"; uids = [1];\ndedup = \"on\"; } );",
	         ":2: dedup must be off, auto or observed, not \"on\""},
		{"tenants = ( { name = \"x\"; uids = [1];\nmax_sessions = -1; } );",
	         ":2: max_sessions is -1, must be 0 to 1000000"},
	};
	for (size_t i = 0; i < n_elements(cases); i++) {
		refused(cases[i].text, cases[i].want);
	}
}
END_TEST

START_TEST(long_socket_path_is_refused)
{
	char text[256];
	snprintf(text, sizeof(text), "\nsocket_path = \"/%0107d\";", 0);
	refused(text, ":2: socket_path is longer than 107 bytes");
	snprintf(text, sizeof(text), "\nsocket_path = \"/%0106d\";", 0);
	config_free(load(text));
}
END_TEST

START_TEST(nul_byte_is_refused)
{
	static const char text[] = "drain_ms = 5;\n\0max_sessions = 5;\n";
	refused_bytes(text, sizeof(text) - 1, -EINVAL, ":2: a NUL byte");
}
END_TEST

START_TEST(unreadable_files_are_refused)
{
	char error[256];
	struct config *config = NULL;
	ck_assert_int_eq(config_load("/nonexistent/x", &config, error, sizeof(error)), -ENOENT);
	ck_assert_str_eq(error, "/nonexistent/x: No such file or directory");
	ck_assert_int_eq(config_load("/proc", &config, error, sizeof(error)), -EISDIR);
	ck_assert_str_eq(error, "/proc: Is a directory");
	ck_assert_int_eq(config_load("/dev/zero", &config, error, sizeof(error)), -EFBIG);
	ck_assert_str_eq(error, "/dev/zero: File too large");
	ck_assert_ptr_null(config);
}
END_TEST

/* Whatever is cut off, the rest is taken or refused, and nothing leaks. */
START_TEST(every_prefix_of_the_example_is_survived)
{
	static char text[64 * 1024];
	FILE *file = fopen("deploy/glaked.conf", "r");
	ck_assert_msg(file, "run from the top of the tree");
	size_t n_bytes = fread(text, 1, sizeof(text), file);
	fclose(file);
	ck_assert_uint_gt(n_bytes, 100);
	for (size_t n = 0; n < n_bytes; n += 7) {
		char error[256];
		struct config *config;
		write_file(text, n);
		if (config_load(path, &config, error, sizeof(error)) == 0) {
			config_free(config);
		}
		unlink(path);
	}
}
END_TEST

/* ---- who is who ---- */

START_TEST(tenant_is_the_first_rule_that_matches)
{
	struct config *config = load(
		"tenants = (\n"
		"{ name = \"default\"; device_bytes = \"8GiB\"; },\n"
		"{ name = \"alice\"; uids = [1000]; device_bytes = [\"24GiB\", \"12GiB\"]; },\n"
		"{ name = \"both\"; uids = [1001, 1000]; gids = [50]; },\n"
		"{ name = \"unit\"; cgroup = \"/system.slice/foo.service/\"; },\n"
		"{ name = \"narrow\"; gids = [60]; cgroup = \"/user.slice\"; },\n"
		"{ name = \"system\"; cgroup = \"/system.slice\"; priority = -5; max_fds = 9; "
		"dedup = \"auto\"; } "
		");");
	static const struct {
		uid_t uid;
		gid_t gids[2];
		const char *cgroup;
		const char *tenant;
	} cases[] = {
		{1000, {1000, 50}, NULL, "alice"},
		{1001, {1001, 1}, NULL, "both"},
		{1002, {1002, 50}, "/system.slice/foo.service", "both"},
		{1002, {50, 1}, NULL, "both"},
		{1002, {1, 1}, "/system.slice/foo.service", "unit"},
		{1002, {1, 1}, "/system.slice/foo.service/worker", "unit"},
		{1002, {1, 1}, "/system.slice/foo.service2", "system"},
		{1002, {1, 1}, "/system.slice", "system"},
		{1002, {1, 1}, "/system.slicer", "default"},
		{1002, {1, 60}, "/user.slice/x", "narrow"},
		{1002, {1, 60}, "/user.slice", "narrow"},
		{1002, {1, 60}, "/other", "default"},
		{1002, {1, 60}, NULL, "default"},
		{1002, {1, 1}, "/user.slice", "default"},
		{0, {0, 0}, "/", "default"},
	};
	for (size_t i = 0; i < n_elements(cases); i++) {
		const struct peer peer = {.uid = cases[i].uid,
		                          .owner = cases[i].uid,
		                          .gids = (gid_t *)cases[i].gids,
		                          .n_gids = 2,
		                          .cgroup = (char *)cases[i].cgroup};
		const struct config_tenant *tenant = config_tenant_of(config, &peer);
		ck_assert_msg(strcmp(tenant->name, cases[i].tenant) == 0, "case %zu: %s", i,
		              tenant->name);
	}
	ck_assert_uint_eq(config->n_tenants, 6);
	const struct config_tenant *alice = &config->tenants[0];
	ck_assert_str_eq(alice->name, "alice");
	ck_assert_uint_eq(config_sizes_at(&alice->device_bytes, 0), 24 * GIB);
	ck_assert_uint_eq(config_sizes_at(&alice->device_bytes, 1), 12 * GIB);
	ck_assert_uint_eq(config_sizes_at(&alice->device_bytes, 7), 12 * GIB);
	const struct config_tenant *last = &config->tenants[5];
	ck_assert_str_eq(last->name, "default");
	ck_assert_uint_eq(config_sizes_at(&last->device_bytes, 0), 8 * GIB);
	ck_assert_uint_eq(config_sizes_at(&last->device_bytes, 3), 8 * GIB);
	ck_assert_int_eq(config->tenants[4].priority, -5);
	ck_assert_int_eq(config->tenants[4].dedup, CONFIG_DEDUP_AUTO);
	ck_assert_int_eq(config->tenants[3].dedup, CONFIG_DEDUP_OFF);
	ck_assert_uint_eq(config->tenants[4].max_fds, 9);
	config_free(config);
}
END_TEST

START_TEST(root_cgroup_matches_all_with_a_cgroup)
{
	struct config *config = load("tenants = ( { name = \"all\"; cgroup = \"/\"; } );");
	struct peer peer = {.uid = 5, .owner = 5, .cgroup = (char *)"/"};
	ck_assert_str_eq(config_tenant_of(config, &peer)->name, "all");
	peer.cgroup = (char *)"/a/b";
	ck_assert_str_eq(config_tenant_of(config, &peer)->name, "all");
	peer.cgroup = NULL;
	ck_assert_str_eq(config_tenant_of(config, &peer)->name, "default");
	config_free(config);
}
END_TEST

static void check_realm(const struct config *config, uid_t uid, gid_t gid, const char *want)
{
	char name[CONFIG_NAME_BYTES];
	const struct peer peer = {.uid = uid, .owner = uid, .gids = &gid, .n_gids = 1};
	config_realm_of(config, &peer, name, sizeof(name));
	ck_assert_str_eq(name, want);
}

START_TEST(realm_is_the_uids_own_unless_named)
{
	struct config *config = load("realms = (\n"
	                             "{ name = \"ml\"; uids = [1000]; groups = [\"root\"]; },\n"
	                             "{ name = \"ops\"; users = [\"root\"]; gids = [70]; } );");
	check_realm(config, 1000, 5, "ml");
	check_realm(config, 1001, 0, "ml");
	check_realm(config, 0, 5, "ops");
	check_realm(config, 0, 0, "ml");
	check_realm(config, 1001, 70, "ops");
	check_realm(config, 1001, 5, "uid:1001");
	check_realm(config, 4294967294u, 5, "uid:4294967294");
	config_free(config);
}
END_TEST

START_TEST(admin_is_root_or_in_the_group)
{
	const gid_t gids[] = {5, 0};
	struct config *config = load("");
	ck_assert(config_is_admin(config, 0, NULL, 0));
	ck_assert(!config_is_admin(config, 1000, gids, 2));
	config_free(config);
	config = load("admin_group = \"root\";");
	ck_assert(config_is_admin(config, 1000, gids, 2));
	ck_assert(!config_is_admin(config, 1000, gids, 1));
	config_free(config);
}
END_TEST

static void limit_fds(rlim_t hard)
{
	struct rlimit limit = {.rlim_cur = hard, .rlim_max = hard};
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

START_TEST(fd_budget_fits_the_limit)
{
	struct config *own = load("");
	struct config *given = load("fd_budget = 1000;");
	struct config *large = load("fd_budget = 100000000;");
	struct rlimit limit;
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	if (limit.rlim_max >= CONFIG_MAX_FDS) {
		ck_assert_uint_eq(config_fd_budget(own), CONFIG_MAX_FDS - CONFIG_RESERVED_FDS);
		ck_assert_uint_eq(config_fd_budget(given), 1000);
		ck_assert_uint_eq(config_fd_budget(large), limit.rlim_max - CONFIG_RESERVED_FDS);
	}
	limit_fds(1200);
	ck_assert_uint_eq(config_fd_budget(own), 1200 - CONFIG_RESERVED_FDS);
	ck_assert_uint_eq(config_fd_budget(given), 1200 - CONFIG_RESERVED_FDS);
	ck_assert_uint_eq(config_fd_budget(large), 1200 - CONFIG_RESERVED_FDS);
	limit_fds(300);
	ck_assert_uint_eq(config_fd_budget(own), 150);
	config_free(own);
	config_free(given);
	config_free(large);
}
END_TEST

/* ---- documentation ---- */

static char *read_text(const char *name)
{
	static char text[256 * 1024];
	FILE *file = fopen(name, "r");
	ck_assert_msg(file, "run from the top of the tree");
	size_t n_bytes = fread(text, 1, sizeof(text) - 1, file);
	fclose(file);
	ck_assert_uint_lt(n_bytes, sizeof(text) - 1);
	text[n_bytes] = '\0';
	return text;
}

/* A row is "| `key` | `default` | ..." or "| `key` | - | ...", keys of a section "| `pool.key` ". */
static void row_of(const struct config_key *key, char *row, size_t row_bytes)
{
	const char *quote = *key->fallback ? "`" : "";
	snprintf(row, row_bytes, "\n| `%s%s%s` | %s%s%s | ", key->section, *key->section ? "." : "",
	         key->name, quote, *key->fallback ? key->fallback : "-", quote);
}

START_TEST(docs_have_every_key_and_no_other)
{
	size_t n_keys;
	const struct config_key *keys = config_keys(&n_keys);
	const char *docs = read_text("docs/configuration.md");
	for (size_t i = 0; i < n_keys; i++) {
		char row[256];
		row_of(&keys[i], row, sizeof(row));
		const char *at = strstr(docs, row);
		ck_assert_msg(at, "docs/configuration.md lacks the row%s", row);
		const char *mark = strstr(at, "**(restart)**");
		bool is_marked = mark && mark < strchr(at + 1, '\n');
		ck_assert_msg(is_marked == config_is_fixed(keys[i].section, keys[i].name),
		              "docs/configuration.md: **(restart)** in the row%s", row);
	}
	const char *table = strstr(docs, "| Key | Default | Meaning |");
	ck_assert_ptr_nonnull(table);
	const char *end = strstr(table, "\n\n");
	size_t n_rows = 0;
	for (const char *row = table; (row = strstr(row, "\n| `")) && row < end; row++) {
		n_rows++;
	}
	ck_assert_uint_eq(n_rows, n_keys);
}
END_TEST

/* At the start of a line, behind "# ", or behind "{ " or "; " in a group. */
static bool example_has(const char *text, const char *name)
{
	size_t n_bytes = strlen(name);
	for (const char *at = text; (at = strstr(at, name)); at++) {
		bool is_word = at == text || strchr("\n {;#\t", at[-1]);
		if (is_word && strncmp(at + n_bytes, " = ", 3) == 0) {
			return true;
		}
	}
	return false;
}

START_TEST(example_loads_and_has_every_key)
{
	char error[256];
	struct config *config = NULL;
	int result = config_load("deploy/glaked.conf", &config, error, sizeof(error));
	ck_assert_msg(result == 0, "%s", error);
	config_free(config);
	const char *text = read_text("deploy/glaked.conf");
	size_t n_keys;
	const struct config_key *keys = config_keys(&n_keys);
	for (size_t i = 0; i < n_keys; i++) {
		ck_assert_msg(example_has(text, keys[i].name), "deploy/glaked.conf lacks %s",
		              keys[i].name);
	}
}
END_TEST

/* A line of the example that begins with "#" and no space is one to switch on: it must load too. */
START_TEST(example_loads_with_everything_switched_on)
{
	char *text = read_text("deploy/glaked.conf");
	char *out = text;
	for (const char *in = text; *in; in++) {
		bool at_start = in == text || in[-1] == '\n';
		if (!at_start || *in != '#' || in[1] == ' ' || in[1] == '\n') {
			*out++ = *in;
		}
	}
	*out = '\0';
	struct config *config = load(text);
	ck_assert_uint_eq(config->n_tenants, 4);
	ck_assert_uint_eq(config->n_realms, 2);
	ck_assert_ptr_nonnull(config->admin_group);
	config_free(config);
}
END_TEST
