#!/bin/sh
# bare_debian.sh [--exchange FOLDER] SUITE [COMMAND...]: runs both commands of the README in a Debian that has nothing but
# its base system.
#
# SUITE is bookworm, trixie, sid or another suite that debootstrap knows. Needs root, and a mirror that apt already uses
# (or DETENT_MIRROR). The base system, a copy of this checkout and of the folder "shared" beside it, if there is one, are
# put in a temporary folder and changed root into; what is there already stays as it is. Prints what passed, failed and
# was skipped; the exit code is 0 if both commands passed. Logs are kept in build/bare_debian/SUITE.
#
# With a COMMAND, that is run instead of the two, in the checkout: bare_debian.sh trixie sh tests/run.sh -L build
#
# With --exchange, what FOLDER holds is copied to /exchange beforehand, and what /exchange then holds is copied back.
#
# The environment's proxies, PIP_INDEX_URL and the certificates of PIP_CERT are passed on.
set -eu
cd "$(dirname "$0")/.."
export PATH="$PATH:/usr/sbin:/sbin"

say() { echo "bare_debian: $*"; }
die() { echo "bare_debian: $*" >&2; exit 2; }

exchange=""
if [ "${1:-}" = --exchange ]; then
  [ -d "${2:-}" ] || die "--exchange needs a folder"
  exchange=$(cd "$2" && pwd)
  shift 2
fi
[ $# -ge 1 ] || die "usage: bare_debian.sh [--exchange FOLDER] SUITE [COMMAND...]"
suite=$1
shift
[ "$(id -u)" = 0 ] || die "needs root: debootstrap makes devices and changes the root"
# The mounts below the new root are seen by this script alone, and end with it, even if it is killed: whoever removes a
# folder that it left behind cannot reach the real /dev through it.
if [ -z "${DETENT_OWN_MOUNTS:-}" ] && unshare --mount true 2>/dev/null; then
  if [ "$exchange" ]; then set -- --exchange "$exchange" "$suite" "$@"; else set -- "$suite" "$@"; fi
  DETENT_OWN_MOUNTS=1 exec unshare --mount --propagation private sh tests/bare_debian.sh "$@"
fi
command -v debootstrap >/dev/null || apt-get -q install -y --no-install-recommends debootstrap >/dev/null ||
  die "debootstrap is not installed, and apt-get could not install it"

logs=$PWD/build/bare_debian/$suite
mkdir -p "$logs"
root=$(mktemp -d "${TMPDIR:-/var/tmp}/bare_debian.XXXXXX")
cleanup() {
  for folder in proc dev; do umount "$root/$folder" 2>/dev/null || :; done
  # Only what is not mounted: --one-file-system leaves the rest alone, should an unmount have failed.
  rm -rf --one-file-system "$root"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' HUP TERM

# Any mirror that apt-get uses here may have the suite.
found=""
for mirror in ${DETENT_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | awk '!seen[$0]++')}; do
  say "the base system of $suite from $mirror"
  if debootstrap --variant=minbase "$suite" "$root" "$mirror" >"$logs/debootstrap.log" 2>&1; then found=1; break; fi
  rm -rf --one-file-system "${root:?}"/*
done
[ "$found" ] || { tail -n 5 "$logs/debootstrap.log" >&2; die "no mirror has $suite; see $logs/debootstrap.log"; }

mkdir "$root/detent"
git ls-files --cached --others --exclude-standard |
  while IFS= read -r file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done >"$logs/files"
tar --null -T "$logs/files" -cf - | tar -C "$root/detent" -xf -
rm "$logs/files"
[ ! -d ../shared ] || cp -R ../shared "$root/shared"
mkdir "$root/exchange"
[ -z "$exchange" ] || cp -a "$exchange/." "$root/exchange/"
cp /etc/resolv.conf "$root/etc/resolv.conf"
mount -t proc proc "$root/proc" 2>/dev/null || mount --bind /proc "$root/proc" || say "no /proc in the new root"
mount --bind /dev "$root/dev" 2>/dev/null || :

environment="HOME=/root LC_ALL=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
for name in CI PIP_INDEX_URL http_proxy https_proxy HTTP_PROXY HTTPS_PROXY no_proxy; do
  eval "value=\${$name:-}"
  [ -z "$value" ] || environment="$environment $name=$value"
done
if [ -f "${PIP_CERT:-}" ]; then
  cp "$PIP_CERT" "$root/root/certificates.pem"
  environment="$environment PIP_CERT=/root/certificates.pem"
fi

# run NAME COMMAND...: in the checkout in the new root; what it prints goes to a log, and its result into $failed.
failed=0
run() {
  name=$1
  shift
  began=$(date +%s)
  # shellcheck disable=SC2086
  if chroot "$root" env -i $environment sh -c 'cd /detent && exec "$@"' sh "$@" >"$logs/$name.log" 2>&1 </dev/null; then
    result=passed
  else
    result=FAILED failed=1
  fi
  say "$suite: $* $result after $(($(date +%s) - began)) s"
  grep -E "tests passed|tests failed|^Total Test time|\*\*\*(Failed|Skipped|Not Run|Timeout|Exception)" "$logs/$name.log" |
    sed 's/^/    /' || :
  [ $result = passed ] || { echo "    ..."; tail -n 15 "$logs/$name.log" | sed 's/^/    /'; }
}

if [ $# -gt 0 ]; then
  run command "$@"
  [ -z "$exchange" ] || cp -a "$root/exchange/." "$exchange/"
else
  run examples sh examples/run.sh
  run tests sh tests/run.sh
fi
say "$suite: $(chroot "$root" sh -c 'g++ --version 2>/dev/null | head -n 1' || :); logs in build/bare_debian/$suite"
exit $failed
