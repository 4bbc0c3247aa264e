/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening a model: the first open loads it into the store, every further one maps what is there.
 * Each open is in a fresh process, as a model server's start is.
 *
 *   bench_model [PATH] [options]
 *     PATH          a .safetensors file or a folder, as glake_model_open() takes it; without it a
 *                   file of --bytes is written to the folder for temporary files
 *     --loads N     so many loads, with the store emptied in between (1)
 *     --runs N      then so many opens of the loaded model (5)
 *     --cold        drop the files from the page cache before each load
 *     --check       read every tensor back and compare it with the file
 *     --device D    glaked's number of the device (0)
 *     --socket P    a glaked that runs, else one is started
 *     --bytes N     of the file to write, in MiB (512)
 *
 * Per open: the time from the call of glake_model_open() until it returns, and of it what the
 * library says for mapping and the daemon for loading. The connection, in which the driver starts,
 * is not in it but printed beside.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "glake.h"
#include "glake_admin.h"
#include "tests/bench/bench.h"

#define PIECE_BYTES (8 * MIB)
#define MAX_HEADER_BYTES 100000000ull

struct options {
	char path[PATH_MAX];
	const char *socket_path;
	unsigned n_loads;
	unsigned n_runs;
	uint32_t device;
	uint64_t made_mib;
	bool cold;
	bool check;
};

/* A child's report. */
struct opened {
	uint64_t connect_ns;
	uint64_t open_ns;
	uint64_t map_ns;
	uint64_t load_ns;
	uint64_t n_tensors;
	uint64_t n_blocks;
	uint64_t content_bytes;
	uint64_t mapped_bytes;
	uint64_t deduplicated_bytes;
	uint64_t n_checked; /* tensors */
	int was_loaded;
};

/* ---- safetensors, just enough ---------------------------------------------------------------- */

/* Every tensor of the model's files: name -> [file, offset, bytes]. */
struct files {
	json_t *paths;   /* owned: array of strings */
	json_t *tensors; /* owned */
};

static uint64_t little_endian(const uint8_t bytes[8])
{
	uint64_t value = 0;
	for (int i = 7; i >= 0; i--) {
		value = value << 8 | bytes[i];
	}
	return value;
}

static void read_at(int fd, const char *path, uint64_t offset, void *to, uint64_t n_bytes)
{
	while (n_bytes > 0) {
		ssize_t n = pread(fd, to, n_bytes, (off_t)offset);
		if (n <= 0) {
			bench_fail("%s: %s", path, n < 0 ? strerror(errno) : "ends too early");
		}
		to = (char *)to + n;
		offset += (uint64_t)n;
		n_bytes -= (uint64_t)n;
	}
}

static int open_file(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) {
		bench_fail("%s: %s", path, strerror(errno));
	}
	return fd;
}

static void add_file(struct files *files, const char *path)
{
	uint8_t prefix[8];
	int fd = open_file(path);
	read_at(fd, path, 0, prefix, sizeof(prefix));
	uint64_t header_bytes = little_endian(prefix);
	char *text = header_bytes <= MAX_HEADER_BYTES ? malloc(header_bytes) : NULL;
	if (!text) {
		bench_fail("%s: not a safetensors file", path);
	}
	read_at(fd, path, sizeof(prefix), text, header_bytes);
	close(fd);
	json_t *header = json_loadb(text, header_bytes, 0, NULL);
	free(text);
	if (!header) {
		bench_fail("%s: not a safetensors file", path);
	}
	const char *name;
	json_t *entry;
	json_object_foreach(header, name, entry)
	{
		json_t *offsets = json_object_get(entry, "data_offsets");
		json_int_t begin = json_integer_value(json_array_get(offsets, 0));
		json_int_t end = json_integer_value(json_array_get(offsets, 1));
		if (offsets) {
			json_object_set_new(
				files->tensors, name,
				json_pack("[I, I, I]", (json_int_t)json_array_size(files->paths),
			                  (json_int_t)(sizeof(prefix) + header_bytes) + begin,
			                  end - begin));
		}
	}
	json_decref(header);
	json_array_append_new(files->paths, json_string(path));
}

