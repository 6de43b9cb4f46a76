#!/bin/sh
# Installs pipeops-agent on this machine, or removes it:
#
#   sh install.sh [--dry-run] [--folder FOLDER] [--version VERSION] [--token-file FILE] [--cluster-name NAME] [--repository URL | none]
#   sh install.sh uninstall [--purge] [--dry-run]
#
# It takes the package of the distribution's kind (.deb, .rpm), else the tarball. Nothing of a download is run or unpacked before the
# signature of its list of checksums was verified with the key below (by minisign, or else by openssl 3), and its own checksum with that list.
# --folder: everything is there already, no network is asked. The token comes by --token-file, PIPEOPS_TOKEN_FILE, PIPEOPS_TOKEN or
# standard input (--token-file -), never by an argument. Proxies: HTTPS_PROXY and NO_PROXY, as curl and wget know them.
# Where the release has the keyring of its repository of packages, that is set up for apt or dnf, so that updates of the system update the
# agent; --repository names a copy of it, or none.
# It may be run again: what is there already is left as it is.
set -eu
export LC_ALL=C
PATH=$PATH:/usr/sbin:/sbin

# Everything is in functions, and the last line calls them: a script that was cut off on its way does nothing.

BASE=${PIPEOPS_INSTALL_BASE:-https://releases.pipeops.io/agent}
# Filled in by the release; a folder or a mirror of one's own has a key of its own.
PUBLIC_KEY=${PIPEOPS_INSTALL_KEY:-@PUBLIC_KEY@}
WAIT_S=600
ATTEMPTS=6

say() { printf '%s\n' "pipeops-agent: $*"; }
die() {
    printf '%s\n' "pipeops-agent: $1" >&2
    [ $# -lt 2 ] || printf '%s\n' "  fix: $2" >&2
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }
# Does it, or says that it would.
act() {
    if [ -n "$dry_run" ]; then
        say "would run: $*"
    else
        "$@"
    fi
}

usage() {
    printf '%s\n' 'usage: install.sh [--dry-run] [--folder FOLDER] [--version VERSION] [--token-file FILE] [--cluster-name NAME] [--repository URL | none]' \
        '       install.sh uninstall [--purge] [--dry-run]'
}

parse() {
    verb=install dry_run='' folder='' version='' token_file='' cluster_name='' repository='' purge=''
    while [ $# -gt 0 ]; do
        case $1 in
        install | uninstall) verb=$1 ;;
        --dry-run) dry_run=1 ;;
        --purge) purge=1 ;;
        --folder | --version | --token-file | --cluster-name | --repository)
            [ $# -ge 2 ] || die "$1 needs a value"
            case $1 in
            --folder) folder=$2 ;;
            --version) version=$2 ;;
            --token-file) token_file=$2 ;;
            --cluster-name) cluster_name=$2 ;;
            --repository) repository=${2%/} ;;
            esac
            shift
            ;;
        -h | --help)
            usage
            exit 0
            ;;
        --token | --token=*) die 'do not pass a token as an argument: others could read it in the list of processes' 'use --token-file FILE, or --token-file - for standard input' ;;
        *) die "unknown argument $1" 'sh install.sh --help' ;;
        esac
        shift
    done
    case $version in
    '' | [0-9]*) ;;
    *) die "invalid version: $version" ;;
    esac
    case $repository in
    '' | none) ;;
    *[!0-9A-Za-z:/._~-]*) die "invalid address: $repository" ;;
    http://?* | https://?*) ;;
    *) die "invalid address: $repository" '--repository https://…, the folder that holds apt and rpm' ;;
    esac
    case $version in */* | *..*) die "invalid version: $version" ;; esac
}

# What this machine is: arch, kind (deb, rpm, tar), init.
detect() {
    [ "$(uname -s)" = Linux ] || die "this is $(uname -s); the agent runs on Linux"
    case $(uname -m) in
    x86_64 | amd64) arch=amd64 rpm_arch=x86_64 ;;
    aarch64 | arm64) arch=arm64 rpm_arch=aarch64 ;;
    armv6l | armv7l) die 'this system is for 32-bit ARM, which the agent is not built for' 'on a Raspberry Pi 3 or later install the 64-bit Raspberry Pi OS' ;;
    *) die "there is no agent for $(uname -m), only for x86-64 and arm64" ;;
    esac
    # A kernel of 64 bit below a system of 32 bit, as on some Raspberry Pis: the static program runs, the package does not fit.
    # Others have dpkg as a tool: only where it installed itself it is the manager of the system.
    if have apt-get && have dpkg && dpkg -s dpkg >/dev/null 2>&1 && [ "$(dpkg --print-architecture)" = "$arch" ]; then
        kind=deb
    elif have rpm && { have dnf || have yum || have zypper; }; then
        kind=rpm
    else
        kind=tar
    fi
    if [ -d /run/systemd/system ]; then
        init=systemd
    elif [ -d /run/openrc ]; then
        init=openrc
    else
        init=none
    fi
}

# note WHAT FIX: what the installation can do without, in the words of `pipeops-agent doctor`.
note() {
    printf '%s\n' "pipeops-agent: note: $1" >&2
    [ $# -lt 2 ] || printf '%s\n' "  fix: $2" >&2
}
# The place that a file would go to: it, or the nearest folder above that is there.
nearest() {
    place=$1
    while [ ! -d "$place" ]; do place=${place%/*}; done
    printf '%s\n' "${place:-/}"
}
# has_space FOLDER MEGABYTES: also where nobody can tell.
has_space() {
    free=$(df -Pk "$1" 2>/dev/null | awk 'NR == 2 { printf "%d", $4 / 1024 }')
    [ -z "$free" ] || [ "$free" -ge "$2" ]
}
is_read_only() {
    point=$(df -Pk "$1" 2>/dev/null | awk 'NR == 2 { print $6 }')
    awk -v point="$point" '$2 == point { options = $4 } END { exit !(options ~ /^ro(,|$)/) }' /proc/mounts 2>/dev/null
}

# The host provides the root of a container, and its mounts are not all seen in here.
is_container() {
    for mark in /run/systemd/container /run/host/container-manager /.dockerenv /run/.containerenv; do
        [ ! -e "$mark" ] || return 0
    done
    { tr '\0' '\n' </proc/1/environ | grep -q '^container='; } 2>/dev/null || grep -qs ' /proc/[^ ]* fuse[.]lxcfs ' /proc/mounts
}
# is_in_memory FOLDER: also an overlay whose upper folder is. What mounted that one is often hidden, and the kernel was told to.
is_in_memory() {
    ! is_container || return 1
    point=$(df -Pk "$1" 2>/dev/null | awk 'NR == 2 { print $6 }')
    asked=$(grep -s -E '(^| )(boot=overlay|overlayroot=tmpfs[^ ]*)( |$)' /proc/cmdline || true)
    awk -v point="$point" -v asked="$asked" '
        { kinds[$2] = $3; options[$2] = $4 }
        END {
            if (kinds[point] ~ /^(tmpfs|ramfs|rootfs)$/) exit 0
            if (kinds[point] != "overlay" || !match(options[point], /upperdir=[^,]*/)) exit 1
            if (asked != "") exit 0
            upper = substr(options[point], RSTART + 9, RLENGTH - 9)
            while (upper != "" && !(upper in kinds)) sub(/\/[^\/]*$/, "", upper)
            exit kinds[upper == "" ? "/" : upper] !~ /^(tmpfs|ramfs)$/
        }' /proc/mounts 2>/dev/null
}
refuse_memory() {
    fix='install the system on a disk first (Alpine: setup-alpine, disk mode sys); on a NAS see docs/install.md'
    if have raspi-config; then
        fix='disable the overlay: sudo raspi-config nonint disable_overlayfs && sudo reboot; then install again'
    elif [ -n "$asked" ] || [ -e /etc/overlayroot.conf ]; then
        fix='disable overlayroot (/etc/overlayroot.conf or the line of the kernel), restart the machine, and install again'
    fi
    die "$1 is in memory: everything that is installed would be lost at a restart" "$fix"
}

