/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Write two safetensors models: a base, and a fine-tune that differs from it in the query and value
 * projections of every layer, as a merged LoRA does.
 *
 *   make_models FOLDER [SCALE]
 *
 * Shapes are Llama's, small: 6 layers times SCALE. Weights are bf16 from a generator seeded by the
 * tensor's number, so that every run writes the same bytes. Prints what it wrote:
 * base_bytes=N tuned_bytes=N shared_bytes=N
 */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HIDDEN 1024u
#define MLP 3072u
#define VOCABULARY 32000u
#define LAYERS_PER_SCALE 6u
#define MAX_SCALE 1000u
#define BF16_BYTES 2u

struct tensor {
	char name[96];
	uint64_t rows;
	uint64_t columns; /* 0: one dimension */
	bool is_tuned;    /* differs in the fine-tune */
};

struct tensors {
	size_t n;
	struct tensor *list; /* owned */
};

static uint64_t tensor_bytes(const struct tensor *tensor)
{
	return tensor->rows * (tensor->columns ? tensor->columns : 1) * BF16_BYTES;
}

static void add(struct tensors *tensors, int layer, const char *name, uint64_t rows,
                uint64_t columns, bool is_tuned)
{
	struct tensor *tensor = &tensors->list[tensors->n++];
	*tensor = (struct tensor){.rows = rows, .columns = columns, .is_tuned = is_tuned};
	if (layer < 0) {
		snprintf(tensor->name, sizeof(tensor->name), "%s.weight", name);
	} else {
		snprintf(tensor->name, sizeof(tensor->name), "model.layers.%d.%s.weight", layer,
		         name);
	}
}

static void add_layer(struct tensors *tensors, int layer)
{
	add(tensors, layer, "input_layernorm", HIDDEN, 0, false);
	add(tensors, layer, "self_attn.q_proj", HIDDEN, HIDDEN, true);
	add(tensors, layer, "self_attn.k_proj", HIDDEN, HIDDEN, false);
	add(tensors, layer, "self_attn.v_proj", HIDDEN, HIDDEN, true);
	add(tensors, layer, "self_attn.o_proj", HIDDEN, HIDDEN, false);
	add(tensors, layer, "post_attention_layernorm", HIDDEN, 0, false);
	add(tensors, layer, "mlp.gate_proj", MLP, HIDDEN, false);
	add(tensors, layer, "mlp.up_proj", MLP, HIDDEN, false);
	add(tensors, layer, "mlp.down_proj", HIDDEN, MLP, false);
}

static int make_list(struct tensors *tensors, unsigned n_layers)
{
	tensors->n = 0;
	tensors->list = calloc(n_layers * 9 + 3, sizeof(*tensors->list));
	if (!tensors->list) {
		return -ENOMEM;
	}
	add(tensors, -1, "model.embed_tokens", VOCABULARY, HIDDEN, false);
	for (unsigned layer = 0; layer < n_layers; layer++) {
		add_layer(tensors, (int)layer);
	}
	add(tensors, -1, "model.norm", HIDDEN, 0, false);
	add(tensors, -1, "lm_head", VOCABULARY, HIDDEN, false);
	return 0;
}

static uint64_t next_random(uint64_t *state)
{
	/* splitmix64 */
	uint64_t word = (*state += 0x9e3779b97f4a7c15u);
	word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
	word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
	return word ^ (word >> 31);
}

static void write_weights(FILE *file, uint64_t n_bytes, uint64_t seed)
{
	static uint64_t words[128 * 1024];
	uint64_t state = seed * 0x2545f4914f6cdd1du;
	while (n_bytes > 0) {
		uint64_t piece = n_bytes < sizeof(words) ? n_bytes : sizeof(words);
		for (size_t i = 0; i < piece / sizeof(words[0]); i++) {
			/* Four numbers between 2^-7 and 2^-3, of either sign. */
			words[i] = (next_random(&state) & 0x81ff81ff81ff81ffu) |
			           0x3c003c003c003c00u;
		}
		fwrite(words, 1, piece, file);
		n_bytes -= piece;
	}
}

