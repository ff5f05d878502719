# shellcheck shell=bash
# The stages of bench/gpu_check.sh that measure. Each run of the program leaves metrics.jsonl in a folder of its
# own; figures are those of its last line, which leaves out the first steps. "Asked" is what the project wants
# of one H200.

# name, sequences in a batch, steps, further options. T = 1024 everywhere. `llama`: the shape of Llama 3.2 1B.
models="
124m  64 24
350m  32 14
1558m 16 14
llama 16 14 --gpt.layers 16 --gpt.width 2048 --gpt.ffn 8192 --gpt.context 1024 --gpt.tied on"

# ---- runs ----------------------------------------------------------------------------------------

# tokens: the file of tokens to train on, made once: GPT-2's, frequent ones more often (Zipf); without python3
# bytes of our own sources.
tokens()
{
    local file=$GPU_CHECK_WORK/tokens.bin
    if dry_run || ! command -v python3 >/dev/null; then
        file=$GPU_CHECK_WORK/tokens.txt
        if [ ! -s "$file" ]; then cat engine/*/*.c kernels/*/*.c >"$file"; fi
    elif [ ! -s "$file" ]; then
        python3 - "$file" <<'PYTHON' || return 1
import array, itertools, random, struct, sys
count, words = 1 << 21, 50257
weights = list(itertools.accumulate(1 / (rank + 10) for rank in range(words)))
tokens = random.Random(1).choices(range(words), cum_weights=weights, k=count // 8) * 8
with open(sys.argv[1], 'wb') as out:
    out.write(struct.pack('<256i', 20240520, 1, count, *[0] * 253))
    out.write(array.array('H', tokens).tobytes())
PYTHON
    fi
    echo "$file"
}

# size REAL QUICK: a number of steps, or the like.
size()
{
    if quick; then echo "$2"; else echo "$1"; fi
}

# train NAME OPTIONS...: one run on the device; its last line is in NAME/metrics.jsonl of the work folder.
train()
{
    local folder=$GPU_CHECK_WORK/$1
    shift
    rm -rf "$folder"
    tessera train "$@" --device cuda --evaluate off --save-weights off --log-every 1000000 --run "$folder"
}

# clocked NAME COMMAND...: it, and beside it what the driver says of clocks, power and heat.
clocked()
{
    local name=$1 log=$GPU_CHECK_WORK/clocks.log watcher code
    shift
    if ! command -v nvidia-smi >/dev/null; then
        "$@"
        return
    fi
    nvidia-smi --query-gpu=clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active \
        --format=csv,noheader,nounits -i 0 -lms 200 >"$log" 2>/dev/null &
    watcher=$!
    "$@"
    code=$?
    kill "$watcher" 2>/dev/null
    wait "$watcher" 2>/dev/null
    clocks_row "$name" "$log"
    return $code
}

# clocks_row NAME LOG: of the samples in which the device worked, those that are not idle (bit 0).
clocks_row()
{
    local sm memory watts celsius bits all=0 word reasons="" busy=$GPU_CHECK_WORK/clocks.busy i
    local bit_names=(idle "application clocks" "power cap" "hardware slowdown" "sync boost" "software heat"
        "hardware heat" "power brake" "display clocks")
    : >"$busy"
    while IFS=', ' read -r sm memory watts celsius bits; do
        if ! [[ $bits =~ ^0x[0-9a-fA-F]+$ ]] || ((bits & 1)); then continue; fi
        all=$((all | bits))
        echo "$sm $memory $watts $celsius" >>"$busy"
    done <"$2"
    for i in "${!bit_names[@]}"; do
        if ((all >> i & 1)); then reasons+=${reasons:+, }${bit_names[i]}; fi
    done
    word=$(sort -n "$busy" | awk '
        { sm[NR] = $1; memory = $2; if ($3 > watts) watts = $3; if ($4 > celsius) celsius = $4 }
        END { if (NR) print sm[1], sm[int((NR + 1) / 2)], sm[NR], memory, watts, celsius }')
    # shellcheck disable=SC2086 # six cells
    if [ -n "$word" ]; then row clocks "$1" $word "${reasons:-nothing}"; fi
}

# model NAME RUN OPTIONS...: steps of a model of the table.
model()
{
    local name=$1 run=$2 batch steps words config data
    shift 2
    read -r _ batch steps words < <(grep "^$name " <<<"$models")
    steps=$(size "$steps" 4)
    config=configs/models/gpt2-$name.yaml
    if [ "$name" = llama ]; then config=configs/models/llama-8b.yaml; fi
    data=$(tokens) || return 1
    # Unquoted: lists of words.
    # shellcheck disable=SC2086
    if dry_run; then
        # The first and the last step report a loss; between them one runs, one is recorded and played.
        train "$run" "$config" --data "$data" --gpt.vocab 256 --gpt.layers 1 --gpt.width 64 --gpt.ffn 128 \
            --gpt.heads 2 --gpt.kv-heads 2 --gpt.context 16 --data.length 16 --batch-size 4 --warmup 0 \
            --steps "$steps" "$@"
    else
        train "$run" "$config" --data "$data" --data.length 1024 --batch-size "$batch" $words \
            --warmup 0 --steps "$steps" "$@"
    fi
}


metrics()
{
    echo "$GPU_CHECK_WORK/$1/metrics.jsonl"
}

# ---- stages --------------------------------------------------------------------------------------

stage_start()
{
    local times=""
    for _ in $(seq "$(size 3 1)"); do
        model 124m start --ranks 1 --steps 2 || fail "the run failed"
        times="$times $(number "$(metrics start)" first_step_s)"
    done
    echo "first steps ended after$times s"
    measure "process start to end of first step, 124M" \
        "$(tr ' ' '\n' <<<"$times" | grep . | sort -g | sed -n "$(size 2 1)p")" s most 3
}

# The ceilings and every line with a goal are lines of the table; all lines are in bench_gpu.jsonl, beside it.
stage_bench()
{
    local file=$GPU_CHECK_OUT/bench_gpu.jsonl options=()
    if ! tessera bench gpu --help >/dev/null 2>&1; then skip "this build has no tessera bench gpu"; fi
    if quick; then options+=(--quick); fi
    if dry_run; then options+=(--model small --bytes 65536 --part copy); fi
    clocked bench tessera bench gpu --device cuda --json "$file" "${options[@]}" || fail "tessera bench gpu failed"
    while IFS= read -r line; do
        printf '%s\n' "$line" >"$GPU_CHECK_WORK/line"
        bench_line
    done <"$file"
}

# One line of that file, which lies in a file of its own.
bench_line()
{
    local line=$GPU_CHECK_WORK/line goal
    case $(words_of part) in
    "copy ceiling") measure "copy ceiling" "$(number "$line" bytes_per_s 1e-9)" GB/s ;;
    "matmul ceiling") measure "matmul ceiling, $(words_of type)" "$(number "$line" flops_per_s 1e-12)" TFLOP/s ;;
    esac
    goal=$(number "$line" goal 100)
    if [ -n "$goal" ]; then
        measure "$(words_of name), $(words_of shape) $(words_of type)" "$(number "$line" share 100)" % least "$goal"
    fi
}

