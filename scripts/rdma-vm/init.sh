#!/bin/sh
# The first process of the guest: loads modules, makes rxe0 and rxe1, runs /run/command, says how it ended, and powers off.
export PATH=/bin:/usr/sbin
# By their paths: the shell of busybox prefers an `ip` and a `tc` of its own, which can do less.
ip=/usr/sbin/ip tc=/usr/sbin/tc
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mkdir -p /dev/shm /tmp
mount -t tmpfs none /dev/shm
mount -t tmpfs none /tmp
end() { echo "exit $1" >/dev/ttyS1; sync; poweroff -f; }

while read -r module; do
    insmod "/modules/$module.ko" || echo "rdma-vm: the module $module does not load"
done </modules/order

# A NIC in software sends and receives in the first network namespace only. So both ends of the pair are in it, and without more the kernel
# would hand packets between its own addresses over inside. Rules send each address's packets out of its end, and take what comes in by
# the other for local.
$ip link set lo up
$ip link add end0 type veth peer name end1
for end in 0 1; do
    $ip addr add "10.77.0.$((end + 1))/32" dev "end$end"
    $ip link set "end$end" up
    echo 1 >"/proc/sys/net/ipv4/conf/end$end/accept_local"
    echo 0 >"/proc/sys/net/ipv4/conf/end$end/rp_filter"
done
echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
for end in 0 1; do
    own="10.77.0.$((end + 1))" other="10.77.0.$((2 - end))"
    $ip rule add priority $((10 + end)) iif "end$end" lookup local
    $ip rule add priority $((20 + end)) from "$own" to "$other" lookup $((100 + end))
    $ip route add "$other/32" dev "end$end" table $((100 + end))
    $ip neigh replace "$other" lladdr "$(cat /sys/class/net/end$((1 - end))/address)" dev "end$end" nud permanent
done
$ip rule add priority 30 lookup local
$ip rule del priority 0
loss="$(cat /run/loss)"
for end in 0 1; do
    $tc qdisc add dev "end$end" root netem loss "$loss%" || end 125
    rdma link add "rxe$end" type rxe netdev "end$end" || end 125
done
echo "rdma-vm: kernel $(uname -r) is up with rxe0 and rxe1, $loss % of packets lost, after $(cut -d' ' -f1 /proc/uptime) s"
cd /tmp || end 125
sh /run/command
end $?
