/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that watches its own memory as allocators, profilers and communication libraries do: it
 * finds the driver that is loaded, and overwrites the first bytes of its functions with a jump to
 * its own, which count and call the original. It knows nothing of glake.
 *
 *   patcher soname|name near|far [early]
 *     soname, name   the driver is what the loader has under libcuda.so.1, or the first object with
 *                    that file name
 *     near, far      a jump of 5 bytes, to a page close by, or one of 12 to anywhere
 *     early          patched before the first call of the driver, and found by dlsym() only
 *
 * The original is called through a copy of the instructions that were overwritten. What can be copied
 * is what prologues are made of, and nothing relative to its own address.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/shim/must.h"

#define MIB (1ull << 20)
#define PAGE 4096u
#define NAME "libcuda.so.1"
#define NEAR_BYTES 5u
#define FAR_BYTES 12u
#define MAX_PATCH_BYTES 32u

/* ---- instructions ----------------------------------------------------------------------------- */

/* The bytes of the ModR/M byte at @at and what belongs to it; 0: relative to the instruction. */
static size_t operand_bytes(const uint8_t *at)
{
	unsigned mod = at[0] >> 6;
	unsigned rm = at[0] & 7;
	if (mod == 3) {
		return 1;
	}
	if (mod == 0 && rm == 5) {
		return 0;
	}
	size_t sib = rm == 4;
	bool has_base = !sib || (at[1] & 7) != 5 || mod != 0;
	return 1 + sib + (mod == 1 ? 1 : mod == 2 || !has_base ? 4 : 0);
}

/* 0: not one that can be copied. */
static size_t instruction_bytes(const uint8_t *at)
{
	static const uint8_t endbr64[] = {0xf3, 0x0f, 0x1e, 0xfa};
	bool has_rex = (at[0] & 0xf0) == 0x40;
	const uint8_t *code = at + has_rex;
	size_t operand = operand_bytes(code + 1);
	if (memcmp(at, endbr64, sizeof(endbr64)) == 0) {
		return sizeof(endbr64);
	}
	if (code[0] >= 0x50 && code[0] <= 0x57) { /* push */
		return has_rex + 1;
	}
	if (code[0] >= 0xb8 && code[0] <= 0xbf) { /* mov $, register */
		return has_rex + 1 + (has_rex && (at[0] & 8) ? 8 : 4);
	}
	if (operand == 0) {
		return 0;
	}
	switch (code[0]) {
	case 0x31: /* xor, test, mov, lea */
	case 0x85:
	case 0x89:
	case 0x8b:
	case 0x8d:
		return has_rex + 1 + operand;
	case 0x83: /* sub $ and such */
		return has_rex + 1 + operand + 1;
	case 0x81:
		return has_rex + 1 + operand + 4;
	default:
		return 0;
	}
}

/* ---- patching --------------------------------------------------------------------------------- */

struct patch {
	uint8_t *function;
	uint8_t before[MAX_PATCH_BYTES];
	size_t n_bytes;
	void *original; /* what calls it, patched or not */
};

static uint8_t *page; /* to write code to, close to the driver */

