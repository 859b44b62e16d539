#!/usr/bin/env bash
# Copyright 2026 The s3rdma Authors
# SPDX-License-Identifier: Apache-2.0
#
# softroce.sh - run a command under a real Linux RDMA stack, in a throw-away VM.
# See README.md beside this file, or: softroce.sh --help
{ # The shell reads all of this before it runs any: the file may change meanwhile.
set -Eeuo pipefail
shopt -s inherit_errexit
export LC_ALL=C
umask 022

readonly PROG=${0##*/}
readonly E_USAGE=2 E_INFRA=125

say() { [[ -n ${SOFTROCE_QUIET:-} ]] || printf '%s: %s\n' "$PROG" "$*" >&2; }
die() { printf '%s: error: %s\n' "$PROG" "$*" >&2; exit "$E_INFRA"; }
bad_usage() { printf '%s: %s (try --help)\n' "$PROG" "$*" >&2; exit "$E_USAGE"; }
trap 'rc=$?; printf "%s: internal error at line %s: %s (status %s)\n" "$PROG" "$LINENO" "$BASH_COMMAND" "$rc" >&2; exit '"$E_INFRA" ERR

usage() {
	cat <<USAGE
Usage: $PROG [OPTION]... -- COMMAND [ARG]...
       $PROG [OPTION]... --prepare

Boots a small VM on a stock Debian kernel, brings up software RDMA devices, runs
COMMAND there as root, streams its output and exits with its exit status.
The guest sees this machine's whole file system read-only; what it writes goes to
its own memory and is lost, except under --out DIR.

  --transport rxe|siw  Soft-RoCE (default), or soft-iWARP (built once from Debian's
                       kernel source: its stock kernels don't ship it)
  --netns2             two network namespaces joined by a veth pair, an RDMA device
                       in each (siw), or one namespace with two devices whose
                       packets really cross the veth pair (rxe): see README.md
  --netem SPEC         'tc netem' on every RDMA interface, e.g. 'loss 1%' (repeatable
                       words as one string: 'delay 1ms loss 0.1%'); implies two
                       devices over veth
  --mtu N              MTU of the RDMA interfaces (default 4200: a 4096 RDMA MTU)
  --hugepages N        reserve N hugepages of 2 MiB in the guest
  --disk MiB           add an empty virtio disk, /dev/vda, then /dev/vdb... (repeatable)
  --mem MiB            guest memory (default 2048)
  --cpus N             virtual CPUs (default: host's, at most 4)
  --timeout S          wall-clock limit, boot included (default 600); then exit 124
  --dir DIR            working directory of COMMAND (default: the current one)
  --out DIR            share DIR read-write (same path inside)
  --env NAME[=VALUE]   pass an environment variable (repeatable)
  --accel auto|kvm|tcg default auto: KVM if a test boot under it works, else TCG
  --prepare            only download and build what is cached, then exit
  --keep-log FILE      copy the guest kernel's console log to FILE

Exit status: COMMAND's own (128+N if a signal N ended it); 124 time-out; 125 the VM
or its set-up failed (reason on stderr); 2 wrong usage.

Environment:
  SOFTROCE_WORK        work and cache folder, about 450 MB (default: s3rdma/softroce in
                       XDG_CACHE_HOME or ~/.cache)
  SOFTROCE_KERNEL      Debian kernel package (default linux-image-amd64)
  SOFTROCE_KERNEL_DEB  a kernel .deb already here, used instead of downloading
  SOFTROCE_QEMU        the emulator (default qemu-system-x86_64)
  SOFTROCE_TCG         multi (default: a host thread for each virtual CPU) or single
  SOFTROCE_BOOT_TIMEOUT  seconds until a boot counts as hung and is tried again (90)
  SOFTROCE_QUIET       if set: no progress lines
USAGE
}

transport=rxe netns2=0 netem='' mem=2048 cpus='' limit=600 dir=$PWD accel=auto
mtu=4200 hugepages=0 prepare=0 keep_log=''
outs=() envs=() disks=() cmd=()

need_arg() { [[ $# -ge 2 ]] || bad_usage "$1 needs a value"; }
is_num() { [[ $1 =~ ^[1-9][0-9]{0,8}$ ]]; }
while (($#)); do
	case $1 in
	--transport) need_arg "$@"; transport=$2; shift 2 ;;
	--netns2) netns2=1; shift ;;
	--netem) need_arg "$@"; netem=$2; shift 2 ;;
	--mtu) need_arg "$@"; mtu=$2; shift 2 ;;
	--hugepages) need_arg "$@"; hugepages=$2; shift 2 ;;
	--disk) need_arg "$@"; is_num "$2" || bad_usage "--disk needs a number of MiB, not '$2'"; disks+=("$2"); shift 2 ;;
	--mem) need_arg "$@"; mem=$2; shift 2 ;;
	--cpus) need_arg "$@"; cpus=$2; shift 2 ;;
	--timeout) need_arg "$@"; limit=$2; shift 2 ;;
	--dir) need_arg "$@"; dir=$2; shift 2 ;;
	--out) need_arg "$@"; outs+=("$2"); shift 2 ;;
	--env) need_arg "$@"; envs+=("$2"); shift 2 ;;
	--accel) need_arg "$@"; accel=$2; shift 2 ;;
	--keep-log) need_arg "$@"; keep_log=$2; shift 2 ;;
	--prepare) prepare=1; shift ;;
	-h | --help) usage; exit 0 ;;
	--) shift; cmd=("$@"); break ;;
	*) bad_usage "unknown option '$1' (COMMAND comes after --)" ;;
	esac