words_of()
{
    sed -n "s/.*\"$1\": *\"\([^\"]*\)\".*/\1/p" "$GPU_CHECK_WORK/line"
}

# ours NAME GRAPH: tokens/s, MFU and memory of a model; of a graph also what a step launches.
ours()
{
    local name=$1 graph=$2 run=model.$1.$2 rate=() share=() file
    model "$name" "$run" --ranks 1 --cuda.graph "$graph" || return 1
    file=$(metrics "$run")
    if [ "$graph" = on ]; then
        case $name in
        124m) rate=(least 500000) share=(least 45) ;;
        1558m) rate=(least 60000) ;;
        esac
    fi
    measure "$name, graph $graph" "$(number "$file" tokens_per_s)" tokens/s "${rate[@]}"
    measure "$name, graph $graph, MFU" "$(number "$file" mfu 100)" % "${share[@]}"
    measure "$name, graph $graph, MFU by PaLM's count" "$(number "$file" mfu_palm 100)" %
    measure "$name, graph $graph, memory" "$(number "$file" used 9.31323e-10)" GiB
    if [ "$graph" = off ]; then return; fi
    measure "$name, kernels of a step" "$(number "$file" step_kernels)" launches
    measure "$name, copies and fills of a step" \
        "$(calculate 'copies + fills' copies="$(number "$file" step_copies)" fills="$(number "$file" step_fills)")" \
        launches
}

