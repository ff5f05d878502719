# shellcheck shell=bash disable=SC2034
# The Debian packages that Tessera needs, and how to get them. Sourced by demo.sh, test.sh, .ci/run and
# .ci/full.

packages_build="cmake ninja-build gcc g++ pkg-config libc6-dev libdnnl-dev libyaml-dev libjansson-dev
    nettle-dev zlib1g-dev libhwloc-dev libcmocka-dev libprotobuf-c-dev protobuf-c-compiler
    libpcre2-dev libutf8proc-dev libzstd-dev libpng-dev libjpeg62-turbo-dev libsentencepiece-dev"
packages_tests="locales jq"
packages_data="dataset-fashion-mnist"
packages_ci="clang lld libclang-rt-14-dev clang-format clang-tidy chromium iproute2 openmpi-bin libopenmpi-dev
    mpich libmpich-dev python3-numpy slurmd slurmctld slurm-client munge"
packages_full="libglpk-dev python3-torch python3-venv"

# packages_missing NAME...: those of the names that are not installed, on one line.
packages_missing()
{
    local name missing=
    for name in "$@"; do
        if [ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null)" != installed ]; then
            missing="$missing $name"
        fi
    done
    echo "${missing# }"
}

# packages_install NAME...: install what is missing; print what before asking for root.
packages_install()
{
    local missing root=
    if ! command -v dpkg-query >/dev/null; then
        echo "No dpkg-query: this is not a Debian machine. Assuming that the counterparts of these" \
             "packages are installed:" "$@"
        return 0
    fi
    missing=$(packages_missing "$@")
    if [ -z "$missing" ]; then
        echo "All packages are installed."
        return 0
    fi
    echo "Missing Debian packages: $missing"
    if [ "$(id -u)" != 0 ]; then
        if ! command -v sudo >/dev/null; then
            echo "They need root and there is no sudo. As root, run:" >&2
            echo "    apt-get update && apt-get install --no-install-recommends $missing" >&2
            return 1
        fi
        echo "Installing them with apt-get as root; sudo may ask for your password."
        root=sudo
    fi
    # The names are words on purpose.
    # shellcheck disable=SC2086
    $root env DEBIAN_FRONTEND=noninteractive sh -c '
        apt-get -q update && apt-get -q install -y --no-install-recommends "$@"' apt-get $missing
}
