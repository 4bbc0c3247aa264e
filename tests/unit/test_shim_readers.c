/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of readers: what is understood, what is refused, and who may write them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "shim/code.h"
#include "shim/reader_files.h"
#include "shim/readers.h"
#include "shim/shim.h"
#include "tests/check_glake.h"

#define BEGIN "glake-readers 1\nfor \"cuX 1.2\"\n"
#define IMAGE "image build-id 00ff offset 0x10\n"

static struct readers *parse_well(const char *text)
{
	struct readers_error error;
	struct readers *readers = NULL;
	int r = readers_parse(text, strlen(text), &readers, &error);
	ck_assert_msg(r == 0, "line %u: %s", error.line, error.text);
	return readers;
}

static struct image_id image_at(uint64_t at)
{
	return (struct image_id){.kind = IMAGE_IN_FILE, .n_bytes = 2, .at = at, .bytes = {0, 0xff}};
}

START_TEST(what_a_table_says_is_found)
{
	struct readers *readers = parse_well(
		"# a comment\n" BEGIN "\n" IMAGE "function gemm # and another\n"
		"\treads 0\n"
		"  reads 0x10 if u32 24 = 0 and u8 28 = 0xff\n"
		"  reads 24 if u8 8 = 1\n"
		"opaque scatter\n"
		"image build-id 00ff offset 17\nfunction gemm\n"
		"image digest 000102030405060708090a0b0c0d0e0f bytes 5\n"
		"function gemm\n reads 8");
	struct image_id image = image_at(16);
	const struct reader_function *gemm = readers_find(readers, &image, "gemm");
	ck_assert_ptr_nonnull(gemm);
	ck_assert(!gemm->is_opaque);
	ck_assert_uint_eq(gemm->n_words, 3);
	ck_assert(!gemm->names_written);
	ck_assert_uint_eq(gemm->words[2].at, 24);
	ck_assert_uint_eq(gemm->words[2].n_conditions, 1);
	ck_assert_uint_eq(gemm->words[0].at, 0);
	ck_assert_uint_eq(gemm->words[0].n_conditions, 0);
	ck_assert_uint_eq(gemm->words[1].at, 16);
	ck_assert_uint_eq(gemm->words[1].n_conditions, 2);
	ck_assert_uint_eq(gemm->words[1].conditions[0].at, 24);
	ck_assert_uint_eq(gemm->words[1].conditions[0].n_bytes, 4);
	ck_assert_uint_eq(gemm->words[1].conditions[1].value, 255);
	ck_assert(readers_find(readers, &image, "scatter")->is_opaque);
	ck_assert_ptr_null(readers_find(readers, &image, "gem"));
	image = image_at(17);
	ck_assert_uint_eq(readers_find(readers, &image, "gemm")->n_words, 0);
	image = image_at(18);
	ck_assert_ptr_null(readers_find(readers, &image, "gemm"));
	image = (struct image_id){.kind = IMAGE_UNKNOWN};
	ck_assert_ptr_null(readers_find(readers, &image, "gemm"));
	image = (struct image_id){.kind = IMAGE_IN_MEMORY, .n_bytes = 16, .at = 5};
	for (uint8_t i = 0; i < 16; i++) {
		image.bytes[i] = i;
	}
	ck_assert_uint_eq(readers_find(readers, &image, "gemm")->words[0].at, 8);
	char text[IMAGE_TEXT_BYTES];
	image_to_text(&image, text);
	ck_assert_str_eq(text, "digest 000102030405060708090a0b0c0d0e0f bytes 5");
	readers_free(readers);
}
END_TEST

