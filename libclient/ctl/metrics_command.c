/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics for a monitoring system: once, or served over HTTP. */
#include "ctl/ctl.h"
#include "ctl/metrics.h"
#include "ctl/serve.h"
#include "glake.h"

static int check_metrics(struct ctl *ctl)
{
	const char *address = ctl->values.serve;
	if (address && !serve_is_address(address)) {
		return ctl_usage(ctl, "--serve: not unix:PATH, 127.0.0.1:PORT or [::1]:PORT: %s",
		                 address);
	}
	return 0;
}

static int run_metrics(struct ctl *ctl)
{
	if (ctl->values.serve) {
		return serve_run(ctl, ctl->values.serve);
	}
	struct snapshot snapshot;
	int err = ctl_connect(ctl);
	err = err ? err : snapshot_take(ctl, &snapshot);
	if (err == 0) {
		metrics_write(&snapshot, ctl->out);
		snapshot_deinit(&snapshot);
	} else {
		ctl_report(ctl, err, glake_error());
	}
	ctl_disconnect(ctl);
	return err;
}

const struct ctl_command ctl_metrics = {
	.name = "metrics",
	.operands = "",
	.summary = "Everything as numbers, in the format of Prometheus",
	.options = CTL_OPTION_SERVE,
	.is_offline = true,
	.has_no_json = true,
	.check = check_metrics,
	.run = run_metrics,
};
