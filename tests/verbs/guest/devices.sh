#!/bin/sh
# Makes RDMA devices in the guest, as many as the first argument says: rxe0, rxe1, ... of soft-RoCE, which puts RDMA packets
# into UDP. Such a device cannot live in a network namespace of its own (its sockets are those of the first), so all are
# here, each on an interface of its own: r0, r1, ... with the addresses 10.77.0.1, 10.77.0.2, ... They are the ends of
# cables w0, w1, ... that meet in the namespace `wires`: what one device sends to another goes over both cables, and
# `ip -n wires link set w1 down` pulls one. To that end the rules below keep the kernel from seeing that both ends are
# its own.
#
# Host k of script/hosts has the address of r<k> on its eth0, and sees the device rxe<k> and no other, because it finds
# /run/infiniband/h<k> as its /dev/infiniband. If the second argument says fewer hosts than devices, the devices are
# dealt out to them: of two hosts, h0 sees rxe0 and rxe2.
set -e
count=$1 hosts=$2
address() { echo "10.77.0.$(($1 + 1))"; }
each() { host=0; while [ "$host" -lt "$count" ]; do "$@" "$host"; host=$((host + 1)); done; }

connect() {             # one interface with its cable; packets that a rule sends to a table stay on its wire
    cat <<END
link add r$1 mtu 5000 type veth peer name w$1 mtu 5000 netns wires
addr add $(address "$1")/24 dev r$1
link set r$1 up
rule add pref 1 iif r$1 lookup local
rule add pref 2 from $(address "$1") lookup $((200 + $1))
rule add pref 2 oif r$1 lookup $((200 + $1))
route add local $(address "$1") dev r$1 table $((200 + $1))
route add 10.77.0.0/24 dev r$1 src $(address "$1") table $((200 + $1))
END
}
plug() { printf 'link set w%d master wires up\n' "$1"; }
accept() {              # packets from an address of this machine, but only for that of the interface
    for setting in accept_local=1 rp_filter=0 arp_ignore=1 arp_announce=2; do
        echo "${setting#*=}" >"/proc/sys/net/ipv4/conf/r$1/${setting%=*}"
    done
}
know() {                # where all others are: to find out takes the kernel a second
    other=0
    while [ "$other" -lt "$count" ]; do
        [ "$other" -eq "$1" ] || echo "neigh replace $(address "$other") dev r$1" \
            "lladdr $(cat "/sys/class/net/r$other/address") nud permanent"
        other=$((other + 1))
    done
}
add() {
    rdma link add "rxe$1" type rxe netdev "r$1"
    seen=/run/infiniband/h$(($1 % hosts))
    mkdir -p "$seen"
    for file in /sys/class/infiniband_verbs/uverbs*; do
        [ "$(cat "$file/ibdev")" != "rxe$1" ] || cp -a "/dev/infiniband/${file##*/}" "$seen"
    done
}

for where in default all; do echo 0 >/proc/sys/net/ipv6/conf/$where/accept_dad; done
echo 100000 >/proc/sys/net/core/netdev_max_backlog      # a lost packet takes RDMA a timeout
ip netns add wires
ip -n wires link add wires type bridge forward_delay 0 stp_state 0
ip -n wires link set wires up
{ printf 'link set lo up\nrule add pref 100 lookup local\nrule del pref 0\n'; each connect; } | ip -batch -
each plug | ip -n wires -batch -
each accept
each know | ip -batch -
each add
