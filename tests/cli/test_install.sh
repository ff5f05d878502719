#!/bin/bash
# The Debian packages of this build, extracted to an empty root: the program runs from there, each command has a man
# page without mistakes, shells complete its words, and apt accepts the package. Usage: test_install.sh BUILD.
set -uo pipefail
build=$1
for tool in cpack dpkg-deb dpkg-shlibdeps file apt-get; do
    command -v $tool >/dev/null || { echo "there is no $tool here"; exit 77; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0
fail()
{
    echo "$*"
    failures=$((failures + 1))
}

cpack --config "$build/CPackConfig.cmake" -G DEB -B packages >cpack.log 2>&1 || { cat cpack.log; exit 1; }
for package in packages/*.deb; do
    dpkg-deb -x "$package" tree || fail "$package is no package"
done
program=$work/tree/usr/bin/tessera

# The program, with what is installed alone.
unset TESSERA_MODULE_PATH
"$program" train tree/usr/share/tessera/configs/labs/fashion_mlp.yaml --data synthetic --synthetic-rows 256 \
    --strategy fsdp --ranks 2 --steps 2 --evaluate off >train.log 2>&1 || { cat train.log; fail "it does not train"; }
grep -q 'hash of all parameters' train.log || fail "without a hash"
if compgen -G "$build/libtessera_mpi_*.so" >/dev/null; then
    [ -n "$(ls tree/usr/lib/tessera 2>/dev/null)" ] || fail "modules for MPI were built, and are in no package"
fi
for file in lib/libtessera.so lib/libtessera.a include/tessera/tessera.h share/doc/tessera/copyright; do
    [ -e "tree/usr/$file" ] || fail "usr/$file is in no package"
done

# Man pages: one of each command, which troff reads without a warning, with the options of the table.
pages=tree/usr/share/man/man1
"$program" help | sed -n '/^commands/,/^$/s/^  \(.\{15\}\) .*/\1/p' | sed 's/ *$//' | while read -r command; do
    [ "$command" = help ] || [ "$command" = version ] || echo "tessera-$command.1"
done | sed 's/ -*/-/g' | sort >expected
[ "$(wc -l <expected)" -gt 15 ] || fail "the help lists no commands"
find "$pages" -name 'tessera-*' -printf '%f\n' | sort | diff expected - || fail "man pages are not those of the commands"
grep -q '\\-\\-fsdp.keep\\-last' "$pages/tessera-train.1" || fail "no option of fsdp in tessera-train(1)"
if command -v groff >/dev/null; then
    for page in "$pages"/*; do
        [ -z "$(groff -man -ww -z "$page" 2>&1)" ] || fail "troff complains of $page"
    done
fi

# completes SHELL WORD LINE: WORD is offered for the end of LINE.
completes()
{
    local found
    case $1 in
    bash)
        # shellcheck disable=SC2016
        found=$(PATH=$work/tree/usr/bin:$PATH bash --norc -c '
            . "$1"; shift
            COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
            _tessera
            printf "%s\n" "${COMPREPLY[@]}"' bash tree/usr/share/bash-completion/completions/tessera "${@:3}") ;;
    fish)
        found=$(PATH=$work/tree/usr/bin:$PATH fish --no-config -c "
            source tree/usr/share/fish/vendor_completions.d/tessera.fish; complete -C '${*:3}'" | cut -f1) ;;
    esac
    grep -qxF -- "$2" <<<"$found" || fail "$1 does not offer $2 for: ${*:3}: $found"
}
for shell in bash fish; do
    command -v $shell >/dev/null || continue
    completes $shell train tessera tr
    completes $shell kernels tessera bench ke
    completes $shell --strategy tessera train --strat
    completes $shell fsdp tessera train --strategy fs
    completes $shell fsdp+tp tessera train --strategy fsdp+t
    completes $shell bf16 tessera compare --precision b
    completes $shell --fsdp.keep-last tessera train --strategy fsdp --fsdp.k
done
completes bash bf16 tessera train --precision = b
if command -v zsh >/dev/null; then
    # Its own parser; what it would show needs a terminal.
    zsh -n tree/usr/share/zsh/vendor-completions/_tessera || fail "zsh refuses its file"
fi

# What apt would do with it. Where the libraries' packages are not known, nothing is shown by that.
package=$(ls packages/tessera_*.deb)
if apt-cache show libhwloc15 >/dev/null 2>&1; then
    apt-get install --simulate "./$package" >apt.log 2>&1
    grep -q '^Inst tessera ' apt.log || { cat apt.log; fail "apt does not accept it"; }
fi
[ $failures -eq 0 ]