# What stands in the way, before anything is downloaded.
look_around() {
    program=$(nearest /usr/bin) state=$(nearest /var/lib/pipeops-agent)
    for place in "$program" "$state"; do
        ! is_read_only "$place" || die "$point is read-only" \
            "look for disk errors: dmesg | tail. Where the system is read-only on purpose, see docs/install.md"
    done
    for place in "$program" "$state"; do
        ! is_in_memory "$place" || refuse_memory "$place"
    done
    has_space "$program" 32 || die "$program: $free MB free, and the program takes 32" "free space: du -xh $program | sort -h | tail -n 20"
    has_space "$state" 64 || die "$state: $free MB free, and the databases and the download take 64" "free space: du -xh $state | sort -h | tail -n 20"
    # The download is there, and what is in a tarball.
    temporary=${TMPDIR:-/tmp}
    { [ -d "$temporary" ] && [ -w "$temporary" ]; } || die "$temporary is not a writable directory" 'name another: sudo env TMPDIR=/var/tmp sh install.sh'
    has_space "$temporary" 32 || die "$temporary: $free MB free, and the download takes 32" 'name another folder: sudo env TMPDIR=/var/tmp sh install.sh'
    has_space "$state" 256 || note "$state: $free MB free" 'free space: unused images (they are pulled again when needed), the journal, old packages'
    # The second version has them in a file, the first in another.
    controllers=$({ cat /sys/fs/cgroup/cgroup.controllers 2>/dev/null || awk '$4 == 1 { print $1 }' /proc/cgroups 2>/dev/null; } | tr '\n' ' ')
    case " $controllers " in
    *' memory '*) ;;
    *) note 'the kernel was started without the memory controller, so k3s cannot start on this machine; the agent itself can' 'sudo pipeops-agent doctor says where the kernel gets "cgroup_memory=1 cgroup_enable=memory" from' ;;
    esac
    # The kubelet of this machine has a log for each container.
    for log in /var/log/containers/pipeops-agent-*.log; do
        [ -e "$log" ] || [ -L "$log" ] || continue
        note 'the Go agent runs in the cluster of this machine, and this one does not link beside it' 'after the installation: sudo pipeops-agent replace-go-agent'
        break
    done
}