static void find_page(const uint8_t *near)
{
	uintptr_t at = (uintptr_t)near & ~(uintptr_t)(PAGE - 1);
	void *found = MAP_FAILED;
	for (unsigned i = 1; found == MAP_FAILED && i < 4096; i++) {
		found = mmap((void *)(at - i * 16 * PAGE), PAGE, PROT_READ | PROT_WRITE | PROT_EXEC,
		             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	}
	must(found != MAP_FAILED);
	page = found;
}

static void write_far(uint8_t *at, const void *target)
{
	const uint8_t jump[FAR_BYTES] = {0x48, 0xb8, [10] = 0xff, [11] = 0xe0};
	memcpy(at, jump, sizeof(jump));
	memcpy(at + 2, &target, sizeof(target));
}

/* An absolute jump that spoils no register. */
static uint8_t *write_code(uint8_t *at, const void *target)
{
	static const uint8_t jump[] = {0xff, 0x25, 0, 0, 0, 0};
	memcpy(at, jump, sizeof(jump));
	memcpy(at + sizeof(jump), &target, sizeof(target));
	return at + sizeof(jump) + sizeof(target);
}

static void protect(uint8_t *function, int protection)
{
	uintptr_t at = (uintptr_t)function & ~(uintptr_t)(PAGE - 1);
	size_t n_bytes = (uintptr_t)function + MAX_PATCH_BYTES - at;
	must(mprotect((void *)at, n_bytes, protection) == 0);
}

static void put(uint8_t *function, const uint8_t *code, size_t n_bytes)
{
	protect(function, PROT_READ | PROT_WRITE | PROT_EXEC);
	memcpy(function, code, n_bytes);
	protect(function, PROT_READ | PROT_EXEC);
	__builtin___clear_cache((char *)function, (char *)function + n_bytes);
}

static void patch(struct patch *patch, void *function, const void *hook, bool is_far)
{
	static uint8_t *free_code;
	uint8_t code[FAR_BYTES] = {0xe9};
	size_t n_moved = 0;
	if (!page) {
		find_page(function);
		free_code = page;
	}
	patch->function = function;
	patch->n_bytes = is_far ? FAR_BYTES : NEAR_BYTES;
	memcpy(patch->before, function, MAX_PATCH_BYTES);
	while (n_moved < patch->n_bytes) {
		size_t n = instruction_bytes(patch->function + n_moved);
		must(n > 0);
		n_moved += n;
	}
	patch->original = free_code;
	memcpy(free_code, function, n_moved);
	free_code = write_code(free_code + n_moved, patch->function + n_moved);
	if (is_far) {
		write_far(code, hook);
	} else {
		int32_t distance = (int32_t)(free_code - (patch->function + NEAR_BYTES));
		memcpy(code + 1, &distance, sizeof(distance));
		free_code = write_code(free_code, hook);
	}
	must(free_code < page + PAGE);
	put(patch->function, code, patch->n_bytes);
}

static void unpatch(const struct patch *patch)
{
	put(patch->function, patch->before, patch->n_bytes);
	must(memcmp(patch->function, patch->before, MAX_PATCH_BYTES) == 0);
}

/* ---- what is patched -------------------------------------------------------------------------- */

enum { ALLOC, FREE, ALLOC_ASYNC, FREE_ASYNC, N_PATCHED };

static const struct {
	const char *symbol;
	const char *base;
	int version;
} functions[N_PATCHED] = {
	{"cuMemAlloc_v2", "cuMemAlloc", 3020},
	{"cuMemFree_v2", "cuMemFree", 3020},
	{"cuMemAllocAsync", "cuMemAllocAsync", 11020},
	{"cuMemFreeAsync", "cuMemFreeAsync", 11020},
};

static struct patch patches[N_PATCHED];
static unsigned n_seen[N_PATCHED];

#define original(at, symbol) ((__typeof__(symbol) *)patches[at].original)

static CUresult seen_alloc(CUdeviceptr *ptr, size_t n_bytes)
{
	n_seen[ALLOC]++;
	return original(ALLOC, cuMemAlloc_v2)(ptr, n_bytes);
}

static CUresult seen_free(CUdeviceptr ptr)
{
	n_seen[FREE]++;
	return original(FREE, cuMemFree_v2)(ptr);
}

static CUresult seen_alloc_async(CUdeviceptr *ptr, size_t n_bytes, CUstream stream)
{
	n_seen[ALLOC_ASYNC]++;
	return original(ALLOC_ASYNC, cuMemAllocAsync)(ptr, n_bytes, stream);
}

static CUresult seen_free_async(CUdeviceptr ptr, CUstream stream)
{
	n_seen[FREE_ASYNC]++;
	return original(FREE_ASYNC, cuMemFreeAsync)(ptr, stream);
}

static const void *const hooks[N_PATCHED] = {(void *)seen_alloc, (void *)seen_free,
                                             (void *)seen_alloc_async, (void *)seen_free_async};

/* ---- finding ---------------------------------------------------------------------------------- */

static int is_driver(struct dl_phdr_info *info, size_t n_bytes, void *path_out)
{
	const char *slash = strrchr(info->dlpi_name, '/');
	if (strcmp(slash ? slash + 1 : info->dlpi_name, NAME) != 0) {
		return 0;
	}
	*(const char **)path_out = info->dlpi_name;
	return 1;
}

static void *find_driver(const char *how)
{
	const char *path = NAME;
	if (strcmp(how, "name") == 0) {
		must(dl_iterate_phdr(is_driver, &path) == 1);
	}
	void *found = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
	must(found);
	return found;
}

static void *by_resolver(void *driver, const char *base, int version)
{
	void *found = NULL;
	__typeof__(cuGetProcAddress_v2) *resolve = (__typeof__(cuGetProcAddress_v2) *)dlsym(
		driver, "cuGetProcAddress_v2");
	must(resolve);
	must_ok(resolve(base, &found, version, 0, NULL));
	must(found);
	return found;
}

/* ---- using it --------------------------------------------------------------------------------- */

#define call(library, symbol) ((__typeof__(symbol) *)dlsym(library, #symbol))

static void start(void *driver)
{
	CUcontext ctx;
	must_ok(call(driver, cuInit)(0));
	must_ok(call(driver, cuDevicePrimaryCtxRetain)(&ctx, 0));
	must_ok(call(driver, cuCtxSetCurrent)(ctx));
}

/* All kinds of memory, in both directions, by the pointers of a program. */
static void use(void *driver, void *const pointers[N_PATCHED])
{
	static const size_t sizes[] = {1000, 3 * MIB};
	CUdeviceptr ptrs[2];
	unsigned char byte = 0;
	for (int i = 0; i < 2; i++) {
		must_ok(((__typeof__(cuMemAlloc_v2) *)pointers[ALLOC])(&ptrs[i], sizes[i]));
		must_ok(call(driver, cuMemsetD8_v2)(ptrs[i], (unsigned char)(7 + i), sizes[i]));
	}
	for (int i = 0; i < 2; i++) {
		must_ok(call(driver, cuMemcpyDtoH_v2)(&byte, ptrs[i] + sizes[i] - 1, 1));
		must(byte == 7 + i);
		must_ok(((__typeof__(cuMemFree_v2) *)pointers[FREE])(ptrs[i]));
	}
	must_be(((__typeof__(cuMemAlloc_v2) *)pointers[ALLOC])(&ptrs[0], 0),
	        CUDA_ERROR_INVALID_VALUE);
	must_ok(((__typeof__(cuMemAllocAsync) *)pointers[ALLOC_ASYNC])(&ptrs[0], MIB, NULL));
	must_ok(((__typeof__(cuMemFreeAsync) *)pointers[FREE_ASYNC])(ptrs[0], NULL));
}

/* Their neighbours work as before, and what is found is what the program uses. */
static void use_others(void *program, void *driver)
{
	CUdeviceptr ptr;
	size_t pitch;
	void *host;
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp plain = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
	};
	must_ok(call(program, cuMemAllocPitch_v2)(&ptr, &pitch, 100, 100, 4));
	must_ok(call(program, cuMemFree_v2)(ptr));
	must_ok(call(program, cuMemHostAlloc)(&host, 100, 0));
	must_ok(call(program, cuMemFreeHost)(host));
	must_ok(call(program, cuMemAllocManaged)(&ptr, 100, CU_MEM_ATTACH_GLOBAL));
	must_ok(call(program, cuMemFree_v2)(ptr));
	must_ok(call(driver, cuMemCreate)(&handle, 2 * MIB, &plain, 0));
	must_ok(call(driver, cuMemRelease)(handle));
}