done
[[ $transport == rxe || $transport == siw ]] || bad_usage "--transport is rxe or siw, not '$transport'"
[[ $accel == auto || $accel == kvm || $accel == tcg ]] || bad_usage "--accel is auto, kvm or tcg, not '$accel'"
{ is_num "$mem" && ((mem >= 256)); } || bad_usage "--mem needs at least 256 (MiB), not '$mem'"
is_num "$limit" || bad_usage "--timeout needs a number of seconds, not '$limit'"
is_num "$mtu" || bad_usage "--mtu needs a number, not '$mtu'"
[[ $hugepages == 0 ]] || is_num "$hugepages" || bad_usage "--hugepages needs a number, not '$hugepages'"
if [[ -z $cpus ]]; then cpus=$(nproc); ((cpus <= 4)) || cpus=4; fi
is_num "$cpus" || bad_usage "--cpus needs a number, not '$cpus'"
[[ -d $dir ]] || bad_usage "--dir: no such directory: $dir"
dir=$(cd -- "$dir" && pwd -P)
((prepare)) || ((${#cmd[@]})) || bad_usage "no COMMAND given"
for e in "${envs[@]}"; do [[ $e =~ ^[A-Za-z_][A-Za-z0-9_]*(=|$) ]] || bad_usage "--env: not a variable name: $e"; done

# ---------------------------------------------------------------- the work folder
QEMU=${SOFTROCE_QEMU:-qemu-system-x86_64}
need_tool() { # TOOL PACKAGE
	command -v "$1" >/dev/null 2>&1 || die "missing tool '$1': install Debian's package '$2'"
}
need_tool "$QEMU" qemu-system-x86
need_tool cpio cpio
need_tool modprobe kmod
need_tool depmod kmod
need_tool dpkg dpkg
need_tool xz xz-utils
need_tool flock util-linux
need_tool rdma iproute2
need_tool tc iproute2
busybox=$(command -v busybox) || die "missing tool 'busybox': install Debian's package 'busybox-static'"

work=${SOFTROCE_WORK:-${XDG_CACHE_HOME:-${HOME:?set HOME or SOFTROCE_WORK}/.cache}/s3rdma/softroce}
mkdir -p -- "$work" || die "can't make the work folder $work (set SOFTROCE_WORK to another)"
work=$(cd -- "$work" && pwd -P)
find "$work" -maxdepth 1 -name 'run.*' -mmin +1440 -exec rm -rf -- {} + 2>/dev/null || true # left by killed runs
run=$(mktemp -d "$work/run.XXXXXX")
qemu_pid='' pumps=()
cleanup() {
	local rc=$? p
	trap - ERR EXIT INT TERM HUP
	set +e
	if [[ -n $qemu_pid ]] && kill -0 "$qemu_pid" 2>/dev/null; then
		kill "$qemu_pid" 2>/dev/null
		wait "$qemu_pid" 2>/dev/null
	fi
	for p in "${pumps[@]}"; do kill "$p" 2>/dev/null; done
	[[ -z $keep_log || ! -f $run/console ]] || cp -- "$run/console" "$keep_log"
	rm -rf -- "$run"
	exit "$rc"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

# ------------------------------------------------------------------------- kernel
apt_get_deb() { # FOLDER PACKAGE...
	local to=$1; shift
	mkdir -p -- "$to"
	(cd -- "$to" && apt-get -q -o APT::Sandbox::User=root download "$@") >"$run/apt" 2>&1 && return 0
	say "apt-get download failed; trying once more after apt-get update"
	apt-get -q update >>"$run/apt" 2>&1 || true
	(cd -- "$to" && apt-get -q -o APT::Sandbox::User=root download "$@") >>"$run/apt" 2>&1 && return 0
	sed 's/^/  apt: /' "$run/apt" >&2
	die "can't download from Debian's archive: $*"
}
apt_resolve() { # PACKAGE: the real package behind a metapackage
	local p=$1 n
	if ! apt-cache show "$p" >/dev/null 2>&1; then
		apt-get -q update >"$run/apt" 2>&1 || true
		apt-cache show "$p" >/dev/null 2>&1 || die "apt knows no package '$p'"
	fi
	n=$(apt-cache depends "$p" 2>/dev/null | awk '$1 == "Depends:" && $2 ~ /^linux-image-[0-9]/ { print $2; exit }')
	printf '%s\n' "${n:-$p}"
}
extract_vmlinux() { # BZIMAGE OUT: the plain ELF kernel (boots seconds faster: nothing to unpack under emulation)
	local spec magic tool pos
	for spec in '\xfd7zXZ\x00:xz' '\x28\xb5\x2f\xfd:zstd' '\x02\x21\x4c\x18:lz4' '\x1f\x8b\x08:gzip'; do
		magic=${spec%:*} tool=${spec##*:}
		command -v "$tool" >/dev/null 2>&1 || continue
		while read -r pos; do
			{ tail -c "+$((pos + 1))" -- "$1" | "$tool" -dc >"$2"; } 2>/dev/null || true
			[[ $(head -c 4 -- "$2" | od -An -tx1 | tr -d ' \n') != 7f454c46 ]] || return 0
		done < <({ grep -abobP "$magic" -- "$1" || true; } | cut -d: -f1)
	done
	return 1
}

# Loaded at boot. Everything else that the kernel package ships is in the guest's /lib/modules
# and is loaded on demand (by the kernel itself, or modprobe).
readonly MODS_BOOT='virtio_pci virtio_console 9pnet_virtio 9p overlay veth ib_uverbs rdma_ucm crc32_generic'

prepare_kernel() {
	local pkg deb key
	if [[ -n ${SOFTROCE_KERNEL_DEB:-} ]]; then
		[[ -f $SOFTROCE_KERNEL_DEB ]] || die "SOFTROCE_KERNEL_DEB: no such file: $SOFTROCE_KERNEL_DEB"
		deb=$SOFTROCE_KERNEL_DEB
		key=$(dpkg-deb -f "$deb" Package)
	else
		key=${SOFTROCE_KERNEL:-linux-image-amd64}
	fi
	kdir=$work/kernel/$key
	if [[ ! -f $kdir/done ]]; then
		if [[ -z ${deb:-} ]]; then
			pkg=$(apt_resolve "$key")
			say "downloading $pkg (once)"
			rm -rf -- "$work/deb/$key"
			apt_get_deb "$work/deb/$key" "$pkg"
			deb=$(find "$work/deb/$key" -name '*.deb' -print -quit)
			[[ -n $deb ]] || die "apt-get download $pkg left no .deb"
		fi
		say "unpacking $(basename -- "$deb")"
		rm -rf -- "$kdir"
		mkdir -p -- "$kdir"
		dpkg -x "$deb" "$kdir/x"
		[[ ! -d $kdir/x/usr/lib/modules || -d $kdir/x/lib/modules ]] || { mkdir -p "$kdir/x/lib"; mv "$kdir/x/usr/lib/modules" "$kdir/x/lib/modules"; }
		local rel
		rel=$(ls -- "$kdir/x/lib/modules")
		[[ $rel != *$'\n'* && -n $rel ]] || die "not one kernel in $deb"
		extract_vmlinux "$kdir/x/boot/vmlinuz-$rel" "$kdir/vmlinux" || die "can't unpack the kernel image in $deb (xz, zstd or lz4 missing?)"
		depmod -b "$kdir/x" "$rel" || die "depmod failed for $rel"
		printf '%s\n' "$rel" >"$kdir/release"
		rm -rf -- "$work/deb/$key"
		: >"$kdir/done"
	fi
	release=$(<"$kdir/release")
}

prepare_siw() { # Debian's kernels come without siw: build it from their own source
	siw_ko=$kdir/siw.ko
	[[ ! -f $siw_ko ]] || return 0
	local b=$kdir/siw-build base flavour up ver src gcc pkgs
	if ver=$(modprobe -d "$kdir/x" -S "$release" --show-depends siw 2>/dev/null); then
		cp -- "$(awk 'END { print $2 }' <<<"$ver")" "$siw_ko"; return 0
	fi
	need_tool make make
	up=$(cut -d. -f1,2 <<<"$release")
	flavour=${release##*-}
	base=${release%-"$flavour"}
	gcc=$(apt-cache depends "linux-headers-$release" | awk '$2 ~ /^linux-compiler-gcc-[0-9]+-x86$/ { print $2; exit }')
	pkgs=("linux-headers-$release" "linux-headers-$base-common" "linux-source-$up")
	[[ -z $gcc ]] || pkgs+=("$gcc")
	pkgs+=("$(apt-cache depends "linux-headers-$release" | awk '$2 ~ /^linux-kbuild-/ { print $2; exit }')")
	say "building siw for $release (once): ${pkgs[*]}"
	rm -rf -- "$b"
	mkdir -p -- "$b"
	apt_get_deb "$b/deb" "${pkgs[@]}"
	local d h
	for d in "$b"/deb/*.deb; do dpkg -x "$d" "$b/x"; done
	src=$(find "$b/x/usr/src" -name "linux-source-$up.tar.*" -print -quit)
	[[ -n $src ]] || die "no source in linux-source-$up"
	tar -C "$b" -xf "$src" "linux-source-$up/drivers/infiniband/sw/siw" || die "no siw in linux-source-$up"
	h=$b/x/usr/src/linux-headers-$release
	printf 'include %s/x/usr/src/linux-headers-%s-common/Makefile\n' "$b" "$base" >"$h/Makefile"
	make -j"$(nproc)" -C "$h" M="$b/linux-source-$up/drivers/infiniband/sw/siw" CONFIG_RDMA_SIW=m CONFIG_DEBUG_INFO_BTF_MODULES= modules >"$b/log" 2>&1 ||
		{ tail -n 20 -- "$b/log" >&2; die "siw does not build for $release"; }
	cp -- "$b/linux-source-$up/drivers/infiniband/sw/siw/siw.ko" "$siw_ko.new"
	rm -rf -- "$b"
	mv -- "$siw_ko.new" "$siw_ko"
}

add_module() { # NAME: append it and what it depends on to the image's list
	local line f n deps
	deps=$(modprobe -d "$kdir/x" -S "$release" --show-depends "$1" 2>&1) || die "kernel $release has no module $1: $deps"
	while read -r line; do
		case $line in
		insmod\ *) f=$(awk '{ print $2 }' <<<"$line") ;;
		*) continue ;;
		esac
		n=${f##*/}; n=${n%%.ko*}
		[[ -z ${mod_seen[$n]:-} ]] || continue
		mod_seen[$n]=1
		put_module "$f" "$n"
	done <<<"$deps"
}
put_module() { # FILE NAME
	case $1 in
	*.xz) xz -dc -- "$1" >"$img/m/$2.ko" ;;
	*.zst) zstd -qdc -- "$1" >"$img/m/$2.ko" ;;
	*.gz) gzip -dc -- "$1" >"$img/m/$2.ko" ;;
	*) cp -- "$1" "$img/m/$2.ko" ;;
	esac
	# Without debug data and signature a module loads much faster under emulation.
	if command -v strip >/dev/null 2>&1; then strip --strip-debug -- "$img/m/$2.ko" 2>/dev/null || true; fi
	printf '%s\n' "$2" >>"$img/m/list"
}

prepare_image() { # initramfs: busybox, modules, init
	local stamp m
	stamp=$( { cat -- "${BASH_SOURCE[0]}" "$kdir/release"; printf '%s' "$transport"; } | sha256sum | cut -c1-16)
	image=$kdir/initrd-$transport-$stamp.cpio
	[[ ! -f $image ]] || return 0
	say "making the initramfs for $release ($transport)"
	img=$run/img
	declare -gA mod_seen=()
	mkdir -p -- "$img"/{bin,m,proc,sys,dev,host,rw,new}
	cp -- "$busybox" "$img/bin/busybox"
	! "$busybox" true 2>/dev/null || ! LC_ALL=C ldd "$busybox" 2>/dev/null | grep -q '=>' || die "busybox is not static: install Debian's package 'busybox-static'"
	ln -s busybox "$img/bin/sh"
	: >"$img/m/list"
	for m in $MODS_BOOT; do add_module "$m"; done
	if [[ $transport == siw ]]; then
		add_module libcrc32c
		put_module "$siw_ko" siw
	else
		add_module rdma_rxe
	fi
	guest_init >"$img/init"
	chmod 755 "$img/init"
	(cd -- "$img" && find . -print0 | LC_ALL=C sort -z | cpio -0 -o -H newc --quiet --owner=0:0) >"$run/image"
	rm -f -- "$kdir"/initrd-"$transport"-*.cpio
	mv -- "$run/image" "$image"
	rm -rf -- "$img"
}

# --------------------------------------------------------------- the guest's init
guest_init() {
	cat <<'INIT'
#!/bin/busybox sh
# PID 1 of the guest. /conf/conf sets: HUGE MODDIR
B=/bin/busybox
export PATH=/bin
$B mount -t proc proc /proc
$B mount -t sysfs sys /sys
$B mount -t devtmpfs dev /dev
T0=$($B cut -d' ' -f1 /proc/uptime)
fail() {
	echo "SOFTROCE-FAIL $*" >/dev/console
	finish "fail $*"
}
finish() {
	[ -z "$RC" ] || echo "$1" >"$RC"
	$B sync
	$B poweroff -f
	$B sleep 60
}
RC=
[ ! -e /conf/probe ] || { echo "SOFTROCE-PROBE-OK" >/dev/console; $B poweroff -f; }
for m in $($B cat /m/list); do
	$B insmod /m/$m.ko 2>/err || fail "module $m: $($B cat /err)"
done
. /conf/conf
n=0
while [ ! -e /sys/class/virtio-ports ] || [ -z "$($B ls /sys/class/virtio-ports 2>/dev/null)" ]; do
	n=$((n + 1)); [ $n -lt 100 ] || fail "no virtio ports"
	$B usleep 50000
done
for p in /sys/class/virtio-ports/*; do
	case $($B cat $p/name) in
	softroce.out) OUT=/dev/${p##*/} ;;
	softroce.err) ERR=/dev/${p##*/} ;;
	softroce.rc) RC=/dev/${p##*/} ;;
	esac
done
[ -n "$OUT" ] && [ -n "$ERR" ] && [ -n "$RC" ] || fail "a virtio port is missing"

O9=trans=virtio,version=9p2000.L,msize=524288
$B mount -t 9p -o ro,$O9,cache=loose hostroot /host || fail "mount of the host's files"
$B mount -t tmpfs -o size=75%,mode=755 rw /rw
$B mkdir -p /rw/up /rw/wk
$B mount -t overlay -o lowerdir=/host,upperdir=/rw/up,workdir=/rw/wk overlay /new || fail "mount of the overlay"
N=/new
for d in proc sys dev run tmp; do [ -d $N/$d ] || $B mkdir -p $N/$d; done
$B mount -t proc proc $N/proc
$B mount -t sysfs sys $N/sys
$B mount -t devtmpfs dev $N/dev
$B mkdir -p $N/dev/pts $N/dev/shm $N/dev/hugepages
$B mount -t devpts devpts $N/dev/pts
$B mount -t tmpfs -o mode=1777 shm $N/dev/shm
$B mount -t tmpfs -o mode=755 run $N/run
$B mkdir -p $N/run/lock $N/run/netns
[ -e $N/dev/fd ] || $B ln -s /proc/self/fd $N/dev/fd
[ -e $N/dev/stdin ] || { $B ln -s /proc/self/fd/0 $N/dev/stdin; $B ln -s /proc/self/fd/1 $N/dev/stdout; $B ln -s /proc/self/fd/2 $N/dev/stderr; }
$B mount -t cgroup2 cgroup2 $N/sys/fs/cgroup 2>/dev/null
$B mount --make-rshared /
# Everything the kernel package ships can be loaded on demand.
$B mkdir -p /sbin $N/lib/modules
$B mount -o bind "$N$MODDIR" $N/lib/modules
printf '#!/bin/busybox sh\nexec /bin/busybox chroot /new /sbin/modprobe "$@"\n' >/sbin/modprobe
$B chmod 755 /sbin/modprobe
if [ "$HUGE" != 0 ]; then
	echo "$HUGE" >/proc/sys/vm/nr_hugepages
	[ "$($B cat /proc/sys/vm/nr_hugepages)" = "$HUGE" ] || fail "only $($B cat /proc/sys/vm/nr_hugepages) of $HUGE hugepages"
	$B mount -t hugetlbfs -o mode=1777 huge $N/dev/hugepages || fail "mount of hugetlbfs"
fi
i=0
while IFS= read -r o; do
	[ -n "$o" ] || continue
	[ -d "$N$o" ] || $B mkdir -p "$N$o"
	$B mount -t 9p -o rw,$O9,cache=mmap "out$i" "$N$o" || fail "mount of $o"
	i=$((i + 1))
done </conf/outs
$B hostname softroce
$B cp /conf/setup /conf/command $N/run/
echo "$T0" >$N/run/softroce.t0
ulimit -l unlimited
ulimit -n 65536
$B chroot $N /bin/bash /run/setup >$N/run/setup.log 2>&1 </dev/null || { $B cat $N/run/setup.log >"$ERR"; fail "network or RDMA set-up: $($B tail -n 1 $N/run/setup.log)"; }
for c in /sys/devices/system/cpu/cpu[0-9]*/online; do
	[ -e "$c" ] && [ "$($B cat $c)" = 0 ] || continue
	echo 1 >"$c" || fail "a CPU does not start"
done
echo "up $($B cut -d' ' -f1 /proc/uptime)" >"$RC"
$B chroot $N /bin/bash /run/command >"$OUT" 2>"$ERR" </dev/null
finish "exit $?"
INIT
}