static void add_folder(struct files *files, const char *folder)
{
	char path[PATH_MAX];
	snprintf(path, sizeof(path), "%s/model.safetensors.index.json", folder);
	json_t *index = json_load_file(path, 0, NULL);
	if (!index) {
		snprintf(path, sizeof(path), "%s/model.safetensors", folder);
		add_file(files, path);
		return;
	}
	json_t *seen = json_object();
	const char *tensor;
	json_t *shard;
	json_object_foreach(json_object_get(index, "weight_map"), tensor, shard)
	{
		const char *name = json_string_value(shard);
		if (name && !json_object_get(seen, name)) {
			json_object_set_new(seen, name, json_true());
			snprintf(path, sizeof(path), "%s/%s", folder, name);
			add_file(files, path);
		}
	}
	json_decref(seen);
	json_decref(index);
}

static struct files find_files(const char *path)
{
	struct files files = {.paths = json_array(), .tensors = json_object()};
	struct stat stat_;
	if (stat(path, &stat_) < 0) {
		bench_fail("%s: %s", path, strerror(errno));
	}
	if (S_ISDIR(stat_.st_mode)) {
		add_folder(&files, path);
	} else {
		add_file(&files, path);
	}
	return files;
}

static void free_files(struct files *files)
{
	json_decref(files->paths);
	json_decref(files->tensors);
}

static void drop_from_cache(const struct files *files)
{
	size_t i;
	json_t *path;
	json_array_foreach(files->paths, i, path)
	{
		int fd = open_file(json_string_value(path));
		fdatasync(fd);
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
		close(fd);
	}
}

/* ---- the file we make ------------------------------------------------------------------------ */

#define MADE_TENSOR_BYTES (16 * MIB)

static void write_all(FILE *file, const void *bytes, size_t n_bytes, const char *path)
{
	if (fwrite(bytes, 1, n_bytes, file) != n_bytes) {
		bench_fail("%s: %s", path, strerror(errno));
	}
}

/* Large tensors of 16 MiB, each with a small one beside it, as a layer's weights have norms. */
static void make_model(struct options *options)
{
	static uint64_t words[MIB / sizeof(uint64_t)];
	char *header = NULL;
	size_t header_bytes;
	uint64_t n_tensors = options->made_mib * MIB / MADE_TENSOR_BYTES;
	uint64_t offset = 0;
	uint64_t random = 1;
	snprintf(options->path, sizeof(options->path), "%.4000s/model.safetensors", bench_folder());
	FILE *text = open_memstream(&header, &header_bytes);
	for (uint64_t i = 0; i < n_tensors; i++) {
		fprintf(text,
		        "%s\"layers.%" PRIu64 ".weight\":{\"dtype\":\"BF16\",\"shape\":[2048,4096],"
		        "\"data_offsets\":[%" PRIu64 ",%llu]}",
		        i ? "," : "{", i, offset, (unsigned long long)(offset + MADE_TENSOR_BYTES));
		offset += MADE_TENSOR_BYTES;
		fprintf(text,
		        ",\"layers.%" PRIu64 ".norm\":{\"dtype\":\"BF16\",\"shape\":[4096],"
		        "\"data_offsets\":[%" PRIu64 ",%llu]}",
		        i, offset, (unsigned long long)(offset + 8 * KIB));
		offset += 8 * KIB;
	}
	fputs("}", text);
	while (ftell(text) % 8 != 0) {
		fputc(' ', text);
	}
	fclose(text);
	FILE *file = fopen(options->path, "we");
	if (!file) {
		bench_fail("%s: %s", options->path, strerror(errno));
	}
	uint8_t prefix[8];
	for (int i = 0; i < 8; i++) {
		prefix[i] = (uint8_t)((uint64_t)header_bytes >> (8 * i));
	}
	write_all(file, prefix, sizeof(prefix), options->path);
	write_all(file, header, header_bytes, options->path);
	free(header);
	while (offset > 0) {
		uint64_t n_bytes = offset < sizeof(words) ? offset : sizeof(words);
		for (size_t i = 0; i < n_bytes / sizeof(words[0]); i++) {
			words[i] = bench_random(&random);
		}
		write_all(file, words, n_bytes, options->path);
		offset -= n_bytes;
	}
	if (fclose(file) != 0) {
		bench_fail("%s: %s", options->path, strerror(errno));
	}
}

/* ---- a child process ------------------------------------------------------------------------- */