# The figure that matters.
stage_figure()
{
    clocked figure ours 124m on || fail "the run failed"
}

stage_models()
{
    local name graph bad="" names="1558m 124m 350m llama" # models with goals come first
    if dry_run; then names=124m; fi
    for name in $names; do
        for graph in on off; do
            if [ "$name/$graph" = 124m/on ] || [[ $graph = off && $name != 124m && $name != 1558m ]]; then continue; fi
            clocked "$name, graph $graph" ours "$name" $graph || bad="$bad $name/graph-$graph"
        done
    done
    if [ -n "$bad" ]; then fail "failed:$bad"; fi
}

# Narrowing by each step's own greatest element, and by a history of them.
stage_fp8()
{
    local name how bad="" names="124m llama" ways="now history"
    if dry_run; then names=124m ways=now; fi
    for name in $names; do
        for how in $ways; do
            if ! model "$name" fp8 --ranks 1 --cuda.graph on --fp8 $how; then
                bad="$bad $name/$how"
                continue
            fi
            measure "$name, fp8 $how" "$(number "$(metrics fp8)" tokens_per_s)" tokens/s
        done
    done
    if [ -n "$bad" ]; then fail "failed:$bad"; fi
}

# PyTorch's attention beside ours, which the stage `bench` has measured.
stage_attention()
{
    local file=$GPU_CHECK_OUT/attention.jsonl ours=$GPU_CHECK_OUT/bench_gpu.jsonl shape name way theirs here
    python_run 20 bench/peers/torch_attention_gpu.py >"$file"
    case $? in
    0) cat "$file" ;;
    77) skip "$(tail -n 1 "$file")" ;;
    *) fail "bench/peers/torch_attention_gpu.py failed" ;;
    esac
    while IFS= read -r line; do
        printf '%s\n' "$line" >"$GPU_CHECK_WORK/line"
        name=$(words_of name) shape=$(words_of shape)
        for way in forward backward; do
            theirs=$(number "$GPU_CHECK_WORK/line" "${way}_flops_per_s" 1e-12)
            measure "attention $way, $shape, $name" "$theirs" TFLOP/s
            grep -F '"attention '$way'"' "$ours" 2>/dev/null | grep -F "\"$shape\"" >"$GPU_CHECK_WORK/ours"
            here=$(number "$GPU_CHECK_WORK/ours" flops_per_s 1e-12)
            measure "attention $way, $shape, ours" "$here" TFLOP/s
            measure "attention $way, $shape, ours / $name" \
                "$(calculate '100 * ours / theirs' ours="$here" theirs="$theirs")" % least 85
        done
    done <"$file"
}

# The host has as much to do for a short sequence as for a long batch, and the device next to nothing: the time
# of such a step is an upper bound of the host's.
stage_host()
{
    local full short graph length=(--data.length 16)
    if dry_run; then length=(); fi
    full=$(number "$(metrics model.124m.on)" samples_per_s) # of the stage figure
    if [ -z "$full" ]; then
        model 124m host.full --ranks 1 --cuda.graph on || fail "the run failed"
        full=$(number "$(metrics host.full)" samples_per_s)
    fi
    for graph in on off; do
        model 124m host.short --ranks 1 --steps "$(size 100 3)" --batch-size 1 "${length[@]}" \
            --cuda.graph "$graph" || fail "the run failed"
        short=$(number "$(metrics host.short)" samples_per_s)
        measure "host time of a step, at most, graph $graph" \
            "$(calculate '1000 / short' short="$short")" ms
        measure "host time of a step / step of 124M, graph $graph" \
            "$(calculate '100 * full / (short * 64)' full="$full" short="$short")" % most 5
    done
}

