#!/usr/bin/env bash
# Proves on a GPU, in ten minutes, what can be proven there: bash benchmarks/gpu.sh [OPTION...]
#
# Parts, worst first, each in a process of its own under a time limit:
#   preflight   driver, packages, compiler, headers, one call of each kernel; no engine
#   smoke       a first engine in bfloat16, without CUDA graphs
#   functions   sleep, weight updates, grammars, filters, seeds, penalties, stops, aborts, streams
#   exact       tokens and log probs against Transformers in bfloat16, without and with CUDA graphs
#   throughput  1 and 256 rows against raw SGLang, with our arguments and with its own defaults
#   float32     tokens and log probs against Transformers in float32
#   embedded    the default engine
# All but the last use a random model of Qwen3-0.6B's shape, which is made here.
#
# Options:
#   --device cuda|cpu          cpu is a test of this script, with a smaller model (default: cuda)
#   --parts PART,...           which parts, in this order (default: all)
#   --budget SECONDS           for all parts; those that it does not reach are skipped (600)
#   --limit [PART=]SECONDS     the limit of one part, or of each
#   --out FOLDER               for the results (default: $OUT, or gpu-results)
#   --set KEY=VALUE            a config key of all engines
# Environment variables, all optional:
#   OUT     as --out
#   PYTHON  the interpreter (default: .venv/bin/python, which install.sh makes, or python3)
#   GGUF    a .gguf file, or the parts it was split into ("x.gguf.aa x.gguf.ab"), in place of the
#           embedded model
#   KIT     a site.tar.xz with verl, sglang and their packages (a folder for sys.path, whose folder
#           `_lib` has shared libraries), for a machine that has only its own torch. Attention of
#           Triton and sampling of PyTorch are used then; what the kit cannot do is skipped by name.
#           Say so beside every figure: the torch is not the pinned one, there is no
#           FlashAttention 3.
# Paths are relative to the checkout.
#
# In the folder of the results: results.jsonl (a line for each check, written at once), log.txt (all
# that is shown), engines.log (the logs of all engines), throughput.json (raw figures).
# The exit code is 1 if a check failed, 2 for a wrong option.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2

ALL=preflight,smoke,functions,exact,throughput,float32,embedded
declare -A LIMITS=([preflight]=100 [smoke]=150 [functions]=180 [exact]=180 [throughput]=240
  [float32]=120 [embedded]=90)
ENDING=12 # seconds that are left for the end of a part that is stopped, and for the summary
LEAST=15  # a part that has less is not begun
DEVICE=cuda PARTS=$ALL BUDGET=600 OUT=${OUT:-gpu-results} SET=()

if [[ -z ${PYTHON:-} ]]; then
  PYTHON=python3
  [[ -n ${KIT:-} || ! -x .venv/bin/python ]] || PYTHON=.venv/bin/python
fi

# Also waits, not for ever, until all that was printed is in the log.
at_exit() {
  rm -rf "$WORK"
  exec >&- 2>&-
  for _ in {1..30}; do kill -0 "${TEE:-}" || break; sleep 0.1; done
}

wrong() {
  echo "$1; bash benchmarks/gpu.sh --help shows the options" >&2
  exit 2
}

limit() {
  local part
  [[ $1 =~ ^([a-z0-9]+=)?[0-9]+$ ]] || wrong "--limit: expected PART=SECONDS or SECONDS, got $1"
  [[ $1 != *=* || -n ${LIMITS[${1%=*}]:-} ]] || wrong "--limit: no such part: ${1%=*}"
  for part in "${!LIMITS[@]}"; do
    [[ $1 == *=* && $1 != "$part="* ]] || LIMITS[$part]=${1#*=}
  done
}

while (($#)); do
  case $1 in
    --help) sed -n '2,/^set /{s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    --device | --parts | --budget | --limit | --out | --set) ;;
    *) wrong "no such option: $1" ;;
  esac
  (($# > 1)) || wrong "$1 needs a value"
  case $1 in
    --device) DEVICE=$2 ;;
    --parts) PARTS=$2 ;;
    --budget) BUDGET=$2 ;;
    --limit) limit "$2" ;;
    --out) OUT=$2 ;;
    --set) SET+=("--set=$2") ;;
  esac
  shift 2
