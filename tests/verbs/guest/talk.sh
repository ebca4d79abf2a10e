#!/bin/sh
# Runs on each of two hosts of script/hosts in the guest. Checks that the host has only its own device, and that it
# exchanges messages with the other host.
mine=rxe$NODE_RANK
seen=$(ibv_devices | grep -o 'rxe[0-9]*')
[ "$seen" = "$mine" ] || { echo "this host should see only $mine, but sees: $seen"; exit 1; }
[ "$NODE_RANK" -ne 0 ] || exec timeout 100 ibv_rc_pingpong -d "$mine" -g 1 -n 100 -c
while true; do
    ibv_rc_pingpong -d "$mine" -g 1 -n 100 -c "$MASTER_ADDR" >/run/"$mine" 2>&1
    status=$?
    # While the other host does not listen yet, try again.
    grep -q "Couldn't connect" /run/"$mine" || break
    sleep 0.2
done
cat /run/"$mine"
exit $status
