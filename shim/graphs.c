/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What can go wrong, and why it does not. A replay submits writes that no hook sees. So destinations are noted when the driver
 * makes or changes an executable, and a launch looks for sealed memory in the notes. A note that came after a mark could be
 * missed: hooks note first and then look at the marks, auto.c marks first and then looks at the notes, so one sees the other.
 * The driver may refuse a change: until a call is settled, old and new notes both count. It may not tell a node's work: then
 * the node may write anywhere. Only the library's lock of the space is taken inside ours; calls that take others get copies.
 */
#include "shim/graphs.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/array.h"
#include "proto/cleanup.h"
#include "shim/eyes.h"
#include "shim/guard.h"
#include "shim/learn_functions.h"
#include "shim/shim.h"

/* Bytes that a node writes to. */
struct note {
	CUgraphNode node; /* of the top graph, also for nodes of its child graphs */
	struct writes_span span;
	char *kernel;                /* owned; NULL: not a kernel */
	struct learn_function *what; /* while kernels are learned */
	size_t at;                   /* byte of the kernel's parameters */
	bool is_new;                 /* not settled yet */
};

struct notes {
	struct note *list; /* owned */
	size_t n;
	size_t capacity;
};

struct exec {
	struct notes writes; /* by nodes that are not kernels */
	/* By kernels, unless GLAKE_DEDUP is asked; a span without bytes: anywhere. */
	struct notes kernels;
	uint64_t seen;     /* for eyes_look_at_graph() */
	struct exec *next; /* link: all_execs */
	struct exec **link;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct glake__ptr_table execs; /* by handle; owned */
static struct exec *all_execs;

/* ---- noting ----------------------------------------------------------------------------------- */

static void link_locked(struct exec *exec)
{
	exec->next = all_execs;
	exec->link = &all_execs;
	if (all_execs) {
		all_execs->link = &exec->next;
	}
	all_execs = exec;
}

static void unlink_locked(struct exec *exec)
{
	*exec->link = exec->next;
	if (exec->next) {
		exec->next->link = exec->link;
	}
}

static struct exec *get_exec_locked(CUgraphExec handle)
{
	uint64_t key = (uint64_t)(uintptr_t)handle;
	struct exec *exec = glake__ptr_table_get(&execs, key);
	if (!exec) {
		exec = calloc(1, sizeof(*exec));
		if (exec && glake__ptr_table_add(&execs, key, exec) < 0) {
			free(exec);
			exec = NULL;
		}
		if (exec) {
			link_locked(exec);
		}
	}
	return exec;
}

static bool add_to(struct notes *notes, const struct note *note)
{
	if (array_grow(notes->list, notes->n, notes->capacity, 8) < 0) {
		return false;
	}
	notes->list[notes->n++] = *note;
	return true;
}

/* Takes ownership of note->kernel. */
static bool add_note(CUgraphExec handle, const struct note *note)
{
	pthread_mutex_lock(&lock);
	struct exec *exec = get_exec_locked(handle);
	bool is_noted = exec && add_to(note->kernel ? &exec->kernels : &exec->writes, note);
	pthread_mutex_unlock(&lock);
	if (!is_noted) {
		free(note->kernel);
	}
	return is_noted;
}

/* Only memory of glake can be sealed, so other destinations are not noted. */
static bool note_write(CUgraphExec handle, CUgraphNode node, struct writes_span span)
{
	const struct note note = {.node = node, .span = span, .is_new = true};
	if (span.n_bytes == 0 || glake__space_look(span.ptr).kind == GLAKE__ELSEWHERE) {
		return true;
	}
	glake__fill_written(span.ptr, span.n_bytes);
	return add_note(handle, &note);
}

static bool note_kernel(CUgraphExec handle, struct note note, const char *kernel)
{
	note.kernel = strdup(kernel);
	note.is_new = true;
	return note.kernel && add_note(handle, &note);
}

static void drop_notes(struct notes *notes)
{
	for (size_t i = 0; i < notes->n; i++) {
		free(notes->list[i].kernel);
	}
	free(notes->list);
}

/* ---- what nodes write to ---------------------------------------------------------------------- */

/* Walks return false to stop. */
struct walk {
	bool (*see)(struct walk *walk, CUgraphNode node, struct writes_span span);
	bool has_kernels; /* kernels are noted, too */
	CUgraphExec exec;
	CUgraphNode node; /* the current kernel's */
	struct writes_span sealed;
};

static bool see_note(struct walk *walk, CUgraphNode node, struct writes_span span)
{
	return note_write(walk->exec, node, span);
}

static bool see_sealed(struct walk *walk, CUgraphNode node, struct writes_span span)
{
	(void)node;
	walk->sealed = writes_linear(span.ptr, span.n_bytes);
	return walk->sealed.n_bytes == 0;
}

static bool walk_graph(struct walk *walk, CUgraph graph, CUgraphNode node);

static bool walk_words(struct walk *walk, CUgraphNode node,
                       const CUDA_BATCH_MEM_OP_NODE_PARAMS *params)
{
	bool goes_on = true;
	for (unsigned i = 0; params->paramArray && goes_on && i < params->count; i++) {
		goes_on = walk->see(walk, node, writes_of_mem_op(&params->paramArray[i]));
	}
	return goes_on;
}

/* Note a node that may write anywhere. */
static bool see_opaque(struct walk *walk, CUgraphNode node, const char *why)
{
	return !walk->has_kernels || note_kernel(walk->exec, (struct note){.node = node}, why);
}

static bool see_word(void *user, CUdeviceptr ptr, const struct kernel *kernel, size_t at)
{
	struct walk *walk = user;
	const struct note note = {
		.node = walk->node,
		.span = {ptr, 1},
		.what = learn_function_of(kernel),
		.at = at,
	};
	return note_kernel(walk->exec, note, kernel->name);
}

static bool walk_kernel(struct walk *walk, CUgraphNode node, const CUgraphNodeParams *params)
{
	/* A kernel of a library takes the place of a function. */
	CUfunction function = params->kernel.func ? params->kernel.func
	                                          : (CUfunction)params->kernel.kern;
	char text[GUARD_WHY_BYTES];
	walk->node = node;
	const char *why = guard_each_word(function, params->kernel.kernelParams,
	                                  params->kernel.extra, see_word, walk, text);
	return why ? see_opaque(walk, node, why) : true;
}

static bool walk_params(struct walk *walk, CUgraphNode node, const CUgraphNodeParams *params)
{
	const CUDA_MEMSET_NODE_PARAMS_v2 *set = &params->memset;
	const CUDA_BATCH_MEM_OP_NODE_PARAMS words = {
		.count = params->memOp.count,
		.paramArray = params->memOp.paramArray,
	};
	switch (params->type) {
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		return walk->see(walk, node, writes_of_copy_3d(&params->memcpy.copyParams));
	case CU_GRAPH_NODE_TYPE_MEMSET:
		return walk->see(walk, node,
		                 writes_of_rows(set->dst, set->pitch, set->elementSize, set->width,
		                                set->height));
	case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		return walk_words(walk, node, &words);
	case CU_GRAPH_NODE_TYPE_GRAPH:
		return walk_graph(walk, params->graph.graph, node);
	case CU_GRAPH_NODE_TYPE_KERNEL:
		return !walk->has_kernels || walk_kernel(walk, node, params);
	case CU_GRAPH_NODE_TYPE_HOST:
	case CU_GRAPH_NODE_TYPE_EMPTY:
	case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
	case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
	case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
	case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT:
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
		return true;
	default:
		return see_opaque(walk, node, "it has a node whose work the driver does not tell");
	}
}

/* Are kernels noted? */
static bool is_auto(void)
{
	return shim_dedup() != SHIM_DEDUP_ASKED;
}

/* ---- asking the driver of nodes --------------------------------------------------------------- */

/* May the device change it? Only nodes of kernels have the attribute. */
static bool is_updatable(CUgraphNode node)
{
	CUkernelNodeAttrValue value = {.deviceUpdatableKernelNode = {.deviceUpdatable = 0}};
	return real(cuGraphKernelNodeGetAttribute) &&
	       real(cuGraphKernelNodeGetAttribute)(node,
	                                           CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE,
	                                           &value) == CUDA_SUCCESS &&
	       value.deviceUpdatableKernelNode.deviceUpdatable;
}

static CUresult ask_kernel(CUgraphNode node, CUgraphNodeParams *params_out)
{
	CUDA_KERNEL_NODE_PARAMS_v2 kernel;
	CUresult result = real(cuGraphKernelNodeGetParams_v2)
	                          ? real(cuGraphKernelNodeGetParams_v2)(node, &kernel)
	                          : CUDA_ERROR_NOT_SUPPORTED;
	if (result == CUDA_SUCCESS) {
		params_out->kernel.func = kernel.func;
		params_out->kernel.kern = kernel.kern;
		params_out->kernel.kernelParams = kernel.kernelParams;
		params_out->kernel.extra = kernel.extra;
	}
	return is_updatable(node) ? CUDA_ERROR_NOT_SUPPORTED : result;
}

/* The type of @node, and its parameters if it writes. */
static CUresult ask_node(CUgraphNode node, CUgraphNodeParams *params_out)
{
	CUDA_MEMSET_NODE_PARAMS set;
	CUDA_BATCH_MEM_OP_NODE_PARAMS words;
	*params_out = (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_EMPTY};
	CUresult result = real(cuGraphNodeGetType)(node, &params_out->type);
	if (result != CUDA_SUCCESS) {
		return result;
	}
	switch (params_out->type) {
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		return real(cuGraphMemcpyNodeGetParams)(node, &params_out->memcpy.copyParams);
	case CU_GRAPH_NODE_TYPE_MEMSET:
		result = real(cuGraphMemsetNodeGetParams)(node, &set);
		if (result == CUDA_SUCCESS) {
			params_out->memset = (CUDA_MEMSET_NODE_PARAMS_v2){
				.dst = set.dst,
				.pitch = set.pitch,
				.elementSize = set.elementSize,
				.width = set.width,
				.height = set.height,
			};
		}
		return result;
	case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		result = real(cuGraphBatchMemOpNodeGetParams)
		                 ? real(cuGraphBatchMemOpNodeGetParams)(node, &words)
		                 : CUDA_ERROR_NOT_SUPPORTED;
		if (result == CUDA_SUCCESS) {
			params_out->memOp.count = words.count;
			params_out->memOp.paramArray = words.paramArray;
		}
		return result;
	case CU_GRAPH_NODE_TYPE_GRAPH:
		return real(cuGraphChildGraphNodeGetGraph)(node, &params_out->graph.graph);
	case CU_GRAPH_NODE_TYPE_KERNEL:
		return is_auto() ? ask_kernel(node, params_out) : CUDA_SUCCESS;
	default:
		return CUDA_SUCCESS;
	}
}

/* @node: the node of the top graph that @graph is the child of; NULL: @graph is the top graph. */
static bool walk_graph(struct walk *walk, CUgraph graph, CUgraphNode node)
{
	size_t n_nodes = 0;
	if (real(cuGraphGetNodes)(graph, NULL, &n_nodes) != CUDA_SUCCESS) {
		return see_opaque(walk, node, "the driver does not tell its nodes");
	}
	if (n_nodes == 0) {
		return true;
	}
	cleanup_free CUgraphNode *nodes = calloc(n_nodes, sizeof(*nodes));
	bool goes_on = nodes != NULL;
	if (!goes_on || real(cuGraphGetNodes)(graph, nodes, &n_nodes) != CUDA_SUCCESS) {
		return goes_on && see_opaque(walk, node, "the driver does not tell its nodes");
	}
	for (size_t i = 0; goes_on && i < n_nodes; i++) {
		CUgraphNodeParams params;
		CUgraphNode of = node ? node : nodes[i];
		goes_on = ask_node(nodes[i], &params) == CUDA_SUCCESS
		                  ? walk_params(walk, of, &params)
		                  : see_opaque(walk, of,
		                               "it has a node whose work the driver does not "
		                               "tell");
	}
	return goes_on;
}

/* ---- from outside ----------------------------------------------------------------------------- */

static bool can_walk(void)
{
	return !shim_is_forked() && real(cuGraphGetNodes);
}

bool graphs_note(CUgraphExec exec, CUgraph graph, CUgraphNode node)
{
	struct walk walk = {.see = see_note, .exec = exec, .has_kernels = is_auto()};
	return !can_walk() || walk_graph(&walk, graph, node);
}

bool graphs_note_node(CUgraphExec exec, CUgraphNode node, const CUgraphNodeParams *params)
{
	struct walk walk = {.see = see_note, .exec = exec, .has_kernels = is_auto()};
	return !can_walk() || walk_params(&walk, node, params);
}

struct writes_span graphs_find(const CUgraphNodeParams *params)
{
	struct walk walk = {.see = see_sealed};
	if (can_walk()) {
		walk_params(&walk, NULL, params);
	}
	return walk.sealed;
}

bool graphs_note_opaque(CUgraphExec exec, const char *why)
{
	struct walk walk = {.exec = exec, .has_kernels = is_auto()};
	return shim_is_forked() || see_opaque(&walk, NULL, why);
}

static void settle(struct notes *notes, CUgraphNode node, bool is_done)
{
	size_t n_kept = 0;
	for (size_t i = 0; i < notes->n; i++) {
		struct note note = notes->list[i];
		if ((!node || note.node == node) && note.is_new != is_done) {
			free(note.kernel);
			continue;
		}
		note.is_new = false;
		notes->list[n_kept++] = note;
	}
	notes->n = n_kept;
}

void graphs_settle(CUgraphExec handle, CUgraphNode node, bool is_done)
{
	if (shim_is_forked()) {
		return;
	}
	pthread_mutex_lock(&lock);
	struct exec *exec = glake__ptr_table_get(&execs, (uint64_t)(uintptr_t)handle);
	if (exec) {
		settle(&exec->writes, node, is_done);
		settle(&exec->kernels, node, is_done);
	}
	pthread_mutex_unlock(&lock);
}

void graphs_drop(CUgraphExec handle)
{
	if (shim_is_forked()) {
		return;
	}
	pthread_mutex_lock(&lock);
	struct exec *exec = glake__ptr_table_remove(&execs, (uint64_t)(uintptr_t)handle);
	if (exec) {
		unlink_locked(exec);
	}
	pthread_mutex_unlock(&lock);
	if (exec) {
		drop_notes(&exec->writes);
		drop_notes(&exec->kernels);
		free(exec);
	}
}

static void describe(const struct note *note, struct graphs_use *use_out)
{
	*use_out = (struct graphs_use){.ptr = note->span.ptr};
	snprintf(use_out->kernel, sizeof(use_out->kernel), "%s", note->kernel);
}

/* guard_is_marked() takes other locks, so it is called with a copy of one note at a time, without ours. */
bool graphs_find_marked(CUgraphExec handle, struct graphs_use *use_out)
{
	bool is_marked = false;
	bool is_there = !shim_is_forked();
	for (size_t i = 0; !is_marked && is_there; i++) {
		pthread_mutex_lock(&lock);
		struct exec *exec = glake__ptr_table_get(&execs, (uint64_t)(uintptr_t)handle);
		is_there = exec && i < exec->kernels.n;
		if (is_there) {
			describe(&exec->kernels.list[i], use_out);
		}
		pthread_mutex_unlock(&lock);
		is_marked = is_there && guard_is_marked(use_out->ptr);
	}
	return is_marked;
}

bool graphs_find_use(CUdeviceptr ptr, uint64_t n_bytes, struct graphs_use *use_out)
{
	bool is_found = false;
	pthread_mutex_lock(&lock);
	for (struct exec *exec = all_execs; !is_found && exec; exec = exec->next) {
		for (size_t i = 0; !is_found && i < exec->kernels.n; i++) {
			const struct note *note = &exec->kernels.list[i];
			is_found = note->span.n_bytes == 0 || note->span.ptr - ptr < n_bytes;
			if (is_found) {
				describe(note, use_out);
			}
		}
	}
	pthread_mutex_unlock(&lock);
	return is_found;
}

/* @fn takes other locks, so it is called with copies, without ours. */
bool graphs_each(CUgraphExec handle, graphs_fn *fn, void *user)
{
	cleanup_free struct note *notes = NULL;
	size_t n = 0;
	pthread_mutex_lock(&lock);
	const struct exec *exec = glake__ptr_table_get(&execs, (uint64_t)(uintptr_t)handle);
	bool is_told = exec &&
	               (notes = calloc(exec->kernels.n + exec->writes.n + 1, sizeof(*notes)));
	for (size_t i = 0; is_told && i < exec->kernels.n; i++) {
		notes[n++] = exec->kernels.list[i];
	}
	for (size_t i = 0; is_told && i < exec->writes.n; i++) {
		notes[n++] = exec->writes.list[i];
	}
	pthread_mutex_unlock(&lock);
	for (size_t i = 0; i < n; i++) {
		is_told &= notes[i].span.n_bytes > 0;
		fn(user, notes[i].span, notes[i].what, notes[i].at);
	}
	return is_told;
}

struct writes_span writes_graph(CUgraphExec handle)
{
	struct writes_span span = {.n_bytes = 0};
	pthread_mutex_lock(&lock);
	struct exec *exec = get_exec_locked(handle);
	if (exec) {
		eyes_look_at_graph(&exec->seen);
	}
	for (size_t i = 0; exec && span.n_bytes == 0 && i < exec->writes.n; i++) {
		span = writes_linear(exec->writes.list[i].span.ptr,
		                     exec->writes.list[i].span.n_bytes);
	}
	pthread_mutex_unlock(&lock);
	return span;
}
