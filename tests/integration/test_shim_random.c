/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs that do whatever they like with memory, while another thread replaces what is under it.
 *
 * The shim is linked into this program, beside a real glaked. Each thread is a program with a plain model of
 * its own memory: reservations, chunks it has made, mapped (also twice), exported and imported, and
 * allocations. It does random things and compares results and bytes with the model. Meanwhile a thread
 * seals their allocations, and replaces the chunks of all of them at the same addresses. No program may notice.
 */
#include <cuda.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "libclient/space/owner.h"
#include "libclient/space/program.h"
#include "libclient/link/rpc.h"
#include "libclient/heap/heap.h"
#include "libclient/space/grant.h"
#include "libclient/space/held.h"
#include "libclient/space/look.h"
#include "libclient/space/map.h"
#include "libclient/space/reback.h"
#include "proto/clock.h"
#include "proto/fdlist.h"
#include "shim/connection.h"
#include "tests/check_glake.h"
#include "tests/harness/churn.h"
#include "tests/harness/harness.h"
#include "tests/spin.h"

#define DEVICES "2x512MiB"
#define MIB (1ull << 20)
#define PAGE (2 * MIB)
#define PAGE_WORDS (PAGE / 4)
#define N_PROGRAMS 3
#define N_RANGES 3
#define N_PAGES 10 /* of a reservation */
#define N_OBJECTS 6
#define MAX_OBJECT_PAGES 3
#define MAX_HANDLES 4
#define N_BUFFERS 6
#define SECONDS 3
#define SHORT_NS 500000u     /* for some work it is too short */
#define LONG_NS 10000000000u /* all work ends by then */
#define ck_ok(call) ck_assert_int_eq((int)(call), (int)CUDA_SUCCESS)
#define ck_refused(call) ck_assert_int_ne((int)(call), (int)CUDA_SUCCESS)

/* Newer toolkits have it in the library only. */
CUresult cuCtxCreate_v2(CUcontext *ctx, unsigned flags, CUdevice device);

static atomic_bool is_over;
static atomic_uint n_steps;
static atomic_uint n_replaced;
static atomic_uint n_put_off; /* the gate did not close */
static atomic_uint n_pinned;
static atomic_uint n_refused; /* writes to sealed memory */
static struct cudrv drv;      /* past the shim */

/* ---- the model -------------------------------------------------------------------------------- */

/* Memory, wherever it is mapped: all words of a page are the same. */
struct object {
	unsigned n_pages; /* 0: there is none */
	uint32_t values[MAX_OBJECT_PAGES];
	unsigned n_handles;
	CUmemGenericAllocationHandle handles[MAX_HANDLES];
	unsigned n_mappings;
};

struct page {
	struct object *object; /* NULL: a hole */
	unsigned index;        /* of the object */
	bool may_write;
	bool has_peer; /* the other device has the same access */
};

struct reservation {
	CUdeviceptr ptr; /* 0: there is none */
	struct page pages[N_PAGES];
};

struct buffer {
	CUdeviceptr ptr; /* 0: there is none */
	size_t n_bytes;
	uint32_t value;
	bool is_async;
};

struct program {
	pthread_t thread;
	unsigned seed;
	int device;
	bool has_context; /* of its own, else the primary one */
	CUstream stream;
	CUfunction add;
	struct object objects[N_OBJECTS];
	struct reservation reservations[N_RANGES];
	struct buffer buffers[N_BUFFERS];
	uint32_t words[PAGE_WORDS];
};

static uint32_t new_value(struct program *program)
{
	/* Some are equal, for sealing to find. */
	return churn_pick(&program->seed, 2) ? churn_pick(&program->seed, 4)
	                                     : churn_pick(&program->seed, 1u << 30);
}

/* ---- bytes ------------------------------------------------------------------------------------ */

