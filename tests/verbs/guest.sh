#!/bin/sh
# The tests that script/test-verbs runs in its guest: each is a line at the end. A test prints only its result, and its
# output if it fails. The exit status is 1 if a test failed.
cd "$(dirname "$0")/../.." || exit
failed=0 log=/run/check.log

# Runs a test. Arguments: what the test shows, then its command.
check() {
    name=$1 begin=$(date +%s)
    shift
    if "$@" >$log 2>&1; then verdict='  ok'; else verdict=FAIL failed=1; fi
    printf '%s  %3d s  %s\n' "$verdict" $(($(date +%s) - begin)) "$name"
    [ "$verdict" != FAIL ] || sed 's/^/      /' $log
}

listens() { ss -ltnH 'sport = :18515' | grep -q .; }

# Runs a tool as a server on rxe1 and as a client on rxe0; both must succeed. Arguments: the tool and its arguments.
pair() {
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

# 100 messages cause at least 100 packets on the wire.
crosses() {
    before=$(packets)
    pair ibv_rc_pingpong -g 1 -n 100 && [ $(($(packets) - before)) -ge 100 ] || { echo "$before $(packets)"; return 1; }
}

# With a pulled cable, packets are sent but not received. With the cable plugged in again, messages arrive.
breaks() {
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

# Each of two hosts sees only its own device, and they exchange messages.
on_hosts() {
    timeout 120 script/hosts 2 -- sh tests/verbs/guest/talk.sh
}

# Several tests in one program, because loading torch takes a minute here.
torch_ranks() {
    python tests/verbs/torch_ranks.py >$log 2>&1 && { grep '^  ok ' $log; return; }
    failed=1
    grep -E '^(  ok|FAIL) ' $log || echo 'FAIL    tests/verbs/torch_ranks.py'
    sed 's/^/      /' $log
}

check 'two devices exchange messages, which arrive unchanged (RC)' pair ibv_rc_pingpong -g 1 -n 200 -c
check 'two devices exchange datagrams (UD)' pair ibv_ud_pingpong -g 1 -n 200 -c
check 'messages with sleeping until a completion event' pair ibv_rc_pingpong -g 1 -n 200 -c -e
check 'messages go over the wire' crosses
check 'a pulled cable stops messages' breaks
check 'latency of a message of 8 bytes' pair ib_send_lat -x 1 -F -n 50 -s 8
check 'latency of a datagram of 8 bytes' pair ib_send_lat -c UD -x 1 -F -n 50 -s 8
check 'RDMA writes of 64 KiB' pair ib_write_bw -x 1 -F -n 50 -s 65536
check 'RDMA reads of 64 KiB' pair ib_read_bw -x 1 -F -n 50 -s 65536
check 'two hosts with one device each exchange messages' on_hosts
check 'the contract of a transport, and the death of a process' build/release/tests/unit_transports test_contract verbs
torch_ranks
exit $failed
