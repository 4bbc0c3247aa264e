/* SPDX-License-Identifier: Apache-2.0 */
/* learn.h has the theory. */
#include "shim/learn.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "glake_shim.h"
#include "proto/array.h"
#include "proto/cleanup.h"
#include "shim/capture.h"
#include "shim/drain.h"
#include "shim/graphs.h"
#include "shim/guard.h"
#include "shim/learn_functions.h"

#define PATIENCE_NS 10000000000ull
/* The most unnamed candidates that are closed for a launch: each costs some microseconds, twice. */
#define MAX_CLOSED 16u
/* Learning ends after this many launches in a row for which earlier work does not end. */
#define MAX_WAITS 3u
#define END_PATIENCE_S 2
#define UNNAMED UINT64_MAX

/* A part of a candidate. */
struct part {
	uint64_t id; /* the allocation's */
	CUdeviceptr ptr;
	uint64_t n_bytes;
	CUdevice device;
	enum glake__access access; /* during the launch */
	CUdeviceptr named_from;    /* the first byte of its allocation that a word of the launch
	                           points to; UNNAMED: none does */
	bool is_changed;
	bool is_hole;                        /* unmapped for the launch */
	CUmemGenericAllocationHandle handle; /* keeps the memory of a hole */
};

/* A word of the launch that points into a candidate. */
struct named {
	struct learn_function *function; /* NULL: a node of a graph that is no kernel */
	uint16_t at;
	CUdeviceptr ptr;
	uint64_t id;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* held while a launch runs alone */
static struct part *parts;                               /* owned; by address */
static size_t n_parts;
static struct named *named; /* owned: the words of the launch */
static size_t n_named;
static size_t named_capacity;
static struct learn_function *launched; /* the kernel; NULL: a graph, or an unknown kernel */
static bool is_graph;
static unsigned n_waits;
static bool
	unmaps; /* the driver cannot take all access away from mapped memory, so it is unmapped */
static bool is_over;
static bool lacks_memory; /* a word was not noted: the launch is not looked at */

/* ---- candidates ------------------------------------------------------------------------------- */

static int by_address(const void *a, const void *b)
{
	const struct part *left = a;
	const struct part *right = b;
	return (left->ptr > right->ptr) - (left->ptr < right->ptr);
}

static void wake_or_rest_locked(void)
{
	guard_awake = n_parts > 0 && !is_over;
}

static void drop_locked(uint64_t id)
{
	size_t n_kept = 0;
	for (size_t i = 0; i < n_parts; i++) {
		if (parts[i].id != id) {
			parts[n_kept++] = parts[i];
		} else {
			shim_count_add(SHIM_COUNT_learn_bytes, -(int64_t)parts[i].n_bytes);
		}
	}
	n_parts = n_kept;
	wake_or_rest_locked();
}

void learn_drop(uint64_t id)
{
	if (!learn_is_wanted()) {
		return;
	}
	pthread_mutex_lock(&lock);
	drop_locked(id);
	pthread_mutex_unlock(&lock);
}

bool learn_add(const struct heap_facts *facts, const struct glake_span *spans, size_t n)
{
	if (!learn_functions_begin()) {
		return false;
	}
	pthread_mutex_lock(&lock);
	drop_locked(facts->id);
	struct part *more = realloc(parts, (n_parts + n) * sizeof(*more));
	if (more) {
		parts = more;
	}
	for (size_t i = 0; more && i < n; i++) {
		shim_count_add(SHIM_COUNT_learn_bytes, (int64_t)spans[i].bytes);
		parts[n_parts++] = (struct part){
			.id = facts->id,
			.ptr = spans[i].ptr,
			.n_bytes = spans[i].bytes,
			.device = facts->target.device,
		};
	}
	qsort(parts, n_parts, sizeof(*parts), by_address);
	wake_or_rest_locked();
	pthread_mutex_unlock(&lock);
	return more != NULL;
}

/* ---- what a launch names ---------------------------------------------------------------------- */

static void add_named(const struct named *what)
{
	if (array_grow(named, n_named, named_capacity, 64) < 0) {
		lacks_memory = true;
	} else {
		named[n_named++] = *what;
	}
}

static bool is_candidate(uint64_t id)
{
	size_t i = 0;
	while (i < n_parts && parts[i].id != id) {
		i++;
	}
	return i < n_parts;
}

static void name(struct learn_function *function, size_t at, CUdeviceptr ptr)
{
	struct heap_facts facts;
	if (heap_find(ptr, &facts) && is_candidate(facts.id)) {
		const struct named what = {function, (uint16_t)at, ptr, facts.id};
		add_named(&what);
	}
}

static bool see_word(void *user, CUdeviceptr ptr, const struct kernel *kernel, size_t at)
{
	(void)user;
	launched = launched ? launched : learn_function_of(kernel);
	if (launched) {
		name(launched, at, ptr);
	}
	return true;
}

static void see_note(void *user, struct writes_span span, struct learn_function *function,
                     size_t at)
{
	(void)user;
	if (span.n_bytes > 0) {
		name(function, at, span.ptr);
	}
}

static bool may_write(const struct named *one)
{
	const struct learn_word *word = one->function ? learn_find_word(one->function, one->at)
	                                              : NULL;
	return !one->function || (word && word->may_write);
}

static void plan_named(void)
{
	for (size_t i = 0; i < n_parts; i++) {
		parts[i].access = GLAKE__ACCESS_NONE;
		parts[i].named_from = UNNAMED;
	}
	for (size_t k = 0; k < n_named; k++) {
		enum glake__access access = may_write(&named[k]) ? GLAKE__ACCESS_WRITE
		                                                 : GLAKE__ACCESS_READ;
		for (size_t i = 0; i < n_parts; i++) {
			if (parts[i].id == named[k].id) {
				parts[i].named_from = named[k].ptr < parts[i].named_from
				                              ? named[k].ptr
				                              : parts[i].named_from;
				parts[i].access = parts[i].access < access ? access
				                                           : parts[i].access;
			}
		}
	}
}

/* Kernels go up from where a word points to: what lies before all words is not named, though it is of the same allocation. */
static bool is_named(const struct part *part)
{
	return part->ptr + part->n_bytes > part->named_from;
}

/* Decide how the launch may access each part. Unnamed parts are closed a few at a time, in turn. */
static void plan(void)
{
	static size_t next;
	size_t n_closed = 0;
	plan_named();
	for (size_t k = 0; k < n_parts; k++) {
		struct part *part = &parts[(next + k) % n_parts];
		if (!is_named(part)) {
			part->access = n_closed >= MAX_CLOSED ? GLAKE__ACCESS_WRITE
			               : is_graph             ? GLAKE__ACCESS_READ
			                                      : GLAKE__ACCESS_NONE;
			n_closed++;
		}
	}
	next = (next + MAX_CLOSED) % n_parts;
}

/* ---- access ----------------------------------------------------------------------------------- */

static CUresult set_access(CUdeviceptr ptr, uint64_t n_bytes, CUdevice device,
                           enum glake__access access)
{
	static const CUmemAccess_flags flags[] = {
		[GLAKE__ACCESS_NONE] = CU_MEM_ACCESS_FLAGS_PROT_NONE,
		[GLAKE__ACCESS_READ] = CU_MEM_ACCESS_FLAGS_PROT_READ,
		[GLAKE__ACCESS_WRITE] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	const CUmemAccessDesc desc = {
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
		.flags = flags[access],
	};
	return real(cuMemSetAccess)(ptr, n_bytes, &desc, 1);
}

/* How many parts from @i on lie side by side and get the same access. */
static size_t run_at(size_t i)
{
	size_t n = 1;
	while (i + n < n_parts &&
	       parts[i + n - 1].ptr + parts[i + n - 1].n_bytes == parts[i + n].ptr &&
	       parts[i + n].device == parts[i].device && parts[i + n].access == parts[i].access) {
		n++;
	}
	return n;
}

static uint64_t bytes_of(size_t i, size_t n)
{
	return parts[i + n - 1].ptr + parts[i + n - 1].n_bytes - parts[i].ptr;
}

/* Unmap a part, where the driver cannot take all access away from mapped memory. */
static bool unmap(struct part *part)
{
	if (real(cuMemRetainAllocationHandle)(&part->handle, (void *)(uintptr_t)part->ptr) !=
	    CUDA_SUCCESS) {
		return false;
	}
	part->is_hole = real(cuMemUnmap)(part->ptr, part->n_bytes) == CUDA_SUCCESS;
	if (!part->is_hole) {
		real(cuMemRelease)(part->handle);
	}
	unmaps |= part->is_hole;
	return part->is_hole;
}

static bool change(struct part *part)
{
	bool is_none = part->access == GLAKE__ACCESS_NONE;
	part->is_changed = true;
	return (!(is_none && unmaps) &&
	        set_access(part->ptr, part->n_bytes, part->device, part->access) == CUDA_SUCCESS) ||
	       (is_none && unmap(part));
}

/* Change adjacent parts by one call, or if that fails one by one. */
static bool change_run(size_t i, size_t n)
{
	bool is_done = parts[i].access == GLAKE__ACCESS_WRITE;
	if (!is_done && n > 1 && !(unmaps && parts[i].access == GLAKE__ACCESS_NONE)) {
		is_done = set_access(parts[i].ptr, bytes_of(i, n), parts[i].device,
		                     parts[i].access) == CUDA_SUCCESS;
		for (size_t k = i; k < i + n; k++) {
			parts[k].is_changed = true;
		}
	}
	for (size_t k = i; !is_done && k < i + n; k++) {
		if (!change(&parts[k])) {
			return false;
		}
	}
	return true;
}

/* Errors are ignored: a part that was freed meanwhile cannot be given back. */
static void give_back_run(size_t i, size_t n)
{
	for (size_t k = i; k < i + n; k++) {
		if (parts[k].is_hole) {
			real(cuMemMap)(parts[k].ptr, parts[k].n_bytes, 0, parts[k].handle, 0);
			real(cuMemRelease)(parts[k].handle);
			parts[k].is_hole = false;
		}
	}
	if (set_access(parts[i].ptr, bytes_of(i, n), parts[i].device, GLAKE__ACCESS_WRITE) ==
	    CUDA_SUCCESS) {
		return;
	}
	for (size_t k = i; n > 1 && k < i + n; k++) {
		set_access(parts[k].ptr, parts[k].n_bytes, parts[k].device, GLAKE__ACCESS_WRITE);
	}
}

static void give_back(void)
{
	for (size_t i = 0; i < n_parts;) {
		size_t n = run_at(i);
		if (parts[i].is_changed) {
			give_back_run(i, n);
		}
		i += n;
	}
	for (size_t i = 0; i < n_parts; i++) {
		parts[i].is_changed = false;
	}
}

/* False: some access could not be changed, and all is as before. The allocation of the part that failed is dropped. */
static bool take_away(void)
{
	for (size_t i = 0; i < n_parts;) {
		size_t n = run_at(i);
		if (!change_run(i, n)) {
			uint64_t id = parts[i].id;
			give_back();
			drop_locked(id);
			return false;
		}
		i += n;
	}
	return true;
}

static void drop_gone(void)
{
	for (size_t i = 0; i < n_parts;) {
		struct heap_facts facts;
		if (heap_find(parts[i].ptr, &facts) && facts.id == parts[i].id) {
			i++;
		} else {
			drop_locked(parts[i].id);
		}
	}
}

/* ---- before ----------------------------------------------------------------------------------- */

static void set_over(void)
{
	is_over = true;
	wake_or_rest_locked();
}

/* True: nobody else is inside the gate, and all work is done. */
static bool close_gate(void)
{
	if (drain_gate.close(NULL, PATIENCE_NS) < 0) {
		if (!capture_is_any() && ++n_waits >= MAX_WAITS) {
			set_over();
		}
		return false;
	}
	n_waits = 0;
	if (gate_is_asleep() || capture_is_any()) {
		drain_gate.open(NULL);
		return false;
	}
	return true;
}

static bool is_any_open(void)
{
	size_t i = 0;
	while (i < n_named && !(named[i].function && named[i].function->is_open)) {
		i++;
	}
	return i < n_named || (launched && launched->is_open);
}

/* Called when the words of the launch are known. True: the gate is closed, and access is changed for the launch. */
static bool prepare(void)
{
	drop_gone();
	if (n_parts == 0 || lacks_memory || is_any_open() || !close_gate()) {
		return false;
	}
	plan();
	if (!take_away()) {
		drain_gate.open(NULL);
		return false;
	}
	return true;
}

static void begin_turn(struct learn_turn *turn, struct gate_thread *thread)
{
	*turn = (struct learn_turn){.cancel = cancel_disable()};
	gate_leave(thread);
	pthread_mutex_lock(&lock);
	n_named = 0;
	launched = NULL;
	lacks_memory = false;
}

/* The thread passes the gate that it has closed itself. */
static void enter_turn(struct learn_turn *turn, struct gate_thread **thread, bool is_told)
{
	turn->is_alone = is_told && !is_over && prepare();
	if (!turn->is_alone) {
		pthread_mutex_unlock(&lock);
	}
	*thread = gate_enter();
}

void learn_wait_for_turn(void)
{
	struct timespec end;
	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec += END_PATIENCE_S;
	if (!shim_is_forked() && pthread_mutex_timedlock(&lock, &end) == 0) {
		pthread_mutex_unlock(&lock);
	}
}

static void wait_at_end(void)
{
	atexit(learn_wait_for_turn);
}

static bool may_be_looked_at(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	bool may = !shim_is_forked() && !capture_is_any() && learn_functions_begin();
	if (may) {
		pthread_once(&once, wait_at_end);
	}
	return may;
}

/* Kernels are noted even if no word points to a candidate. */
static struct learn_function *find_launched(CUfunction function)
{
	struct kernel *asked = NULL;
	const struct kernel *kernel = kernels_find(function);
	if (!kernel) {
		kernel = asked = kernels_ask(function);
	}
	struct learn_function *found = kernel ? learn_function_of(kernel) : NULL;
	kernels_forget(asked);
	return found;
}

void learn_begin(struct learn_turn *turn, struct gate_thread **thread, CUfunction function,
                 void *const *params, void *const *extra)
{
	char why[GUARD_WHY_BYTES];
	*turn = (struct learn_turn){.cancel = -1};
	if (!may_be_looked_at()) {
		return;
	}
	begin_turn(turn, *thread);
	is_graph = false;
	launched = find_launched(function);
	bool is_told = launched && !guard_each_word(function, params, extra, see_word, NULL, why);
	if (launched && !is_told && !launched->is_open) {
		launched->is_open = true;
		learn_tell("untold %d %u\n", (int)getpid(), launched->number);
	}
	enter_turn(turn, thread, is_told);
}

void learn_begin_graph(struct learn_turn *turn, struct gate_thread **thread, CUgraphExec exec)
{
	*turn = (struct learn_turn){.cancel = -1};
	if (!may_be_looked_at()) {
		return;
	}
	begin_turn(turn, *thread);
	is_graph = true;
	bool is_told = !learn_graphs_are_open() && graphs_each(exec, see_note, NULL);
	enter_turn(turn, thread, is_told);
}

/* ---- behind ----------------------------------------------------------------------------------- */

static bool is_listed(size_t i)
{
	size_t k = 0;
	while (k < i && named[k].at != named[i].at) {
		k++;
	}
	return k < i;
}

/* Write the offsets of words as "0,8", or "-" if there are none. */
static void list(char *text, size_t n_text, bool is_granted_only)
{
	size_t n = 0;
	snprintf(text, n_text, "-");
	for (size_t i = 0; i < n_named && n + 8 < n_text; i++) {
		if (!is_listed(i) && (!is_granted_only || may_write(&named[i]))) {
			n += (size_t)snprintf(text + n, n_text - n, "%s%u", n ? "," : "",
			                      named[i].at);
		}
	}
}

static void tell_fault(void)
{
	static char words[32768];
	static char granted[32768];
	if (is_graph) {
		learn_tell("graph %d\n", (int)getpid());
		return;
	}
	list(words, sizeof(words), false);
	list(granted, sizeof(granted), true);
	learn_tell("fault %d %u %s %s\n", (int)getpid(), launched->number, words, granted);
}

static enum glake__access access_at(CUdeviceptr ptr)
{
	size_t i = 0;
	while (i < n_parts && ptr - parts[i].ptr >= parts[i].n_bytes) {
		i++;
	}
	/* Access to pages beside the parts is never changed. */
	return i < n_parts ? parts[i].access : GLAKE__ACCESS_WRITE;
}

static void count_word(const struct named *one)
{
	struct learn_word *word = one->function ? learn_get_word(one->function, one->at) : NULL;
	if (!word) {
		return;
	}
	if (access_at(one->ptr) == GLAKE__ACCESS_READ && learn_counts_up(&word->n_read)) {
		learn_tell("read %d %u %u %llu\n", (int)getpid(), one->function->number, one->at,
		           (unsigned long long)word->n_read);
	}
	if (word->may_write && !word->has_written) {
		word->has_written = true;
		learn_tell("granted %d %u %u\n", (int)getpid(), one->function->number, one->at);
	}
}

static void count(void)
{
	bool is_any_closed = false;
	for (size_t i = 0; i < n_parts; i++) {
		is_any_closed |= parts[i].access == GLAKE__ACCESS_NONE;
	}
	shim_count(SHIM_COUNT_looked_at);
	for (size_t i = 0; i < n_named; i++) {
		count_word(&named[i]);
	}
	if (launched && is_any_closed && learn_counts_up(&launched->n_alone)) {
		learn_tell("alone %d %u %llu\n", (int)getpid(), launched->number,
		           (unsigned long long)launched->n_alone);
	}
}

/* All submitted work is done, so cuCtxSynchronize() does not wait. */
static CUresult ask_context(void)
{
	CUresult result = real(cuCtxSynchronize)();
	return cudrv_is_lost(result) ? result : CUDA_SUCCESS;
}

static CUresult look_back(CUresult result)
{
	if (result != CUDA_SUCCESS) {
		return result;
	}
	if (drain_await(PATIENCE_NS) < 0) {
		if (launched) {
			learn_tell("stuck %d %u\n", (int)getpid(), launched->number);
		}
		set_over();
		return result;
	}
	result = ask_context();
	if (result == CUDA_SUCCESS) {
		count();
	} else {
		tell_fault();
		set_over();
	}
	return result;
}

CUresult learn_end(struct learn_turn *turn, struct gate_thread *thread, CUresult result)
{
	if (thread) {
		gate_leave(thread);
	}
	if (turn->is_alone) {
		result = look_back(result);
		give_back();
		drain_gate.open(NULL);
		pthread_mutex_unlock(&lock);
	}
	if (turn->cancel >= 0) {
		cancel_restore_(&turn->cancel);
	}
	return result;
}
