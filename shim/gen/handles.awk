# SPDX-License-Identifier: Apache-2.0
#
# The calls of the toolkit that take a handle of memory, by themselves or in a struct, from its prototypes:
#   HANDLE(symbol)
# A test fails for one that has no hook: numbers are no handles of the driver.
#
#   awk -f handles.awk PREPROCESSED

BEGIN {
	print "/* Made by shim/gen/handles.awk. */"
	types = "CUmemGenericAllocationHandle"
}

function takes_handle(words)
{
	return words ~ ("(^|[^A-Za-z0-9_])(" types ")([^A-Za-z0-9_]|$)")
}

# A type that has one, by each of its names.
function note_type(statement,   names, n, i)
{
	sub(/^[^{]*struct +/, "struct ", statement)
	n = split(statement, names, /[^A-Za-z0-9_]+/)
	for (i = 1; i <= n; i++) {
		last = names[i] == "" ? last : names[i]
	}
	types = types "|" last
	if (statement ~ /^struct [A-Za-z_]/) {
		types = types "|" names[2]
	}
}

function look_at(statement,   name)
{
	if (!takes_handle(statement)) {
		return
	}
	if (statement ~ /^ *(typedef|struct|union)/) {
		note_type(statement)
	} else if (match(statement, /cu[A-Z][A-Za-z0-9_]* *\(/)) {
		name = substr(statement, RSTART, RLENGTH - 1)
		sub(/ *$/, "", name)
		print "HANDLE(" name ")"
	}
}

# Up to each semicolon that is in no braces.
{
	line = $0
	while (match(line, /[{};]/)) {
		mark = substr(line, RSTART, 1)
		statement = statement substr(line, 1, RSTART)
		line = substr(line, RSTART + 1)
		depth += mark == "{" ? 1 : mark == "}" ? -1 : 0
		if (mark == ";" && depth == 0) {
			look_at(statement)
			statement = ""
		}
	}
	statement = statement line " "
}