# Runs in the guest, in the chroot, with this machine's tools.
guest_setup() {
	cat <<'SETUP'
set -eEuo pipefail
trap 'echo "line $LINENO: $BASH_COMMAND: status $?"' ERR
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
A=10.77.0.1 B=10.77.0.2
c=/proc/sys/net
echo 16384 >$c/core/netdev_max_backlog  # large RDMA READs come as one burst of packets
echo 0 >$c/ipv4/conf/all/rp_filter
echo 0 >$c/ipv4/conf/default/rp_filter
echo 0 >$c/ipv6/conf/all/accept_dad     # no duplicate address detection: addresses work at once
echo 0 >$c/ipv6/conf/default/accept_dad
[[ $DISKS == 0 ]] || modprobe virtio_blk
dev0=${TRANSPORT}0 dev1=${TRANSPORT}1 ns0='' ns1=''
pair="link add veth0 mtu $MTU type veth peer name veth1 mtu $MTU"
if [[ $TWO == 1 && $TRANSPORT == siw ]]; then
	ns0=left ns1=right
	ip -batch - <<-IP
		link set lo up
		netns add $ns0
		netns add $ns1
		$pair
		link set veth0 netns $ns0
		link set veth1 netns $ns1
	IP
	ip -n $ns0 -batch - <<-IP
		link set lo up
		link set veth0 up
		addr add $A/24 dev veth0
	IP
	ip -n $ns1 -batch - <<-IP
		link set lo up
		link set veth1 up
		addr add $B/24 dev veth1
	IP
	# Only now: siw takes the link's state as it is when the device is made.
	ip netns exec $ns0 rdma link add $dev0 type siw netdev veth0
	ip netns exec $ns1 rdma link add $dev1 type siw netdev veth1
else
	ip -batch - <<-IP
		link set lo up
		$pair
		link set veth0 up
		link set veth1 up
		addr add $A/24 dev veth0
	IP
	if [[ $TWO == 1 ]]; then
		# Packets between two addresses of one host would go by 'lo'. So the 'local' table is looked up
		# first only for packets that come in; those sent to the other address go out through the veth
		# pair, and a socket or rdma_cm id not yet bound gets the other address as its own.
		for v in veth0 veth1; do
			echo 1 >$c/ipv4/conf/$v/accept_local
			echo 0 >$c/ipv4/conf/$v/rp_filter
		done
		ip -batch - <<-IP
			addr add $B/24 dev veth1 noprefixroute
			rule add pref 1 iif veth0 lookup local
			rule add pref 1 iif veth1 lookup local
			rule add pref 2 from $A to $A lookup local
			rule add pref 2 from $B to $B lookup local
			rule add pref 3 to $B lookup 101
			rule add pref 3 to $A lookup 102
			rule add pref 4 lookup local
			rule del pref 0
			route add $B dev veth0 src $A table 101
			route add $A dev veth1 src $B table 102
			neigh replace $B dev veth0 lladdr $(</sys/class/net/veth1/address) nud permanent
			neigh replace $A dev veth1 lladdr $(</sys/class/net/veth0/address) nud permanent
		IP
	fi
	rdma link add $dev0 type $TRANSPORT netdev veth0
	[[ $TWO == 0 ]] || rdma link add $dev1 type $TRANSPORT netdev veth1
fi
if [[ -n $NETEM ]]; then
	tc ${ns0:+-n $ns0} qdisc replace dev veth0 root netem limit 100000 $NETEM
	tc ${ns1:+-n $ns1} qdisc replace dev veth1 root netem limit 100000 $NETEM
fi
{
	echo "SOFTROCE_TRANSPORT=$TRANSPORT SOFTROCE_DEV0=$dev0 SOFTROCE_ADDR0=$A SOFTROCE_NETNS0=$ns0"
	[[ $TWO == 0 ]] || echo "SOFTROCE_DEV1=$dev1 SOFTROCE_ADDR1=$B SOFTROCE_NETNS1=$ns1"
} >/run/softroce.env
SETUP
}

