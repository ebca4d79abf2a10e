#!/bin/sh
# Makes RDMA devices of soft-RoCE in the guest: rxe0, rxe1, ... Arguments: the number of devices, the number of hosts.
# Soft-RoCE puts RDMA packets into UDP. Its devices cannot be in a network namespace of their own, because all use the
# sockets of the first namespace. So all are here, each on an interface of its own: r0, r1, ... with the addresses
# 10.77.0.1, 10.77.0.2, ... Each interface is one end of a virtual cable. The other end, w0, w1, ..., is in the
# namespace `wires`, where a bridge joins the cables. Packets between two devices go over both cables, and
# `ip -n wires link set w1 down` pulls one. The kernel would deliver packets between its own addresses directly; the
# rules below prevent that.
#
# Host k of script/hosts has the address of r<k> on its eth0, and sees only the device rxe<k>, because its
# /dev/infiniband is /run/infiniband/h<k>. With fewer hosts than devices, device d belongs to host d modulo the number
# of hosts: of two hosts, h0 sees rxe0 and rxe2.
set -e
count=$1 hosts=$2
address() { echo "10.77.0.$(($1 + 1))"; }
# Runs a command with each device number as its last argument.
each() { host=0; while [ "$host" -lt "$count" ]; do "$@" "$host"; host=$((host + 1)); done; }

# Prints the commands of ip that make an interface and its cable. The rules lead packets of the interface to a table of
# its own, in which all other devices lie behind the cable.
connect() {
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
# Prints the command of ip that joins a cable to the bridge.
plug() { printf 'link set w%d master wires up\n' "$1"; }
# Makes an interface accept packets from addresses of this machine, but only packets to its own address.
accept() {
    for setting in accept_local=1 rp_filter=0 arp_ignore=1 arp_announce=2; do
        echo "${setting#*=}" >"/proc/sys/net/ipv4/conf/r$1/${setting%=*}"
    done
}
# Prints the commands of ip that add all other devices as neighbours, because the kernel takes a second to find each.
add_neighbours() {
    other=0
    while [ "$other" -lt "$count" ]; do
        [ "$other" -eq "$1" ] || echo "neigh replace $(address "$other") dev r$1" \
            "lladdr $(cat "/sys/class/net/r$other/address") nud permanent"
        other=$((other + 1))
    done
}
# Makes the RDMA device of an interface, and its file in the folder of its host.
add_device() {
    rdma link add "rxe$1" type rxe netdev "r$1"
    seen=/run/infiniband/h$(($1 % hosts))
    mkdir -p "$seen"
    for file in /sys/class/infiniband_verbs/uverbs*; do
        [ "$(cat "$file/ibdev")" != "rxe$1" ] || cp -a "/dev/infiniband/${file##*/}" "$seen"
    done
}

for where in default all; do echo 0 >/proc/sys/net/ipv6/conf/$where/accept_dad; done
# A long queue loses fewer packets: each lost packet costs RDMA a timeout.
echo 100000 >/proc/sys/net/core/netdev_max_backlog
ip netns add wires
ip -n wires link add wires type bridge forward_delay 0 stp_state 0
ip -n wires link set wires up
{ printf 'link set lo up\nrule add pref 100 lookup local\nrule del pref 0\n'; each connect; } | ip -batch -
each plug | ip -n wires -batch -
each accept
each add_neighbours | ip -batch -
each add_device
