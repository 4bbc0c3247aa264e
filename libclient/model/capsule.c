/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The destructor of a Python capsule that has a DLManagedTensor. It is plain C because a capsule that its
 * consumer has refused ends while the consumer's exception is set, and no Python runs then: ctypes
 * drops what a callback does. Python's functions are those of the process: the library needs no libpython.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "libclient/glake.h"
#include "libclient/model/dlpack.h"

static const char name[] = "dltensor"; /* a consumer renames what it takes */

/* Functions of Python's stable ABI. */
static struct {
	int (*is_valid)(void *capsule, const char *name);
	void *(*pointer)(void *capsule, const char *name);
	void (*put_error_aside)(void **type, void **value, void **traceback);
	void (*put_error_back)(void *type, void *value, void *traceback);
	void *(*release_gil)(void);
	void (*take_gil)(void *thread);
	bool are_there;
} python;

static void find_python(void)
{
	const struct {
		const char *symbol;
		void *entry;
	} wanted[] = {
		{"PyCapsule_IsValid", &python.is_valid},
		{"PyCapsule_GetPointer", &python.pointer},
		{"PyErr_Fetch", &python.put_error_aside},
		{"PyErr_Restore", &python.put_error_back},
		{"PyEval_SaveThread", &python.release_gil},
		{"PyEval_RestoreThread", &python.take_gil},
	};
	for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
		void *found = dlsym(RTLD_DEFAULT, wanted[i].symbol);
		if (!found) {
			return;
		}
		*(void **)wanted[i].entry = found;
	}
	python.are_there = true;
}

/* The deleter may wait for the device, and work on it for a thread that needs the interpreter. */
static void drop(void *capsule)
{
	if (!python.is_valid(capsule, name)) {
		return;
	}
	struct DLManagedTensor *managed = python.pointer(capsule, name);
	void *type, *value, *traceback;
	python.put_error_aside(&type, &value, &traceback);
	void *thread = python.release_gil();
	if (managed->deleter) {
		managed->deleter(managed);
	}
	python.take_gil(thread);
	python.put_error_back(type, value, traceback);
}

void *glake_capsule_destructor(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, find_python);
	return python.are_there ? (void *)drop : NULL;
}