need_root() {
    [ -n "$dry_run" ] || [ "$(id -u)" -eq 0 ] || die 'this needs root' "sudo sh install.sh$1"
}

# Gets NAME into the work folder: from the folder, or by curl or wget, going on where an attempt broke off.
get() {
    if [ -n "$folder" ]; then
        [ -e "$folder/$1" ] || die "$folder has no $1"
        cp "$folder/$1" "$work/$1"
        return
    fi
    attempt=1
    until fetch "$1"; do
        [ "$attempt" -lt "$ATTEMPTS" ] || die "cannot get $url/$1" 'look at the network and HTTPS_PROXY; or download by hand and use --folder'
        sleep "$attempt"
        attempt=$((attempt + 1))
    done
}

# more_than NAME: blocks of 512 bytes that no such file has. Whoever never stops sending must not fill the disk.
more_than() {
    case $1 in SHA256SUMS*) echo 128 ;; *) echo 131072 ;; esac
}

# One attempt, over TLS only where the address says so: a redirection does not lead out of it.
fetch() {
    answer=0
    if have curl; then
        case $url in https:*) protocols='=https' ;; *) protocols='=http,https' ;; esac
        # Somebody who watches sees how far it is.
        if [ -t 2 ]; then quiet=--progress-bar; else quiet=--silent; fi
        # shellcheck disable=SC2086  # words
        code=$(ulimit -f "$(more_than "$1")" && curl --fail $quiet --show-error --location --proto "$protocols" --connect-timeout 20 --speed-time 30 --speed-limit 512 \
            --continue-at - --output "$work/$1" --write-out '%{http_code}' "$url/$1") || answer=$?
        case $answer-$code in
        # It is busy: later it may answer.
        22-408 | 22-429 | 22-5??) ;;
        # The server knows the file and refuses: another attempt has the same answer.
        22-*) die "$url/$1 is not there (the server answered $code)" 'look at the address (PIPEOPS_INSTALL_BASE) and --version' ;;
        60-* | 77-*) distrust ;;
        # A server that has files only as a whole.
        33-*) rm -f "$work/$1" ;;
        esac
        return "$answer"
    elif have wget; then
        if [ -t 2 ]; then quiet=; else quiet=-q; fi
        # busybox that is built without it crashes of it.
        if wget --help 2>&1 | grep -q -e '-T[ ,]'; then patience='-T 20'; else patience=; fi
        # shellcheck disable=SC2086
        (ulimit -f "$(more_than "$1")" && wget $quiet -c $patience -O "$work/$1" "$url/$1") || answer=$?
        [ "$answer" -ne 5 ] || distrust
        return "$answer"
    else
        die 'neither curl nor wget is installed' 'install one of them, or download by hand and use --folder'
    fi
}

# The network is there: another attempt has the same end. A machine without a battery for its clock starts in the past.
distrust() {
    die "the certificate of $url cannot be verified; this machine's clock shows $(date -u +%Y-%m-%dT%H:%M:%SZ)" \
        'where the clock is wrong: sudo date -u -s "YYYY-MM-DD HH:MM:SS", in UTC; else install ca-certificates, or there the certificate of a proxy that reads TLS'
}

