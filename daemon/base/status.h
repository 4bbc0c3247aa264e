/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Results of requests. The numbers are those of Status in proto/glake.proto (rpc.c asserts it), so
 * that the layers below rpc need not know the generated types.
 */
#ifndef GLAKE_DAEMON_STATUS_H
#define GLAKE_DAEMON_STATUS_H

enum status {
	STATUS_OK = 0,
	STATUS_BAD_REQUEST,
	STATUS_NOT_FOUND,
	STATUS_NO_PERMISSION,
	STATUS_OVER_QUOTA,
	STATUS_NO_DEVICE_MEMORY,
	STATUS_NO_HOST_MEMORY,
	STATUS_NO_FDS,
	STATUS_BAD_FILE,
	STATUS_FILE_CHANGED,
	STATUS_READ_ERROR,
	STATUS_MOVER_FAILED,
	STATUS_SHUTTING_DOWN,
	STATUS_BUSY,
	STATUS_VERSION,
	STATUS_INTERNAL,
	STATUS_DRAINED,
	STATUS_NO_DRIVER,
	STATUS_COUNT,
};

#endif
