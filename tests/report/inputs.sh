# shellcheck shell=bash disable=SC2016,SC2034
# Sourced by page.sh and browser.sh: an empty folder of their own in $work, and made-up results in it
# that fill every section of a report, with names and values that would break a careless page.

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

hostile='<script>alert(1)<!-- "'"'"' $(touch pwned) `touch pwned` @0@ \; system "touch pwned" #'

# memory RANKS: what a run reports of its ranks.
memory()
{
    local r comma=
    printf '['
    for ((r = 0; r < $1; r++)); do
        printf '%s{"rank":%d,"allocated":{"parameter":7458816,"master":0,"gradient":%d,' "$comma" "$r" \
            $((7458816 / $1))
        printf '"optimizer":%d,"activation":1060864,"input":614400},"peak_rss":43720704}' $((7458816 / $1))
        comma=,
    done
    printf ']'
}

# run FOLDER SPEED MODEL LINES: a run of at most 60 steps on 2 ranks, cut after so many lines.
run()
{
    mkdir -p "$1"
    awk -v speed="$2" -v model="$3" -v memory="$(memory 2)" 'BEGIN {
        printf "{\"run\":{\"version\":\"0\",\"model\":\"%s\",\"strategy\":\"ddp\",\"ranks\":2,", model
        printf "\"steps\":60,\"options\":{\"batch-size\":\"128\",\"learning-rate\":\"%g\",", speed / 1e5
        printf "\"seed\":\"1\",\"precision\":\"f16\",\"data\":\"</td><img src=x onerror=alert(1)>\"}}}\n"
        for (s = 1; s <= 60; s++) {
            printf "{\"step\":%d,\"epoch\":%d,\"loss\":%g,\"accuracy\":%g,", s, (s - 1) / 20, \
                2.3 * exp(-s * speed / 2e5) + 0.001, 1 - exp(-s / 20)
            printf "\"rate\":%g,\"grad_norm\":%g,\"samples_per_s\":%g,", 0.1 / s, 3 / s, speed + s
            printf "\"elapsed_s\":%g,\"loss_scale\":%d,\"skipped\":%d,\"zero_share\":%g,", \
                s * 128 / speed, 65536 / 2 ^ int(s / 20), s / 20, 0.1 + s / 1000
            printf "\"loss_zero_share\":%g}\n", s / 200
            if (s == 30) {
                printf "{\"pace\":{\"step\":29,\"steps\":20,\"ranks\":[],\"links\":[],\"network\":{\"name\":\"the "
                printf "link <i>a</i> - b\",\"since\":11,\"pairs\":2}}}\n"
                printf "{\"adapt\":{\"step\":30,\"part\":\"the link <i>a</i> - b\",\"gain\":2,\"renumbers\":true,"
                printf "\"why\":\"the link <i>a</i> - b stays slow; saving\"}}\n"
            }
            if (s % 20)
                continue
            printf "{\"epoch\":%d,\"step\":%d,\"train_loss\":1,\"val_loss\":%g,", s / 20 - 1, s, 20 / s
            printf "\"val_accuracy\":%g,\"samples_per_s\":%g,\"cumulative_s\":%g}\n", 1 - 5 / s, speed, s
            printf "{\"times\":{\"epoch\":%d,\"slowest\":1,\"ranks\":[", s / 20 - 1
            for (r = 0; r < 2; r++) {
                printf "%s{\"rank\":%d,\"data_s\":0.1,\"forward_s\":1,\"backward_s\":2,", (r ? "," : ""), r
                printf "\"hidden_s\":0.5,\"exposed_s\":0.2,\"optim_s\":0.3,\"total_s\":3.6}"
            }
            printf "]}}\n"
        }
        printf "{\"pace\":{\"step\":60,\"steps\":20,\"ranks\":[{\"rank\":0,\"host\":\"<b>h</b>\",\"score\":1,"
        printf "\"late_in\":null,\"own_s\":0.011},{\"rank\":1,\"host\":\"h1\",\"score\":1.5,"
        printf "\"late_in\":\"compute\",\"own_s\":0.0165,\"late_s\":-1},7],\"links\":[{\"from\":1,\"to\":0,"
        printf "\"axis\":\"data\",\"bytes_per_s\":25e6,\"score\":0.25,\"since\":41}],"
        printf "\"network\":{\"name\":\"the link <i>a</i> - b\",\"since\":41,\"pairs\":2,"
        printf "\"bytes_per_s\":25e6,\"usual_bytes_per_s\":1e8}}}\n"
        printf "{\"final\":{\"hash\":\"00ff00ff00ff00ff\",\"loss\":0.1,\"val_loss\":0.3,"
        printf "\"val_accuracy\":0.9,\"samples_per_s\":%g,\"comm_share\":0.1,\"steps\":60,", speed
        printf "\"time_s\":12,\"strategy\":\"ddp\",\"ranks\":2,\"memory\":%s}}\n", memory
    }' | sed -n "1,${4}p" >"$1/metrics.jsonl"
}