# The list of checksums, believed only with a signature of the pinned key.
verify_list() {
    case $PUBLIC_KEY in
    @*) die 'this installer has no key: it is not from a release' 'take install.sh from a release, or set PIPEOPS_INSTALL_KEY' ;;
    esac
    get SHA256SUMS
    get SHA256SUMS.minisig
    has_signed "$work/SHA256SUMS" "$work/SHA256SUMS.minisig" ||
        die 'the signature of the release is invalid; nothing was installed' 'take the newest install.sh, because the key of the releases may have changed since this one; if that does not help, tell security@pipeops.io'
    # The number of a list is the time when it was signed. Within a day it may be another zone.
    signed=$(awk '$1 == "#" && $2 == "sequence" { print $3 }' "$work/SHA256SUMS")
    [ $(($(date +%s) + 86400)) -ge "${signed:-0}" ] ||
        note "this machine's clock shows $(date -u +%Y-%m-%dT%H:%M:%SZ), which is before the release was signed: certificates are rejected when the clock is wrong" \
            'synchronize it with a time server; without internet access, set it by hand, in UTC: sudo date -u -s "YYYY-MM-DD HH:MM:SS"'
    # Somebody may serve the list of last year, with its good signature, to withhold newer ones. Who names a version or a folder wants that one.
    ends=$(awk '$1 == "#" && $2 == "expires" { print $3 }' "$work/SHA256SUMS")
    now=$(date -u +%Y-%m-%dT%H:%M:%SZ)
    [ -n "$version$folder" ] || [ "$(printf '%s\n%s\n' "$now" "${ends:-0}" | sort | tail -n 1)" = "${ends:-0}" ] ||
        die "the list of the release expired ${ends:+at $ends }and this machine's clock shows $now" 'set the clock if it is wrong (date -u); else try later, or name the version: --version'
}

# has_signed FILE SIGNATURE: whether the pinned key did.
has_signed() {
    if ! have minisign; then
        if has_openssl; then
            openssl_verifies "$1" "$2"
            return
        fi
        install_minisign
    fi
    minisign -Vqm "$1" -x "$2" -P "$PUBLIC_KEY" >/dev/null 2>&1
}

# Whether openssl is here, and knows Ed25519 on the command line: since 3.0.
has_openssl() { have openssl && openssl pkeyutl -help 2>&1 | grep -q -e -rawin; }

# part FILE FIRST COUNT: those bytes.
part() { dd if="$1" bs=1 skip="$2" count="$3" 2>/dev/null; }
has_bytes() { [ "$(wc -c <"$1")" -eq "$2" ]; }
# ed25519 MESSAGE SIGNATURE: whether the key in key.der signed it.
ed25519() { openssl pkeyutl -verify -pubin -keyform DER -inkey "$work/key.der" -rawin -in "$1" -sigfile "$2" >/dev/null 2>&1; }

# What minisign does: the key is "Ed", its number and 32 bytes; the second line of a signature is "Ed" (over the file) or "ED" (over its
# BLAKE2b), the number of the key and 64 bytes; the fourth is a signature over those 64 bytes and the comment in the third.
openssl_verifies() {
    printf %s "$PUBLIC_KEY" | openssl base64 -d -A >"$work/key" || return 1
    sed -n 2p "$2" | openssl base64 -d -A >"$work/signed" || return 1
    sed -n 4p "$2" | openssl base64 -d -A >"$work/signed.all" || return 1
    has_bytes "$work/key" 42 && has_bytes "$work/signed" 74 && has_bytes "$work/signed.all" 64 || return 1
    [ "$(part "$work/key" 0 2)" = Ed ] || return 1
    [ "$(part "$work/key" 2 8 | openssl base64)" = "$(part "$work/signed" 2 8 | openssl base64)" ] || return 1
    # An Ed25519 key in DER is these twelve bytes (RFC 8410) and the key.
    {
        printf '\060\052\060\005\006\003\053\145\160\003\041\000'
        part "$work/key" 10 32
    } >"$work/key.der" || return 1
    part "$work/signed" 10 64 >"$work/signature" || return 1
    case $(part "$work/signed" 0 2) in
    Ed) cat "$1" >"$work/message" || return 1 ;;
    ED) openssl dgst -blake2b512 -binary "$1" >"$work/message" || return 1 ;;
    *) return 1 ;;
    esac
    ed25519 "$work/message" "$work/signature" || return 1
    sed -n 3p "$2" | grep -q '^trusted comment: ' || return 1
    {
        cat "$work/signature"
        sed -n '3s/^trusted comment: //p' "$2" | tr -d '\r\n'
    } >"$work/message" || return 1
    ed25519 "$work/message" "$work/signed.all"
}