/* The header: JSON, padded with blanks to a multiple of 8. The caller frees it. */
static char *make_header(const struct tensors *tensors, size_t *n_bytes_out)
{
	char *text = NULL;
	FILE *out = open_memstream(&text, n_bytes_out);
	if (!out) {
		return NULL;
	}
	uint64_t offset = 0;
	fputs("{\"__metadata__\":{\"format\":\"pt\"}", out);
	for (size_t i = 0; i < tensors->n; i++) {
		const struct tensor *tensor = &tensors->list[i];
		uint64_t end = offset + tensor_bytes(tensor);
		fprintf(out, ",\"%s\":{\"dtype\":\"BF16\",\"shape\":[%" PRIu64, tensor->name,
		        tensor->rows);
		if (tensor->columns) {
			fprintf(out, ",%" PRIu64, tensor->columns);
		}
		fprintf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", offset, end);
		offset = end;
	}
	fputc('}', out);
	while (ftello(out) % 8) {
		fputc(' ', out);
	}
	return fclose(out) == 0 ? text : NULL;
}

static int write_model(const char *folder, const char *name, const struct tensors *tensors,
                       bool is_tuned)
{
	char path[4096];
	size_t header_bytes = 0;
	snprintf(path, sizeof(path), "%s/%s.safetensors", folder, name);
	char *header = make_header(tensors, &header_bytes);
	FILE *file = header ? fopen(path, "wb") : NULL;
	if (!file) {
		fprintf(stderr, "make_models: %s: %s\n", path, strerror(errno));
		free(header);
		return -1;
	}
	uint8_t length[8];
	for (int i = 0; i < 8; i++) {
		length[i] = (uint8_t)((uint64_t)header_bytes >> (8 * i));
	}
	fwrite(length, 1, sizeof(length), file);
	fwrite(header, 1, header_bytes, file);
	free(header);
	for (size_t i = 0; i < tensors->n; i++) {
		const struct tensor *tensor = &tensors->list[i];
		uint64_t seed = i + 1 + (is_tuned && tensor->is_tuned ? 1000000 : 0);
		write_weights(file, tensor_bytes(tensor), seed);
	}
	bool failed = ferror(file);
	if (fclose(file) != 0 || failed) {
		fprintf(stderr, "make_models: %s: %s\n", path, strerror(errno));
		return -1;
	}
	return 0;
}

static void report(const struct tensors *tensors)
{
	uint64_t all = 0;
	uint64_t shared = 0;
	for (size_t i = 0; i < tensors->n; i++) {
		all += tensor_bytes(&tensors->list[i]);
		shared += tensors->list[i].is_tuned ? 0 : tensor_bytes(&tensors->list[i]);
	}
	printf("base_bytes=%" PRIu64 " tuned_bytes=%" PRIu64 " shared_bytes=%" PRIu64 "\n", all,
	       all, shared);
}

int main(int argc, char **argv)
{
	unsigned long scale = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;
	if (argc < 2 || argc > 3 || scale < 1 || scale > MAX_SCALE) {
		fprintf(stderr, "usage: make_models FOLDER [SCALE 1..%u]\n", MAX_SCALE);
		return 2;
	}
	struct tensors tensors;
	if (make_list(&tensors, (unsigned)scale * LAYERS_PER_SCALE) < 0) {
		fprintf(stderr, "make_models: out of memory\n");
		return 1;
	}
	int err = write_model(argv[1], "base", &tensors, false);
	if (err == 0) {
		err = write_model(argv[1], "tuned", &tensors, true);
	}
	if (err == 0) {
		report(&tensors);
	}
	free(tensors.list);
	return err == 0 ? 0 : 1;
}
