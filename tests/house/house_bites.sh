#!/usr/bin/env bash
# Does house.sh find what it should? Breaks every rule in a tree of its own and expects a complaint about each
# fault, and none about the tree as it stands before.
set -euo pipefail
house=$(cd "$(dirname "$0")" && pwd)/house.sh
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT

mkdir -p "$tree"/engine/{base,comm/nccl,core,data,models,cli,include/tessera} "$tree"/kernels/{ref,cpu,cuda} \
    "$tree"/strategies "$tree"/topology/hwloc "$tree"/tests
echo '#include "tessera/good.h"' >"$tree/strategies/ddp.c"
echo 'const char *train_default = "ddp";' >"$tree/engine/cli/train.c"
echo '#include <oneapi/dnnl/dnnl.h>' >"$tree/kernels/cpu/cpu.c"
echo '#include "comm/world.h"' >"$tree/engine/comm/nccl/nccl.h"
echo '#include <hwloc.h>' >"$tree/topology/hwloc/live_hwloc.c"
echo 'comm->ops->abort(comm, reason); tess_comm_abort(comm, reason);' >"$tree/engine/comm/comm.c"

failures=0

bash "$house" "$tree" >/dev/null || { echo "the sound tree is refused"; failures=1; }

# bites RULE FILE TEXT: house.sh must complain, by that rule, about a FILE of that TEXT. The faults are planted side
# by side, a number in the place of "bad", and found in one run: each rule is a search of every file by itself.
rules=() files=()
bites()
{
    local file=${2/bad/bad${#files[@]}}
    [ ! -e "$tree/$file" ] || { echo "planted twice: $file"; failures=$((failures + 1)); }
    mkdir -p "$(dirname "$tree/$file")"
    printf '%s\n' "$3" >"$tree/$file"
    rules+=("$1") files+=("$file")
}

bites "a strategy's name" engine/core/bad.c 'if (strcmp(name, "fsdp") == 0)'
bites "a strategy's name" engine/include/tessera/bad.h '/* as ddp does */'
bites "a strategy's name" engine/config/bad.c 'if (strcmp(name, "single") == 0)'
for name in dp tp sp pp; do
    bites "a strategy's name" engine/config/bad.c "static const char word[] = \"data+$name\";"
done
bites "a file of more than" kernels/ref/bad.c "$(yes ';' | head -701)"
bites "an interface that asks" engine/models/mlp.c "$(yes ';' | head -221)"
bites "an interface that asks" engine/comm/comm_self.c "$(yes ';' | head -151)"
bites "an interface that asks" engine/cli/main.c "$(yes ';' | head -150)"
bites "a line of more" kernels/ref/bad.c "/* $(printf '%0100d' 0) */"
bites "a line of more" kernels/cuda/bad.cu "/* $(printf '%0100d' 0) */"
bites "a file of more than" kernels/cuda/bad.cuh "$(yes ';' | head -701)"
bites "unfinished" tests/bad.c '/* TODO: think */'
bites "unfinished" tests/bad.c '#if 0'
bites "a tab or a space" strategies/bad.c 'int x; '
bites "sizeof without" strategies/bad.c 'memset(x, 0, sizeof *x);'
bites "oneDNN" engine/core/bad.c '#include <dnnl.h>'
bites "oneDNN" kernels/ref/bad.c '#include "oneapi/dnnl/dnnl.h"'
bites "libyaml" engine/core/bad.c '#include <yaml.h>'
bites "zlib" engine/base/bad.c '#include <zlib.h>'
bites "libpng" engine/core/bad.c '#include <png.h>'
bites "libpng" engine/cli/bad.c '#include <jpeglib.h>'
bites "libpng" engine/prepare/bad.c '#include <sentencepiece_processor.h>'
bites "nettle" engine/comm/net/bad.c '#include <nettle/hmac.h>'
bites "CUDA" kernels/ref/bad.c '#include <cuda_runtime.h>'
bites "CUDA" topology/bad.c '#include <hwloc.h>'
bites "CUDA" topology/machine/live.c '#include <hwloc.h>'
bites "CUDA" engine/core/hwloc_machine.c '#include <hwloc.h>'
bites "an include that leaves" engine/base/bad.c '#include "../core/engine.h"'
bites "an include that leaves" strategies/bad.c '#include "engine/core/engine.h"'
bites "a library that ends" kernels/ref/bad.c '    exit(1);'
bites "a library that ends" kernels/cuda/bad.c '    _exit(1);'
bites "a library that ends" strategies/bad.c '        abort();'
bites "a library that prints" engine/core/bad.c '    printf("hello");'
bites "a library that prints" kernels/ref/bad.c '    fputs("hello", stdout);'

if output=$(bash "$house" "$tree"); then
    echo "nothing found"
    failures=$((failures + 1))
fi
for i in "${!files[@]}"; do
    # Below the rule, up to the next one.
    found=$(awk -v rule="house: ${rules[i]}" '/^house: / { here = index($0, rule) == 1 } here' <<<"$output")
    if ! grep -qE "^    ${files[i]}(:| has )" <<<"$found"; then
        echo "not found: ${rules[i]} (${files[i]})"
        failures=$((failures + 1))
    fi
done

if [ "$failures" -gt 0 ]; then
    echo "house_bites: $failures failures"
    exit 1
fi
echo "house_bites: every rule bites"
