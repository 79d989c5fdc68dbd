#!/bin/sh
# Start a unit and kill its engine core while it loads: kill_engine.sh UNIT
# Prints the status of the start and the seconds from the kill to its end.
systemctl restart "$1" 2>/dev/null &
start=$!
while :; do
    main=$(systemctl show --property=MainPID --value "$1")
    for pid in $(pgrep --full spawn_main); do
        # A child of the server that has named itself is the engine core; before that, any child will do.
        if [ "$main" != 0 ] && [ "$(ps -o ppid= -p "$pid" | tr -d ' ')" = "$main" ]; then
            kill -9 "$pid"
            killed=$(date +%s)
            wait "$start"
            echo "$? $(($(date +%s) - killed))"
            exit 0
        fi
    done
    sleep 0.2
done