done
[[ $DEVICE == cuda || $DEVICE == cpu ]] || wrong "--device: cuda or cpu, got $DEVICE"
[[ $BUDGET =~ ^[0-9]+$ ]] || wrong "--budget: expected seconds, got $BUDGET"
for part in ${PARTS//,/ }; do
  [[ -n ${LIMITS[$part]:-} ]] || wrong "--parts: no such part: $part (there are ${ALL//,/, })"
done

mkdir -p "$OUT" && OUT=$(cd "$OUT" && pwd) || exit 2
WORK=$(mktemp -d)
trap at_exit EXIT
mkdir "$WORK/kept"
rm -f "$OUT"/{results.jsonl,log.txt,engines.log,throughput.json}
exec > >(tee -a "$OUT/log.txt") 2>&1
TEE=$!

export PYTHONUNBUFFERED=1 PYTHONPATH=$PWD:$PWD/tests:$PWD/benchmarks:${PYTHONPATH:-}
GIVEN=("--out=$OUT")
RUN=("--device=$DEVICE" "--work=$WORK" "${SET[@]}")
if [[ $DEVICE == cuda ]]; then
  [[ -n ${CUDA_HOME:-} || ! -d /usr/local/cuda ]] || export CUDA_HOME=/usr/local/cuda
fi

# Imports of llguidance get names from this file that raise when they are called.
stand_in() {
  mkdir -p "$1"
  cat >"$1/__init__.py" <<'PY'
import sys

ABSENT = True


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def call(*args, **kwargs):
        raise NotImplementedError(f"{name}: llguidance is not in this kit")

    return call


for _part in ("hf", "torch"):
    sys.modules[f"{__name__}.{_part}"] = sys.modules[__name__]
PY
}

if [[ -n ${KIT:-} ]]; then
  mkdir "$WORK/site"
  tar -C "$WORK/site" -xJf "$KIT" || exit 2
  export PYTHONPATH=$WORK/site:$PYTHONPATH LD_LIBRARY_PATH=$WORK/site/_lib:${LD_LIBRARY_PATH:-}
  "$PYTHON" -c 'import llguidance' 2>/dev/null || stand_in "$WORK/site/llguidance"
  RUN+=(--kit)
fi
if [[ -n ${GGUF:-} ]]; then
  # shellcheck disable=SC2086  # parts are separate words
  cat ${GGUF} >"$WORK/given.gguf" || exit 2
  RUN+=("--gguf=$WORK/given.gguf")
fi

# An engine removes its log when it stops well; a hard link stays.
keep_logs() {
  local log name
  while sleep 0.5; do
    for log in "$TMPDIR"/*.log "$TMPDIR"/inf-engine-*/engine.log; do
      name=${log#"$TMPDIR"/}
      [[ ! -f $log ]] || ln "$log" "$WORK/kept/${name//\//_}" 2>/dev/null
    done
  done
}

# Of each log the end, so that the file can be carried.
write_logs() {
  local log
  for log in "$WORK"/kept/*; do
    [[ -f $log ]] || continue
    echo "=== $1: ${log##*/}"
    tail -c 500000 "$log"
    echo
    rm "$log"
  done >>"$OUT/engines.log"
}

run_part() {
  local part=$1 most=${LIMITS[$1]} left=$((BUDGET - ENDING - SECONDS)) code why=""
  if ((left < LEAST)); then
    "$PYTHON" benchmarks/gpu end "$part" "skipped: the budget of $BUDGET s is used up" "${GIVEN[@]}"
    return
  fi
  ((most <= left)) || most=$left
  echo "--- $part (at most $most s; $SECONDS s of $BUDGET are used)"
  export TMPDIR=$WORK/$part INF_LOG=info
  [[ $part != throughput ]] || INF_LOG=warning # writing a log takes time
  mkdir -p "$TMPDIR"
  keep_logs &
  local keeper=$!
  timeout --kill-after=5 "$most" "$PYTHON" benchmarks/gpu run "$part" "${RUN[@]}" "${GIVEN[@]}"
  code=$?
  kill "$keeper"
  wait "$keeper" 2>/dev/null
  case $code in
    0) ;;
    124 | 137) why="it was stopped at its limit of $most s" ;;
    *) why="its process ended with exit code $code" ;;
  esac
  TMPDIR=$WORK "$PYTHON" benchmarks/gpu end "$part" "$why" "${GIVEN[@]}"
  write_logs "$part"
}

for part in ${PARTS//,/ }; do run_part "$part"; done
echo "--- $SECONDS s on $DEVICE${KIT:+, with a kit: not the pinned torch, Triton attention}"
"$PYTHON" benchmarks/gpu summary "${GIVEN[@]}"
