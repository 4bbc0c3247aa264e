# SPDX-License-Identifier: Apache-2.0
#
# glaked.conf(5) of docs/configuration.md, which has all that there is to say, and which tests hold against the code:
# awk -v version=VERSION -f deploy/glaked.conf.5.awk docs/configuration.md
# It knows what that page has: paragraphs, some with a bold headline, lists, one table, and code.

# Markdown within a line. Links lead nowhere here: of "([page](link))" nothing stays, else the text.
function plain(text)
{
	gsub(/\\/, "\\e", text)
	gsub(/ \(\[[^]]*\]\([^)]*\)\)/, "", text)
	while (match(text, /\[[^]]+\]\([^)]*\)/)) {
		link = substr(text, RSTART, RLENGTH)
		before = substr(text, 1, RSTART - 1)
		after = substr(text, RSTART + RLENGTH)
		sub(/^\[/, "", link)
		sub(/\]\(.*/, "", link)
		text = before link after
	}
	gsub(/-/, "\\-", text)
	text = paired(text, "**", "B")
	text = paired(text, "`", "B")
	if (text ~ /^[.']/) {
		text = "\\&" text
	}
	return text
}

# What stands between two marks, in that font.
function paired(text, mark, font, out, at, is_open)
{
	out = ""
	is_open = 0
	while ((at = index(text, mark)) > 0) {
		is_open = !is_open
		out = out substr(text, 1, at - 1) (is_open ? "\\f" font : "\\fP")
		text = substr(text, at + length(mark))
	}
	return out text
}

BEGIN {
	print ".\\\" SPDX-License-Identifier: Apache-2.0"
	printf ".TH GLAKED.CONF 5 \"\" \"glake %s\" \"File Formats\"\n", version
	print ".SH NAME\nglaked.conf \\- configuration of glaked, the owner of the GPU memory of one node"
	print ".SH SYNOPSIS\n.I /etc/glake/glaked.conf\n.SH DESCRIPTION"
}
/^# / {
	next
}
/^```/ {
	is_code = !is_code
	print is_code ? ".PP\n.EX" : ".EE"
	next
}
is_code {
	gsub(/\\/, "\\e")
	gsub(/-/, "\\-")
	sub(/^\./, "\\\\\\&.")
	print
	next
}
/^\| Key / {
	print ".SH KEYS"
	next
}
/^\|-/ {
	next
}
/^\| / {
	split($0, cell, / \| /)
	sub(/^\| /, "", cell[1])
	sub(/ \|$/, "", cell[3])
	print ".TP\n" plain(cell[1]) (cell[2] == "-" ? "" : " (" plain(cell[2]) ")")
	print plain(cell[3])
	next
}
/^\*\*[^*]*\.\*\* / || /^\*\*[^*]*\*\* \(/ {
	# A paragraph with a headline.
	headline = $0
	sub(/^\*\*/, "", headline)
	sub(/\.?\*\*.*/, "", headline)
	sub(/^\*\*[^*]*\*\* /, "")
	sub(/^\([^)]*\)\. /, "")
	print ".SH " toupper(headline) "\n" plain($0)
	is_gap = 0
	next
}
/^(\*|[0-9]+\.) / {
	print ".IP " ($1 == "*" ? "\\(bu" : $1) " 3"
	sub(/^[^ ]* /, "")
	print plain($0)
	next
}
/^$/ {
	is_gap = 1
	next
}
{
	if (is_gap && $0 !~ /^ /) {
		print ".PP"
	}
	is_gap = 0
	sub(/^ +/, "")
	print plain($0)
}
END {
	print ".SH SEE ALSO\n.BR glaked (8),\n.BR glakectl (1)"
}
