/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/mover/load_window.h"

#include <inttypes.h>
#include <string.h>

#include "proto/cleanup.h"
#include "proto/limits.h"

struct window {
	size_t block;
	uint64_t begin; /* in the block */
	uint64_t end;
};

uint64_t load_window_count(const struct load *load, const struct plan_block *plan)
{
	uint64_t slot_bytes = load->host->pump->slot_bytes;
	return (plan->content_bytes + slot_bytes - 1) / slot_bytes;
}

/* ---- filling a slot ------------------------------------------------------------------------- */

static const char *tensor_at(const struct load *load, uint32_t file, uint64_t offset)
{
	for (size_t i = 0; i < load->catalog.n_tensors; i++) {
		const struct tensor *tensor = &load->catalog.tensors[i];
		if (tensor->file == file && offset >= tensor->begin &&
		    offset - tensor->begin < tensor->bytes) {
			return tensor->name;
		}
	}
	return "";
}

static int read_fault(const struct load *load, uint32_t file, uint64_t offset, int error,
                      struct fault *fault)
{
	struct quoted name = quote(load->names[file]);
	struct quoted tensor = quote(tensor_at(load, file, offset));
	if (error == SOURCE_E_SHORT) {
		return fault_set(fault, FAULT_FILE_CHANGED,
		                 "%s: tensor %s: the file was cut short while it was loaded",
		                 name.text, tensor.text);
	}
	return fault_set(fault, FAULT_READ, "%s: tensor %s: at byte %" PRIu64 " of the file: %s",
	                 name.text, tensor.text, offset, strerror(-error));
}

static void count_bytes(struct load *load, uint64_t n_bytes, bool direct)
{
	atomic_fetch_add(&load->read_bytes, n_bytes);
	if (direct) {
		atomic_fetch_add(&load->direct_bytes, n_bytes);
	}
}

/* A part of a piece to an arbitrary place: past the page cache it takes a detour. */
static int read_part(struct load *load, struct pump_worker *worker, uint32_t file, uint64_t offset,
                     uint64_t n_bytes, char *to, struct fault *fault)
{
	struct source *source = &load->sources[file];
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
			return read_fault(load, file, offset, error, fault);
		}
		count_bytes(load, n, direct);
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
static int assemble(struct load *load, struct pump_worker *worker, const struct window *window,
                    const struct plan_piece *piece, char *to, struct fault *fault)
{
	const struct plan_block *block = &load->plan.blocks[window->block];
	const struct plan_piece *end = load->plan.pieces + block->first_piece + block->n_pieces;
	uint64_t at = window->begin;
	for (; piece < end && piece->block_offset < window->end; piece++) {
		if (piece->block_offset > at) {
			memset(to + (at - window->begin), 0, piece->block_offset - at);
			at = piece->block_offset;
		}
		uint64_t piece_end = piece->block_offset + piece->bytes;
		uint64_t until = piece_end < window->end ? piece_end : window->end;
		int error = read_part(load, worker, piece->file,
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
static int fill(struct load *load, struct pump_worker *worker, const struct window *window,
                struct slot *slot, void **content_out, struct fault *fault)
{
	const struct plan_block *block = &load->plan.blocks[window->block];
	const struct plan_piece *piece = first_piece(&load->plan, block, window->begin);
	uint64_t n_bytes = window->end - window->begin;
	if (piece->block_offset > window->begin ||
	    piece->block_offset + piece->bytes < window->end) {
		*content_out = slot->memory;
		return assemble(load, worker, window, piece, slot->memory, fault);
	}
	uint64_t offset = piece->file_offset + (window->begin - piece->block_offset);
	bool direct;
	int error = source_read_span(&load->sources[piece->file], offset, n_bytes, slot->memory,
	                             content_out, &direct);
	if (error) {
		return read_fault(load, piece->file, offset, error, fault);
	}
	count_bytes(load, n_bytes, direct);
	return 0;
}

/* ---- sending it ----------------------------------------------------------------------------- */

static int send_window(struct load *load, struct pump_worker *worker, const struct window *window,
                       struct fault *fault)
{
	struct device *device = load->device;
	struct slot *slot;
	void *content;
	int error = pump_take_slot(worker, device, &slot, fault);
	if (!error) {
		error = fill(load, worker, window, slot, &content, fault);
	}
	if (error) {
		return error;
	}
	CUdeviceptr to = load->span + load->plan.blocks[window->block].span_offset + window->begin;
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
	struct load *load = block->load;
	size_t number = (size_t)(block - load->blocks);
	const struct plan_block *plan = &load->plan.blocks[number];
	struct fault fault;
	if (result != CUDA_SUCCESS) {
		device_fault(load->host->drv, result, "copying and digesting a block", &fault);
		load_fail(load, &fault);
	}
	if (chunk_unmap(load->host->drv, load->span + plan->span_offset,
	                glake_chunk_bytes(plan->content_bytes), &fault)) {
		load_fail(load, &fault);
	}
	digester_give(&load->device->digester, block->ticket);
	if (!atomic_load(&load->has_failed)) {
		report_block_loaded(load->host->report, load->job, number, digest);
	}
	/* The load may be gone once the lock is. */
	pthread_mutex_lock(&load->lock);
	load->n_ended++;
	pthread_cond_signal(&load->changed);
	pthread_mutex_unlock(&load->lock);
}

/* There is one: the pump only calls for units that were posted. */
static struct window take_window(struct load *load)
{
	pthread_mutex_lock(&load->lock);
	uint64_t content_bytes = load->plan.blocks[load->take_block].content_bytes;
	uint64_t slot_bytes = load->host->pump->slot_bytes;
	struct window window = {.block = load->take_block, .begin = load->take_offset};
	if (content_bytes - window.begin > slot_bytes) {
		window.end = window.begin + slot_bytes;
		load->take_offset = window.end;
	} else {
		window.end = content_bytes;
		load->take_block++;
		load->take_offset = 0;
	}
	pthread_mutex_unlock(&load->lock);
	return window;
}

void load_work(struct pump_job *job, struct pump_worker *worker)
{
	struct load *load = container_of(job, struct load, pump_job);
	struct window window = take_window(load);
	struct load_block *block = &load->blocks[window.block];
	struct fault fault;
	int error = device_enter(load->device, &fault);
	if (!error && !atomic_load(&load->has_failed)) {
		error = send_window(load, worker, &window, &fault);
	}
	if (error) {
		load_fail(load, &fault);
	}
	/* Whoever counts down to 0 comes after all the others' copies were queued. */
	if (atomic_fetch_sub(&block->n_windows, 1) == 1) {
		const struct plan_block *plan = &load->plan.blocks[window.block];
		digester_submit(&load->device->digester, block->ticket,
		                load->span + plan->span_offset, plan->content_bytes,
		                atomic_load(&load->has_failed), block_done, block);
	}
}