static const struct {
	const char *text;
	unsigned line;
	const char *why;
} wrong[] = {
	{"", 0, "it is empty"},
	{"\n# nothing\n", 0, "it is empty"},
	{"function f\n", 1, "the first line must be"},
	{"glake-readers 2\n", 1, "version 2 of the format is not known"},
	{"glake-readers\n", 1, "the first line must be"},
	{"glake-readers 1\n" IMAGE, 2, "there is no \"for\""},
	{BEGIN "for \"two\"\n", 3, "a second \"for\""},
	{"glake-readers 1\nfor cuX\n", 2, "must be: for \"WHAT"},
	{"glake-readers 1\nfor \"cuX\n", 2, "a \" without its other"},
	{BEGIN "function f\n", 3, "there is no image before it"},
	{BEGIN "reads 0\n", 3, "there is no function before it"},
	{BEGIN IMAGE "reads 0\n", 4, "there is no function before it"},
	{BEGIN IMAGE "opaque f\nreads 0\n", 5, "there is no function before it"},
	{BEGIN "image build-id 0 offset 1\n", 3, "is no build-id"},
	{BEGIN "image build-id 0G offset 1\n", 3, "is no build-id"},
	{BEGIN "image build-id 00 offset -1\n", 3, "is no number"},
	{BEGIN "image build-id 00 offset 0x10000000000000000\n", 3, "is no number"},
	{BEGIN "image digest 00 bytes 1\n", 3, "is no digest"},
	{BEGIN "image name libx offset 1\n", 3, "must be: image"},
	{BEGIN IMAGE "function\n", 4, "must be: function NAME"},
	{BEGIN IMAGE "function f g\n", 4, "must be: function NAME"},
	{BEGIN IMAGE "function f\nfunction g\nfunction f\n", 6, "there twice"},
	{BEGIN IMAGE "function f\n" IMAGE "opaque f\n", 6, "there twice"},
	{BEGIN IMAGE "function f\nreads\n", 5, "must be: writes OFFSET, or: reads OFFSET"},
	{BEGIN IMAGE "function f\nreads 4\n", 5, "a multiple of 8"},
	{BEGIN IMAGE "function f\nreads 32768\n", 5, "is no offset of a pointer"},
	{BEGIN IMAGE "function f\nreads 0 if\n", 5, "must be: writes OFFSET, or: reads OFFSET"},
	{BEGIN IMAGE "function f\nreads 0 or u8 8 = 1\n", 5, "is not \"if\""},
	{BEGIN IMAGE "function f\nreads 0 if u8 8 = 1 if u8 8 = 1\n", 5, "is not \"and\""},
	{BEGIN IMAGE "function f\nreads 0 if u9 8 = 1\n", 5, "is none of u8"},
	{BEGIN IMAGE "function f\nreads 0 if u8 8 == 1\n", 5, "is not ="},
	{BEGIN IMAGE "function f\nreads 0 if u8 8 = 256\n", 5, "is no value of u8"},
	{BEGIN IMAGE "function f\nreads 0 if u8 x = 1\n", 5, "is no offset of a parameter"},
	{BEGIN IMAGE
         "function f\nreads 0 if u8 8 = 1 and u8 8 = 1 and u8 8 = 1 and u8 8 = 1 and u8 8 = "
         "1\n",
         5, "more than 4 conditions"},
	{BEGIN "writes 0\n", 3, "there is no function before it"},
	{BEGIN IMAGE "function f\nwrites\n", 5, "must be: writes OFFSET"},
	{BEGIN IMAGE "function f\nwrites 4\n", 5, "a multiple of 8"},
	{BEGIN IMAGE "function f\nwrites 0 if u8 8 = 1\n", 5, "must be: writes OFFSET"},
	{BEGIN IMAGE "function f\nholds 0\n", 5, "\"holds\" is not known"},
};

START_TEST_WITH(what_is_not_understood_is_refused, .n = n_elements(wrong))
{
	struct readers_error error;
	struct readers *readers = NULL;
	const char *text = wrong[_i].text;
	ck_assert_int_eq(readers_parse(text, strlen(text), &readers, &error), -EINVAL);
	ck_assert_msg(strstr(error.text, wrong[_i].why), "\"%s\", wanted \"%s\"", error.text,
	              wrong[_i].why);
	ck_assert_uint_eq(error.line, wrong[_i].line);
}
END_TEST

START_TEST(bytes_are_no_text)
{
	static const char text[] = "glake-readers 1\n\0for \"x\"\n";
	struct readers_error error;
	struct readers *readers = NULL;
	ck_assert_int_eq(readers_parse(text, sizeof(text) - 1, &readers, &error), -EINVAL);
}
END_TEST

static void write_file(const char *path, const char *text, mode_t mode)
{
	FILE *file = fopen(path, "w");
	ck_assert_ptr_nonnull(file);
	fputs(text, file);
	fclose(file);
	ck_assert_int_eq(chmod(path, mode), 0);
}

