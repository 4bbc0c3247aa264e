#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The demo. First act: four model servers that use glake, two models, one copy of every weight. Second act: two
# programs that know nothing of glake load one model each by itself, and share it without anybody asking. Third act: six such programs
# take turns on a device that holds two. Fourth act: two caches lend each other memory of a device that has no room for both.
#   tests/demo/run.sh [BUILD]
# On the first GPU if the machine has one, else on cudasim. DEMO_SCALE=N makes the models N times
# deeper (300 MB each at 1), DEMO_PRIVATE_MIB is each server's private memory.
set -euo pipefail

build=$(realpath "${1:-$(dirname "$0")/../..}")
tools=$build/tests/demo
scale=${DEMO_SCALE:-1}
private_mib=${DEMO_PRIVATE_MIB:-64}
work=$(mktemp -d "${TMPDIR:-/tmp}/glake-demo.XXXXXX")
export GLAKE_SOCKET=$work/glaked.sock
unset GLAKE_READERS GLAKE_DEDUP
declare -A pid_of=() input_of=()
daemon=
# The caller's stdout, for errors found inside $(...).
exec 3>&1

clean_up()
{
	trap - EXIT
	local pid
	for pid in "${pid_of[@]}" $daemon; do
		kill -KILL "$pid" 2>/dev/null || true
		wait "$pid" 2>/dev/null || true
	done
	rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 1' INT TERM HUP

fail()
{
	echo "demo: $*" >&3
	[ ! -s "$work/glaked.log" ] || sed 's/^/  glaked: /' "$work/glaked.log" | tail -n 15 >&3
	exit 1
}

say()
{
	printf '\n== %s\n' "$*"
}

ctl()
{
	"$build/bin/glakectl" "$@"
}

# A number of the first device, or of the daemon.
status_of()
{
	ctl --json status | sed -n "s/^ *\"$1\": \\([0-9]*\\),\\{0,1\\}\$/\\1/p" | head -n 1
}

# A number of the first device by `glakectl dedup`: in blocks, as all of them.
dedup_of()
{
	ctl --json dedup | sed -n "s/^ *\"$1\": \([0-9]*\),\{0,1\}\$/\1/p" | head -n 1
}

# start NAME PROGRAM...: it takes commands.
start()
{
	local name=$1 fd
	shift
	rm -f "$work/$name.in" "$work/$name.out"
	mkfifo "$work/$name.in"
	"$@" <"$work/$name.in" >>"$work/$name.out" 2>"$work/$name.err" 3>&- &
	pid_of[$name]=$!
	exec {fd}>"$work/$name.in"
	input_of[$name]=$fd
}

start_server()
{
	start "$1" "$tools/server" "$1" "$work/$2.safetensors" "$private_mib"
}

# stop NAME...: they end well.
stop()
{
	local name
	for name in "$@"; do
		ask "$name" quit >/dev/null
		wait "${pid_of[$name]}" ||
			fail "$name ended with an error: $(tail -n 1 "$work/$name.err")"
		unset "pid_of[$name]"
	done
	until_equal private_bytes 0
	until_equal used_block_bytes 0
}

# answer NAME WORD: the server's next line that starts with WORD.
answer()
{
	local name=$1 word=$2 line is_alive deadline=$((SECONDS + ${DEMO_SECONDS:-120}))
	while [ "$SECONDS" -lt "$deadline" ]; do
		# Asked first: what ends right behind its answer has still answered.
		is_alive=yes
		kill -0 "${pid_of[$name]}" 2>/dev/null || is_alive=no
		line=$(grep -m 1 "^$word " "$work/$name.out" 2>/dev/null || true)
		if [ -n "$line" ]; then
			echo "$line"
			return 0
		fi
		[ "$is_alive" = yes ] || fail "$name ended: $(tail -n 1 "$work/$name.err")"
		sleep 0.05
	done
	fail "$name did not say '$word' in time"
}

# ask NAME COMMAND: and wait for the answer.
ask()
{
	: >"$work/$1.out"
	echo "$2" >&"${input_of[$1]}"
	answer "$1" "$2"
}

# until_equal WHAT VALUE: a number of the status gets there within ten seconds.
until_equal()
{
	local value=
	for _ in $(seq 200); do
		value=$(status_of "$1")
		[ "$value" != "$2" ] || return 0
		sleep 0.05
	done
	fail "$1 is $value, not $2"
}

field()
{
	sed -n "s/.*\\b$2=\\([0-9.]*\\).*/\\1/p" <<<"$1"
}

mib()
{
	awk -v n="$1" 'BEGIN { printf "%.1f MiB", n / 1048576 }'
}

# ---- which driver -------------------------------------------------------------------------------
if gpu=$("$tools/server" --probe 2>/dev/null); then
	backend=cuda
	sim_folder=
	unset GLAKE_LIBCUDA
	say "backend: cuda, $gpu"
else
	backend=cudasim
	sim_folder=$build/cudasim
	export GLAKE_LIBCUDA=$build/cudasim/libcuda.so.1 CUDASIM_STATE=$work/cudasim
	say "backend: cudasim, since no CUDA device was found (a simulated driver: times mean little)"
fi

# ---- models and daemon --------------------------------------------------------------------------
say "two models: a base, and a fine-tune that shares most tensors with it"
sizes=$("$tools/make_models" "$work" "$scale")
base_bytes=$(field "$sizes" base_bytes)
shared_bytes=$(field "$sizes" shared_bytes)
echo "each $(mib "$base_bytes"), equal in $(mib "$shared_bytes")"

# start_daemon LINE: with one more line of configuration.
start_daemon()
{
	printf '%s\n' "socket_path = \"$GLAKE_SOCKET\";" 'devices = [ 0 ];' "$1" >"$work/glaked.conf"
	setpriv --pdeathsig KILL "$build/bin/glaked" --config "$work/glaked.conf" \
		>"$work/glaked.log" 2>&1 3>&- &
	daemon=$!
	for _ in $(seq 200); do
		kill -0 "$daemon" 2>/dev/null || fail "glaked did not start"
		! ctl status >/dev/null 2>&1 || break
		sleep 0.05
	done
}

end_daemon()
{
	kill -TERM "$daemon"
	wait "$daemon" || fail "glaked ended with an error"
	daemon=
}

# What only reads: the table of the programs of the second act. glaked takes it, since nobody else can have written it.
mkdir -m 0755 "$work/readers"
env ${sim_folder:+LD_LIBRARY_PATH=$sim_folder} "$tools/engine" --table >"$work/readers/engine.readers"
chmod 0644 "$work/readers/engine.readers"
start_daemon "readers = \"$work/readers\";"
ctl status >/dev/null || fail "glaked does not answer"

# ---- four servers -------------------------------------------------------------------------------
say "three servers on the base, one on the fine-tune; each compares every tensor with the file"
servers="base-1 base-2 base-3 tuned-1"
for name in $servers; do
	start_server "$name" "${name%-*}"
done
for name in $servers; do
	line=$(answer "$name" ready)
	echo "$name: ${line#ready }"
done

say "who maps what"
ctl sessions
echo
ctl dedup
echo
ctl status
logical=$(status_of logical_block_bytes)
physical=$(status_of used_block_bytes)
ratio=$(awk -v l="$logical" -v p="$physical" 'BEGIN { if (p > 0) printf "%.2f", l / p }')
# One copy of all that is equal: at most 2 % and some padding above what the files hold.
distinct=$((2 * base_bytes - shared_bytes))
[ "$physical" -gt 0 ] || fail "no block is in use"
[ "$physical" -ge "$distinct" ] || fail "$physical bytes cannot hold $distinct distinct ones"
[ "$physical" -le $((distinct + distinct / 50 + 16777216)) ] ||
	fail "$physical bytes of blocks for $distinct distinct ones: something is there twice"
[ "$logical" -ge $((4 * base_bytes)) ] || fail "four servers map only $logical bytes"

# ---- a crash ------------------------------------------------------------------------------------
private=$(status_of private_bytes)
say "SIGKILL to base-2: its private memory comes back, the weights stay"
kill -KILL "${pid_of[base-2]}"
wait "${pid_of[base-2]}" 2>/dev/null || true
unset "pid_of[base-2]"
fd=${input_of[base-2]}
exec {fd}>&-
until_equal n_sessions 4
until_equal private_bytes $((private - private_mib * 1048576))
echo "private before $(mib "$private"), after $(mib "$(status_of private_bytes)")"
[ "$(status_of used_block_bytes)" = "$physical" ] || fail "the weights did not stay"

say "base-2 again: the weights are there, it only maps them"
start_server base-2 base
line=$(answer base-2 ready)
echo "base-2: ${line#ready }"
case $line in
*was-loaded*) ;;
*) fail "base-2 had to load the model again" ;;
esac
remap_ms=$(field "$line" open_ms)
until_equal private_bytes "$private"

