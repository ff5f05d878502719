#!/usr/bin/env bash
# Stands for tessera in commands.sh: the same program with the same options, and less work.
steps=$DOCS_STEPS
short=()
if [ "$steps" != 0 ]; then
    case " $* " in *" --resume "*) steps=$((steps + 1)) ;; esac # the run has its steps
    case "${1-} ${2-}" in
    train*) short=(--steps "$steps" --no-evaluate --trace-first 1) ;;
    sweep*) short=(--steps "$steps" --no-evaluate --warmup 0) ;;
    compare*) short=(--steps "$steps" --no-evaluate) ;;
    scaling*) short=(--steps "$steps" --repeats 1 --no-evaluate) ;;
    "bench step") short=(--steps "$steps" --repeats 1 --no-evaluate --ceiling off) ;;
    "tune batch") short=(--steps "$steps" --to 32) ;;
    "bench comm") short=(--sizes 4Ki) ;;
    plan*) # test_accuracy calibrates, which takes as much as all other commands of the page
        [ "${*: -2:1}" != --calibrate ] || set -- "${@:1:$#-2}" ;;
    esac
fi
exec "$DOCS_PROGRAM" "$@" "${short[@]}"
