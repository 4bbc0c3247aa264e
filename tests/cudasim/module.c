/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Modules and libraries. The code of an image is not used: each has the functions of kernels.c, and
 * one of a struct cudasim_image also its own functions and variables.
 */
#include "kernel_image.h"
#include "sim.h"

#include <stddef.h>
#include <string.h>

#define MODULE_MAGIC 0x646f6d5f6d6973ULL
#define IN_CTX_MAGIC 0x7874636e695f6d73ULL
#define FATBIN_MAGIC 0xba55ed50U
#define FATBIN_WRAPPER_MAGIC 0x466243b1U

struct module {
	/* First: a handle is known by its first word, which is this one or in_ctx_magic. */
	uint64_t magic;
	struct kept kept;
	uint64_t
		in_ctx_magic; /* a library's module is a handle to this, and so another one than the library's */
	struct ctx *ctx;                   /* NULL: a library, for all contexts */
	const struct cudasim_image *image; /* borrowed from the test, or NULL */
	struct kernel **kernels;           /* the image's; owned by kernels.c */
	CUdeviceptr *globals;              /* the image's; owned */
};

static bool is_of_test(const void *image)
{
	/* Another image may be shorter: nothing behind the first other byte is read. */
	return strcmp(image, CUDASIM_IMAGE_MAGIC) == 0;
}

static bool is_image(const void *image)
{
	uint32_t magic;

	memcpy(&magic, image, sizeof(magic));
	if (magic == FATBIN_MAGIC || magic == FATBIN_WRAPPER_MAGIC ||
	    memcmp(image, "\177ELF", 4) == 0) {
		return true;
	}
	/* PTX is text that has a .version before anything but comments. */
	return strstr(image, ".version") != NULL;
}

static void free_globals(struct module *module)
{
	for (unsigned i = 0; module->globals && i < module->image->n_globals; i++) {
		if (module->globals[i]) {
			alloc_free(module->globals[i]);
		}
	}
	free(module->globals);
	module->globals = NULL;
}

/* The variables of a library are on the device that it is first used on. */
static CUresult make_globals(struct module *module)
{
	unsigned n = module->image ? module->image->n_globals : 0;

	if (n == 0 || module->globals) {
		return CUDA_SUCCESS;
	}
	module->globals = calloc(n, sizeof(*module->globals));
	if (!module->globals) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	for (unsigned i = 0; i < n; i++) {
		CUresult err = alloc_device(ctx_current()->device, module->image->globals[i].bytes,
		                            NULL, &module->globals[i]);
		if (err != CUDA_SUCCESS) {
			free_globals(module);
			return err;
		}
	}
	return CUDA_SUCCESS;
}

