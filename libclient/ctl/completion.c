/* SPDX-License-Identifier: Apache-2.0 */
/* Completions for shells, made of the tables that the command line is read with. */
#include <string.h>

#include "ctl/ctl.h"

#define COMMON "--socket --help"

static void put_options(const struct ctl_command *command, FILE *out)
{
	for (size_t i = 0; ctl_options[i].name; i++) {
		if (command->options & ctl_options[i].bit) {
			fprintf(out, "--%s ", ctl_options[i].name);
		}
	}
}

/* Does the word behind the option belong to it? */
static bool takes_word(const struct ctl_option_text *option)
{
	return option->argument && *option->argument != '[';
}

/* An operand that is a file; of others the shell knows nothing. */
static bool takes_files(const struct ctl_command *command)
{
	return strncmp(command->operands, "PATH", 4) == 0;
}

/* An operand that is one of some words, like "bash | zsh"; capitals are names of something. */
static bool has_words(const struct ctl_command *command)
{
	return *command->operands >= 'a' && *command->operands <= 'z';
}

/* Kinds of names that its operands may be, as `names` takes them; "": none. */
static const char *kinds_of(const struct ctl_command *command)
{
	bool has_pids = strstr(command->operands, "PID");
	bool has_tenants = strstr(command->operands, "TENANT");
	bool has_models = strstr(command->operands, "MODEL") || strstr(command->operands, "NAME");
	return has_pids && has_tenants && has_models ? "pids tenants models"
	       : has_pids                            ? "pids"
	       : has_tenants                         ? "tenants"
	       : has_models                          ? "models"
	                                             : "";
}

static void put_words(const struct ctl_command *command, FILE *out)
{
	for (const char *at = command->operands; *at; at++) {
		if (*at != '|') {
			fputc(*at, out);
		}
	}
}

/* ---- bash ------------------------------------------------------------------------------------- */

static void put_bash(FILE *out)
{
	fputs("# Completion of glakectl for bash. Made by: glakectl completion bash\n"
	      "_glakectl()\n{\n"
	      "\tlocal cur=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}\n"
	      "\tlocal command= words kinds= i\n"
	      "\tlocal -a socket=()\n"
	      "\tfor ((i = 1; i < COMP_CWORD; i++)); do\n"
	      "\t\tcase ${COMP_WORDS[i]} in\n"
	      "\t\t-s | --socket) socket=(--socket \"${COMP_WORDS[i + 1]}\"); ((i++)) ;;\n"
	      "\t\t-*) ;;\n"
	      "\t\t*) command=${COMP_WORDS[i]}; break ;;\n"
	      "\t\tesac\n\tdone\n"
	      "\tcase $command:$before in\n"
	      "\t*:-s | *:--socket) mapfile -t COMPREPLY < <(\n"
	      "\t\tcompgen -W \"$(glakectl names sockets 2>/dev/null)\" -- \"$cur\"\n"
	      "\t\tcompgen -f -- \"$cur\")\n"
	      "\t\treturn ;;\n",
	      out);
	for (size_t i = 0; ctl_commands[i]; i++) {
		for (size_t j = 0; ctl_options[j].name; j++) {
			if (ctl_commands[i]->options & ctl_options[j].bit &&
			    takes_word(&ctl_options[j])) {
				fprintf(out, "\t%s:--%s) return ;;\n", ctl_commands[i]->name,
				        ctl_options[j].name);
			}
		}
	}
	fputs("\tesac\n\tcase $command in\n\t'') words='", out);
	for (size_t i = 0; ctl_commands[i]; i++) {
		fprintf(out, "%s ", ctl_commands[i]->name);
	}
	fputs("--version --bytes --json " COMMON "' ;;\n", out);
	for (size_t i = 0; ctl_commands[i]; i++) {
		const struct ctl_command *command = ctl_commands[i];
		fprintf(out, "\t%s) words='", command->name);
		put_options(command, out);
		fputs(command->has_no_json ? COMMON : "--json " COMMON, out);
		if (has_words(command)) {
			fputc(' ', out);
			put_words(command, out);
		}
		fprintf(out, "' kinds='%s' ;;\n", kinds_of(command));
	}
	/* Names of `names` mean nothing to a shell. */
	fputs("\tesac\n"
	      "\t[ -z \"$kinds\" ] || [[ $cur == -* ]] ||\n"
	      "\t\twords+=\" $(glakectl \"${socket[@]}\" names $kinds 2>/dev/null)\"\n",
	      out);
	for (size_t i = 0; ctl_commands[i]; i++) {
		if (takes_files(ctl_commands[i])) {
			fprintf(out,
			        "\t[ \"$command\" != %s ] || mapfile -t COMPREPLY < <(compgen -f "
			        "-- \"$cur\")\n",
			        ctl_commands[i]->name);
		}
	}
	fputs("\tCOMPREPLY+=($(compgen -W \"$words\" -- \"$cur\"))\n}\n"
	      "complete -o filenames -F _glakectl glakectl\n",
	      out);
}

