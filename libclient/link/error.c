/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/link/error.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"
#include "proto/glake.pb-c.h"

/* A refusal's text may name a path and a tensor, each up to GLAKE_MAX_NAME_BYTES. */
#define ERROR_BYTES 2560u

/*
 * Made when a thread fails first, NULL until then. Not thread-local itself: the shim's thread-local
 * memory is of the kind that a loader has little of for libraries opened later.
 */
static __thread char *error_text;
static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void forget_text(void *text)
{
	error_text = NULL;
	free(text);
}

static void make_key(void)
{
	pthread_key_create(&key, forget_text);
}

/* Room for the text of this thread; NULL without memory. */
static char *text_room(void)
{
	if (!error_text) {
		pthread_once(&once, make_key);
		error_text = calloc(1, ERROR_BYTES);
		pthread_setspecific(key, error_text);
	}
	return error_text;
}

int glake__fail(int code, const char *format, ...)
{
	int saved = errno;
	char *text = text_room();
	va_list arguments;
	va_start(arguments, format);
	if (text) {
		vsnprintf(text, ERROR_BYTES, format, arguments);
	}
	va_end(arguments);
	for (char *at = text; at && *at; at++) {
		if (*at == '\n' || *at == '\r') {
			*at = ' ';
		}
	}
	errno = saved;
	return code;
}

char *glake__error_save(void)
{
	return *glake_error() ? strdup(error_text) : NULL;
}

void glake__error_restore(char *text)
{
	if (text) {
		strcpy(error_text, text);
		free(text);
	}
}

const char *glake_error(void)
{
	return error_text ? error_text : "";
}

const char *glake_version(void)
{
	return GLAKE_VERSION;
}

struct code_text {
	int code;
	const char *text;
};

static const struct code_text code_texts[] = {
	{0, "success"},
	{GLAKE_E_GONE, "the daemon is not there"},
	{GLAKE_E_PROTOCOL, "the peer broke the protocol"},
	{GLAKE_E_VERSION, "the peer speaks another protocol version"},
	{GLAKE_E_BAD_REQUEST, "the daemon refused the request"},
	{GLAKE_E_NOT_FOUND, "not found"},
	{GLAKE_E_NO_PERMISSION, "no permission"},
	{GLAKE_E_OVER_QUOTA, "over the tenant's quota"},
	{GLAKE_E_NO_DEVICE_MEMORY, "out of device memory"},
	{GLAKE_E_NO_HOST_MEMORY, "the daemon is out of host memory"},
	{GLAKE_E_NO_FDS, "out of file descriptors"},
	{GLAKE_E_BAD_FILE, "not a valid model file"},
	{GLAKE_E_FILE_CHANGED, "the file changed while it was loaded"},
	{GLAKE_E_READ, "read error"},
	{GLAKE_E_MOVER, "the loading process died"},
	{GLAKE_E_SHUTTING_DOWN, "the daemon is shutting down"},
	{GLAKE_E_BUSY, "busy"},
	{GLAKE_E_INTERNAL, "internal error of the daemon"},
	{GLAKE_E_CUDA, "a CUDA driver call failed"},
	{GLAKE_E_NO_DRIVER, "no usable CUDA driver library"},
	{GLAKE_E_DRAINED, "the daemon takes no new programs"},
	{GLAKE_E_FORKED, "the session belongs to the parent process"},
};

const char *glake_strerror(int error)
{
	for (size_t i = 0; i < n_elements(code_texts); i++) {
		if (code_texts[i].code == error) {
			return code_texts[i].text;
		}
	}
	/* Unlike strerror() it is static and safe in threads, but it knows only real numbers. */
	const char *text = error < 0 && error > GLAKE_E_GONE ? strerrordesc_np(-error) : NULL;
	return text ? text : "unknown error";
}

int glake__code_of_status(uint32_t status)
{
	switch (status) {
	case GLAKE__WIRE__STATUS__OK:
		return 0;
	case GLAKE__WIRE__STATUS__BAD_REQUEST:
		return GLAKE_E_BAD_REQUEST;
	case GLAKE__WIRE__STATUS__NOT_FOUND:
		return GLAKE_E_NOT_FOUND;
	case GLAKE__WIRE__STATUS__NO_PERMISSION:
		return GLAKE_E_NO_PERMISSION;
	case GLAKE__WIRE__STATUS__OVER_QUOTA:
		return GLAKE_E_OVER_QUOTA;
	case GLAKE__WIRE__STATUS__NO_DEVICE_MEMORY:
		return GLAKE_E_NO_DEVICE_MEMORY;
	case GLAKE__WIRE__STATUS__NO_HOST_MEMORY:
		return GLAKE_E_NO_HOST_MEMORY;
	case GLAKE__WIRE__STATUS__NO_FDS:
		return GLAKE_E_NO_FDS;
	case GLAKE__WIRE__STATUS__BAD_FILE:
		return GLAKE_E_BAD_FILE;
	case GLAKE__WIRE__STATUS__FILE_CHANGED:
		return GLAKE_E_FILE_CHANGED;
	case GLAKE__WIRE__STATUS__READ_ERROR:
		return GLAKE_E_READ;
	case GLAKE__WIRE__STATUS__MOVER_FAILED:
		return GLAKE_E_MOVER;
	case GLAKE__WIRE__STATUS__SHUTTING_DOWN:
		return GLAKE_E_SHUTTING_DOWN;
	case GLAKE__WIRE__STATUS__NO_DRIVER:
		return GLAKE_E_NO_DRIVER;
	case GLAKE__WIRE__STATUS__DRAINED:
		return GLAKE_E_DRAINED;
	case GLAKE__WIRE__STATUS__BUSY:
		return GLAKE_E_BUSY;
	case GLAKE__WIRE__STATUS__VERSION:
		return GLAKE_E_VERSION;
	default:
		return GLAKE_E_INTERNAL;
	}
}
