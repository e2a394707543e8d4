# The rest of a guest's init, read by the initramfs's busybox once the host's files are at /host and the folder shared
# with host and peer is at /shared (tests/vm/image.sh has the beginning). Makes a root of the host's files, read-only but
# for what has to be written, connects the network, runs what is to be run there and turns the machine off.
root=/root
mkdir -p $root
mount -o bind /host $root
mount -t proc proc $root/proc
mount -t sysfs sys $root/sys
mount -t devtmpfs dev $root/dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts $root/dev/pts
ln -s /proc/self/fd $root/dev/fd # for bash's `<(...)`
for folder in run tmp var/tmp dev/shm; do mount -t tmpfs -o mode=1777 tmpfs $root/$folder; done
# A clone below one of these would be hidden.
if [ ! -e "$root$REPOSITORY/tests/vm" ]; then
  mkdir -p "$root$REPOSITORY"
  mount -o bind "/host$REPOSITORY" "$root$REPOSITORY"
fi
mkdir $root/run/vm
mount -o bind /shared $root/run/vm
hostname "vm-$ROLE"
ulimit -l unlimited
env -i ROLE="$ROLE" HOME=/root TERM="$TERMINAL" LANG=C.UTF-8 \
  PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
  chroot $root /bin/bash "$REPOSITORY/tests/vm/session.sh"
echo o >/proc/sysrq-trigger
sleep 60
