/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device addresses: reservations, mappings, and access to them.
 *
 * Two trees (search.h), ordered by address; two ranges that overlap compare as equal, so looking
 * up a range finds something that overlaps it.
 */
#include "sim.h"

#include <errno.h>
#include <pthread.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/bytes.h"

static pthread_rwlock_t lock = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
static void *reservations;
static void *mappings;
static atomic_ullong last_id;

void space_lock_read(void)
{
	pthread_rwlock_rdlock(&lock);
}

void space_lock_write(void)
{
	pthread_rwlock_wrlock(&lock);
}

void space_unlock(void)
{
	pthread_rwlock_unlock(&lock);
}

uint64_t space_new_id(void)
{
	return atomic_fetch_add(&last_id, 1) + 1;
}

static int compare(const void *a, const void *b)
{
	const struct range *x = a;
	const struct range *y = b;

	if (x->start + x->bytes <= y->start) {
		return -1;
	}
	return x->start >= y->start + y->bytes;
}

static void *find_in(void *const *tree, uint64_t addr, uint64_t bytes)
{
	struct range key = {.start = addr, .bytes = bytes};
	void *node = tfind(&key, tree, compare);

	return node ? *(void **)node : NULL;
}

struct reservation *space_find_reservation(uint64_t addr)
{
	return find_in(&reservations, addr, 1);
}

struct mapping *space_find(uint64_t addr)
{
	return find_in(&mappings, addr, 1);
}

struct mapping *space_find_in(uint64_t addr, uint64_t bytes)
{
	return find_in(&mappings, addr, bytes);
}

bool space_is_reserved(uint64_t addr, uint64_t bytes)
{
	uint64_t end = addr + bytes;

	while (addr < end) {
		struct reservation *res = space_find_reservation(addr);
		if (!res || res->is_internal) {
			return false;
		}
		addr = res->range.start + res->range.bytes;
	}
	return true;
}

/* Reserve address space that nobody can touch. If the hint is taken or unusable, it is anywhere. */
static void *reserve_addresses(uint64_t bytes, uint64_t alignment, uint64_t hint)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

	if (hint != 0 && hint % alignment == 0) {
		/* Not fixed: ThreadSanitizer has some addresses for itself, and takes 0 instead. */
		void *at = mmap((void *)hint, bytes, PROT_NONE, flags, -1, 0);
		if (at == (void *)hint) {
			return at;
		}
		if (at != MAP_FAILED) {
			munmap(at, bytes);
		}
	}
	uint8_t *all = mmap(NULL, bytes + alignment, PROT_NONE, flags, -1, 0);
	if (all == MAP_FAILED) {
		return NULL;
	}
	uint64_t before = -(uintptr_t)all & (alignment - 1);
	if (before > 0) {
		munmap(all, before);
	}
	munmap(all + before + bytes, alignment - before);
	return all + before;
}

CUresult space_reserve(uint64_t bytes, uint64_t alignment, uint64_t hint,
                       struct reservation **res_out)
{
	struct reservation *res = calloc(1, sizeof(*res));