# Its package comes by the distribution, with the distribution's own signature.
install_minisign() {
    say 'minisign or openssl 3, which verify the release, are missing'
    [ -z "$dry_run" ] || die 'a dry run installs nothing, and without them nothing can be verified' 'install minisign first'
    if have apt-get; then
        wait_for_lock
        # A fresh image has no lists of packages.
        DEBIAN_FRONTEND=noninteractive apt-get install -y -q minisign </dev/null >/dev/null 2>&1 || {
            wait_for_lock
            apt-get update -q </dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -y -q minisign </dev/null
        } >&2
    elif have dnf; then
        by_dnf dnf install -y -q minisign
    elif have apk; then
        apk add --quiet minisign
    elif have zypper; then
        ZYPP_LOCK_TIMEOUT=$WAIT_S zypper --non-interactive --quiet install minisign </dev/null
    fi
    have minisign || die 'neither minisign nor openssl 3 is here, and minisign could not be installed' 'install one of them by hand, or copy minisign from https://jedisct1.github.io/minisign to /usr/local/bin'
}

# One file of the release, held against the list.
verified() {
    get "$1"
    # Exactly one line, of this very name.
    line=$(awk -v name="$1" '$2 == name' "$work/SHA256SUMS")
    [ "$(printf '%s\n' "$line" | grep -c .)" -eq 1 ] || die "the release does not list $1"
    (cd "$work" && printf '%s\n' "$line" | sha256sum -c >/dev/null 2>&1) || die "$1 is damaged or not the one of the release" 'download again'
}

# is_withdrawn VERSION: a list may take back its own release.
is_withdrawn() {
    awk -v version="$1" '$1 == "#" && $2 == "withdrawn" { for (n = 3; n <= NF; n++) if ($n == version) found = 1 } END { exit !found }' "$work/SHA256SUMS"
}

# wait_more SECONDS PROGRAMS: for another program that installs packages, up to a limit. $waited is how long by now.
wait_more() {
    [ "$waited" -gt 0 ] || say "another program installs packages; waiting for up to $WAIT_S seconds"
    [ "$waited" -lt "$WAIT_S" ] || die 'another program still installs packages' "ps aux | grep $2"
    sleep "$1"
    waited=$((waited + $1))
}

# dpkg is often busy in the first minutes after the first boot.
wait_for_lock() {
    waited=0
    while have fuser && fuser /var/lib/dpkg/lock-frontend /var/lib/dpkg/lock /var/cache/apt/archives/lock /var/lib/apt/lists/lock >/dev/null 2>&1; do
        wait_more 2 '-e apt -e dpkg'
    done
}

# by_dnf COMMAND: dnf 5 does not wait for the lock of rpm.
by_dnf() {
    waited=0
    while :; do
        answer=0
        act "$@" </dev/null 2>"$work/complaints" || answer=$?
        if [ "$answer" -eq 0 ] || ! grep -q 'Failed to obtain .*transaction lock' "$work/complaints"; then
            cat "$work/complaints" >&2
            return "$answer"
        fi
        wait_more 10 '-e dnf -e rpm -e packagekit'
    done
}

# The version of the package, without its revision; else what the program says of itself.
installed_version() {
    case $kind in
    deb) dpkg-query -W -f '${Status} ${Version}\n' pipeops-agent 2>/dev/null | sed -n 's/^[a-z]* ok installed \(.*\)-[^-]*$/\1/p' ;;
    rpm) rpm -q --qf '%{VERSION}' pipeops-agent 2>/dev/null | grep -v ' ' || true ;;
    # The first list is that of what was placed, and the second is there until all of a version is in its place.
    tar) [ ! -e /usr/share/pipeops-agent/placed ] || [ -e /usr/share/pipeops-agent/placed.new ] || /usr/bin/pipeops-agent version 2>/dev/null | awk '{ print $2 }' ;;
    esac
}

# Somebody may have removed a file, or the user, to have it placed again. Package managers have commands of their own for that.
is_complete() {
    [ "$kind" = tar ] || return 0
    grep -q '^pipeops-agent:' /etc/passwd || return 1
    while read -r path; do
        [ -e "$path" ] || [ -L "$path" ] || return 1
    done </usr/share/pipeops-agent/placed
}

# Somebody said that the package stays as it is. apt would refuse half-way.
refuse_held() {
    [ "$kind" = deb ] || return 0
    ! dpkg-query -W -f '${Status}\n' pipeops-agent 2>/dev/null | grep -q '^hold ok installed$' ||
        die 'pipeops-agent is held in the package manager' 'let it go: sudo apt-mark unhold pipeops-agent'
}

