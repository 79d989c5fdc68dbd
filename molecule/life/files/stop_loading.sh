#!/bin/sh
# Start a unit anew and stop it while its engine loads: stop_loading.sh UNIT
# Prints the seconds that the stop took.
systemctl restart --no-block "$1"
until pgrep -f 'VLLM::EngineCor|spawn_main' >/dev/null; do sleep 0.2; done
sleep 2
began=$(date +%s)
systemctl stop "$1"
echo $(($(date +%s) - began))
