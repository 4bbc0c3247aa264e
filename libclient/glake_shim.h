/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library's functions for the shim alone. They are not installed and not in glake.map; the shim
 * links the library's archive. The two change together.
 *
 * Threads: any. Errors: as in glake.h.
 */
#ifndef GLAKE_SHIM_PRIVATE_H
#define GLAKE_SHIM_PRIVATE_H

#include "glake.h"
#include "glake_order.h"
#include "libclient/link/readers.h"
#include "libclient/link/report.h"
#include "libclient/link/why.h"
#include "libclient/space/errand.h"
#include "libclient/space/fill.h"
#include "libclient/space/gate.h"
#include "libclient/space/look.h"
#include "libclient/space/number.h"
#include "libclient/space/page.h"
#include "libclient/space/program.h"
#include "libclient/space/ptr_table.h"
#include "libclient/space/sealed.h"
#include "libclient/order/order.h"
#include "libclient/heap/claim.h"
#include "libclient/heap/usage.h"
#include "libclient/seal/candidates.h"
#include "libclient/seal/refuge.h"
#include "libclient/seal/unseal.h"
#include "libclient/sleep/sleep.h"
#include "libclient/sleep/slept_free.h"
#include "libclient/sleep/wake.h"
#include "libclient/elastic/named.h"
#include "libclient/api/connect.h"
#include "libclient/api/share.h"
#include "proto/limits.h"

#endif
