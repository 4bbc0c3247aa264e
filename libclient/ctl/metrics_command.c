/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics for a monitoring system: once, or served over HTTP. */
#include "ctl/ctl.h"
#include "ctl/listen.h"
#include "ctl/metrics.h"
#include "ctl/serve.h"
#include "glake.h"

static int check_metrics(struct ctl *ctl)
{
	struct listen_address address;
	const char *text = ctl->values.serve;
	if (!text && ctl->values.token_file) {
		return ctl_usage(ctl, "--token-file: only with --serve");
	}
	if (text && !listen_parse(text, &address)) {
		return ctl_usage(
			ctl,
			"--serve: not unix:/PATH, localhost:PORT, IPV4:PORT or [IPV6]:PORT: %s",
			text);
	}
	if (text && !listen_is_local(&address) && !ctl->values.token_file) {
		return ctl_usage(
			ctl,
			"--serve: %s can be reached from other hosts, where anybody could see "
			"who runs what here: give --token-file FILE, or listen at 127.0.0.1 and "
			"use `ssh -L` or a reverse proxy",
			text);
	}
	return 0;
}

static int run_metrics(struct ctl *ctl)
{
	bool has_models = (ctl->values.given & CTL_OPTION_MODELS) != 0;
	if (ctl->values.serve) {
		return serve_run(ctl, &(const struct serve_options){
					      .address = ctl->values.serve,
					      .token_file = ctl->values.token_file,
					      .has_models = has_models,
				      });
	}
	struct snapshot snapshot;
	int err = ctl_connect(ctl);
	err = err ? err : snapshot_take(ctl, &snapshot);
	if (err == 0) {
		metrics_write(&snapshot, has_models, ctl->out);
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
	.options = CTL_OPTION_SERVE | CTL_OPTION_TOKEN_FILE | CTL_OPTION_MODELS,
	.is_offline = true,
	.has_no_json = true,
	.check = check_metrics,
	.run = run_metrics,
};