# ---- a write ------------------------------------------------------------------------------------
say "base-1 tries to overwrite a shared tensor"
line=$(ask base-1 write)
echo "base-1: $line"
case $line in
"write refused "*) ;;
*) fail "a write to shared weights was not refused" ;;
esac
for name in $servers; do
	line=$(ask "$name" verify)
	echo "$name: $line"
done

say "all servers leave"
# shellcheck disable=SC2086 # a list of names
stop $servers
ctl evict --all
echo "private memory and mappings: all given back"

# ---- second act: programs that know nothing of glake --------------------------------------------
quiet_ms=1000
say "two CUDA programs under 'glake run --dedup=auto', each loading the base model by itself"
engines="forward backward"
for name in $engines; do
	start "$name" env ${sim_folder:+LD_LIBRARY_PATH=$sim_folder} GLAKE_DEDUP_QUIET_MS=$quiet_ms \
		"$build/bin/glake" run --dedup=auto -- "$tools/engine" "$work/base.safetensors" "$name"
done
for name in $engines; do
	line=$(answer "$name" ready)
	echo "$name: ${line#ready }"
done
echo
ctl dedup
before=$(dedup_of private_bytes)
[ "$before" -ge $((2 * base_bytes)) ] || fail "two programs have only $before bytes"
[ "$(dedup_of physical_bytes)" = 0 ] || fail "something is shared already"