# ------------------------------------------------------------------------ run QEMU
machine_args() { # KIND: sets args
	args=(-nodefaults -no-user-config -no-reboot -display none -machine "pc,hpet=off,usb=off,vmport=off"
		-kernel "$kdir/vmlinux" -chardev "file,id=con,path=$run/console" -serial chardev:con)
	if [[ $1 == kvm ]]; then args+=(-accel kvm -cpu host)
	else args+=(-accel "tcg,thread=${SOFTROCE_TCG:-multi},tb-size=512" -cpu "$TCG_CPU"); fi
}
# Emulated 'rep movsb' and PCLMULQDQ are much slower than what the kernel uses without them, and
# five-level page tables make every TLB miss dearer.
readonly TCG_CPU=max,-la57,-erms,-fsrm,-pclmulqdq
# One CPU until the set-up is done: booting is faster so, and QEMU before 8.1 now and then runs stale
# code when the kernel patches itself while a second CPU runs it.
readonly KARGS='console=ttyS0 quiet panic=-1 oops=panic mitigations=off nokaslr random.trust_cpu=on audit=0 apparmor=0 cryptomgr.notests=1 rcupdate.rcu_expedited=1 tsc=reliable no_timer_check maxcpus=1 noreplace-smp'

kvm_works() { # a real test boot, remembered
	[[ -r /dev/kvm && -w /dev/kvm ]] || return 1
	local mark=$kdir/kvm-probe id
	id=$(uname -r -v; cut -d' ' -f1 /proc/sys/kernel/random/boot_id)
	if [[ ! -f $mark || $(head -n -1 -- "$mark") != "$id" ]]; then
		local args ok=no
		machine_args kvm
		mkdir -p "$run/p/conf"; : >"$run/p/conf/probe"
		(cd "$run/p" && find . | cpio -o -H newc --quiet --owner=0:0) >"$run/p.cpio"
		cat -- "$image" "$run/p.cpio" >"$run/p.img"
		# In a subshell with no stderr, or bash reports the emulator's abort.
		(
			ulimit -c 0
			timeout -k 2 15 "$QEMU" "${args[@]}" -m 512 -smp 1 -initrd "$run/p.img" -append "$KARGS" </dev/null
			exit 0
		) >/dev/null 2>&1 || true
		! grep -aq SOFTROCE-PROBE-OK "$run/console" 2>/dev/null || ok=yes
		printf '%s\n%s\n' "$id" "$ok" >"$run/mark"
		mv -- "$run/mark" "$mark"
		rm -f -- "$run/console" "$run/p.img"
	fi
	[[ $(tail -n 1 -- "$mark") == yes ]]
}

