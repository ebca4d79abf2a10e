#!/bin/sh
# What script/test-verbs runs in its guest; a test of verbs is a line at the end. Each prints nothing but its verdict unless
# it fails. The status is 1 when one of them did.
cd "$(dirname "$0")/../.." || exit
failed=0 log=/run/check.log

check() {               # what it shows, command...
    name=$1 begin=$(date +%s)
    shift
    if "$@" >$log 2>&1; then verdict='  ok'; else verdict=FAIL failed=1; fi
    printf '%s  %3d s  %s\n' "$verdict" $(($(date +%s) - begin)) "$name"
    [ "$verdict" != FAIL ] || sed 's/^/      /' $log
}

listens() { ss -ltnH 'sport = :18515' | grep -q .; }

pair() {                # tool, arguments: as a server on rxe1 and as a client on rxe0; both must end well
    tool=$1
    shift
    timeout 120 "$tool" -d rxe1 "$@" >/run/server.log 2>&1 &
    server=$!
    until listens || ! kill -0 $server 2>/dev/null; do sleep 0.1; done
    timeout 120 "$tool" -d rxe0 "$@" 10.77.0.2
    status=$?
    [ $status -eq 0 ] || kill $server 2>/dev/null
    wait $server || { cat /run/server.log; return 1; }
    return $status
}

packets() { cat "/sys/class/net/r1/statistics/rx_packets"; }
counter() { cat "/sys/class/infiniband/$1/ports/1/hw_counters/$2"; }

crosses() {             # what 100 messages need is seen on the wire
    before=$(packets)
    pair ibv_rc_pingpong -g 1 -n 100 && [ $(($(packets) - before)) -ge 100 ] || { echo "$before $(packets)"; return 1; }
}

breaks() {              # with a cable pulled one sends and the other receives nothing; with it back again they talk
    ip -n wires link set w1 down
    sent=$(counter rxe0 sent_pkts) received=$(counter rxe1 rcvd_pkts) late=$(($(date +%s) + 100))
    ibv_rc_pingpong -d rxe1 -g 1 -n 10 &
    server=$!
    until listens || ! kill -0 $server 2>/dev/null; do sleep 0.1; done
    ibv_rc_pingpong -d rxe0 -g 1 -n 10 10.77.0.2 &
    client=$!
    while [ "$(counter rxe0 sent_pkts)" -eq "$sent" ] && [ "$(date +%s)" -lt "$late" ]; do sleep 0.1; done
    sleep 1
    echo "sent: $sent, now $(counter rxe0 sent_pkts); received: $received, now $(counter rxe1 rcvd_pkts)"
    [ "$(counter rxe0 sent_pkts)" -gt "$sent" ] && [ "$(counter rxe1 rcvd_pkts)" -eq "$received" ] &&
        kill -0 $client
    status=$?
    kill -9 $server $client
    wait $server $client
    ip -n wires link set w1 up
    [ $status -eq 0 ] && pair ibv_rc_pingpong -g 1 -n 10
}

on_hosts() {            # each of two hosts sees its own device and no other, and they talk
    timeout 120 script/hosts 2 -- sh tests/verbs/guest/talk.sh
}

torch_ranks() {         # several checks in one program, as to load torch takes a minute here
    python tests/verbs/torch_ranks.py >$log 2>&1 && { grep '^  ok ' $log; return; }
    failed=1
    grep -E '^(  ok|FAIL) ' $log || echo 'FAIL    tests/verbs/torch_ranks.py'
    sed 's/^/      /' $log
}

check 'two devices exchange messages, and what arrives is right (RC)' pair ibv_rc_pingpong -g 1 -n 200 -c
check 'datagrams (UD)' pair ibv_ud_pingpong -g 1 -n 200 -c
check 'sleeping until something completes' pair ibv_rc_pingpong -g 1 -n 200 -c -e
check 'messages go over the wire' crosses
check 'a pulled cable stops them' breaks
check 'latency of a message of 8 bytes' pair ib_send_lat -x 1 -F -n 50 -s 8
check 'the same as a datagram' pair ib_send_lat -c UD -x 1 -F -n 50 -s 8
check 'RDMA write, 64 KiB' pair ib_write_bw -x 1 -F -n 50 -s 65536
check 'RDMA read, 64 KiB' pair ib_read_bw -x 1 -F -n 50 -s 65536
check 'two hosts with a device each' on_hosts
check 'the contract of a transport, and a process that dies' build/release/tests/unit_transports test_contract verbs
torch_ranks
exit $failed