START_TEST(only_files_of_root_count)
{
	char folder[] = "/tmp/glake-readers-XXXXXX";
	char path[64];
	char link[64];
	struct readers_error error;
	struct readers *readers = NULL;
	if (getuid() != 0) {
		return;
	}
	ck_assert_ptr_nonnull(mkdtemp(folder));
	snprintf(path, sizeof(path), "%s/a.readers", folder);
	snprintf(link, sizeof(link), "%s/b.readers", folder);
	write_file(path, BEGIN, 0644);
	ck_assert_int_eq(reader_files_read(path, 0, &readers, &error), 0);
	ck_assert_str_eq(readers->what_for, "cuX 1.2");
	readers_free(readers);
	ck_assert_int_eq(symlink(path, link), 0);
	ck_assert_int_eq(reader_files_read(link, 0, &readers, &error), -ELOOP);
	write_file(path, BEGIN, 0664);
	ck_assert_int_eq(reader_files_read(path, 0, &readers, &error), -EPERM);
	ck_assert_ptr_nonnull(strstr(error.text, "root owns it"));
	write_file(path, BEGIN, 0644);
	ck_assert_int_eq(chown(path, 1000, 0), 0);
	ck_assert_int_eq(reader_files_read(path, 0, &readers, &error), -EPERM);
	ck_assert_int_eq(chown(path, 0, 0), 0);
	ck_assert_int_eq(chmod(folder, 0757), 0);
	ck_assert_int_eq(reader_files_read(path, 0, &readers, &error), -EPERM);
	ck_assert_ptr_nonnull(strstr(error.text, "its folder"));
	ck_assert_int_eq(chmod(folder, 0755), 0);
	unlink(link);
	unlink(path);
	ck_assert_int_eq(reader_files_read(path, 0, &readers, &error), -ENOENT);
	rmdir(folder);
}
END_TEST

/* ---- where code comes from ---- */

static CUresult get_module(CUmodule *module, CUfunction function)
{
	*module = (CUmodule)(void *)((uintptr_t)function & ~0xfful);
	return CUDA_SUCCESS;
}

static CUresult get_library(CUlibrary *library, CUkernel kernel)
{
	*library = (CUlibrary)(void *)((uintptr_t)kernel & ~0xfful);
	return CUDA_SUCCESS;
}

#define MODULE(n) ((CUmodule)(void *)(uintptr_t)((n) << 8))
#define LIBRARY(n) ((CUlibrary)(void *)(uintptr_t)((n) << 8))
#define FUNCTION(n) ((CUfunction)(void *)(uintptr_t)(((n) << 8) + 1))

static const char ptx_in_file[] = "// .version 8.0\n";

START_TEST(code_is_known_by_where_it_came_from)
{
	char ptx[] = "// .version 8.1\n";
	uint32_t fatbin[6] = {0xba55ed50, 16u << 16, 8, 0, 1, 2};
	setenv("GLAKE_DEDUP", "auto", 1);
	real(cuFuncGetModule) = get_module;
	real(cuKernelGetLibrary) = get_library;
	code_loaded_module(MODULE(1), ptx_in_file);
	code_loaded_module(MODULE(2), ptx);
	code_loaded_library(LIBRARY(3), fatbin);
	struct image_id in_file = code_of(FUNCTION(1), false);
	struct image_id text = code_of(FUNCTION(2), false);
	struct image_id binary = code_of(FUNCTION(3), true);
	ck_assert_uint_eq(in_file.kind, IMAGE_IN_FILE);
	ck_assert_uint_eq(text.kind, IMAGE_IN_MEMORY);
	ck_assert_uint_eq(text.at, strlen(ptx));
	ck_assert_uint_eq(binary.kind, IMAGE_IN_MEMORY);
	ck_assert_uint_eq(binary.at, 24);
	/* One byte is another image. */
	ptx[strlen(ptx) - 2] = '2';
	code_loaded_module(MODULE(4), ptx);
	struct image_id other = code_of(FUNCTION(4), false);
	ck_assert_uint_eq(other.at, text.at);
	ck_assert(memcmp(&other, &text, sizeof(other)) != 0);
	/* Its module is of the same code, until it is unloaded. */
	code_is_module_of(MODULE(5), LIBRARY(3));
	struct image_id same = code_of(FUNCTION(5), false);
	ck_assert_mem_eq(&same, &binary, sizeof(same));
	code_unloads(LIBRARY(3));
	ck_assert_uint_eq(code_of(FUNCTION(3), true).kind, IMAGE_UNKNOWN);
	ck_assert_uint_eq(code_of(FUNCTION(5), false).kind, IMAGE_UNKNOWN);
	code_unloads(MODULE(2));
	ck_assert_uint_eq(code_of(FUNCTION(2), false).kind, IMAGE_UNKNOWN);
	ck_assert_uint_eq(code_of(FUNCTION(1), false).kind, IMAGE_IN_FILE);
	code_loaded_library(LIBRARY(6), ptx);
	code_ctx_ends();
	ck_assert_uint_eq(code_of(FUNCTION(1), false).kind, IMAGE_UNKNOWN);
	ck_assert_uint_eq(code_of(FUNCTION(6), true).kind, IMAGE_IN_MEMORY);
}
END_TEST
