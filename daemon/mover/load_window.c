/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/mover/load_window.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"
#include "proto/limits.h"

struct window {
	size_t block;
	uint64_t begin; /* in the block */
	uint64_t end;
};

static unsigned n_windows_of(const struct load_windows *windows, size_t number)
{
	uint64_t slot_bytes = windows->pump->slot_bytes;
	return (unsigned)((windows->plan->blocks[number].content_bytes + slot_bytes - 1) /
	                  slot_bytes);
}

static CUdeviceptr address_of(const struct load_windows *windows, size_t number)
{
	return windows->span + windows->plan->blocks[number].span_offset;
}

/* ---- filling a slot ------------------------------------------------------------------------- */

static const char *tensor_at(const struct load_windows *windows, uint32_t file, uint64_t offset)
{
	for (size_t i = 0; i < windows->catalog->n_tensors; i++) {
		const struct tensor *tensor = &windows->catalog->tensors[i];
		if (tensor->file == file && offset >= tensor->begin &&
		    offset - tensor->begin < tensor->bytes) {
			return tensor->name;
		}
	}
	return "";
}

static int read_fault(const struct load_windows *windows, uint32_t file, uint64_t offset, int error,
                      struct fault *fault)
{
	struct quoted name = quote(windows->sources[file].name);
	struct quoted tensor = quote(tensor_at(windows, file, offset));
	if (error == SOURCE_E_SHORT) {
		return fault_set(fault, FAULT_FILE_CHANGED,
		                 "%s: tensor %s: the file was cut short while it was loaded",
		                 name.text, tensor.text);
	}
	return fault_set(fault, FAULT_READ, "%s: tensor %s: at byte %" PRIu64 " of the file: %s",
	                 name.text, tensor.text, offset, strerror(-error));
}

static void count_bytes(struct load_windows *windows, uint64_t n_bytes, bool direct)
{
	atomic_fetch_add(&windows->read_bytes, n_bytes);
	if (direct) {
		atomic_fetch_add(&windows->direct_bytes, n_bytes);
	}
}

/* A part of a piece to an arbitrary place: past the page cache it takes a detour. */
static int read_part(struct load_windows *windows, struct pump_worker *worker, uint32_t file,
                     uint64_t offset, uint64_t n_bytes, char *to, struct fault *fault)
{
	struct source *source = &windows->sources[file];
	while (n_bytes > 0) {
		uint64_t n = n_bytes;
		bool direct = false;
		int error;
		if (atomic_load(&source->is_direct)) {
			void *bounce = pump_bounce(worker);
			void *content;
			if (!bounce) {
				return fault_no_memory(fault);
			}
			n = n < PUMP_BOUNCE_BYTES ? n : PUMP_BOUNCE_BYTES;
			error = source_read_span(source, offset, n, bounce, &content, &direct);
			if (!error) {
				memcpy(to, content, n);
			}
		} else {
			error = source_read(source, offset, n, to);
		}
		if (error) {
			return read_fault(windows, file, offset, error, fault);
		}
		count_bytes(windows, n, direct);
		offset += n;
		to += n;
		n_bytes -= n;
	}
	return 0;
}

/* The first piece that ends behind @offset of its block. */
static const struct plan_piece *first_piece(const struct plan *plan, const struct plan_block *block,
                                            uint64_t offset)
{
	const struct plan_piece *pieces = plan->pieces + block->first_piece;
	size_t low = 0;
	size_t high = block->n_pieces;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (pieces[middle].block_offset + pieces[middle].bytes > offset) {
			high = middle;
		} else {
			low = middle + 1;
		}
	}
	return pieces + low;
}

/* Bytes of many pieces, zeros between them. */
static int assemble(struct load_windows *windows, struct pump_worker *worker,
                    const struct window *window, const struct plan_piece *piece, char *to,
                    struct fault *fault)
{
	const struct plan_block *block = &windows->plan->blocks[window->block];
	const struct plan_piece *end = windows->plan->pieces + block->first_piece + block->n_pieces;
	uint64_t at = window->begin;
	for (; piece < end && piece->block_offset < window->end; piece++) {
		if (piece->block_offset > at) {
			memset(to + (at - window->begin), 0, piece->block_offset - at);
			at = piece->block_offset;
		}
		uint64_t piece_end = piece->block_offset + piece->bytes;
		uint64_t until = piece_end < window->end ? piece_end : window->end;
		int error = read_part(windows, worker, piece->file,
		                      piece->file_offset + (at - piece->block_offset), until - at,
		                      to + (at - window->begin), fault);
		if (error) {
			return error;
		}
		at = until;
	}
	memset(to + (at - window->begin), 0, window->end - at);
	return 0;
}

