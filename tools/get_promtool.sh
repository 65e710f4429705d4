#!/usr/bin/env bash
# Puts promtool (Prometheus' rule checker) into .tools/, from Debian's package of Prometheus.
# The package is unpacked, not installed: no service starts. Elsewhere it says so and leaves.
set -euo pipefail
cd "$(dirname "$0")/.."
target=.tools/promtool

if [ -x "$target" ] || command -v promtool >/dev/null; then
  exit 0
fi
skip() {
  echo "promtool: $1; the checks of dashboards/*.yml are skipped here" >&2
  # CI must not pass without them.
  [ -z "${CI:-}" ] && exit 0 || exit 1
}
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
  echo "promtool: not a Debian system, install Prometheus yourself; the checks of" \
    "dashboards/*.yml are skipped here" >&2
  exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# apt drops its privileges for the download and must be able to write there.
chmod 755 "$work"
if [ "$(id -u)" = 0 ]; then
  chown _apt "$work" 2>/dev/null || true
  apt-get update -qq >&2 || skip "apt-get update failed"
fi
(cd "$work" && apt-get download -qq prometheus >&2) || skip "Debian's package cannot be had"
dpkg-deb --fsys-tarfile "$work"/prometheus_*.deb | tar -x -C "$work" ./usr/bin/promtool
mkdir -p .tools
mv "$work/usr/bin/promtool" "$target"
"$target" --version | head -1
