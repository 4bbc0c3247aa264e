# SPDX-License-Identifier: Apache-2.0
#
# The calls of the toolkit that touch device memory, streams or graphs, from its prototypes and the
# list of which of them pass the gate:
#   GATE(symbol, (parameters), (arguments), stream, flags)
#                                              it passes the gate
#   CAPTURE(symbol, (parameters), (arguments)) the same, and it begins a capture
#   WRITE(symbol, (parameters), (arguments), stream, flags, finder, (where))
#                                              the same, and a function of writes.h finds what it writes to
#   WRITE_OR_AWAIT(...)                        the same, and it may be as the next one, too
#   REPLAY(...)                                the same as WRITE, of a graph
#   AWAIT(symbol, (parameters), (arguments), stream, flags)
#                                              the same, and the stream waits for a word
#   LAUNCH(symbol, (parameters), (arguments), stream, flags, (what))
#                                              the same, and eyes.h looks at the kernel and its parameters
#   OPAQUE(symbol, (parameters), (arguments), stream, flags)
#                                              it passes the gate, and tells nothing of a kernel's parameters
#   LOAD(symbol, (parameters), (arguments), (what))
#                                              as WAKE, and the expression tells code.h what it has brought
#   ASK(symbol, (parameters), (arguments))     it does not pass, and its result is looked at
#   UNLOAD(symbol, (parameters), (arguments))  it does not pass, and code may end
#   WAKE(symbol, (parameters), (arguments))    it does not pass, and wakes the process first
#   EXCUSED(symbol)                            it does neither, and the list says why
#   UNKNOWN(symbol)                            the list does not have it
#   UNDECIDED(symbol)                          the list says neither what it writes to, nor why it does not
#
# An excuse does not need a prototype. Each of these that the includer has not defined is nothing, and none is defined
# behind it.
#
#   awk -f gates.awk gates.txt PREPROCESSED

BEGIN {
	print "/* Made by shim/gen/gates.awk. */"
	n_macros = split("GATE CAPTURE WRITE WRITE_OR_AWAIT REPLAY AWAIT LAUNCH OPAQUE LOAD ASK UNLOAD WAKE " \
		"EXCUSED UNKNOWN UNDECIDED", macros, " ")
	for (i = 1; i <= n_macros; i++) {
		printf "#ifndef %s\n#define %s(...)\n#endif\n", macros[i], macros[i]
	}
	touches = "CUdeviceptr|CUstream[^A-Za-z]|CUgraphExec|CUDA_MEMCPY|CUDA_LAUNCH_PARAMS|" \
		"CUlaunchConfig|NODE_PARAMS|CUgraphNodeParams"
	may_write = "CUdeviceptr|CUDA_MEMCPY|BatchMemOpParams|DecompressParams|[dD]st|[dD]est"
}

FNR == NR {
	if ($1 ~ /^(gate|capture|write|await|launch|opaque|load|ask|unload|wake|excuse)$/) {
		class[$2] = $1
		rest[$2] = $3
		where[$2] = $0
		sub(/^[^ ]+ +[^ ]+ +[^ ]+ */, "", where[$2])
		what[$2] = $0
		sub(/^[^ ]+ +[^ ]+ */, "", what[$2])
	}
	next
}

{ text = text " " $0 }

# The last word of a parameter is its name, maybe with [].
function name_of(parameter)
{
	sub(/\[[^]]*\] *$/, "", parameter)
	match(parameter, /[A-Za-z_][A-Za-z0-9_]* *$/)
	return substr(parameter, RSTART, RLENGTH)
}

function arguments_of(parameters,   list, n, i, arguments)
{
	n = split(parameters, list, ",")
	for (i = 1; i <= n; i++) {
		arguments = arguments (i > 1 ? ", " : "") name_of(list[i])
	}
	return parameters ~ /^ *(void)? *$/ ? "" : arguments
}

