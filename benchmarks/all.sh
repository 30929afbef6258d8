#!/usr/bin/env bash
# Runs the benchmarks of docs/performance.md, adapters.md and log.md, one after the other:
#   bash tests/vllm/install.sh build/vllm
#   bash benchmarks/install_llama_cpp.sh build/llama_cpp
#   bash benchmarks/all.sh FOLDER
# Takes some two hours on two cores, which must have no other work. What a benchmark prints is then in
# FOLDER/NAME.txt. The same command runs those again that failed or were stopped, and no other.
# The variable PYTHON names another interpreter than .venv/bin/python.
set -euo pipefail

folder=$(mkdir -p "${1:?say where: bash $0 FOLDER}" && cd "$1" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/.."
failed=0

measure() { # NAME [OPTION...]: runs the benchmark of this name
    local name=$1
    shift
    if [[ -e $folder/$name.txt ]]; then return; fi
    printf '%s %s %s\n' "$(date +%T)" "$name" "$*"
    { date && printf 'python benchmarks/%s.py %s\n' "$name" "$*"; } >"$folder/$name.part"
    if "${PYTHON:-.venv/bin/python}" "benchmarks/$name.py" "$@" >>"$folder/$name.part" 2>&1; then
        mv "$folder/$name.part" "$folder/$name.txt"
    else
        failed=1
        printf '%s failed: %s.part\n' "$name" "$folder/$name"
    fi
}

measure peers --pairs 3 --json "$folder/peers.json"
measure step
measure products --rounds 31
measure serve --clients 1,8,32 --pairs 3
measure stalls
measure adapters --pairs 7
measure grammar --rows 1,16 --pairs 7
measure startup
measure keywords --pairs 3
measure growth
measure chat --pairs 3 --tokens 24
measure prefill --pairs 5
measure draws
measure calls --lines 1000
measure rollout --pairs 1
measure throughput --loads 64,mixed --pairs 1
exit "$failed"
