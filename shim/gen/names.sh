#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The calls of a library, from a list of their names on stdin: NAME(symbol, number).
#   names.sh <NAMES >names.def
set -eu
LC_ALL=C sort -u |
	awk 'BEGIN { print "/* Made by shim/gen/names.sh. */" }
		{ printf "NAME(%s, %d)\n", $1, NR - 1 }
		END { if (NR < 400) { print "names.sh: only " NR " names" >"/dev/stderr"; exit 1 } }'