/* ---- zsh -------------------------------------------------------------------------------------- */

/* Write @text in single quotes, where zsh takes a colon for an end, and brackets for those of its own. */
static void put_zsh_text(const char *text, FILE *out)
{
	for (; *text; text++) {
		if (*text == '\'') {
			fputs("'\\''", out);
			continue;
		}
		if (strchr(":[]\\", *text)) {
			fputc('\\', out);
		}
		fputc(*text, out);
	}
}

static void put_zsh_options(const struct ctl_command *command, FILE *out)
{
	for (size_t i = 0; ctl_options[i].name; i++) {
		const struct ctl_option_text *option = &ctl_options[i];
		if (!(command->options & option->bit)) {
			continue;
		}
		bool is_optional = option->argument && !takes_word(option);
		fprintf(out, " \\\n\t\t'--%s%s[", option->name, is_optional ? "=-" : "");
		put_zsh_text(option->help, out);
		fprintf(out, "]%s'",
		        is_optional        ? "::file:_files"
		        : option->argument ? ": : "
		                           : "");
	}
}

static void put_zsh(FILE *out)
{
	fputs("#compdef glakectl\n"
	      "# Completion of glakectl for zsh. Made by: glakectl completion zsh\n"
	      "local -a common=('(-s --socket)'{-s,--socket}'[the socket of glaked]:socket:_files' "
	      "\\\n"
	      "\t'(-h --help)'{-h,--help}'[help]')\n"
	      "local -a json=('--json[one JSON document instead of text]')\n"
	      "local curcontext=$curcontext state line\n"
	      "typeset -A opt_args\n"
	      "_arguments -C $common $json '(-V --version)'{-V,--version}'[the version]' \\\n"
	      "\t'--bytes[sizes in bytes]' '1: :->command' '*:: :->rest'\n"
	      "case $state in\ncommand)\n\tlocal -a commands=(\n",
	      out);
	for (size_t i = 0; ctl_commands[i]; i++) {
		fprintf(out, "\t\t'%s:", ctl_commands[i]->name);
		put_zsh_text(ctl_commands[i]->summary, out);
		fputs("'\n", out);
	}
	fputs("\t)\n\t_describe command commands\n\t;;\nrest)\n\tcase $words[1] in\n", out);
	for (size_t i = 0; ctl_commands[i]; i++) {
		fprintf(out, "\t%s)\n\t\t_arguments $common%s", ctl_commands[i]->name,
		        ctl_commands[i]->has_no_json ? "" : " $json");
		put_zsh_options(ctl_commands[i], out);
		if (has_words(ctl_commands[i])) {
			fputs(" '1: :(", out);
			put_words(ctl_commands[i], out);
			fputs(")'", out);
		}
		const char *kinds = kinds_of(ctl_commands[i]);
		if (*kinds) {
			fprintf(out,
			        " '*: :{local -a names=(${(f)\"$(glakectl names %s "
			        "2>/dev/null)\"}); compadd -a names}'",
			        kinds);
		}
		fprintf(out, "%s\n\t\t;;\n",
		        takes_files(ctl_commands[i]) ? " '*:file:_files'" : "");
	}
	fputs("\tesac\n\t;;\nesac\n", out);
}

