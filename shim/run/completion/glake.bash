# SPDX-License-Identifier: Apache-2.0
# Completion of glake for bash.
_glake()
{
	local cur=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} verb= i
	local run='--socket= --strict --optional --own= --alloc= --promise= --name= --dedup= --record= --libcuda= --shim= --help --version'
	local learn="--out= --state= --for= --runs= --seconds= --least= ${run/--dedup= /}"
	for ((i = 1; i < COMP_CWORD; i++)); do
		case ${COMP_WORDS[i]} in
		--) break ;;
		run | replay | readers | learn | help) [ -n "$verb" ] || { verb=${COMP_WORDS[i]}; continue; }; break ;;
		= | -*) ;;
		*) [ "${COMP_WORDS[i - 1]}" = = ] || [ -z "$verb" ] || break ;;
		esac
	done
	COMPREPLY=()
	# What follows is a program with arguments of its own.
	if [[ $verb == run || $verb == learn ]] && ((i < COMP_CWORD)); then
		if declare -F _command_offset >/dev/null; then
			[ "${COMP_WORDS[i]}" != -- ] || ((i++))
			_command_offset "$i"
		elif [ "${COMP_WORDS[i]}" = -- ] && ((i + 1 == COMP_CWORD)); then
			mapfile -t COMPREPLY < <(compgen -c -- "$cur")
		else
			mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		fi
		return
	fi
	# --own=x are three words to bash.
	local option=$before value=$cur
	if [ "$cur" = = ]; then
		value=
	elif [ "$before" = = ]; then
		option=${COMP_WORDS[COMP_CWORD - 2]}
	else
		option=
	fi
	case $option in
	--own) mapfile -t COMPREPLY < <(compgen -W 'alloc async vmm none' -- "$value"); return ;;
	--dedup) mapfile -t COMPREPLY < <(compgen -W 'auto observed off' -- "$value"); return ;;
	--alloc) mapfile -t COMPREPLY < <(compgen -W 'plain stitch' -- "$value"); return ;;
	--socket) mapfile -t COMPREPLY < <(compgen -W "$(glakectl names sockets 2>/dev/null)" -- "$value"; compgen -f -- "$value"); return ;;
	--record | --libcuda | --shim) mapfile -t COMPREPLY < <(compgen -f -- "$value"); return ;;
	--promise | --name) return ;;
	esac
	case $verb in
	'') mapfile -t COMPREPLY < <(compgen -W "run replay readers learn help $run" -- "$cur") ;;
	run | learn)
		if [[ $cur == -* ]]; then
			mapfile -t COMPREPLY < <(compgen -W "${!verb} --" -- "$cur")
		else
			mapfile -t COMPREPLY < <(compgen -c -- "$cur")
		fi
		;;
	replay | readers) mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
	esac
	[[ ${COMPREPLY[0]-} != *= ]] || compopt -o nospace 2>/dev/null || true
}
complete -o filenames -F _glake glake