# Both orders in turn, so that a slow second hits both; the better of two.
stage_canonical()
{
    local order rate=() words=(--strategy ddp --ranks 4 --batch-size 32 --accumulate 2)
    if dry_run; then words=(--strategy ddp --ranks 2 --batch-size 4 --accumulate 2); fi
    : >"$GPU_CHECK_WORK/canonical.txt"
    for _ in $(seq "$(size 2 1)"); do
        for order in canonical fast; do
            model 124m "canonical.$order" "${words[@]}" --steps "$(size 12 2)" --reduce $order ||
                fail "the run with --reduce $order failed"
            echo "$order $(number "$(metrics "canonical.$order")" samples_per_s)" >>"$GPU_CHECK_WORK/canonical.txt"
        done
    done
    for order in canonical fast; do
        rate+=("$(sed -n "s/^$order //p" "$GPU_CHECK_WORK/canonical.txt" | sort -g | tail -n 1)")
    done
    measure "canonical order's cost, ddp, 4 ranks, 124M" \
        "$(calculate '100 * (fast / canonical - 1)' canonical="${rate[0]}" fast="${rate[1]}")" % most 10
}

# python_run SECONDS PROGRAM...: with the libraries of its own environment, not those found for ours.
python_run()
{
    LD_LIBRARY_PATH=$GPU_CHECK_LIBRARIES limited "$1" "${GPU_CHECK_PYTHON:-python3}" "${@:2}"
}

# Ours once more, and PyTorch right after it.
stage_torch()
{
    local name batch file=$GPU_CHECK_OUT/torch.jsonl options bad="" most=55 names="124m 350m"
    : >"$file"
    if dry_run; then options=(--device cpu --layers 1 --width 64 --heads 4 --vocabulary 256 --length 32); fi
    if dry_run; then names=124m; fi
    for name in $names; do
        read -r _ batch _ < <(grep "^$name " <<<"$models")
        if ! dry_run; then options=(--length 1024 --compile "$([ $name = 124m ] && echo whole || echo blocks)"); fi
        if dry_run; then batch=4; fi
        python_run $most bench/peers/torch_gpt_gpu.py --model "$name" --batch "$batch" \
            --steps "$(size 20 2)" --tokens "$(tokens)" "${options[@]}" >"$GPU_CHECK_WORK/torch.json"
        case $? in
        0) tee -a "$file" <"$GPU_CHECK_WORK/torch.json" ;;
        77) skip "$(tail -n 1 "$GPU_CHECK_WORK/torch.json")" ;;
        *) bad="$bad $name" && continue ;;
        esac
        most=25
        if ! model "$name" torch.ours --ranks 1 --cuda.graph on; then
            bad="$bad ours-$name"
            continue
        fi
        measure "$name, PyTorch compiled" "$(number "$GPU_CHECK_WORK/torch.json" tokens_per_s)" tokens/s
        measure "$name, PyTorch compiled, memory" "$(number "$GPU_CHECK_WORK/torch.json" memory_bytes 9.31323e-10)" GiB
        measure "$name, Tessera / PyTorch" "$(calculate 'ours / theirs' \
            ours="$(number "$(metrics torch.ours)" tokens_per_s)" \
            theirs="$(number "$GPU_CHECK_WORK/torch.json" tokens_per_s)")" x least 1.1
    done
    if [ -n "$bad" ]; then fail "failed:$bad"; fi
}

# Of images where they are, of made-up ones else: then the speed counts alone.
stage_fashion()
{
    local data=/usr/share/datasets/fashion-mnist file words=(--epochs 2 --evaluate on) real=1
    if [ -n "${TESS_DEPS:-}" ] && [ -d "$TESS_DEPS$data" ]; then data=$TESS_DEPS$data; fi
    if dry_run || [ ! -d "$data" ]; then
        data=synthetic real=0
        words=(--epochs 1 --evaluate off)
    fi
    if dry_run; then words+=(--steps 2 --batch-size 4 --synthetic-rows 8 --cnn.channels 4,4 --cnn.fc 8); fi
    rm -rf "$GPU_CHECK_WORK/fashion"
    tessera train configs/labs/fashion_cnn.yaml --device cuda --ranks 1 --data "$data" --save-weights off \
        --run "$GPU_CHECK_WORK/fashion" "${words[@]}" || fail "the run failed"
    file=$(metrics fashion)
    measure "Fashion-MNIST, CNN" "$(number "$file" samples_per_s)" images/s
    measure "Fashion-MNIST, CNN, whole run" "$(number "$file" time_s)" s
    if [ $real = 1 ]; then
        measure "Fashion-MNIST, accuracy after 2 epochs" "$(number "$file" val_accuracy 100)" % least 90
    else
        echo "no Fashion-MNIST in $data: made-up images, so there is no accuracy"
    fi
}
