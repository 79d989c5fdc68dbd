#!/bin/sh
# Print properties of units, one a line: ask.sh PROPERTIES UNIT...
properties=$1
shift
systemctl show --property="$properties" "$@"