exec 9>"$work/lock"
flock -w 900 9 || die "another run holds $work/lock"
prepare_kernel
[[ $transport != siw ]] || prepare_siw
prepare_image
if [[ $accel == auto ]]; then if kvm_works; then accel=kvm; else accel=tcg; fi; fi
# A private name for the image: a later run may replace the cached one.
ln -- "$image" "$run/base.cpio" 2>/dev/null || cp -- "$image" "$run/base.cpio"
exec 9>&-
if ((prepare)); then say "ready: kernel $release, $transport, $accel"; exit 0; fi

two=$netns2
[[ -z $netem ]] || two=1
mkdir -p "$run/c/conf"
{
	printf 'HUGE=%s MODDIR=%q\n' "$hugepages" "$kdir/x/lib/modules"
} >"$run/c/conf/conf"
: >"$run/c/conf/outs"
shares=(-fsdev "local,id=hostroot,path=/,security_model=none,readonly=on,multidevs=remap" -device "virtio-9p-pci,fsdev=hostroot,mount_tag=hostroot")
i=0
for o in "${outs[@]}"; do
	mkdir -p -- "$o" || die "can't make --out folder $o"
	o=$(cd -- "$o" && pwd -P)
	[[ $o != *[,$'\n']* ]] || bad_usage "--out: no comma or newline in the path: $o"
	shares+=(-fsdev "local,id=out$i,path=$o,security_model=none,multidevs=remap" -device "virtio-9p-pci,fsdev=out$i,mount_tag=out$i")
	printf '%s\n' "$o" >>"$run/c/conf/outs"
	i=$((i + 1))
