#!/bin/busybox sh
# The first process of the guest that tests/support/guest.py boots. The initial file system also has /modules and the
# kernel modules that it names, /devices.sh, /job, and /settings. The settings are the folder of the checkout ($root),
# the numbers of devices and hosts ($devices, $hosts), and the longest life of the guest ($seconds). This script mounts
# the machine's files read-only, with a /tmp, a /run and a /dev/shm of the guest's own. The output of the job goes to
# the second serial line, and the line about how the guest ended to the console. In every case the guest is powered off.
/bin/busybox --install -s /bin
export PATH=/bin
. /settings
uptime() { cut -d ' ' -f 1 <proc/uptime; }
end() { exec >dev/console 2>&1; echo "guest: $*, $(uptime) s"; poweroff -f; }

mount -t devtmpfs dev /dev
while read -r module; do insmod "/lib/$module" || echo "guest: $module cannot be loaded"; done </modules
mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288,ro,cache=loose machine /root
mkdir /checkout
mount --bind "/root$root" /checkout
cd /root || end "there is no machine"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t devtmpfs dev dev
mkdir -p dev/pts dev/shm
mount -t devpts devpts dev/pts
for folder in tmp run dev/shm; do mount -t tmpfs -o mode=1777 tmpfs $folder; done
# The checkout may be below /tmp, over which a new /tmp is mounted by now.
mkdir -p "./$root" && mount --bind /checkout "./$root" || end "there is no checkout"
cp /devices.sh /job run
# A process that enters a mount namespace begins at its root, which must be the machine's files by then.
mount --move . /
(sleep "$seconds"; end "nothing for $seconds s") &
chroot . /bin/sh /run/devices.sh "$devices" "$hosts" || end "there are no devices"
echo "guest: ready, $(uptime) s" >dev/console
stty raw -echo -F dev/ttyS1
chroot . /bin/sh /run/job <dev/null >dev/ttyS1 2>&1
end "status $?"
