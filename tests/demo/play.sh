#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# A place to look around in: a glaked on two simulated GPUs, two models, three programs that use them, and a
# shell in which all commands find them. It ends with the shell, and leaves nothing.
#   tests/demo/play.sh [BUILD [COMMAND [ARGUMENT...]]]
# COMMAND runs there instead of the shell. PLAY_DEVICES are the GPUs (2x2GiB).
set -euo pipefail

build=$(realpath "${1:-$(dirname "$0")/../..}")
shift $(($# > 0 ? 1 : 0))
tools=$build/tests/demo
work=$(mktemp -d "${TMPDIR:-/tmp}/glake-play.XXXXXX")
pids=()

# end PID: well, if it does so within ten seconds.
end()
{
	local i
	kill -TERM "$1" 2>/dev/null || true
	for ((i = 0; i < 200; i++)); do
		kill -0 "$1" 2>/dev/null || return 0
		sleep 0.05
	done
	kill -KILL "$1" 2>/dev/null || true
	wait "$1" 2>/dev/null || true
}

clean_up()
{
	trap - EXIT
	trap '' INT TERM HUP
	# The programs first, and glaked as the last.
	local i
	for ((i = ${#pids[@]} - 1; i >= 0; i--)); do
		end "${pids[i]}" 2>/dev/null
	done
	rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 1' INT TERM HUP

fail()
{
	echo "play: $*" >&2
	tail -n 15 "$work/glaked.log" >&2
	exit 1
}

# start NAME PROGRAM...: it is ready, waits for commands that never come, and ends with us.
start()
{
	local name=$1 i
	shift
	mkfifo "$work/$name.in"
	# Open for writing too, so that it does not read an end.
	setpriv --pdeathsig TERM "$@" <>"$work/$name.in" >"$work/$name.out" 2>"$work/$name.err" &
	pids+=($!)
	for ((i = 0; i < 2400; i++)); do
		! grep -qs "^ready " "$work/$name.out" || return 0
		kill -0 "${pids[-1]}" 2>/dev/null || fail "$name ended: $(tail -n 1 "$work/$name.err")"
		sleep 0.05
	done
	fail "$name does not begin"
}

export GLAKE_SOCKET=$work/glaked.sock GLAKE_CONFIG=$work/glaked.conf
export GLAKE_LIBCUDA=$build/cudasim/libcuda.so.1 CUDASIM_STATE=$work/cudasim
export CUDASIM_DEVICES=${PLAY_DEVICES:-2x2GiB}
# Programs find the simulated driver as they find a real one, and Python finds the binding.
export LD_LIBRARY_PATH=$build/cudasim${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export PYTHONPATH=$PWD/libclient/python${PYTHONPATH:+:$PYTHONPATH} GLAKE_BUILD=$build
export PATH=$build/bin:$PATH
# Of make, if that has started us.
unset MAKEFLAGS MAKELEVEL MFLAGS

echo "socket_path = \"$GLAKE_SOCKET\";" >"$GLAKE_CONFIG"
setpriv --pdeathsig TERM "$build/bin/glake-keeper" -- "$build/bin/glaked" --config "$GLAKE_CONFIG" \
	>"$work/glaked.log" 2>&1 &
pids+=($!)
for ((i = 0; i < 1200; i++)); do
	kill -0 "${pids[0]}" 2>/dev/null || fail "glaked did not start"
	! glakectl status >/dev/null 2>&1 || break
	sleep 0.05
done
glakectl status >/dev/null || fail "glaked does not answer"

"$tools/make_models" "$work" 1 >/dev/null
start base-1 "$tools/server" base-1 "$work/base.safetensors" 64
start tuned-1 "$tools/server" tuned-1 "$work/tuned.safetensors" 64
start forward glake run -- "$tools/engine" "$work/base.safetensors" forward
cd "$work"

if [ $# -gt 0 ]; then
	"$@"
	exit
fi
cat <<END

glaked serves two simulated GPUs. Two servers have a model from it, a base and a fine-tune of it; a third
program, under 'glake run', has loaded the base by itself. Try:

  glakectl status                   what the memory of each GPU is used for
  glakectl sessions                 who has it
  glakectl dedup                    what sharing saves; then: glakectl seal ${pids[-1]}
  glakectl top                      live; q ends it
  glakectl load --pin base.safetensors
  glakectl quota default --bytes 1G
  python3 -c 'import glake; print(glake.Model("base.safetensors"))'
  kill -KILL \$(glakectl status -v | awk '/^pid/ { print +\$2 }')    the next glaked has all that this one had

Its configuration is \$GLAKE_CONFIG, its log is glaked.log, here. The end of this shell ends all of it.

END
"${SHELL:-bash}" || true