done
{
	printf 'TRANSPORT=%q TWO=%q MTU=%q DISKS=%q NETEM=%q\n' "$transport" "$two" "$mtu" "${#disks[@]}" "$netem"
	guest_setup
} >"$run/c/conf/setup"
{
	printf 'export PATH=%q HOME=%q TMPDIR=/tmp SOFTROCE=1\n' "$PATH" "${HOME:-/root}"
	printf 'set -a; . /run/softroce.env; set +a\n'
	for e in "${envs[@]}"; do
		if [[ $e == *=* ]]; then printf 'export %s=%q\n' "${e%%=*}" "${e#*=}"
		elif [[ -n ${!e+x} ]]; then printf 'export %s=%q\n' "$e" "${!e}"; fi
	done
	printf 'cd -- %q || exit 125\n' "$dir"
	printf 'exec -- '
	printf '%q ' "${cmd[@]}"
	printf '\n'
} >"$run/c/conf/command"
(cd "$run/c" && find . | cpio -o -H newc --quiet --owner=0:0) >"$run/c.cpio"
cat -- "$run/base.cpio" "$run/c.cpio" >"$run/initrd"

machine_args "$accel"
args+=(-m "$mem" -smp "$cpus" -initrd "$run/initrd" -append "$KARGS"
	-device "virtio-serial-pci,ioeventfd=off,max_ports=8")
