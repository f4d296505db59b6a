#!/usr/bin/env bash
# Unpacks a bundle in an otherwise empty file system, without network, compiler or root, and calls its run.sh there.
# Usage: tools/bundle/rehearse.sh ARCHIVE PYTHON RUN_SH_ARGUMENT ...
# PYTHON has torch; its environment and the system's shared libraries are all that the empty system sees, read-only.
# Needs root or user namespaces. The results are printed, and kept in $RESULTS if that is set.
set -euo pipefail
archive=$(realpath "$1") python=$(realpath --no-symlinks "$2")
shift 2
prefixes=$("$python" -c 'import os, sys; print(*sorted({os.path.realpath(p) for p in (sys.prefix, sys.base_prefix)}))')
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
namespaces=(--mount --net --pid --fork) drop=()
if [ "$(id -u)" = 0 ]; then drop=(--userspec=65534:65534); else namespaces+=(--user --map-root-user); fi

# shellcheck disable=SC2016  # expanded inside
inside='
set -euo pipefail
root=$1 archive=$2 prefixes=$3 python=$4
shift 4
mount -t tmpfs -o mode=755 none "$root"
keep() { mkdir -p "$root$1"; mount --rbind "$1" "$root$1"; mount -o remount,bind,ro "$root$1" 2> /dev/null || true; }
for prefix in $prefixes; do keep "$prefix"; done
for libraries in /lib/x86_64-linux-gnu /lib64 /usr/lib/x86_64-linux-gnu; do
  if [ -L "${libraries%/*}" ] || [ -d "$libraries" ]; then keep "$libraries"; fi
done
mkdir -p "$root"/{bin,usr/bin,proc,dev,etc,tmp,bundle}
for program in bash dirname env; do cp "$(command -v $program)" "$root/bin/"; done
ln -s bash "$root/bin/sh"; ln -s /bin/env "$root/usr/bin/env"
mount -t proc none "$root/proc"
mount --rbind /dev "$root/dev"
chmod 1777 "$root/tmp"
printf "127.0.0.1 localhost\n" > "$root/etc/hosts"
printf "nobody:x:65534:65534::/tmp:/bin/sh\n" > "$root/etc/passwd"
"$python" - << LOOPBACK
import fcntl, socket, struct
with socket.socket() as s:
    fcntl.ioctl(s, 0x8914, struct.pack("16sh14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
LOOPBACK
tar -xf "$archive" -C "$root/bundle" --strip-components=1 --no-same-owner
chmod -R a+rwX "$root/bundle"
status=0
env -i HOME=/tmp PATH=/bin:/usr/bin LANG=C.UTF-8 PYTHON="$python" "$(command -v chroot)" "${@:1:$DROP}" "$root" \
  /bin/bash /bundle/run.sh "${@:$((DROP + 1))}" || status=$?
cat "$root/bundle/results/results.txt" 2> /dev/null || true
if [ -n "${RESULTS:-}" ] && [ -d "$root/bundle/results" ]; then mkdir -p "$RESULTS"; cp -r "$root/bundle/results/." "$RESULTS/"; fi
exit $status
'
status=0
DROP=${#drop[@]} unshare "${namespaces[@]}" bash -c "$inside" rehearse "$root" "$archive" "$prefixes" "$python" "${drop[@]}" "$@" ||
  status=$?
exit $status