/* ---- fish ------------------------------------------------------------------------------------- */

/* Write @text in single quotes. */
static void put_fish_text(const char *text, FILE *out)
{
	for (; *text; text++) {
		if (*text == '\'' || *text == '\\') {
			fputc('\\', out);
		}
		fputc(*text, out);
	}
}

static void put_fish(FILE *out)
{
	fputs("# Completion of glakectl for fish. Made by: glakectl completion fish\n"
	      "complete -c glakectl -f\n"
	      "complete -c glakectl -s s -l socket -r -F -a '(glakectl names sockets 2>/dev/null)' "
	      "-d "
	      "'The socket of glaked'\n"
	      "complete -c glakectl -s h -l help -d 'Help'\n"
	      "complete -c glakectl -n __fish_use_subcommand -l json"
	      " -d 'One JSON document instead of text'\n"
	      "complete -c glakectl -n __fish_use_subcommand -l bytes -d 'Sizes in bytes'\n"
	      "complete -c glakectl -n __fish_use_subcommand -s V -l version -d 'The version'\n",
	      out);
	for (size_t i = 0; ctl_commands[i]; i++) {
		const struct ctl_command *command = ctl_commands[i];
		fprintf(out, "complete -c glakectl -n __fish_use_subcommand -a %s -d '",
		        command->name);
		put_fish_text(command->summary, out);
		fputs("'\n", out);
		if (!command->has_no_json) {
			fprintf(out,
			        "complete -c glakectl -n '__fish_seen_subcommand_from %s' -l json "
			        "-d 'One JSON document instead of text'\n",
			        command->name);
		}
		for (size_t j = 0; ctl_options[j].name; j++) {
			if (!(command->options & ctl_options[j].bit)) {
				continue;
			}
			fprintf(out,
			        "complete -c glakectl -n '__fish_seen_subcommand_from %s' -l %s%s "
			        "-d '",
			        command->name, ctl_options[j].name,
			        takes_word(&ctl_options[j]) ? " -x" : "");
			put_fish_text(ctl_options[j].help, out);
			fputs("'\n", out);
		}
		if (has_words(command)) {
			fprintf(out,
			        "complete -c glakectl -n '__fish_seen_subcommand_from %s' -a '",
			        command->name);
			put_words(command, out);
			fputs("'\n", out);
		}
		if (*kinds_of(command)) {
			fprintf(out,
			        "complete -c glakectl -n '__fish_seen_subcommand_from %s' -a "
			        "'(glakectl names %s 2>/dev/null)'\n",
			        command->name, kinds_of(command));
		}
		if (takes_files(command)) {
			fprintf(out,
			        "complete -c glakectl -n '__fish_seen_subcommand_from %s' -F\n",
			        command->name);
		}
	}
}

/* ---- the command ------------------------------------------------------------------------------ */

static const struct {
	const char *shell;
	void (*put)(FILE *out);
} shells[] = {{"bash", put_bash}, {"zsh", put_zsh}, {"fish", put_fish}};

#define N_SHELLS (sizeof(shells) / sizeof(shells[0]))

static size_t find_shell(const struct ctl *ctl)
{
	size_t i = 0;
	while (i < N_SHELLS && strcmp(shells[i].shell, ctl->operands[0]) != 0) {
		i++;
	}
	return i;
}

static int check_completion(struct ctl *ctl)
{
	return find_shell(ctl) < N_SHELLS
	               ? 0
	               : ctl_usage(ctl, "not a shell that it knows: %s", ctl->operands[0]);
}

static int run_completion(struct ctl *ctl)
{
	shells[find_shell(ctl)].put(ctl->out);
	return 0;
}

const struct ctl_command ctl_completion = {
	.name = "completion",
	.operands = "bash | zsh | fish",
	.summary = "Print a shell's completions of this command line",
	.min_operands = 1,
	.max_operands = 1,
	.is_offline = true,
	.has_no_json = true,
	.check = check_completion,
	.run = run_completion,
};