	if (!res) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	void *at = reserve_addresses(bytes, alignment, hint);
	if (!at) {
		free(res);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	res->range = (struct range){.start = (uintptr_t)at, .bytes = bytes};
	if (!tsearch(res, &reservations, compare)) {
		munmap(at, bytes);
		free(res);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*res_out = res;
	return CUDA_SUCCESS;
}

void space_unreserve(struct reservation *res)
{
	tdelete(res, &reservations, compare);
	munmap((void *)res->range.start, res->range.bytes);
	free(res);
}

int space_add(struct mapping *m)
{
	return tsearch(m, &mappings, compare) ? 0 : -ENOMEM;
}

void space_remove(struct mapping *m)
{
	tdelete(m, &mappings, compare);
}

struct gather {
	bool (*wants)(const struct mapping *m, const struct ctx *ctx);
	const struct ctx *ctx;
	struct mapping **list;
	size_t n;
};

static void gather_one(const void *node, VISIT visit, void *closure)
{
	struct gather *gather = closure;
	struct mapping *m = *(struct mapping *const *)node;

	if ((visit == postorder || visit == leaf) && gather->wants(m, gather->ctx)) {
		if (gather->list) {
			gather->list[gather->n] = m;
		}
		gather->n++;
	}
}

size_t space_gather(bool (*wants)(const struct mapping *m, const struct ctx *ctx),
                    const struct ctx *ctx, struct mapping ***list_out)
{
	struct gather gather = {.wants = wants, .ctx = ctx};

	twalk_r(mappings, gather_one, &gather);
	gather.list = calloc(gather.n + 1, sizeof(struct mapping *));
	gather.n = 0;
	if (gather.list) {
		twalk_r(mappings, gather_one, &gather);
	}
	*list_out = gather.list;
	return gather.n;
}

/* Memory of a pool is opened by the pool, and other memory by contexts. */
static bool is_peer(const struct mapping *m, unsigned device)
{
	if (m->kind != SPACE_ALLOC) {
		return false;
	}
	return m->pool ? pool_is_open_to(m->pool, device)
	               : atomic_load(&ctx_of_device(device)->peers) & 1U << m->device;
}

static bool has_access(const struct mapping *m, enum space_access want, enum space_view view,
                       unsigned device)
{
	if (view == SPACE_BY_KERNEL) {
		return is_peer(m, device) || (m->access[device] & want) == want;
	}
	for (unsigned i = 0; i < SIM_MAX_DEVICES; i++) {
		if ((m->access[i] & want) == want) {
			return true;
		}
	}
	return false;
}

bool space_resolve(uint64_t addr, uint64_t bytes, enum space_access want, enum space_view view,
                   unsigned device, uint8_t **host_out, uint64_t *n_out)
{
	struct mapping *m = space_find(addr);

	if (m) {
		uint64_t left = m->range.start + m->range.bytes - addr;
		*host_out = m->host + (addr - m->range.start);
		*n_out = left < bytes ? left : bytes;
		return has_access(m, want, view, device);
	}
	if (view != SPACE_BY_API || addr == 0 || space_find_reservation(addr)) {
		return false;
	}
	*host_out = (uint8_t *)addr;
	*n_out = bytes;
	return true;
}

/* How many bytes at @addr are a graph's memory, which does not exist before the graph is launched. */
static uint64_t bytes_of_graph(uint64_t addr)
{
	const struct reservation *res = space_find_reservation(addr);

	return res && res->is_of_graph ? res->range.start + res->range.bytes - addr : 0;
}

bool space_check(uint64_t addr, uint64_t bytes, enum space_access want, enum space_view view,
                 unsigned device)
{
	bool ok = true;

	space_lock_read();
	while (ok && bytes > 0) {
		uint8_t *host;
		uint64_t n = 0;
		ok = space_resolve(addr, bytes, want, view, device, &host, &n);
		if (!ok) {
			n = bytes_of_graph(addr);
			n = n < bytes ? n : bytes;
			ok = n > 0;
		}
		addr += n;
		bytes -= n;
	}
	space_unlock();
	return ok;
}

bool space_is_open_to(uint64_t addr, unsigned device, bool is_set)
{
	bool is_open = true;

	space_lock_read();
	struct mapping *m = space_find(addr);
	if (m && m->kind == SPACE_VMM && !m->on_host) {
		is_open = m->access[device] != SPACE_NONE;
	} else if (m && m->kind == SPACE_ALLOC && is_set) {
		is_open = m->device == device || is_peer(m, device) ||
		          m->access[device] != SPACE_NONE;
	}
	space_unlock();
	return is_open;
}

bool space_is_known(uint64_t addr)
{
	space_lock_read();
	bool is_known = space_find(addr) != NULL || bytes_of_graph(addr) > 0;
	space_unlock();
	return is_known;
}

/* Load a word of 4 or 8 bytes at its natural alignment, which others may read or write at the same time. */
static uint64_t word_load(const void *at, size_t bytes)
{
	uint64_t word = 0;

	if ((uintptr_t)at % bytes != 0) {
		memcpy(&word, at, bytes);
		return word;
	}
	return bytes == 4 ? __atomic_load_n((const uint32_t *)at, __ATOMIC_ACQUIRE)
	                  : __atomic_load_n((const uint64_t *)at, __ATOMIC_ACQUIRE);
}

static void word_store(void *at, uint64_t word, size_t bytes)
{
	if ((uintptr_t)at % bytes != 0) {
		memcpy(at, &word, bytes);
	} else if (bytes == 4) {
		__atomic_store_n((uint32_t *)at, (uint32_t)word, __ATOMIC_RELEASE);
	} else {
		__atomic_store_n((uint64_t *)at, word, __ATOMIC_RELEASE);
	}
}

static bool overlap(const uint8_t *a, const uint8_t *b, size_t bytes)
{
	return a < b + bytes && b < a + bytes;
}

/*
 * ThreadSanitizer checks every byte that memmove(), memset() and memcmp() touch, which would take most of the time of a test.
 * So it is shown only the first byte of each 64 KiB.
 */
#if defined(__SANITIZE_THREAD__) && defined(__x86_64__)
#define SHOWN_BYTES 65536

static size_t to_next_shown(const uint8_t *at)
{
	return SHOWN_BYTES - (uintptr_t)at % SHOWN_BYTES;
}

static void show_read(const uint8_t *src, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += to_next_shown(src + i)) {
		(void)*(const volatile uint8_t *)(src + i);
	}
}

static void move_many(uint8_t *dst, const uint8_t *src, size_t bytes)
{
	if (overlap(dst, src, bytes)) {
		memmove(dst, src, bytes);
		return;
	}
	show_read(src, bytes);
	for (size_t i = 0; i < bytes; i += to_next_shown(dst + i)) {
		dst[i] = src[i];
	}
	__asm__ volatile("rep movsb" : "+D"(dst), "+S"(src), "+c"(bytes) : : "memory");
}

static void set_many(uint8_t *dst, uint8_t value, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += to_next_shown(dst + i)) {
		dst[i] = value;
	}
	__asm__ volatile("rep stosb" : "+D"(dst), "+c"(bytes) : "a"(value) : "memory");
}