run plain 9000 mlp 100
run faster 15000 mlp 100
run "cut short" 5000 mlp 40
printf '{"step":99,"lo' >>"cut short/metrics.jsonl"
run "$hostile" 7000 '</title><script>alert(2)</script>' 100

{
    printf '{"runs":['
    for n in 1 2 4; do
        printf '{"strategy":"s%d","name":"variant %d","goal":"<b>goal</b>","ranks":%d,' "$n" "$n" "$n"
        printf '"precision":"f32","steps":50,"hash":"%016x","loss":0.5,"samples_per_s":%d,' "$n" $((n * 900))
        printf '"comm_share":0.1,"memory":'
        memory "$n"
        printf '}'
        [ "$n" = 4 ] || printf ','
    done
    printf ']}\n'
} >compare.json

awk 'BEGIN {
    printf "{\"scaling\":{\"strategy\":\"s\",\"model\":\"mlp\",\"batch_size\":128,\"machine\":\"<i>\","
    printf "\"amdahl_p\":0.93,\"links\":[{\"name\":\"fast\",\"latency_s\":2e-6,\"bandwidth\":6e11},"
    printf "{\"name\":\"<slow>\",\"latency_s\":3e-5,\"bandwidth\":1.25e9}],\"measured\":["
    for (n = 1; n <= 4; n *= 2) {
        t = 0.04 * (0.07 + 0.93 / n)
        printf "%s{\"ranks\":%d,\"step_s\":%g,\"compute_s\":%g,", (n > 1 ? "," : ""), n, t, 0.037 / n
        printf "\"exposed_s\":%g,\"hidden_s\":0.001,\"data_s\":0.001,", n / 1e3
        printf "\"samples_per_s\":%g,\"speedup\":%g,\"efficiency\":%g}", 128 / t, 0.04 / t, 0.04 / t / n
    }
    printf "],\"predicted\":["
    for (c = 0; c < 4; c++) {
        printf "%s{\"strategy\":\"s%d\",\"link\":\"%s\",\"points\":[", (c ? "," : ""), c / 2, \
            (c % 2 ? "<slow>" : "fast")
        for (n = 1; n <= 1024; n *= 2)
            printf "%s{\"ranks\":%d,\"step_s\":%g,\"speedup\":%g,\"efficiency\":%g}", (n > 1 ? "," : ""), \
                n, 1 / n, n / (1 + n * c / 99), 1 / (1 + n * c / 99)
        printf "]}"
    }
    printf "],\"ring\":["
    for (c = 0; c < 2; c++) {
        printf "%s{\"link\":\"link %d\",\"ranks\":64,\"points\":[", (c ? "," : ""), c
        for (b = 1024; b < 1e9; b *= 8)
            printf "%s{\"bytes\":%d,\"time_s\":%g}", (b > 1024 ? "," : ""), b, (1 + c) * (1e-4 + b / 1e9)
        printf "]}"
    }
    printf "]}}\n"
}' >scaling.json

