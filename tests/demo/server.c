/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a model server does with glake, without the serving: map a model, hold private memory.
 *
 *   server NAME MODEL.safetensors PRIVATE_MIB    serve, steered by lines on stdin
 *   server --probe                               exit 0 if the system has a CUDA device
 *
 * Every tensor is compared with the file, as this program reads it (not with glake's parser), by
 * copying it back from the GPU. Then it says "ready ..." and takes commands: "verify" (compare all
 * again), "write" (try to overwrite a shared tensor), "quit". Each is answered by one line that
 * starts with the command's name. It ends with its parent.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "glake.h"
#include "proto/cudrv.h"
#include "tests/demo/weights.h"

#define MIB (1024ull * 1024)
#define PIECE_BYTES (8 * MIB)

struct server {
	const char *name;
	struct cudrv drv;
	struct glake_session *session; /* owned */
	struct glake_model *model;     /* owned */
	glake_ptr private_memory;      /* owned */
	struct file file;
	uint64_t opened_ns; /* from the request to the mapped model */
	uint64_t piece[PIECE_BYTES / sizeof(uint64_t)];
};

static void check(int err, const char *what)
{
	if (err < 0) {
		fail("%s: %s: %s", what, glake_strerror(err), glake_error());
	}
}

static uint64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- comparing ---- */

static void compare_tensor(struct server *server, const struct glake_tensor *tensor)
{
	uint64_t n_bytes;
	const uint8_t *expected = find_tensor(&server->file, tensor->name, &n_bytes);
	if (n_bytes != tensor->bytes) {
		fail("%s: %" PRIu64 " bytes, not %" PRIu64, tensor->name, tensor->bytes, n_bytes);
	}
	for (uint64_t at = 0; at < n_bytes; at += PIECE_BYTES) {
		uint64_t piece = n_bytes - at < PIECE_BYTES ? n_bytes - at : PIECE_BYTES;
		check(glake_read(server->session, 0, server->piece, tensor->ptr + at, piece),
		      "glake_read");
		if (memcmp(server->piece, expected + at, piece) != 0) {
			fail("%s: wrong bytes in GPU memory", tensor->name);
		}
	}
}

/* Returns the number of tensors, all of them equal to the file's. */
static uint64_t compare_all(struct server *server)
{
	struct glake_tensor tensor = {.size = sizeof(tensor)};
	uint64_t n_tensors = 0;
	while (glake_model_tensor_at(server->model, n_tensors, &tensor) == 0) {
		compare_tensor(server, &tensor);
		n_tensors++;
	}
	/* All but "__metadata__". */
	if (n_tensors + 1 != json_object_size(server->file.header)) {
		fail("%" PRIu64 " tensors, but the file has %zu", n_tensors,
		     json_object_size(server->file.header) - 1);
	}
	return n_tensors;
}

/* ---- the driver, as any CUDA program uses it ---- */

static void make_context(struct server *server)
{
	char error[256] = "";
	if (cudrv_open(&server->drv, NULL, error, sizeof(error)) < 0) {
		fail("%s", error);
	}
	struct glake_device device;
	CUcontext context;
	check(glake_device_at(server->session, 0, &device), "glake_device_at");
	if (server->drv.cuInit(0) != CUDA_SUCCESS ||
	    server->drv.cuDevicePrimaryCtxRetain(&context, device.ordinal) != CUDA_SUCCESS ||
	    server->drv.cuCtxSetCurrent(context) != CUDA_SUCCESS) {
		fail("no CUDA context");
	}
}

static void hold_private(struct server *server, uint64_t bytes)
{
	check(glake_alloc(server->session, 0, bytes, 0, &server->private_memory), "glake_alloc");
	CUresult result = server->drv.cuMemsetD8(server->private_memory, 0x5a, bytes);
	if (result != CUDA_SUCCESS) {
		fail("private memory cannot be written: %s", cudrv_error(&server->drv, result));
	}
}

static void try_write(struct server *server)
{
	struct glake_tensor tensor = {.size = sizeof(tensor)};
	check(glake_model_tensor(server->model, "lm_head.weight", &tensor), "glake_model_tensor");
	CUresult result = server->drv.cuMemsetD8(tensor.ptr, 0xff, tensor.bytes);
	CUresult synced = server->drv.cuCtxSynchronize();
	printf("write %s %s\n",
	       result == CUDA_SUCCESS && synced == CUDA_SUCCESS ? "ACCEPTED" : "refused",
	       cudrv_error(&server->drv, result));
}

static int probe(void)
{
	struct cudrv drv;
	char name[256] = "";
	int n_devices = 0;
	unsetenv("GLAKE_LIBCUDA");
	if (cudrv_open(&drv, NULL, NULL, 0) < 0 || drv.cuInit(0) != CUDA_SUCCESS ||
	    drv.cuDeviceGetCount(&n_devices) != CUDA_SUCCESS || n_devices < 1 ||
	    drv.cuDeviceGetName(name, sizeof(name), 0) != CUDA_SUCCESS) {
		return 1;
	}
	puts(name);
	return 0;
}

/* ---- serving ---- */

static void open_model(struct server *server, const char *path)
{
	uint64_t begin_ns = now_ns();
	check(glake_model_open(server->session, path, NULL, &server->model), "glake_model_open");
	server->opened_ns = now_ns() - begin_ns;
}

static void say_ready(struct server *server, uint64_t n_tensors)
{
	struct glake_model_info info = {.size = sizeof(info)};
	check(glake_model_info(server->model, &info), "glake_model_info");
	/* Takes what the daemon has to say, and tells it how much of our memory is in use. */
	check(glake_dispatch(server->session), "glake_dispatch");
	printf("ready tensors=%" PRIu64 " bytes=%" PRIu64 " open_ms=%.1f map_ms=%.1f %s\n",
	       n_tensors, info.content_bytes, (double)server->opened_ns / 1e6,
	       (double)info.map_ns / 1e6, info.was_loaded ? "was-loaded" : "loaded");
}

static void serve(struct server *server)
{
	char line[64];
	while (fgets(line, sizeof(line), stdin)) {
		line[strcspn(line, "\n")] = '\0';
		if (strcmp(line, "write") == 0) {
			try_write(server);
		} else if (strcmp(line, "verify") == 0) {
			printf("verify ok tensors=%" PRIu64 "\n", compare_all(server));
		} else if (strcmp(line, "quit") == 0) {
			return;
		}
	}
}

int main(int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[1], "--probe") == 0) {
		return probe();
	}
	if (argc != 4) {
		fprintf(stderr, "usage: server NAME MODEL.safetensors PRIVATE_MIB | --probe\n");
		return 2;
	}
	static struct server server;
	struct glake_connect_options options = {.size = sizeof(options), .program = argv[1]};
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	setvbuf(stdout, NULL, _IOLBF, 0);
	server.name = argv[1];
	open_file(&server.file, argv[2]);
	check(glake_connect(&options, &server.session), "glake_connect");
	open_model(&server, argv[2]);
	make_context(&server);
	hold_private(&server, strtoull(argv[3], NULL, 10) * MIB);
	say_ready(&server, compare_all(&server));
	serve(&server);
	glake_model_close(server.model);
	glake_disconnect(server.session);
	json_decref(server.file.header);
	puts("quit ok");
	return 0;
}