bool bytes_are_equal(const void *a, const void *b, size_t bytes)
{
	size_t words = bytes / 8;
	bool is_equal = true;

	show_read(a, bytes);
	show_read(b, bytes);
	if (words > 0) {
		__asm__ volatile("repe cmpsq"
		                 : "+S"(a), "+D"(b), "+c"(words), "=@cce"(is_equal)
		                 :
		                 : "memory");
	}
	return is_equal && memcmp(a, b, bytes % 8) == 0;
}
#else
static void show_read(const uint8_t *src, size_t bytes)
{
	(void)src;
	(void)bytes;
}

bool bytes_are_equal(const void *a, const void *b, size_t bytes)
{
	return memcmp(a, b, bytes) == 0;
}

/* Under AddressSanitizer memmove() goes byte by byte. */
static void move_many(uint8_t *dst, const uint8_t *src, size_t bytes)
{
	if (overlap(dst, src, bytes)) {
		memmove(dst, src, bytes);
	} else {
		memcpy(dst, src, bytes);
	}
}

static void set_many(uint8_t *dst, uint8_t value, size_t bytes)
{
	memset(dst, value, bytes);
}
#endif

TEST_BYTE_LOOP static uint64_t sum_many(const uint8_t *src, size_t bytes)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < bytes; i++) {
		sum += src[i];
	}
	return sum;
}

uint64_t bytes_sum(const void *src, size_t bytes)
{
	show_read(src, bytes);
	return sum_many(src, bytes);
}

void bytes_move(void *dst, const void *src, size_t bytes)
{
	if (bytes == 4 || bytes == 8) {
		word_store(dst, word_load(src, bytes), bytes);
	} else {
		move_many(dst, src, bytes);
	}
}

void bytes_set(void *dst, uint8_t value, size_t bytes)
{
	if (bytes == 4 || bytes == 8) {
		word_store(dst, value * 0x0101010101010101ULL, bytes);
	} else {
		set_many(dst, value, bytes);
	}
}

void bytes_repeat(void *dst, const void *element, size_t element_bytes, size_t n)
{
	const size_t bytes = n * element_bytes;
	uint8_t *to = dst;

	bytes_move(to, element, n > 0 ? element_bytes : 0);
	for (size_t done = element_bytes; done < bytes; done *= 2) {
		move_many(to + done, to, done < bytes - done ? done : bytes - done);
	}
}
