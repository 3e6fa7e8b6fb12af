#!/bin/sh
# What mmdebstrap's tree $1 lacks to start by itself: the agent, a small initramfs, and fewer services than Debian starts.
set -eu
root=$1
here=$(dirname "$0")

install -m 644 "$here/agent.py" "$root/usr/local/lib/agent.py"
cat >"$root/etc/systemd/system/agent.service" <<'END'
[Unit]
Description=Runs the commands of the test that started this machine
DefaultDependencies=no
After=basic.target

[Service]
ExecStart=/usr/bin/python3 -IS /usr/local/lib/agent.py
# What a command leaves in the background lives on, and may be as much as it likes.
KillMode=process
TasksMax=infinity
OOMScoreAdjust=-900

[Install]
WantedBy=multi-user.target
END
chroot "$root" systemctl enable --quiet agent.service
# Each costs seconds where the processor is emulated.
chroot "$root" systemctl mask --quiet apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer \
    e2scrub_reap.service fstrim.timer getty.target systemd-logind.service systemd-update-utmp.service \
    systemd-update-utmp-runlevel.service systemd-pstore.service modprobe@.service systemd-random-seed.service
echo vm >"$root/etc/hostname"
echo '127.0.0.1 localhost vm' >"$root/etc/hosts"

# An initramfs that mounts the disk and no more.
release=$(basename "$root"/lib/modules/*)
tree=$root/boot/tree
mkdir -p "$tree/dev" "$tree/root" "$tree/modules"
cp "$root/bin/busybox" "$tree/busybox"
number=10
chroot "$root" modprobe -S "$release" -a --show-depends virtio_pci virtio_blk ext4 | awk '$1 == "insmod" && !known[$2]++ { print $2 }' |
    while read -r module; do
        cp "$root$module" "$tree/modules/$number-$(basename "$module")"
        number=$((number + 1))
    done
cat >"$tree/init" <<'END'
#!/busybox sh
/busybox mount -t devtmpfs dev /dev
for module in /modules/*; do /busybox insmod "$module"; done
until /busybox mount -t ext4 /dev/vda /root; do /busybox sleep 1; done
/busybox mount --move /dev /root/dev
exec /busybox switch_root /root /sbin/init
END
chmod 755 "$tree/init"
chroot "$root" sh -c 'cd /boot/tree && find . | cpio --quiet -o -H newc' >"$root/boot/initrd"
rm -r "$tree"
mv "$root/boot/vmlinuz-$release" "$root/boot/vmlinuz"