# Is everything one copy but what is smaller than a page?
is_shared()
{
	sealed_logical=$(dedup_of logical_bytes)
	sealed_physical=$(dedup_of physical_bytes)
	left=$(dedup_of private_bytes)
	[ "$sealed_logical" -ge $((2 * base_bytes - base_bytes / 50)) ] &&
		[ $((2 * sealed_physical)) = "$sealed_logical" ] &&
		[ "$left" -le $((base_bytes / 50 + 16777216)) ]
}

say "they work: a kernel reads the weights. Nobody asks, and what is equal becomes one copy"
echo "(waits until nothing has filled a tensor for $quiet_ms ms, by default 5000, and only kernels that"
echo "glaked's table knows as readers were given it)"
for name in $engines; do
	ask "$name" work >/dev/null
done
start_ms=$(date +%s%3N)
until is_shared; do
	if [ $(($(date +%s%3N) - start_ms)) -ge $((${DEMO_SECONDS:-120} * 1000)) ]; then
		ctl dedup
		fail "the copies did not become one: $sealed_physical bytes for $sealed_logical of $before," \
			"$left private"
	fi
	for name in $engines; do
		kill -0 "${pid_of[$name]}" 2>/dev/null || fail "$name ended: $(tail -n 1 "$work/$name.err")"
	done
	sleep 0.1
