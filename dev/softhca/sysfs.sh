#!/usr/bin/env bash
# A /sys with ConnectX NICs alone, as far as libibverbs, libmlx5 and anabranch read it.
#
#   dev/softhca/sysfs.sh FOLDER NICS ethernet|infiniband
set -euo pipefail
sys=$1 nics=$2 link=$3

# put FILE TEXT
put() { printf '%s\n' "$2" >"$1"; }

mkdir -p "$sys"/class/{infiniband,infiniband_verbs,net} "$sys"/bus/pci/{devices,drivers/mlx5_core} "$sys/devices/system/cpu"
for file in online possible present; do cp "/sys/devices/system/cpu/$file" "$sys/devices/system/cpu/$file"; done
# IB_USER_VERBS_ABI_VERSION of rdma/ib_user_verbs.h
put "$sys/class/infiniband_verbs/abi_version" 6

pci_device() {
    local device=$1 address=$2
    put "$device/vendor" 0x15b3
    put "$device/device" 0x1019
    put "$device/subsystem_vendor" 0x15b3
    put "$device/subsystem_device" 0x8
    put "$device/class" 0x020700
    put "$device/revision" 0x0b
    put "$device/modalias" pci:v000015B3d00001019sv000015B3sd00000008bc02sc07i00
    put "$device/irq" 11
    put "$device/numa_node" 0
    head -c 256 /dev/zero >"$device/config"
    for _ in {1..13}; do echo "0x0000000000000000 0x0000000000000000 0x0000000000000000"; done >"$device/resource"
    ln -s ../../../bus/pci/drivers/mlx5_core "$device/driver"
    ln -s ../../../bus/pci "$device/subsystem"
    ln -s "../../../devices/pci0000:00/$address" "$sys/bus/pci/devices/$address"
}

port() {
    local port=$1 number=$2
    mkdir -p "$port"/{gids,gid_attrs/types,gid_attrs/ndevs,pkeys}
    put "$port/state" "4: ACTIVE"
    put "$port/phys_state" "5: LinkUp"
    put "$port/rate" "100 Gb/sec (4X EDR)"
    put "$port/cap_mask" 0x4010000
    put "$port/sm_lid" 0x0
    put "$port/sm_sl" 0
    put "$port/pkeys/0" 0xffff
    if [ "$link" = infiniband ]; then
        put "$port/link_layer" InfiniBand
        put "$port/lid" 0x11
    else
        put "$port/link_layer" Ethernet
        put "$port/lid" 0x0
    fi
    local local_address="fe80:0000:0000:0000:0200:00ff:fe00:000$number" address="0000:0000:0000:0000:0000:ffff:0a4d:000$number" index=0
    for gid in "$local_address" "$local_address" "$address" "$address"; do
        put "$port/gids/$index" "$gid"
        put "$port/gid_attrs/types/$index" "$([ $((index % 2)) = 0 ] && echo "IB/RoCE v1" || echo "RoCE v2")"
        put "$port/gid_attrs/ndevs/$index" eth0
        index=$((index + 1))
    done
}

for ((index = 0; index < nics; index++)); do
    number=$((index + 1))
    address="0000:0$number:00.0"
    device="$sys/devices/pci0000:00/$address"
    nic="$device/infiniband/mlx5_$index" verbs="$device/infiniband_verbs/uverbs$index"
    mkdir -p "$nic/ports/1" "$verbs"
    pci_device "$device" "$address"
    put "$nic/node_type" "1: CA"
    put "$nic/fw_ver" 16.35.2000
    put "$nic/node_guid" "0200:0000:0000:000$number"
    put "$nic/sys_image_guid" "0200:0000:0000:000$number"
    put "$nic/node_desc" softhca
    put "$nic/hw_rev" 0
    put "$nic/board_id" MT_0000000008
    ln -s "../../../$address" "$nic/device"
    port "$nic/ports/1" "$number"
    ln -s "../../devices/pci0000:00/$address/infiniband/mlx5_$index" "$sys/class/infiniband/mlx5_$index"
    put "$verbs/ibdev" "mlx5_$index"
    put "$verbs/abi_version" 1
    # Those of hooks.rs.
    put "$verbs/dev" "231:$((192 + index))"
    ln -s "../../../$address" "$verbs/device"
    ln -s "../../devices/pci0000:00/$address/infiniband_verbs/uverbs$index" "$sys/class/infiniband_verbs/uverbs$index"
done
