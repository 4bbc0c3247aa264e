/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrays that grow: a pointer, how many elements are in use, and how many have room.
 *
 * Owner: whoever has the pointer, which free() ends.
 */
#ifndef GLAKE_PROTO_ARRAY_H
#define GLAKE_PROTO_ARRAY_H

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static inline int array_grow_(void *array_at, size_t n, size_t *n_room, size_t least,
                              size_t element_bytes)
{
	void *array;
	if (n < *n_room) {
		return 0;
	}
	size_t wanted = *n_room ? 2 * *n_room : least;
	memcpy(&array, array_at, sizeof(array));
	array = reallocarray(array, wanted, element_bytes);
	if (!array) {
		return -ENOMEM;
	}
	memcpy(array_at, &array, sizeof(array));
	*n_room = wanted;
	return 0;
}

/* Make room for one element more than @n; the first time for @least. Returns 0, or -ENOMEM: nothing has changed. */
#define array_grow(array, n, n_room, least) \
	array_grow_(&(array), n, &(n_room), least, sizeof(*(array)))

static inline int array_grow_counted_(void *array_at, size_t n, size_t element_bytes)
{
	size_t n_room = n & (n - 1) ? n + 1 : n;
	return array_grow_(array_at, n, &n_room, 1, element_bytes);
}

/* Room for one more in an array that always has room for the next power of two, so that nobody need know how much. */
#define array_grow_counted(array, n) array_grow_counted_(&(array), n, sizeof(*(array)))

#endif