# is_newer VERSION THAN: also where there is nothing to be newer than.
is_newer() {
    [ -z "$2" ] || [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | tail -n 1)" = "$1" ]
}

# install_package FILE
install_package() {
    file=$1
    case $kind in
    deb)
        [ -n "$dry_run" ] || wait_for_lock
        # apt waits for the lock as well, where fuser is missing. Somebody who names an older version wants it.
        act env DEBIAN_FRONTEND=noninteractive apt-get -o "DPkg::Lock::Timeout=$WAIT_S" -q -y --no-install-recommends --allow-downgrades install "$work/$file" </dev/null
        ;;
    rpm)
        for tool in dnf yum zypper; do
            have "$tool" || continue
            case $tool in
            # The list that was verified has its checksum. Somebody who names an older version wants it.
            # From 100 on its codes are news, such as a repository that it left out, or a reboot that is due.
            zypper)
                act env ZYPP_LOCK_TIMEOUT="$WAIT_S" zypper --non-interactive install --allow-unsigned-rpm --oldpackage "$work/$file" </dev/null || [ $? -ge 100 ]
                ;;
            # Only the file needs no other signature: what it recommends would come along from a repository. Without network one that cannot
            # be asked would be an error.
            *)
                by_dnf "$tool" install -y --setopt=localpkg_gpgcheck=0 --setopt=install_weak_deps=0 ${folder:+'--disablerepo=*'} "$work/$file"
                ;;
            esac
            break
        done
        ;;
    tar)
        if [ -n "$dry_run" ]; then
            say "would run: sh place install (of $file)"
        else
            install_tarball
        fi
        ;;
    esac
}

# The only file of the release with such a name, or the first.
listed() { awk '{ print $2 }' "$work/SHA256SUMS" | grep -x "$1" | head -n 1; }

has_keyring() {
    case $kind in
    deb) dpkg-query -W -f '${Status}\n' pipeops-archive-keyring 2>/dev/null | grep -q ' ok installed$' ;;
    rpm) rpm -q pipeops-archive-keyring >/dev/null 2>&1 ;;
    tar) false ;;
    esac
}

# When a tarball updates itself: it brings a timer of systemd, or with OpenRC a daily job of cron where there is a folder for those.
own_updates() {
    by_hand='to update: sudo pipeops-agent update'
    if [ -z "$dry_run" ] && pipeops-agent config show 2>/dev/null | grep -q '^update[.]automatic *false'; then
        printf '%s\n' "not by itself, as update.automatic says; $by_hand"
    elif [ "$init" = systemd ] && [ "$(readlink /etc/systemd/system/pipeops-agent-update.timer)" != /dev/null ]; then
        printf '%s\n' 'by itself between 03:00 and 05:00, from the address in update.url, with a way back; off: update.automatic = false'
    elif have openrc-run && { [ -d /etc/periodic/daily ] || [ -d /etc/cron.daily ]; }; then
        printf '%s\n' 'by itself within two hours after the daily jobs of cron, from the address in update.url, with a way back; off: update.automatic = false'
    else
        printf '%s\n' "not by itself, because nothing here would start that; $by_hand"
    fi
}

# The keys and the address of the repository of packages, which the list of the release covers as every other file. Leaves in $updates
# where updates come from.
set_up_repository() {
    updates='no repository of packages is set up; to update: sudo pipeops-agent update'
    case $kind in
    deb) sources=/etc/apt/sources.list.d/pipeops.sources key=URIs: folder_of=apt manager='apt upgrade' ring='pipeops-archive-keyring_[0-9][0-9A-Za-z.+~-]*_all[.]deb' ;;
    rpm) sources=/etc/yum.repos.d/pipeops.repo key=baseurl= folder_of=rpm manager='dnf upgrade' ring='pipeops-archive-keyring-[0-9][0-9A-Za-z.+~-]*[.]noarch[.]rpm' ;;
    tar)
        updates=$(own_updates)
        return
        ;;
    esac
    # Somebody may have taken the address away, and the keys alone update nothing.
    if ! has_keyring || [ ! -e "$sources" ]; then
        # zypper has its repositories elsewhere. A folder may be all that a machine without network ever sees.
        [ "$repository" != none ] || return 0
        [ -z "$folder" ] || [ -n "$repository" ] || return 0
        [ "$kind" = deb ] || have dnf || have yum || return 0
        if ! has_keyring || [ "$kind" = rpm ]; then
            ring=$(listed "$ring")
            if [ -z "$ring" ]; then
                [ -z "$repository" ] || die "the release has no keyring, so nothing of $repository could be verified" 'take a release with the package pipeops-archive-keyring'
                return
            fi
            verified "$ring"
            # Over itself it would not bring the address back.
            ! has_keyring || act rpm -e pipeops-archive-keyring
            install_package "$ring"
            # Without systemd its script cannot do that.
            [ "$kind" != rpm ] || act rpm --import /etc/pki/rpm-gpg/RPM-GPG-KEY-pipeops
        fi
        # The package writes it once only.
        if [ "$kind" = deb ] && [ ! -e "$sources" ] && has_keyring; then
            act cp /usr/share/pipeops-archive-keyring/pipeops.sources "$sources"
        fi
    fi
    case $repository in
    '' | none) ;;
    *) act sed -i "s|^$key.*|$key$([ "$kind" = deb ] && echo ' ')$repository/$folder_of|" "$sources" ;;
    esac
    updates="with those of the system ($manager), from the repository in $sources"
}