awk 'BEGIN {
    printf "{\"tune\":{\"model\":\"mlp\",\"strategy\":\"ddp\",\"ranks\":2,\"limit_bytes\":6e7,\"cases\":["
    for (b = 16; b <= 8192; b *= 2)
        printf "%s{\"batch_size\":%d,\"memory_bytes\":%d,\"fits\":%s,\"samples_per_s\":%s}", \
            (b > 16 ? "," : ""), b, 2e7 + 9000 * b, (b <= 4096 ? "true" : "false"), \
            (b <= 4096 ? 1e4 * b / (b + 99) : "null")
    printf "],\"best_batch_size\":4096}}\n"
}' >tune.json

# span RANK STEP BEGIN LENGTH CATEGORY NAME [MORE]: an event of a time line, in us.
span()
{
    printf '{"name":"%s","cat":"%s","ph":"X","pid":%d,"tid":1,"ts":%s,"dur":%s,"args":{"step":%d%s}},\n' \
        "$6" "$5" "$1" "$3" "$4" "$2" "${7-}"
}

# Three steps of 20, 10 and 5 ms, the second in full: rank 0 makes four calls in it, of which three
# begin before its backward pass ends at 8 ms; calls are under way for 5.5 ms, for 1 ms it waits.
{
    printf '{"otherData":{"model":"<b>model</b>","strategy":"ddp"},\n"traceEvents":[\n'
    size=',"bytes":1048576,"site":"</td><script>alert(4)</script>"'
    span 0 1 80000 20000 step 'step 1'
    span 0 3 110000 5000 step 'step 3'
    span 0 2 100000 10000 step 'step 2'
    span 0 2 100000 1000 compute loading
    span 0 2 101000 2000 compute 'forward <img src=x onerror=alert(3)>'
    span 0 2 103000 5000 compute 'backward fc'
    span 0 2 104000 500 communication all_gather "$size"
    span 0 2 105000 4000 communication all_reduce "$size"
    span 0 2 107000 3000 communication all_reduce "$size"
    span 0 2 108000 1500 compute gradients
    span 0 2 108500 1000 waiting all_reduce
    span 0 2 109500 500 compute optimizer
    span 0 2 109600 200 communication all_reduce "$size"
    span 1 2 101000 9000 step 'step 2'
    span 1 2 101000 9000 compute 'forward fc'
    printf '{"name":"memory of the arena","ph":"C","pid":1,"ts":0,"args":{"master":9e6,"activation":4e7}},\n'
    for ms in 101 103 108; do
        printf '{"name":"memory in use","ph":"C","pid":1,"ts":%d000,"args":{"master":9e6,"activation":%d,' $ms \
            $((3000000 * (ms % 10)))
        printf '"activation of a pass":2e6,"<script>alert(5)</script>":1}},\n'
    done
    printf '{"ph":"M"}]}\n'
} >trace.json

{
    printf '{"model":"<i>gpt</i>","cluster":"1 host of <b>2</b>","ranks":2,"layouts":['
    for name in fsdp 'ddp</td><img src=x onerror=alert(4)>' zero1; do
        printf '{"name":"%s","strategy":"%s","mesh":{"data":2,"tensor":1,"stage":1},"step_s":0.0%d,' "$name" \
            "$name" ${#name}
        printf '"options":{"accumulate":4,"recompute":"<b>"},"exposed_s":0.01,"memory":{"master":%d},' \
            $((9000 / ${#name}))
        printf '"limited_by":"<i>products</i>"},'
    done
    printf '{}]}\n'
} >plan.json

inputs=(plain faster "cut short" "$hostile" compare.json scaling.json tune.json plan.json trace.json)
figures=31 # learning 6, steering 6, memory 1, speed 4, time line 2, scaling 7, batch size 2, plan 3

failures=0

# complain TEXT: one more thing that is not as it should be.
complain()
{
    echo "$*"
    failures=$((failures + 1))
}
