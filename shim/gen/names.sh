#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The calls of the CUDA driver, as the toolkit's stub library lists them: NAME(symbol, number).
#   names.sh STUB >names.def
set -eu
nm -D --defined-only "$1" | awk '$2 == "T" && $3 ~ /^cu[A-Z]/ { print $3 }' | LC_ALL=C sort -u |
	awk 'BEGIN { print "/* Made by shim/gen/names.sh. */" }
		{ printf "NAME(%s, %d)\n", $1, NR - 1 }
		END { if (NR < 400) { print "names.sh: only " NR " names" >"/dev/stderr"; exit 1 } }'
