#!/bin/busybox sh
# The first process of the guest that tests/support/guest.py boots. Beside it in the initial file system: /modules and
# the kernel modules it names, /devices.sh, /job, and /settings, which names the checkout ($root), how many devices there
# are to be ($devices, for $hosts) and for how many seconds the guest may live ($seconds). The machine's files are mounted read-only,
# with a /tmp, a /run and a /dev/shm of the guest's own. The job's output goes to the second serial line, and what the
# machine waits for to the console: how the job ended. Whatever happens, the guest is powered off.
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
mkdir -p "./$root" && mount --bind /checkout "./$root" || end "there is no checkout"         # it may be below /tmp
cp /devices.sh /job run
mount --move . /        # who enters a mount namespace finds itself at its root, so that must not be what we began with
(sleep "$seconds"; end "nothing for $seconds s") &
chroot . /bin/sh /run/devices.sh "$devices" "$hosts" || end "there are no devices"
echo "guest: ready, $(uptime) s" >dev/console
stty raw -echo -F dev/ttyS1
chroot . /bin/sh /run/job <dev/null >dev/ttyS1 2>&1
end "status $?"