static void compare_tensor(struct glake_session *session, uint32_t device,
                           const struct glake_tensor *tensor, const struct files *files)
{
	static uint8_t ours[PIECE_BYTES];
	static uint8_t theirs[PIECE_BYTES];
	json_t *place = json_object_get(files->tensors, tensor->name);
	size_t i_file = (size_t)json_integer_value(json_array_get(place, 0));
	uint64_t offset = (uint64_t)json_integer_value(json_array_get(place, 1));
	uint64_t n_bytes = (uint64_t)json_integer_value(json_array_get(place, 2));
	const char *path = json_string_value(json_array_get(files->paths, i_file));
	if (!place || n_bytes != tensor->bytes) {
		bench_fail("%s: %" PRIu64 " bytes, in the file %" PRIu64, tensor->name,
		           tensor->bytes, n_bytes);
	}
	int fd = open_file(path);
	for (uint64_t at = 0; at < n_bytes; at += PIECE_BYTES) {
		uint64_t piece = n_bytes - at < PIECE_BYTES ? n_bytes - at : PIECE_BYTES;
		bench_check(glake_read(session, device, ours, tensor->ptr + at, piece),
		            "glake_read");
		read_at(fd, path, offset + at, theirs, piece);
		if (memcmp(ours, theirs, piece) != 0) {
			bench_fail("%s: other bytes than in %s", tensor->name, path);
		}
	}
	close(fd);
}

static uint64_t compare_all(struct glake_session *session, const struct glake_model *model,
                            const struct options *options)
{
	struct files files = find_files(options->path);
	struct glake_tensor tensor = {.size = sizeof(tensor)};
	uint64_t n = 0;
	while (glake_model_tensor_at(model, n, &tensor) == 0) {
		compare_tensor(session, options->device, &tensor, &files);
		n++;
	}
	if (n != json_object_size(files.tensors)) {
		bench_fail("%" PRIu64 " tensors, in the files %zu", n,
		           json_object_size(files.tensors));
	}
	free_files(&files);
	return n;
}

static struct opened open_here(const struct options *options)
{
	struct opened opened = {0};
	struct glake_session *session;
	struct glake_model *model;
	struct glake_model_options model_options = {.size = sizeof(model_options),
	                                            .device = options->device};
	struct glake_model_info info = {.size = sizeof(info)};
	uint64_t begin_ns = bench_now_ns();
	bench_check(glake_connect(NULL, &session), "glake_connect");
	opened.connect_ns = bench_now_ns() - begin_ns;
	begin_ns = bench_now_ns();
	bench_check(glake_model_open(session, options->path, &model_options, &model),
	            "glake_model_open");
	opened.open_ns = bench_now_ns() - begin_ns;
	bench_check(glake_model_info(model, &info), "glake_model_info");
	opened.map_ns = info.map_ns;
	opened.load_ns = info.load_ns;
	opened.n_tensors = info.n_tensors;
	opened.n_blocks = info.n_blocks;
	opened.content_bytes = info.content_bytes;
	opened.mapped_bytes = info.mapped_bytes;
	opened.deduplicated_bytes = info.deduplicated_bytes;
	opened.was_loaded = info.was_loaded;
	if (options->check) {
		opened.n_checked = compare_all(session, model, options);
	}
	glake_model_close(model);
	glake_disconnect(session);
	return opened;
}

/* The parent never starts the driver, so it may fork. */
static struct opened open_in_child(const struct options *options)
{
	struct opened opened;
	int ends[2];
	int status;
	if (pipe(ends) < 0) {
		bench_fail("pipe: %s", strerror(errno));
	}
	fflush(NULL);
	pid_t child = fork();
	if (child == 0) {
		opened = open_here(options);
		_exit(write(ends[1], &opened, sizeof(opened)) == sizeof(opened) ? 0 : 1);
	}
	close(ends[1]);
	ssize_t n = read(ends[0], &opened, sizeof(opened));
	close(ends[0]);
	if (child < 0 || waitpid(child, &status, 0) != child || status != 0 ||
	    n != sizeof(opened)) {
		bench_fail("the process that opens the model has failed");
	}
	return opened;
}

/* ---- the runs -------------------------------------------------------------------------------- */

static void print_opened(const char *what, const struct opened *opened)
{
	char checked[64] = "";
	if (opened->n_checked > 0) {
		snprintf(checked, sizeof(checked), "  %" PRIu64 " tensors equal",
		         opened->n_checked);
	}
	bench_print(what, "%9.2f ms  map %7.2f  load %9.2f  connect %7.2f%s%s",
	            (double)opened->open_ns / 1e6, (double)opened->map_ns / 1e6,
	            (double)opened->load_ns / 1e6, (double)opened->connect_ns / 1e6,
	            opened->was_loaded ? "" : "  loaded", checked);
}