static CUresult make_kernels(struct module *module)
{
	unsigned n = module->image->n_kernels;

	module->kernels = calloc(n ? n : 1, sizeof(*module->kernels));
	for (unsigned i = 0; module->kernels && i < n; i++) {
		module->kernels[i] = kernel_new(&module->image->kernels[i]);
		if (!module->kernels[i]) {
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
		module->kernels[i]->module = module;
	}
	return module->kernels ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void module_free(struct module *module)
{
	free_globals(module);
	free(module->kernels);
	kept_remove(&module->kept);
	module->magic = 0;
	module->in_ctx_magic = 0;
	free(module);
}

static CUresult load(const void *image, struct ctx *ctx, struct module **module_out)
{
	if (!image || !module_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!is_of_test(image) && !is_image(image)) {
		return CUDA_ERROR_INVALID_IMAGE;
	}
	struct module *module = calloc(1, sizeof(*module));
	if (!module) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	kept_add(&module->kept);
	module->magic = MODULE_MAGIC;
	module->in_ctx_magic = IN_CTX_MAGIC;
	module->ctx = ctx;
	CUresult err = CUDA_SUCCESS;
	if (is_of_test(image)) {
		module->image = image;
		err = make_kernels(module);
		if (err == CUDA_SUCCESS && ctx) {
			err = make_globals(module);
		}
	}
	if (err != CUDA_SUCCESS) {
		module_free(module);
		return err;
	}
	*module_out = module;
	return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *module_out, const void *image)
{
	ENTER(cuModuleLoadData);
	return load(image, ctx_current(), (struct module **)module_out);
}

CUresult cuModuleLoadDataEx(CUmodule *module_out, const void *image, unsigned int n_options,
                            CUjit_option *options, void **values)
{
	ENTER(cuModuleLoadDataEx);
	(void)n_options;
	(void)options;
	(void)values;
	return load(image, ctx_current(), (struct module **)module_out);
}

CUresult cuModuleLoadFatBinary(CUmodule *module_out, const void *image)
{
	ENTER(cuModuleLoadFatBinary);
	return load(image, ctx_current(), (struct module **)module_out);
}

CUresult cuLibraryLoadData(CUlibrary *library_out, const void *image, CUjit_option *jit_options,
                           void **jit_values, unsigned int n_jit, CUlibraryOption *options,
                           void **values, unsigned int n)
{
	ENTER(cuLibraryLoadData);
	(void)jit_options;
	(void)jit_values;
	(void)n_jit;
	(void)options;
	(void)values;
	(void)n;
	return load(image, NULL, (struct module **)library_out);
}

static struct module *module_from_handle(const void *handle)
{
	struct module *module = (struct module *)handle;
	uint64_t magic = 0;

	if (handle) {
		memcpy(&magic, handle, sizeof(magic));
	}
	if (magic == IN_CTX_MAGIC) {
		return (struct module *)((char *)module - offsetof(struct module, in_ctx_magic));
	}
	return module && module->magic == MODULE_MAGIC ? module : NULL;
}

/* The module that a function of it belongs to, in each context. */
static CUmodule module_handle(struct module *module)
{
	return (CUmodule)(module->ctx ? (void *)module : &module->in_ctx_magic);
}

/* Frees the module also in a poisoned context, and then returns its error, because nobody can try again. */
CUresult cuModuleUnload(CUmodule handle)
{
	ENTER(cuModuleUnload);
	struct module *module = module_from_handle(handle);

	if (!module || !module->ctx) {
		return CUDA_ERROR_INVALID_HANDLE;
	}
	struct ctx *ctx = module->ctx;
	stream_wait_ctx(ctx);
	module_free(module);
	return ctx_check(ctx);
}

CUresult cuLibraryUnload(CUlibrary handle)
{
	ENTER(cuLibraryUnload);
	struct module *module = module_from_handle(handle);

	if (!module || module->ctx) {
		return CUDA_ERROR_INVALID_HANDLE;
	}
	stream_wait_all();
	module_free(module);
	return CUDA_SUCCESS;
}

static CUresult get_function(void *function_out, const void *handle, const char *name)
{
	const struct module *module = module_from_handle(handle);
	const struct kernel *kernel = NULL;

	if (!function_out || !name || !*name) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!module) {
		return CUDA_ERROR_INVALID_HANDLE;
	}
	for (unsigned i = 0; module->image && !kernel && i < module->image->n_kernels; i++) {
		kernel = strcmp(module->kernels[i]->name, name) == 0 ? module->kernels[i] : NULL;
	}
	kernel = kernel ? kernel : kernel_find(name);
	if (!kernel) {
		return CUDA_ERROR_NOT_FOUND;
	}
	memcpy(function_out, &kernel, sizeof(kernel));
	return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function_out, CUmodule module, const char *name)
{
	ENTER(cuModuleGetFunction);
	return get_function(function_out, module, name);
}

CUresult cuLibraryGetKernel(CUkernel *kernel_out, CUlibrary library, const char *name)
{
	ENTER(cuLibraryGetKernel);
	return get_function(kernel_out, library, name);
}

/* The library's module in the current context. */
CUresult cuLibraryGetModule(CUmodule *module_out, CUlibrary library)
{
	ENTER(cuLibraryGetModule);
	if (!module_out || !module_from_handle(library)) {
		return module_out ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
	}
	*module_out = module_handle(module_from_handle(library));
	return CUDA_SUCCESS;
}

/* The simulator's own functions belong to all modules. */
static CUresult get_module(struct module **module_out, CUfunction function)
{
	const struct kernel *kernel = kernel_from_handle(function);

	if (!kernel) {
		return CUDA_ERROR_INVALID_HANDLE;
	}
	*module_out = (struct module *)kernel->module;
	return kernel->module ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuFuncGetModule(CUmodule *module_out, CUfunction function)
{
	ENTER(cuFuncGetModule);
	struct module *module;
	CUresult err = module_out ? get_module(&module, function) : CUDA_ERROR_INVALID_VALUE;
	if (err == CUDA_SUCCESS) {
		*module_out = module_handle(module);
	}
	return err;
}

CUresult cuKernelGetLibrary(CUlibrary *library_out, CUkernel kernel)
{
	ENTER(cuKernelGetLibrary);
	struct module *module;
	CUresult err = library_out ? get_module(&module, (CUfunction)kernel)
	                           : CUDA_ERROR_INVALID_VALUE;
	if (err == CUDA_SUCCESS && module->ctx) {
		return CUDA_ERROR_NOT_FOUND;
	}
	if (err == CUDA_SUCCESS) {
		*library_out = (CUlibrary)module;
	}
	return err;
}

static CUresult get_global(CUdeviceptr *ptr_out, size_t *bytes_out, const void *handle,
                           const char *name)
{
	struct module *module = module_from_handle(handle);

	if (!name || (!ptr_out && !bytes_out)) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!module) {
		return CUDA_ERROR_INVALID_HANDLE;
	}
	CUresult err = make_globals(module);
	if (err != CUDA_SUCCESS) {
		return err;
	}
	for (unsigned i = 0; module->image && i < module->image->n_globals; i++) {
		if (strcmp(module->image->globals[i].name, name) != 0) {
			continue;
		}
		if (ptr_out) {
			*ptr_out = module->globals[i];
		}
		if (bytes_out) {
			*bytes_out = module->image->globals[i].bytes;
		}
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_NOT_FOUND;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *ptr_out, size_t *bytes_out, CUmodule module,
                              const char *name)
{
	ENTER(cuModuleGetGlobal_v2);
	return get_global(ptr_out, bytes_out, module, name);
}

CUresult cuLibraryGetGlobal(CUdeviceptr *ptr_out, size_t *bytes_out, CUlibrary library,
                            const char *name)
{
	ENTER(cuLibraryGetGlobal);
	return get_global(ptr_out, bytes_out, library, name);
}
