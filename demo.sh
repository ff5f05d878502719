#!/usr/bin/env bash
# Shows Tessera on this machine: installs what is missing, builds it, plans and trains a convolutional network on
# Fashion-MNIST on four ranks that share its parameters, compares all strategies, does the same with a small
# GPT on eight ranks along three axes, and writes a report.
set -euo pipefail
cd "$(dirname "$0")"
. tests/packages.sh

heading()
{
    printf '\n=== %s ===\n\n' "$*"
}

run()
{
    printf '$ %s\n\n' "$*"
    "$@"
}

tessera=build/release/tessera
config=configs/labs/fashion_cnn.yaml
gpt=configs/models/tiny-gpt.yaml

heading "1. Packages"
# Unquoted: lists of words.
# shellcheck disable=SC2086
packages_install $packages_build $packages_data

heading "2. Build (preset release)"
cmake --preset release >build-demo.log 2>&1 || { cat build-demo.log; exit 1; }
rm -f build-demo.log
cmake --build --preset release --target tessera_program

heading "3. Plan: which layout of four ranks will be fast, from a measurement of this processor"
mkdir -p build/demo
run "$tessera" plan "$config" --ranks 4 --calibrate build/demo/host.yaml --calibrate-s 20 --top 3 \
    --json build/demo/plan.json

heading "4. Train: every rank stores a quarter of parameters, gradients and optimizer state"
run "$tessera" train "$config" --strategy fsdp --ranks 4 --run build/demo/fsdp-4 --overwrite \
    --trace build/demo/fsdp-4.json --trace-first 100 --trace-steps 10

heading "5. Compare: what each strategy costs a rank, and that all end with the same parameters"
run "$tessera" compare "$config" --strategies single,dp,ddp,zero1,zero2,fsdp,hsdp --ranks 4 \
    --steps 50 --json build/demo/strategies.json

heading "6. A GPT on eight ranks: two along each of the data, tensor and stage axes"
run "$tessera" train "$gpt" --strategy fsdp+tp+pp --ranks 8 --run build/demo/gpt-8 --overwrite

heading "7. Text, generated from the run's weights"
run "$tessera" generate build/demo/gpt-8 --prompt "The "
echo

heading "8. Compare: products of strategies on eight ranks"
run "$tessera" compare "$gpt" --strategies single,ddp,zero1,fsdp,tp,tp+sp,pp,fsdp+tp,fsdp+pp,fsdp+tp+pp \
    --ranks 8 --steps 5 --json build/demo/products.json

heading "9. A machine from a file: its rings, and what limits them"
run "$tessera" topo --file configs/clusters/dgx-1v.yaml --svg build/demo/dgx-1v.svg

heading "10. Report: one page with pictures of all of it"
run "$tessera" report build/demo/fsdp-4 build/demo/strategies.json build/demo/fsdp-4.json \
    build/demo/gpt-8 build/demo/products.json build/demo/plan.json --out build/demo/report.html --title "Tessera's demo"

heading "Done"
cat <<TEXT
The hash columns show the same parameters, bit for bit, under every strategy that does not cut layers. Open
build/demo/report.html and build/demo/dgx-1v.svg in a browser. Next:

    less configs/labs/README.md                                  # six labs, with their output
    $tessera train $config --strategy ddp --ranks 2 --precision bf16
    $tessera train $config --ranks 4 --strategy zero1 --explain
    $tessera train configs/models/llama-8b.yaml --strategy fsdp+tp+pp --ranks 64 --explain
    $tessera topo                                                # this machine
    less tests/cluster/README.md                                 # a cluster of racks and hosts on this machine
    $tessera --help
    ./test.sh
TEXT