done
echo "one copy after $(($(date +%s%3N) - start_ms)) ms"
echo
ctl dedup
for name in $engines; do
	line=$(ask "$name" verify)
	echo "$name: $line"
done

say "one of them overwrites a tensor: it gets a copy, and the other's bytes stay"
line=$(ask forward write)
echo "forward: $line"
for name in $engines; do
	line=$(ask "$name" verify)
	echo "$name: $line"
done
echo
ctl dedup
[ "$(dedup_of physical_bytes)" = "$sealed_physical" ] || fail "the other's blocks did not stay"
[ "$(dedup_of private_bytes)" -gt "$left" ] || fail "the writer has no copy"
ctl --json dedup | grep -q "written to by the driver's API" || fail "nothing says why"

# ---- third act: more models than memory ----------------------------------------------------------
say "both leave"
# shellcheck disable=SC2086
stop $engines
total=$(status_of total_bytes)
end_daemon

say "six programs on a device that holds two of them: who is asked wakes, and who was idle for longest sleeps"
start_daemon "reserve_bytes = $((total - base_bytes * 5 / 2 - 67108864)); pool = (); mover_idle_ms = 0; \
	host_bytes = \"$((8 * base_bytes))\"; pressure = \"wait\"; wait_ms = 60000; min_awake_ms = 0; \
	tenants = ( { name = \"default\"; on_pressure = \"sleep\"; } );"
turns="one two three four five six"
for name in $turns; do
	start "$name" env ${sim_folder:+LD_LIBRARY_PATH=$sim_folder} \
		"$build/bin/glake" run -- "$tools/engine" "$work/base.safetensors" forward
	answer "$name" ready >/dev/null
done
for name in $turns; do
	start_ms=$(date +%s%3N)
	line=$(ask "$name" verify)
	echo "$name, after $(($(date +%s%3N) - start_ms)) ms: $line"
done
echo
ctl sleepers
sleeps=$(ctl --json stats | tr -d ' \n' | sed -n 's/.*"name":"sleeps","value":\([0-9]*\).*/\1/p')
[ "${sleeps:-0}" -ge 6 ] || fail "only ${sleeps:-0} sleeps: who made room?"

# ---- fourth act: memory that flows --------------------------------------------------------------
say "all leave"
# shellcheck disable=SC2086
stop $turns
end_daemon

say "two KV caches of 4 steps on a device that holds 5: what one does not need it lends, and the other has it"
start_daemon "reserve_bytes = $((total - 5 * 4 * 8388608 - 4194304)); pool = ();"
for name in left right; do
	start "$name" "$tools/cache" "$name"
	line=$(answer "$name" ready)
	echo "$name: ${line#ready }"
done
for turn in "left right" "right left"; do
	read -r name other <<<"$turn"
	for command in fill lend take; do
		line=$(ask "$name" "$command")
		echo "$name: $line"
	done
	[ "$(field "$line" there)" = 4 ] || fail "lent memory has gone, though nobody needed it"
	line=$(ask "$other" fill)
	echo "$other: $line"
	line=$(ask "$name" take)
	echo "$name: $line"
	there=$(field "$line" there)
	[ "$there" = 1 ] || fail "$there steps are there still, not 1"
	ask "$other" lend >/dev/null
done
flow_steps=$(ctl --json stats | tr -d ' \n' | sed -n 's/.*"name":"memory_refusals","value":\([0-9]*\).*/\1/p')
[ "${flow_steps:-0}" = 0 ] || fail "$flow_steps requests were refused"

# ---- the end ------------------------------------------------------------------------------------
say "both leave"
stop left right
end_daemon
echo "private memory, copies and mappings: all given back; glaked ended"

printf '\n'
echo "demo: servers=4 logical_bytes=$logical physical_bytes=$physical ratio=$ratio" \
	"remap_ms=$remap_ms programs=2 sealed_logical_bytes=$sealed_logical" \
	"sealed_physical_bytes=$sealed_physical turns=6 sleeps=$sleeps caches=2 backend=$backend OK"