install_tarball() {
    tar -xzf "$work/$file" -C "$work"
    sh "$work/pipeops-agent-$found/place" install
}

set_up() {
    if [ "$token_file" = - ]; then
        umask 077
        cat >"$work/token"
        token_file=$work/token
    fi
    set -- up
    [ -z "$token_file" ] || set -- "$@" --token-file "$token_file"
    [ -z "$cluster_name" ] || set -- "$@" --cluster-name "$cluster_name"
    if [ -e /etc/pipeops-agent/config.toml ] && [ $# -eq 1 ]; then
        if [ -L /etc/systemd/system/multi-user.target.wants/pipeops-agent.service ] || [ -L /etc/runlevels/default/pipeops-agent ]; then
            say 'it is set up already; its settings stay'
        else
            say 'its settings are still here; start it: sudo pipeops-agent up'
        fi
    elif [ $# -gt 1 ] || [ -n "${PIPEOPS_TOKEN-}${PIPEOPS_TOKEN_FILE-}" ]; then
        # On a terminal it would ask for a name. A token that nobody gave is asked for there.
        if [ -n "$cluster_name" ] && [ -t 0 ]; then
            act pipeops-agent "$@" || [ $? -eq 1 ]
        else
            act pipeops-agent "$@" </dev/null || [ $? -eq 1 ]
        fi
    elif [ -n "$dry_run" ]; then
        say 'that was all; nothing was changed'
    else
        say 'installed; set this machine up: sudo pipeops-agent up'
    fi
}

run_install() {
    need_root ''
    detect
    # shellcheck disable=SC1091  # it is of the machine
    say "this is $(. /etc/os-release 2>/dev/null && printf %s "${PRETTY_NAME:-Linux}"), $arch, $init: installing the .$kind"
    look_around
    url=$BASE/${version:-latest}
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    # Also where the terminal goes away: the folder may have the token.
    trap 'exit 130' HUP INT TERM
    verify_list
    case $kind in
    deb) pattern="pipeops-agent_[0-9][0-9A-Za-z.+~-]*_${arch}[.]deb" ;;
    rpm) pattern="pipeops-agent-[0-9][0-9A-Za-z.+~-]*[.]${rpm_arch}[.]rpm" ;;
    tar) pattern="pipeops-agent-[0-9][0-9A-Za-z.+~-]*-linux-${arch}[.]tar[.]gz" ;;
    esac
    file=$(listed "$pattern")
    [ -n "$file" ] || die "the release has no $kind for $arch"
    found=$(printf '%s\n' "$file" | sed 's/^pipeops-agent_\([^_]*\)_.*/\1/; s/^pipeops-agent-\(.*\)[.][^.]*[.]rpm$/\1/; s/^pipeops-agent-\(.*\)-linux-.*/\1/')
    [ -z "$version" ] || [ "$version" = "$found" ] || die "the release is $found and not $version"
    # Who names that version wants it.
    if [ -z "$version" ] && is_withdrawn "$found"; then
        die "version $found was withdrawn" "wait for the next release, or name an older one: --version"
    fi
    there=$(installed_version)
    if [ "$there" = "$found" ] && is_complete; then
        say "version $found is installed already"
    else
        # Somebody may serve an old release with its good signature.
        [ -n "$version" ] || is_newer "$found" "$there" ||
            die "$url has $found, which is older than the $there that is installed" "to go back on purpose: --version $found"
        refuse_held
        say "downloading $file"
        verified "$file"
        install_package "$file"
        # Some leave an older version alone, and say that all is well.
        [ -n "$dry_run" ] || [ "$kind" = tar ] || [ "$(installed_version)" = "$found" ] ||
            die "the package manager did not install $found" 'see its output above'
    fi
    set_up_repository
    say "updates: $updates"
    set_up
}