for p in out err rc; do
	: >"$run/$p"
	args+=(-chardev "file,id=$p,path=$run/$p,append=on" -device "virtserialport,chardev=$p,name=softroce.$p")
done
i=0
for d in "${disks[@]}"; do
	truncate -s "${d}M" "$run/disk$i"
	args+=(-drive "file=$run/disk$i,if=virtio,format=raw,cache=unsafe")
	i=$((i + 1))
done
args+=("${shares[@]}" -device virtio-rng-pci)

# Boot; a VM that does not get as far as starting COMMAND is tried again (nothing has run yet).
readonly BOOT_LIMIT=${SOFTROCE_BOOT_TIMEOUT:-90} TRIES=3
setpriv_ok=0
! setpriv --pdeathsig TERM true 2>/dev/null || setpriv_ok=1
SECONDS=0
say "kernel $release, $transport, $accel, $cpus CPUs, $mem MiB"
for ((try = 1; ; try++)); do
	left=$((limit - SECONDS))
	((left > 0)) || left=1
	wrap=(timeout -k 10 "$left")
	# If this script is killed outright, the VM goes too.
	((!setpriv_ok)) || wrap=(setpriv --pdeathsig TERM "${wrap[@]}")
	for p in out err rc console; do : >"$run/$p"; done
	started=$SECONDS
	"${wrap[@]}" "$QEMU" "${args[@]}" </dev/null >"$run/qemu" 2>&1 &
	qemu_pid=$!
	hung=0
	while [[ ! -s $run/rc ]] && kill -0 "$qemu_pid" 2>/dev/null; do
		if ((SECONDS - started >= BOOT_LIMIT && SECONDS < limit)); then hung=1; break; fi
		sleep 0.05
	done
	[[ ! -s $run/rc ]] || break
	if ((hung)); then kill "$qemu_pid" 2>/dev/null || true; fi
	qrc=0
	wait "$qemu_pid" || qrc=$?
	qemu_pid=''
	if ((SECONDS >= limit)); then break; fi
	((try < TRIES)) || break
	say "the guest did not come up ($( ((hung)) && echo "no sign of life for $BOOT_LIMIT s" || echo "emulator status $qrc")); trying again"
	sed 's/^/  qemu: /' "$run/qemu" >&2
	tail -n 5 -- "$run/console" | tr -d '\r' | sed 's/^/  guest: /' >&2 || true
