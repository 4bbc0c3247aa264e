/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/link/error.h"

#include <assert.h>
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

static const struct {
	int code;
	const char *text;
} code_texts[] = {
	{0, "success"},
#define ERROR(name, number, text, exit) {GLAKE_E_##name, text},
#include "libclient/errors.def"
};

#define ERROR(name, number, text, exit) \
	static_assert(GLAKE_E_##name == -(number), "glake.h has another number");
#include "libclient/errors.def"

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
#define ERROR(name, number, text, exit)
#define ANSWER(name, number, status, text, exit) \
	case GLAKE__WIRE__STATUS__##status: \
		return GLAKE_E_##name;
#include "libclient/errors.def"
	default:
		return GLAKE_E_INTERNAL;
	}
}