# The program is gone, which tells its own files from those of others.
name_rest() {
    for path in /etc/pipeops-agent /var/lib/pipeops-agent /var/lib/pipeops-keeper /var/log/pipeops-agent.log /var/log/pipeops-keeper.log; do
        [ ! -e "$path" ] || say "left: $path; to remove it: sudo rm -r $path"
    done
}

# What a purge of the .deb removes as well, and neither rpm nor the tarball does.
remove_rest() {
    for log in /var/log/pipeops-agent.log /var/log/pipeops-keeper.log; do
        for file in "$log" "$log.1" "$log.2"; do [ ! -e "$file" ] || act rm -f "$file"; done
    done
    for list in passwd group; do
        grep -qs '^pipeops-agent:' "/etc/$list" || continue
        case $list in passwd) remover=userdel other=deluser ;; group) remover=groupdel other=delgroup ;; esac
        have "$remover" || remover=$other
        # Somebody may have given the group a member, or run a program as that user.
        act "$remover" pipeops-agent || say "left: pipeops-agent in /etc/$list; to remove it: sudo $remover pipeops-agent"
    done
}

# Whether a package manager has it, or what its removal left.
is_package() {
    case $kind in
    deb) dpkg -s pipeops-agent >/dev/null 2>&1 ;;
    rpm) rpm -q pipeops-agent >/dev/null 2>&1 ;;
    tar) false ;;
    esac
}

# The repository may have packages of others.
name_keyring() {
    ! has_keyring || case $kind in
    deb) say 'left: the repository of packages; to remove it: sudo apt-get purge pipeops-archive-keyring' ;;
    rpm) say 'left: the repository of packages; to remove it: sudo rpm -e pipeops-archive-keyring' ;;
    esac
}

# Whatever keeps the agent from stopping, or its program from running, is no reason to keep the rest, whose removal stops the services, too.
stop_agent() {
    set -- down
    [ -z "$purge" ] || set -- down --purge --yes
    act pipeops-agent "$@" || {
        failed=1
        note "\"pipeops-agent $*\" failed; removing the rest anyway" 'see above; what stays is named below'
    }
}

# 1 for a purge that went well: after another one there are files of that user.
is_purge() { [ -z "$purge" ] || [ -n "$failed" ] || echo 1; }

run_uninstall() {
    need_root ' uninstall'
    detect
    placed=/usr/share/pipeops-agent/place failed=''
    # Debian keeps what a removal leaves for a purge. Of a tarball, or an rpm, the program may be lost.
    have pipeops-agent || [ -e "$placed" ] || is_package || {
        say 'it is not installed'
        [ -z "$purge" ] || { remove_rest && name_rest; }
        return 0
    }
    case $kind in
    deb)
        if is_package; then
            refuse_held
            [ -n "$dry_run" ] || wait_for_lock
            # apt waits for the lock as well, where fuser is missing.
            act env DEBIAN_FRONTEND=noninteractive apt-get -o "DPkg::Lock::Timeout=$WAIT_S" -q -y "$([ -n "$purge" ] && echo purge || echo remove)" pipeops-agent </dev/null
            name_keyring
            return
        fi
        ;;
    rpm)
        if is_package; then
            [ -z "$purge" ] || stop_agent
            # Its scripts need not name what goes next.
            act env PIPEOPS_PURGE="$(is_purge)" rpm -e pipeops-agent
            [ -z "$(is_purge)" ] || remove_rest
            name_keyring
            [ -z "$failed" ] || exit 1
            return
        fi
        ;;
    esac
    stop_agent
    [ ! -e "$placed" ] || act env PIPEOPS_PURGE="$(is_purge)" sh "$placed" remove
    [ -z "$(is_purge)" ] || remove_rest
    # Without a purge nothing is missing.
    [ -z "$failed" ] || [ -z "$purge" ] || exit 1
}

# wget knows these by their small letters only.
small_letters() {
    [ -n "${https_proxy+set}" ] || [ -z "${HTTPS_PROXY-}" ] || export https_proxy="$HTTPS_PROXY"
    [ -n "${no_proxy+set}" ] || [ -z "${NO_PROXY-}" ] || export no_proxy="$NO_PROXY"
}

main() {
    small_letters
    parse "$@"
    "run_$verb"
}

main "$@"