static void print_seen(void)
{
	printf("seen %u %u %u %u\n", n_seen[ALLOC], n_seen[FREE], n_seen[ALLOC_ASYNC],
	       n_seen[FREE_ASYNC]);
}

int main(int argc, char **argv)
{
	must(argc >= 3);
	bool is_far = strcmp(argv[2], "far") == 0;
	bool is_early = argc > 3;
	void *by_name[N_PATCHED];
	void *asked_before[N_PATCHED];
	void *asked_after[N_PATCHED];
	void *program = dlopen(NAME, RTLD_NOW);
	must(program);
	if (!is_early) {
		start(program);
	}
	void *driver = find_driver(argv[1]);
	for (int i = 0; i < N_PATCHED; i++) {
		by_name[i] = dlsym(program, functions[i].symbol);
		asked_before[i] = is_early ? NULL
		                           : by_resolver(program, functions[i].base,
		                                         functions[i].version);
	}
	for (int i = 0; i < N_PATCHED; i++) {
		void *function = is_early ? dlsym(driver, functions[i].symbol)
		                          : by_resolver(driver, functions[i].base,
		                                        functions[i].version);
		patch(&patches[i], function, hooks[i], is_far);
	}
	if (is_early) {
		start(program);
	}
	use(program, by_name);
	print_seen();
	if (!is_early) {
		use(program, asked_before);
	}
	for (int i = 0; i < N_PATCHED; i++) {
		asked_after[i] = by_resolver(program, functions[i].base, functions[i].version);
	}
	use(program, asked_after);
	print_seen();
	use_others(program, driver);
	print_seen();
	for (int i = 0; i < N_PATCHED; i++) {
		unpatch(&patches[i]);
	}
	use(program, by_name);
	print_seen();
	unsigned long long (*count)(const char *) = (unsigned long long (*)(const char *))dlsym(
		program, "glake_shim_count");
	if (count) {
		printf("owned %llu freed %llu\n", count("owned"), count("freed"));
	}
	return 0;
}