static void expect_words(struct program *program, CUdeviceptr ptr, size_t n_bytes, uint32_t value)
{
	for (size_t at = 0; at < n_bytes; at += PAGE) {
		size_t n = n_bytes - at < PAGE ? n_bytes - at : PAGE;
		ck_ok(cuMemcpyDtoHAsync(program->words, ptr + at, n, program->stream));
		ck_ok(cuStreamSynchronize(program->stream));
		size_t wrong = churn_wrong_at(program->words, n, value);
		ck_assert_msg(wrong == n, "0x%llx + 0x%zx: 0x%x, not 0x%x", (unsigned long long)ptr,
		              at + wrong, program->words[wrong / 4], value);
	}
}

/* Not in the middle of a replacement: cuMemGetAccess() is the driver's, and does not wait. */
static void expect_access(const struct program *program, CUdeviceptr ptr, const struct page *page)
{
	struct glake__hold hold;
	unsigned long long wanted = page->may_write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
	                                            : CU_MEM_ACCESS_FLAGS_PROT_READ;
	ck_assert_int_eq(glake__hold_begin(&hold, ptr, 1, true), 0);
	for (int device = 0; device < 2; device++) {
		const CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
		bool has_access = device == program->device || page->has_peer;
		unsigned long long found = 0;
		ck_ok(cuMemGetAccess(&found, &location, ptr));
		ck_assert_uint_eq(found, has_access ? wanted : CU_MEM_ACCESS_FLAGS_PROT_NONE);
	}
	glake__hold_end(&hold);
}

static void expect_page(struct program *program, const struct reservation *reservation, unsigned i)
{
	const struct page *page = &reservation->pages[i];
	CUdeviceptr ptr = reservation->ptr + i * PAGE;
	if (page->object) {
		expect_words(program, ptr, PAGE, page->object->values[page->index]);
		expect_access(program, ptr, page);
	} else if (reservation->ptr) {
		ck_refused(cuMemcpyDtoH(program->words, ptr, 4));
	}
}

static void expect_all(struct program *program)
{
	for (unsigned r = 0; r < N_RANGES; r++) {
		for (unsigned i = 0; i < N_PAGES; i++) {
			expect_page(program, &program->reservations[r], i);
		}
	}
	for (unsigned i = 0; i < N_BUFFERS; i++) {
		const struct buffer *buffer = &program->buffers[i];
		expect_words(program, buffer->ptr, buffer->ptr ? buffer->n_bytes : 0,
		             buffer->value);
	}
}

/* Sealed memory cannot be written where work does not end soon enough; then nothing has happened. */
static bool is_done(CUresult result)
{
	ck_assert(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
	n_refused += result != CUDA_SUCCESS;
	return result == CUDA_SUCCESS;
}

static void set_words(struct program *program, CUdeviceptr ptr, size_t n_bytes, uint32_t value)
{
	while (!is_done(cuMemsetD32Async(ptr, value, n_bytes / 4, program->stream))) {
	}
}

static void copy_words(struct program *program, CUdeviceptr ptr, size_t n_bytes, uint32_t value)
{
	for (size_t at = 0; at < n_bytes; at += PAGE) {
		size_t n = n_bytes - at < PAGE ? n_bytes - at : PAGE;
		churn_fill(program->words, n, value);
		while (!is_done(cuMemcpyHtoD(ptr + at, program->words, n))) {
		}
	}
}

/* Kernels must not write to sealed memory: what a program maps itself is sealed in a run, or kernels write to it. */
static bool seals_mappings;

/* By a set, a copy or a kernel; *value is then what is there. Waits, so errors are of this step. */
static void write_words(struct program *program, CUdeviceptr ptr, size_t n_bytes, uint32_t *value,
                        bool may_launch)
{
	uint64_t n_words = n_bytes / 4;
	uint32_t by = 1 + churn_pick(&program->seed, 9);
	void *params[] = {&ptr, &n_words, &by};
	unsigned how = churn_pick(&program->seed, may_launch ? 3 : 2);
	*value = how == 2 ? *value + by : new_value(program);
	if (how == 0) {
		set_words(program, ptr, n_bytes, *value);
	} else if (how == 1) {
		copy_words(program, ptr, n_bytes, *value);
	} else {
		ck_ok(cuLaunchKernel(program->add, 1, 1, 1, 256, 1, 1, 0, program->stream, params,
		                     NULL));
	}
	ck_ok(cuStreamSynchronize(program->stream));
}

/* ---- the program's own virtual memory management ---------------------------------------------- */

static struct object *pick_object(struct program *program)
{
	return &program->objects[churn_pick(&program->seed, N_OBJECTS)];
}

static struct reservation *pick_reservation(struct program *program)
{
	return &program->reservations[churn_pick(&program->seed, N_RANGES)];
}

/* Nobody has it any more. */
static void forget_if_unused(struct object *object)
{
	if (object->n_handles == 0 && object->n_mappings == 0) {
		object->n_pages = 0;
	}
}

static void step_create(struct program *program)
{
	struct object *object = pick_object(program);
	if (object->n_pages > 0) {
		return;
	}
	const CUmemAllocationProp properties = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = program->device},
	};
	*object = (struct object){.n_pages = 1 + churn_pick(&program->seed, MAX_OBJECT_PAGES),
	                          .n_handles = 1};
	ck_ok(cuMemCreate(&object->handles[0], object->n_pages * PAGE, &properties, 0));
}