static void empty_store(void)
{
	struct glake_session *session;
	struct glake_connect_options connect = {.size = sizeof(connect), .no_cuda = 1};
	uint64_t n_models;
	uint64_t freed_bytes;
	bench_check(glake_connect(&connect, &session), "glake_connect");
	bench_check(glake_evict(session, NULL, &n_models, &freed_bytes), "glake_evict");
	glake_disconnect(session);
}

static void run_loads(const struct options *options)
{
	struct bench_samples times = {0};
	struct opened opened = {0};
	for (unsigned i = 0; i < options->n_loads; i++) {
		empty_store();
		if (options->cold) {
			struct files files = find_files(options->path);
			drop_from_cache(&files);
			free_files(&files);
		}
		opened = open_in_child(options);
		if (i == 0) {
			bench_print("tensors, blocks",
			            "%" PRIu64 ", %" PRIu64 "; %.3f GB content, %.1f MiB mapped",
			            opened.n_tensors, opened.n_blocks,
			            (double)opened.content_bytes / 1e9,
			            (double)opened.mapped_bytes / (double)MIB);
		}
		print_opened(options->cold ? "load, page cache dropped" : "load", &opened);
		bench_samples_add(&times, opened.open_ns);
	}
	if (times.n > 0) {
		bench_print_runs("loads: request to mapped", &times, 1e6, "ms");
		bench_print("  that is", "%.2f GB/s by the median",
		            (double)opened.content_bytes / (double)bench_percentile(&times, 50));
	}
	bench_samples_deinit(&times);
}

static void run_remaps(const struct options *options)
{
	struct bench_samples times = {0};
	struct bench_samples maps = {0};
	for (unsigned i = 0; i < options->n_runs; i++) {
		struct opened opened = open_in_child(options);
		print_opened("open again", &opened);
		bench_samples_add(&times, opened.open_ns);
		bench_samples_add(&maps, opened.map_ns);
	}
	if (times.n > 0) {
		bench_print_runs("open again: request to mapped", &times, 1e6, "ms");
		bench_print_runs("  of it mapping", &maps, 1e6, "ms");
	}
	bench_samples_deinit(&times);
	bench_samples_deinit(&maps);
}

static void __attribute__((noreturn)) usage(void)
{
	fputs("usage: bench_model [PATH] [--loads N] [--runs N] [--cold] [--check] [--device D]\n"
	      "                   [--socket PATH] [--bytes MIB]\n",
	      stderr);
	exit(2);
}

static struct options parse(int argc, char **argv)
{
	static const struct option list[] = {
		{"loads", required_argument, NULL, 'l'},  {"runs", required_argument, NULL, 'r'},
		{"cold", no_argument, NULL, 'c'},         {"check", no_argument, NULL, 'k'},
		{"device", required_argument, NULL, 'd'}, {"socket", required_argument, NULL, 's'},
		{"bytes", required_argument, NULL, 'b'},  {0}};
	struct options options = {.n_loads = 1, .n_runs = 5, .made_mib = 512};
	for (int key; (key = getopt_long(argc, argv, "", list, NULL)) != -1;) {
		switch (key) {
		case 'l':
			options.n_loads = (unsigned)atoi(optarg);
			break;
		case 'r':
			options.n_runs = (unsigned)atoi(optarg);
			break;
		case 'c':
			options.cold = true;
			break;
		case 'k':
			options.check = true;
			break;
		case 'd':
			options.device = (uint32_t)atoi(optarg);
			break;
		case 's':
			options.socket_path = optarg;
			break;
		case 'b':
			options.made_mib = strtoull(optarg, NULL, 10);
			break;
		default:
			usage();
		}
	}
	if (optind + 1 < argc) {
		usage();
	}
	if (optind < argc) {
		snprintf(options.path, sizeof(options.path), "%s", argv[optind]);
	}
	return options;
}

int main(int argc, char **argv)
{
	struct bench_daemon daemon;
	struct options options = parse(argc, argv);
	bench_begin("bench_model", NULL);
	if (!options.path[0]) {
		make_model(&options);
	}
	if (options.socket_path) {
		setenv("GLAKE_SOCKET", options.socket_path, 1);
	} else {
		/* The file may lie on tmpfs or an overlay. */
		bench_daemon_start(&daemon, "trust_file_times = true;\n");
	}
	run_loads(&options);
	run_remaps(&options);
	if (!options.socket_path) {
		bench_daemon_stop(&daemon);
	}
	return 0;
}