done

if [[ -n $qemu_pid ]]; then
	tail -s 0.1 -c +1 -f --pid="$qemu_pid" -- "$run/out" 2>/dev/null &
	pumps+=($!)
	tail -s 0.1 -c +1 -f --pid="$qemu_pid" -- "$run/err" >&2 2>/dev/null &
	pumps+=($!)
	qrc=0
	wait "$qemu_pid" || qrc=$?
	qemu_pid=''
	for p in "${pumps[@]}"; do wait "$p" || true; done
	pumps=()
fi

if grep -aqE 'WARNING: CPU|BUG: |Oops|Kernel panic' "$run/console"; then
	say "the guest's kernel complained (see --keep-log):"
	{ grep -aE -m 5 'WARNING: CPU|BUG: |Oops|RIP: 0010|Kernel panic' "$run/console" | tr -d '\r' | sed 's/^/  guest: /' >&2; } || true
fi
last=$(tail -n 1 -- "$run/rc")
case $last in
exit\ *) exit "${last#exit }" ;;
esac
if ((qrc == 124 || qrc == 137)); then
	say "timed out after $limit s; last lines of the guest's console:"
	tail -n 5 -- "$run/console" | tr -d '\r' | sed 's/^/  guest: /' >&2 || true
	exit 124
fi
sed 's/^/  qemu: /' "$run/qemu" >&2
tail -n 25 -- "$run/console" | tr -d '\r' | sed 's/^/  guest: /' >&2 || true
case $last in
fail\ *) die "in the guest: ${last#fail }" ;;
*) die "the VM ended without a result (emulator status $qrc)" ;;
esac
}