static void step_release(struct program *program)
{
	struct object *object = pick_object(program);
	if (object->n_handles > 0) {
		ck_ok(cuMemRelease(object->handles[--object->n_handles]));
		forget_if_unused(object);
	}
}

/* One handle more: another process's, as far as the driver knows. */
static void step_import(struct program *program)
{
	struct object *object = pick_object(program);
	int fd = -1;
	if (object->n_handles == 0 || object->n_handles == MAX_HANDLES) {
		return;
	}
	CUresult result = cuMemExportToShareableHandle(&fd, object->handles[0],
	                                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	if (result == CUDA_SUCCESS) {
		ck_ok(cuMemImportFromShareableHandle(&object->handles[object->n_handles++],
		                                     (void *)(intptr_t)fd,
		                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
		close(fd);
	}
}

static void step_reserve(struct program *program)
{
	struct reservation *reservation = pick_reservation(program);
	size_t alignment = churn_pick(&program->seed, 2) ? 0 : 64 * MIB;
	bool is_empty = true;
	if (!reservation->ptr) {
		ck_ok(cuMemAddressReserve(&reservation->ptr, N_PAGES * PAGE, alignment, 0, 0));
		ck_assert(alignment == 0 || reservation->ptr % alignment == 0);
		return;
	}
	for (unsigned i = 0; i < N_PAGES; i++) {
		is_empty &= reservation->pages[i].object == NULL;
	}
	if (is_empty) {
		ck_ok(cuMemAddressFree(reservation->ptr, N_PAGES * PAGE));
		reservation->ptr = 0;
	} else {
		ck_refused(cuMemAddressFree(reservation->ptr, N_PAGES * PAGE));
	}
}

/* By one call for both devices, or by two, or not at all for one that has none. */
static void set_access(struct program *program, CUdeviceptr ptr, unsigned n_pages,
                       const struct page *page, bool is_fresh)
{
	CUmemAccess_flags flags = page->may_write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
	                                          : CU_MEM_ACCESS_FLAGS_PROT_READ;
	CUmemAccessDesc access[2] = {{.flags = flags}};
	access[1].flags = page->has_peer ? flags : CU_MEM_ACCESS_FLAGS_PROT_NONE;
	for (int i = 0; i < 2; i++) {
		access[i].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
		access[i].location.id = i == 0 ? program->device : 1 - program->device;
	}
	if (churn_pick(&program->seed, 2)) {
		ck_ok(cuMemSetAccess(ptr, n_pages * PAGE, access, 2));
	} else {
		if (!is_fresh || page->has_peer) {
			ck_ok(cuMemSetAccess(ptr, n_pages * PAGE, &access[1], 1));
		}
		ck_ok(cuMemSetAccess(ptr, n_pages * PAGE, &access[0], 1));
	}
}

static bool is_free(const struct reservation *reservation, unsigned first, unsigned n)
{
	for (unsigned i = first; i < first + n; i++) {
		if (reservation->pages[i].object) {
			return false;
		}
	}
	return true;
}

static void step_map(struct program *program)
{
	struct object *object = pick_object(program);
	struct reservation *reservation = pick_reservation(program);
	if (object->n_handles == 0 || !reservation->ptr) {
		return;
	}
	unsigned first = churn_pick(&program->seed, N_PAGES - object->n_pages + 1);
	CUdeviceptr ptr = reservation->ptr + first * PAGE;
	CUmemGenericAllocationHandle handle =
		object->handles[churn_pick(&program->seed, object->n_handles)];
	if (!is_free(reservation, first, object->n_pages)) {
		ck_refused(cuMemMap(ptr, object->n_pages * PAGE, 0, handle, 0));
		return;
	}
	ck_ok(cuMemMap(ptr, object->n_pages * PAGE, 0, handle, 0));
	struct page page = {.object = object, .has_peer = churn_pick(&program->seed, 2)};
	page.may_write = churn_pick(&program->seed, 4) > 0;
	set_access(program, ptr, object->n_pages, &page, true);
	object->n_mappings++;
	for (; page.index < object->n_pages; page.index++) {
		reservation->pages[first + page.index] = page;
	}
	/* Fresh memory is of zeroes, and so it stays until it is written. */
	expect_page(program, reservation, first);
	if (object->n_handles == 1 && churn_pick(&program->seed, 3) > 0) {
		ck_ok(cuMemRelease(object->handles[--object->n_handles]));
	}
}

/* The first page of the mapping that a picked page is in; false: that is a hole. */
static bool pick_mapping(struct program *program, struct reservation **reservation_out,
                         unsigned *first_out)
{
	struct reservation *reservation = pick_reservation(program);
	unsigned i = churn_pick(&program->seed, N_PAGES);
	const struct page *page = &reservation->pages[i];
	if (!page->object) {
		return false;
	}
	*reservation_out = reservation;
	*first_out = i - page->index;
	return true;
}

static void step_unmap(struct program *program)
{
	struct reservation *reservation;
	unsigned first;
	if (!pick_mapping(program, &reservation, &first)) {
		return;
	}
	struct object *object = reservation->pages[first].object;
	ck_ok(cuMemUnmap(reservation->ptr + first * PAGE, object->n_pages * PAGE));
	for (unsigned i = 0; i < object->n_pages; i++) {
		reservation->pages[first + i].object = NULL;
	}
	object->n_mappings--;
	forget_if_unused(object);
}

static void step_access(struct program *program)
{
	struct reservation *reservation;
	unsigned first;
	if (!pick_mapping(program, &reservation, &first)) {
		return;
	}
	struct page page = reservation->pages[first];
	CUdeviceptr ptr = reservation->ptr + first * PAGE;
	page.may_write = churn_pick(&program->seed, 3) > 0;
	page.has_peer = churn_pick(&program->seed, 2);
	set_access(program, ptr, page.object->n_pages, &page, false);
	for (; page.index < page.object->n_pages; page.index++) {
		reservation->pages[first + page.index] = page;
	}
	if (!page.may_write) {
		ck_refused(cuMemcpyHtoD(ptr, program->words, 4));
	}
}

static void step_retain(struct program *program)
{
	struct reservation *reservation;
	unsigned first;
	if (!pick_mapping(program, &reservation, &first)) {
		return;
	}
	struct object *object = reservation->pages[first].object;
	void *at = (void *)(uintptr_t)(reservation->ptr + first * PAGE + 4);
	if (object->n_handles < MAX_HANDLES) {
		ck_ok(cuMemRetainAllocationHandle(&object->handles[object->n_handles++], at));
	}
}

static void step_write(struct program *program)
{
	struct reservation *reservation;
	unsigned first;
	if (!pick_mapping(program, &reservation, &first) || !reservation->pages[first].may_write) {
		return;
	}
	struct object *object = reservation->pages[first].object;
	unsigned i = churn_pick(&program->seed, object->n_pages);
	write_words(program, reservation->ptr + (first + i) * PAGE, PAGE, &object->values[i],
	            !seals_mappings);
	expect_page(program, reservation, first + i);
}

/* ---- its allocations -------------------------------------------------------------------------- */

static void step_alloc(struct program *program)
{
	static const size_t sizes[] = {4096, MIB, 2 * MIB, 3 * MIB, 6 * MIB};
	struct buffer *buffer = &program->buffers[churn_pick(&program->seed, N_BUFFERS)];
	if (buffer->ptr) {
		expect_words(program, buffer->ptr, buffer->n_bytes, buffer->value);
		ck_ok(buffer->is_async ? cuMemFreeAsync(buffer->ptr, program->stream)
		                       : cuMemFree(buffer->ptr));
		buffer->ptr = 0;
		return;
	}
	buffer->n_bytes = sizes[churn_pick(&program->seed, 5)];
	buffer->is_async = churn_pick(&program->seed, 2);
	ck_ok(buffer->is_async ? cuMemAllocAsync(&buffer->ptr, buffer->n_bytes, program->stream)
	                       : cuMemAlloc(&buffer->ptr, buffer->n_bytes));
	buffer->value = new_value(program);
	ck_ok(cuMemsetD32Async(buffer->ptr, buffer->value, buffer->n_bytes / 4, program->stream));
	ck_ok(cuStreamSynchronize(program->stream));
}

static void step_use(struct program *program)
{
	struct buffer *buffer = &program->buffers[churn_pick(&program->seed, N_BUFFERS)];
	if (buffer->ptr) {
		/* The buffer may be sealed: a kernel would fault. */
		write_words(program, buffer->ptr, buffer->n_bytes, &buffer->value, false);
		expect_words(program, buffer->ptr, buffer->n_bytes, buffer->value);
	}
}

/* Another process may have it from now on. */
static void step_share(struct program *program)
{
	struct buffer *buffer = &program->buffers[churn_pick(&program->seed, N_BUFFERS)];
	CUipcMemHandle name;
	if (buffer->ptr && !buffer->is_async && churn_pick(&program->seed, 4) == 0) {
		ck_ok(cuIpcGetMemHandle(&name, buffer->ptr));
	}
}

/* ---- programs --------------------------------------------------------------------------------- */

static void enter_context(struct program *program)
{
	CUcontext ctx = NULL;
	CUmodule module;
	if (program->has_context) {
		ck_ok(cuCtxCreate_v2(&ctx, 0, program->device));
	} else {
		ck_ok(cuDevicePrimaryCtxRetain(&ctx, program->device));
		ck_ok(cuCtxSetCurrent(ctx));
	}
	ck_ok(cuStreamCreate(&program->stream, CU_STREAM_NON_BLOCKING));
	ck_ok(cuModuleLoadData(&module, spin_image_of(cuDeviceGetName)));
	ck_ok(cuModuleGetFunction(&program->add, module, "add"));
}

static void give_all_back(struct program *program)
{
	for (unsigned r = 0; r < N_RANGES; r++) {
		struct reservation *reservation = &program->reservations[r];
		for (unsigned i = 0; i < N_PAGES; i++) {
			const struct page *page = &reservation->pages[i];
			if (page->object && page->index == 0) {
				ck_ok(cuMemUnmap(reservation->ptr + i * PAGE,
				                 page->object->n_pages * PAGE));
			}
		}
		if (reservation->ptr) {
			ck_ok(cuMemAddressFree(reservation->ptr, N_PAGES * PAGE));
		}
	}
	for (unsigned i = 0; i < N_OBJECTS; i++) {
		struct object *object = &program->objects[i];
		while (object->n_handles > 0) {
			ck_ok(cuMemRelease(object->handles[--object->n_handles]));
		}
	}
	for (unsigned i = 0; i < N_BUFFERS; i++) {
		if (program->buffers[i].ptr) {
			ck_ok(cuMemFree(program->buffers[i].ptr));
		}
	}
}

static void *run_program(void *argument)
{
	static void (*const steps[])(struct program *) = {
		step_create, step_create, step_release, step_import, step_reserve,
		step_map,    step_map,    step_map,     step_map,    step_unmap,
		step_unmap,  step_access, step_access,  step_retain, step_write,
		step_write,  step_alloc,  step_alloc,   step_use,    step_share,
	};
	struct program *program = argument;
	enter_context(program);
	for (unsigned i = 0; !is_over; i++) {
		steps[churn_pick(&program->seed, sizeof(steps) / sizeof(steps[0]))](program);
		ck_assert(glake__space_is_valid());
		if (i % 64 == 0) {
			expect_all(program);
		}
		n_steps++;
	}
	expect_all(program);
	give_all_back(program);
	return NULL;
}

/* ---- whoever replaces memory ------------------------------------------------------------------ */

struct sums {
	uint64_t sealed_bytes;
	uint64_t shared_bytes;
};

/* The one chunk in a hold. */
struct held {
	glake_ptr ptr;
	uint64_t n_bytes;
	struct glake__chunk *chunk;
	struct glake_session *session; /* of a number's chunk */
	enum glake__access access;
	const struct glake__use *use;
	enum glake__pin pin;
	uint64_t readers;
	bool is_alone; /* in its range */
};

/* The @n-th mapped piece of programs and their allocations; 0: there are not so many. */
static glake_ptr nth_piece(unsigned n)
{
	glake_ptr ptr = 0;
	glake__lock();
	for (const struct glake__range *range = glake__space.ranges; range && !ptr;
	     range = range->next) {
		const struct glake__piece *piece = range->first;
		if (range->use != &glake__use_private && range->use != &glake__use_program) {
			continue;
		}
		for (; piece && !ptr; piece = piece->next) {
			ptr = piece->chunk && n-- == 0 ? range->ptr + piece->offset : 0;
		}
	}
	glake__unlock();
	return ptr;
}

static struct held look_at(const struct glake__hold *hold)
{
	glake__lock();
	const struct glake__piece *piece = glake__range_piece_locked(hold->range, hold->offset);
	struct held held = {
		.ptr = hold->range->ptr + hold->offset,
		.n_bytes = hold->n_bytes,
		.chunk = piece->chunk,
		.access = piece->access,
		.use = hold->range->use,
		.pin = piece->chunk ? glake__chunk_pin_locked(piece->chunk) : GLAKE__PIN_NONE,
		.readers = piece->readers,
		.is_alone = hold->range->first == piece && !piece->next,
	};
	glake__unlock();
	return held;
}

/* A chunk like the held one, with the handle in it, which is the caller's. */
static struct glake__part make_private_part(struct glake_session *session, const struct held *held)
{
	struct glake__part part = {
		.n_bytes = held->n_bytes, .access = GLAKE__ACCESS_WRITE, .fd = -1};
	struct glake__wait wait = {0};
	struct fdlist fds;
	uint64_t id;
	fdlist_init(&fds);
	ck_assert_int_eq(glake__rpc_chunk_alloc(session, (uint32_t)held->chunk->device,
	                                        held->n_bytes, 1, held->n_bytes, &wait, &id, &fds),
	                 0);
	part.chunk = glake__chunk_new(id, held->n_bytes, held->chunk->device, GLAKE__PAGE_CHUNK);
	ck_assert_int_eq(glake__map_import(fds.fds[0], &part.handle), 0);
	fdlist_deinit(&fds);
	return part;
}

static void end_private_part(struct glake_session *session, const struct glake__part *part,
                             bool is_used)
{
	ck_ok(drv.cuMemRelease(part->handle));
	if (!is_used) {
		glake__rpc_chunk_free(session, &part->chunk->id, 1);
	}
	glake__chunk_put(part->chunk);
}

/* As make_private_part(), for a number, which keeps the handle; the session that had the old chunk has the new one. */
static struct glake__part make_program_part(const struct held *held)
{
	struct glake__part part = make_private_part(held->chunk->owner->device->session, held);
	part.chunk->handle = part.handle;
	return part;
}

static void end_program_part(const struct held *held, const struct glake__part *part, bool is_used)
{
	if (is_used) {
		glake__grant_count(held->session, (int64_t)part->n_bytes);
	} else {
		glake__rpc_chunk_free(held->session, &part->chunk->id, 1);
	}
	glake__chunk_put(part->chunk);
}

static void return_chunks(struct glake_session *session, struct glake__chunk *dead)
{
	while (dead) {
		struct glake__chunk *chunk = dead;
		dead = chunk->next;
		glake__rpc_chunk_free(session, &chunk->id, 1);
		chunk->release(chunk);
	}
}

/* With the gate closed. Without access there is nothing to be read by an address. */
static void copy(const struct held *held, const struct glake__part *part)
{
	CUcontext ctx = NULL;
	CUcontext before = NULL;
	glake_ptr at = 0;
	int device = held->chunk->device;
	ck_assert_int_eq(glake__map_reserve(held->n_bytes, 0, 0, &at), 0);
	ck_assert_int_eq(glake__map_handle(at, held->n_bytes, part->handle), 0);
	ck_assert_int_eq(glake__map_access(at, held->n_bytes, 1ull << device, GLAKE__ACCESS_WRITE),
	                 0);
	ck_ok(drv.cuDevicePrimaryCtxRetain(&ctx, device));
	ck_ok(drv.cuCtxGetCurrent(&before));
	ck_ok(drv.cuCtxSetCurrent(ctx));
	ck_ok(cuMemcpyDtoD(at, held->ptr, held->n_bytes));
	ck_ok(drv.cuCtxSynchronize());
	ck_ok(drv.cuCtxSetCurrent(before));
	ck_ok(drv.cuDevicePrimaryCtxRelease(device));
	ck_assert_int_eq(glake__map_unmap(at, held->n_bytes), 0);
	ck_assert_int_eq(glake__map_unreserve(at, held->n_bytes), 0);
}

static bool exchange(const struct glake__hold *hold, const struct held *held,
                     const struct glake__part *part, struct glake__chunk **dead)
{
	struct glake__rebacking rebacking = {.hold = hold, .parts = part, .n_parts = 1};
	uint64_t patience_ns = held->ptr / held->n_bytes % 4 ? LONG_NS : SHORT_NS;
	int r = glake__gate_close(glake__hold_readers(hold), patience_ns);
	if (r < 0) {
		ck_assert_int_eq(r, -EAGAIN);
		n_put_off++;
		return false;
	}
	/* To and fro, as a seal that is given up. */
	ck_assert_int_eq(glake__hold_access(hold, GLAKE__ACCESS_READ), 0);
	copy(held, part);
	ck_assert_int_eq(glake__hold_access(hold, GLAKE__ACCESS_WRITE), 0);
	r = glake__hold_reback_all(&rebacking, 1, &(struct glake__rebacking_way){0});
	glake__gate_open();
	ck_assert_msg(r == 0, "%d: %s", r, glake_error());
	if (dead) {
		*dead = rebacking.dead;
	} else {
		glake__chunks_release(rebacking.dead);
	}
	n_replaced++;
	return true;
}

/* Programs may come to the memory meanwhile, and wait. */
static void replace(struct glake_session *session, const struct glake__hold *hold)
{
	struct held held = look_at(hold);
	struct glake__chunk *dead = NULL;
	if (!held.chunk || held.chunk->n_bytes != held.n_bytes ||
	    held.chunk->kind != GLAKE__PAGE_CHUNK || held.access == GLAKE__ACCESS_NONE) {
		return;
	}
	usleep(500);
	if (held.pin) {
		n_pinned++;
		return;
	}
	if (held.use == &glake__use_private && !held.is_alone) {
		/* A name needs chunks whose numbers count up. */
		return;
	}
	if (held.use == &glake__use_program && (!held.chunk->owner || !held.chunk->owner->device)) {
		return;
	}
	if (held.use == &glake__use_program) {
		held.session = held.chunk->owner->device->session;
		struct glake__part part = make_program_part(&held);
		bool is_used = exchange(hold, &held, &part, NULL);
		end_program_part(&held, &part, is_used);
	} else {
		struct glake__part part = make_private_part(session, &held);
		bool is_used = exchange(hold, &held, &part, &dead);
		end_private_part(session, &part, is_used);
		return_chunks(session, dead);
	}
}

/* -EINVAL: it is not one allocation, or not any more. */
static void seal(glake_ptr ptr, struct sums *sums)
{
	const struct glake_span span = {.ptr = ptr, .bytes = PAGE};
	struct glake_sealed sealed = {.size = sizeof(sealed)};
	int r = glake_seal(&span, 1, &sealed);
	ck_assert_msg(r == 0 || r == -EINVAL || r == -EBUSY, "%d: %s", r, glake_error());
	sums->sealed_bytes += sealed.sealed_bytes;
	sums->shared_bytes += sealed.shared_bytes;
}

/* Allocations that are sealed, named or freed meanwhile are another thread's. */
static void replace_at(struct glake_session *session, glake_ptr ptr)
{
	struct glake__held allocation;
	struct glake__hold hold;
	glake__held_begin(ptr, &allocation);
	if (glake__hold_begin(&hold, ptr, 1, false) == 0) {
		if (hold.range) {
			replace(session, &hold);
		}
		glake__hold_end(&hold);
	}
	glake__held_end(&allocation);
}

static void replace_on_and_on(unsigned seed, uint64_t end_ns, struct sums *sums)
{
	bool is_refused;
	struct connection *connection = connection_get(&is_refused);
	ck_assert_ptr_nonnull(connection);
	while (clock_now_ns() < end_ns || n_steps < 500 || n_replaced < 50) {
		glake_ptr ptr = nth_piece(churn_pick(&seed, 40));
		bool is_mapping = ptr && glake__space_look(ptr).kind == GLAKE__PROGRAMS;
		if (ptr && churn_pick(&seed, 4) == 0 && (seals_mappings || !is_mapping)) {
			seal(ptr, sums);
		} else if (ptr) {
			replace_at(connection->session, ptr);
		}
		ck_assert(glake__space_is_valid());
	}
	connection_unref(connection);
}

/* ---- */

/* All that programs gave back is given back, in stream order too, whatever has taken its place. */
static void expect_nothing_left(void)
{
	struct connection *connection = connection_peek();
	uint64_t n_left = 1;
	for (int i = 0; i < 2000 && n_left > 0; i++) {
		glake_trim(connection->session, 0, 0);
		glake_trim(connection->session, 1, 0);
		glake__lock();
		n_left = connection->session->books.reserved_bytes;
		glake__unlock();
		usleep(n_left ? 5000 : 0);
	}
	ck_assert_uint_eq(n_left, 0);
	connection_unref(connection);
}

START_TEST_WITH(programs_do_not_notice_that_their_memory_is_replaced, .timeout_s = 3600)
{
	static struct program programs[N_PROGRAMS];
	struct harness harness;
	struct sums sums = {0};
	unsigned seed = churn_seed();
	uint64_t n_ns = churn_seconds(SECONDS) * 1000000000ull;
	seals_mappings = seed % 2;
	harness_start(&harness, &(struct harness_options){
					.devices = DEVICES,
					.config = "drain_ms = 100; warm_bytes = \"4MiB\";"});
	harness_environment(&harness);
	ck_ok(cuInit(0));
	ck_assert_int_eq(cudrv_open(&drv, NULL, NULL, 0), 0);
	for (int i = 0; i < N_PROGRAMS; i++) {
		programs[i].seed = seed + (unsigned)i;
		programs[i].device = i % 2;
		programs[i].has_context = i == 2;
		pthread_create(&programs[i].thread, NULL, run_program, &programs[i]);
	}
	replace_on_and_on(seed + N_PROGRAMS, clock_now_ns() + n_ns, &sums);
	is_over = true;
	for (int i = 0; i < N_PROGRAMS; i++) {
		pthread_join(programs[i].thread, NULL);
	}
	printf("%u steps, %u replaced, %u pinned, %u put off; %u MiB sealed, %u shared, %u writes "
	       "refused\n",
	       n_steps, n_replaced, n_pinned, n_put_off, (unsigned)(sums.sealed_bytes / MIB),
	       (unsigned)(sums.shared_bytes / MIB), n_refused);
	fflush(stdout);
	expect_nothing_left();
	ck_assert(glake__space_is_valid());
	harness_stop(&harness);
}
END_TEST