/* Fill the slot with the window; its bytes begin at *content_out. */
static int fill(struct load_windows *windows, struct pump_worker *worker,
                const struct window *window, struct slot *slot, void **content_out,
                struct fault *fault)
{
	const struct plan_block *block = &windows->plan->blocks[window->block];
	const struct plan_piece *piece = first_piece(windows->plan, block, window->begin);
	uint64_t n_bytes = window->end - window->begin;
	if (piece->block_offset > window->begin ||
	    piece->block_offset + piece->bytes < window->end) {
		*content_out = slot->memory;
		return assemble(windows, worker, window, piece, slot->memory, fault);
	}
	uint64_t offset = piece->file_offset + (window->begin - piece->block_offset);
	bool direct;
	int error = source_read_span(&windows->sources[piece->file], offset, n_bytes, slot->memory,
	                             content_out, &direct);
	if (error) {
		return read_fault(windows, piece->file, offset, error, fault);
	}
	count_bytes(windows, n_bytes, direct);
	return 0;
}

/* ---- sending it ----------------------------------------------------------------------------- */

static int send_window(struct load_windows *windows, struct pump_worker *worker,
                       const struct window *window, struct fault *fault)
{
	struct device *device = windows->device;
	struct slot *slot;
	void *content;
	int error = pump_take_slot(worker, device, &slot, fault);
	if (!error) {
		error = fill(windows, worker, window, slot, &content, fault);
	}
	if (error) {
		return error;
	}
	CUdeviceptr to = address_of(windows, window->block) + window->begin;
	CUresult result = device->drv->cuMemcpyHtoDAsync(to, content, window->end - window->begin,
	                                                 device->copy_stream);
	if (result != CUDA_SUCCESS) {
		return device_fault(device->drv, result, "cuMemcpyHtoDAsync", fault);
	}
	return pump_slot_sent(worker, device, slot, fault);
}

/* The block is copied and digested, or given up: let go of its chunk and say so. */
static void block_done(void *user, CUresult result, const struct digest *digest)
{
	struct load_block *block = user;
	struct load_windows *windows = block->windows;
	const struct cudrv *drv = windows->device->drv;
	size_t number = (size_t)(block - windows->blocks);
	uint64_t bytes = glake_chunk_bytes(windows->plan->blocks[number].content_bytes);
	struct fault fault;
	if (result != CUDA_SUCCESS) {
		device_fault(drv, result, "copying and digesting a block", &fault);
		windows->ops->fail(windows, &fault);
	}
	if (chunk_unmap(drv, address_of(windows, number), bytes, &fault)) {
		windows->ops->fail(windows, &fault);
	}
	digester_give(&windows->device->digester, block->ticket);
	windows->ops->block_done(windows, number, digest);
}

/* Take a window. There is one: the pump only calls for units that were posted. */
static struct window take_window(struct load_windows *windows)
{
	pthread_mutex_lock(&windows->lock);
	uint64_t content_bytes = windows->plan->blocks[windows->take_block].content_bytes;
	uint64_t slot_bytes = windows->pump->slot_bytes;
	struct window window = {.block = windows->take_block, .begin = windows->take_offset};
	if (content_bytes - window.begin > slot_bytes) {
		window.end = window.begin + slot_bytes;
		windows->take_offset = window.end;
	} else {
		window.end = content_bytes;
		windows->take_block++;
		windows->take_offset = 0;
	}
	pthread_mutex_unlock(&windows->lock);
	return window;
}

/* A reader's unit: the next window. */
static void work(struct pump_job *job, struct pump_worker *worker)
{
	struct load_windows *windows = container_of(job, struct load_windows, pump_job);
	struct window window = take_window(windows);
	struct load_block *block = &windows->blocks[window.block];
	struct fault fault;
	int error = device_enter(windows->device, &fault);
	if (!error && !atomic_load(&windows->has_failed)) {
		error = send_window(windows, worker, &window, &fault);
	}
	if (error) {
		windows->ops->fail(windows, &fault);
	}
	/* Whoever counts down to 0 comes after all the others' copies were queued. */
	if (atomic_fetch_sub(&block->n_windows, 1) == 1) {
		digester_submit(&windows->device->digester, block->ticket,
		                address_of(windows, window.block),
		                windows->plan->blocks[window.block].content_bytes,
		                atomic_load(&windows->has_failed), block_done, block);
	}
}

/* ---- blocks --------------------------------------------------------------------------------- */

void load_window_init(struct load_windows *windows, const struct load_window_ops *ops)
{
	windows->pump_job.work = work;
	windows->ops = ops;
	pthread_mutex_init(&windows->lock, NULL);
}

void load_window_deinit(struct load_windows *windows)
{
	free(windows->blocks);
	pthread_mutex_destroy(&windows->lock);
}

int load_window_map(struct load_windows *windows, size_t number, int fd, struct fault *fault)
{
	struct digester *digester = &windows->device->digester;
	struct load_block *block = &windows->blocks[number];
	block->windows = windows;
	atomic_init(&block->n_windows, n_windows_of(windows, number));
	block->ticket = digester_take(digester);
	int error = chunk_map(windows->device, fd, address_of(windows, number),
	                      glake_chunk_bytes(windows->plan->blocks[number].content_bytes),
	                      CHUNK_WRITE, fault);
	fd_close(&fd);
	if (error) {
		digester_give(digester, block->ticket);
	}
	return error;
}

void load_window_post(struct load_windows *windows, size_t number)
{
	pump_post(windows->pump, &windows->pump_job, n_windows_of(windows, number));
}
