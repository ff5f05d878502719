#!/usr/bin/env bash
# rooms.sh ROOT BUILD: does the compiler keep each room to what it may include? For every room of
# engine/rooms.cmake, an include from above it must not compile, and one of its own must.
set -uo pipefail
root=${1:?usage: rooms.sh ROOT BUILD} build=${2:?usage: rooms.sh ROOT BUILD}
failures=0 checked=0
cd "$build/sees" || exit 2 # where no header can be found beside the source

# compiles ROOM INCLUDE: with the include directories that the room's files are compiled with.
compiles()
{
    echo "#include \"$2\"" | "${CC:-cc}" -std=c11 -D_GNU_SOURCE -fsyntax-only -I"$root/engine/include" \
        -I"$build/sees/tess_$1" -x c - 2>/dev/null
}

# room NAME OWN FORBIDDEN...
room()
{
    local name=$1 own=$2
    shift 2
    checked=$((checked + 1))
    if ! compiles "$name" "$own"; then
        echo "$name: does not see its own $own"
        failures=$((failures + 1))
    fi
    for header in "$@"; do
        if compiles "$name" "$header"; then
            echo "$name: may include $header"
            failures=$((failures + 1))
        fi
    done
}

room base base/hash.h comm/world.h data/data.h core/engine.h text/text.h
room comm comm/world.h kernel_open.h topology/machine/topology.h data/data.h core/engine.h
room kernels ref/ref.h comm/world.h cuda/cuda.h core/engine.h
room topology_machine topology/machine/route.h topology/formats/lines.h topology/rings/ring.h comm/world.h
room topology_formats topology/formats/lines.h topology/rings/ring.h device/nvml.h
room topology_hwloc topology/hwloc/live.h topology/rings/ring.h device/nvml.h
room topology_rings topology/rings/ring.h topology/map/map.h topology/draw/topo.h
room topology_map topology/map/map.h topology/draw/topo.h job/place.h
room device device/nvml.h data/data.h config/config.h topology/rings/ring.h
room data data/data.h state/declare.h config/config.h comm/world.h
room state state/declare.h data/data.h optim/optim.h core/engine.h
room optim optim/optim.h config/config.h core/engine.h data/data.h
room config config/config.h core/engine.h strategies/shard.h models/layer.h kernel_open.h
room core core/engine.h job/run.h topology/machine/topology.h models/layer.h ref/ref.h
room models tessera/model.h base/hash.h state/declare.h
room strategies tessera/strategy.h base/hash.h core/engine.h
room job job/run.h text/text.h run/record.h cli/top.h topology/draw/topo.h
room text text/text.h run/record.h job/run.h core/engine.h
room tokenizer tokenizer/tokenizer.h data/data.h text/text.h prepare/prepare.h
room prepare prepare/prepare.h core/engine.h run/record.h config/config.h
room draw topology/draw/topo.h cli/top.h report/report_data.h run/record.h job/run.h
room predict predict/predict.h run/record.h text/text.h study/trial.h ref/ref.h
room run run/record.h study/trial.h report/report_data.h cli/top.h
room study study/trial.h report/report_data.h cli/top.h topology/machine/topology.h
room report report/report_data.h study/trial.h cli/top.h core/engine.h
room bench bench/bench.h report/report_data.h cli/top.h ref/ref.h
room cli cli/top.h bench/bench.h kernel_open.h ref/ref.h

# Rooms that are backends of kernels see ref and themselves.
for view in "$build"/sees/tess_kernels_cpu*; do
    if [ -e "$view" ]; then
        room "${view##*/tess_}" ref/ref.h cuda/cuda.h guard/memory.h comm/world.h
    fi
done

rooms=$(find "$build/sees" -mindepth 1 -maxdepth 1 -name 'tess_*' | wc -l)
if [ "$rooms" -ne "$checked" ]; then
    echo "$rooms rooms, of which $checked are checked here"
    failures=$((failures + 1))
fi
if [ "$failures" -gt 0 ]; then
    echo "rooms: $failures failures"
    exit 1
fi
echo "rooms: $checked, each sees what it may"