# The stream that it is submitted to; those without one wait.
function stream_of(parameters)
{
	if (match(parameters, /CUlaunchConfig \*[A-Za-z]+/)) {
		parameters = substr(parameters, RSTART + 16, RLENGTH - 16)
		return parameters " ? " parameters "->hStream : NULL"
	}
	return match(parameters, /CUstream [A-Za-z]+/) ? \
		substr(parameters, RSTART + 9, RLENGTH - 9) : "NULL"
}

# In @text, $1 is the first of @parameters.
function with_first(text, parameters,   list)
{
	split(parameters, list, ",")
	gsub(/\$1/, name_of(list[1]), text)
	return text
}

# The addresses of the oldest versions have 32 bits: none is ours.
function judge(symbol, parameters,   base)
{
	base = symbol
	sub(/_pt[sd][sz]$/, "", base)
	sub(/_v[0-9]+$/, "", base)
	is_judged[base] = 1
	if (class[base] == "gate" && rest[base] == "" && parameters ~ may_write) {
		printf "UNDECIDED(%s)\n", symbol
	}
	if (class[base] == "write" && parameters !~ /_v1 /) {
		printf "%s(%s, (%s), (%s), %s, %d, %s, (%s))\n",
			rest[base] == "batch_mem_op" ? "WRITE_OR_AWAIT" : \
			rest[base] == "graph" ? "REPLAY" : "WRITE", symbol, parameters,
			arguments_of(parameters), stream_of(parameters), symbol ~ /_pt[sd][sz]$/,
			rest[base], with_first(where[base], parameters)
	} else if (class[base] == "await") {
		printf "AWAIT(%s, (%s), (%s), %s, %d)\n", symbol, parameters,
			arguments_of(parameters), stream_of(parameters), symbol ~ /_pt[sd][sz]$/
	} else if (class[base] == "launch") {
		printf "LAUNCH(%s, (%s), (%s), %s, %d, (%s))\n", symbol, parameters,
			arguments_of(parameters), stream_of(parameters), symbol ~ /_pt[sd][sz]$/,
			what[base]
	} else if (class[base] == "opaque") {
		printf "OPAQUE(%s, (%s), (%s), %s, %d)\n", symbol, parameters,
			arguments_of(parameters), stream_of(parameters), symbol ~ /_pt[sd][sz]$/
	} else if (class[base] == "load") {
		printf "LOAD(%s, (%s), (%s), (%s))\n", symbol, parameters,
			arguments_of(parameters), what[base]
	} else if (class[base] == "capture") {
		printf "CAPTURE(%s, (%s), (%s))\n", symbol, parameters, arguments_of(parameters)
	} else if (class[base] ~ /^(ask|unload|wake)$/) {
		printf "%s(%s, (%s), (%s))\n", toupper(class[base]), symbol, parameters,
			arguments_of(parameters)
	} else if (class[base] == "gate" || class[base] == "write") {
		printf "GATE(%s, (%s), (%s), %s, %d)\n", symbol, parameters,
			arguments_of(parameters), stream_of(parameters), symbol ~ /_pt[sd][sz]$/
	} else if (class[base] == "excuse") {
		printf "EXCUSED(%s)\n", symbol
	} else if (parameters ~ touches) {
		printf "UNKNOWN(%s)\n", symbol
	}
}

END {
	gsub(/[ \t]+/, " ", text)
	n = split(text, statements, ";")
	for (i = 1; i <= n; i++) {
		if (match(statements[i], /CUresult cu[A-Z][A-Za-z0-9_]* ?\(/)) {
			head = substr(statements[i], RSTART + 9, RLENGTH - 9)
			parameters = substr(statements[i], RSTART + RLENGTH)
			sub(/\)[^)]*$/, "", parameters)
			sub(/ ?\($/, "", head)
			if (!is_done[head]++) {
				judge(head, parameters)
			}
		}
	}
	for (base in class) {
		if (class[base] == "excuse" && !is_judged[base]) {
			printf "EXCUSED(%s)\n", base
		}
	}
	for (i = 1; i <= n_macros; i++) {
		print "#undef " macros[i]
	}
}
