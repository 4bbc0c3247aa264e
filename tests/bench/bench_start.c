/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long glaked takes from exec to READY=1, as a service manager sees it: driver, devices, the
 * chunks made ahead, the socket.
 *
 *   bench_start [RUNS]
 */

#include "tests/bench/bench.h"

int main(int argc, char **argv)
{
	struct bench_samples samples = {0};
	unsigned n_runs = (unsigned)bench_number(argc, argv, 1, 10);
	bench_begin("bench_start", NULL);
	for (unsigned i = 0; i < n_runs; i++) {
		struct bench_daemon daemon;
		bench_daemon_start(&daemon, "");
		bench_samples_add(&samples, daemon.start_ns);
		bench_daemon_stop(&daemon);
	}
	bench_print_runs("start to READY (target 300)", &samples, 1e6, "ms");
	bench_samples_deinit(&samples);
	return 0;
}
