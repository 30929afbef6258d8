#!/usr/bin/env bash
# Proves on a GPU what can be proven there, in calls of nine minutes: bash benchmarks/gpu.sh [OPTION...]
# The same command goes on where the last call ended. What was not seen on a GPU yet comes first.
# Estimates in seconds, with a kit on an H200: the first call holds compile (75), preflight (20) and
# throughput (300 to 420: the time is told of each width that is slower); the second overlap (110),
# training (130), hf (60), commands (110) and the begin of the rest: exact (150), functions (70),
# float32 (120), embedded (60).
#
# Parts, in this order, each in a process of its own under a time limit:
#   compile     the kernels that the machine compiles, all at once, beside plain torch
#   preflight   driver, packages, compiler, headers, one call of each kernel; no engine
#   throughput  256, 1,024, 512, 64 rows and one, against raw SGLang with our arguments and with its
#               own defaults, up to nine pairs; where ours is slower, what takes the time; one row
#               beside the time in which its weights are read
#   overlap     64 rows with penalties, seeds, grammars, stops and masks: ids with overlapped and with
#               serial steps
#   training    pauses, aborts, rows that are continued, updates of running rows, sleep, memory after
#               ten updates, adapters
#   hf          the backend hf in float32 and bfloat16 against Transformers' generate
#   commands    inf serve under 64 streams, inf check
#   exact       one engine in bfloat16 with CUDA graphs: answers and log probs against Transformers,
#               a rollout of 256 x 8 rows, a score of 8,000 tokens, inf check, memory after the end
#   functions   grammars, filters, seeds, penalties, stops, timeouts, streams
#   float32     answers and log probs against Transformers in float32
#   embedded    the default engine, and its check
# All but the last use a random model of Qwen3-0.6B's shape, which is made here.
#
# Options:
#   --device cuda|cpu          cpu is a test of this script, with a smaller model (default: cuda)
#   --parts PART,...           which parts, in this order (default: all)
#   --budget SECONDS           of this call; parts that it does not reach wait for the next one (560)
#   --limit [PART=]SECONDS     the limit of one part, or of each
#   --out FOLDER               for the results (default: build/gpu-results); parts that have ended
#                              there are not run again: delete it, or name another, to start anew
#   --set KEY=VALUE            a config key of all engines
# Environment variables, all optional:
#   OUT     a folder that gets a copy of the results at the end of each call
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
# In the folder of the results: report.json (each part's verdict, seconds and checks), report.txt (its
# table), results.jsonl (a line for each check, written at once), log.txt (all that is shown),
# engines.log (the logs of all engines), throughput.json (raw figures), kit (unpacked), and, until all
# parts have ended, work (the random model).
# The exit code is 1 if a check failed, 2 for a wrong option.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2

ALL=compile,preflight,throughput,overlap,training,hf,commands,exact,functions,float32,embedded
declare -A LIMITS=([compile]=120 [preflight]=90 [throughput]=460 [overlap]=200 [training]=240
  [hf]=120 [commands]=200 [exact]=180 [functions]=150 [float32]=200 [embedded]=120)
# A part that has less than this is left to the next call.
declare -A NEEDED=([compile]=60 [preflight]=20 [throughput]=200 [overlap]=110 [training]=150
  [hf]=60 [commands]=110 [exact]=100 [functions]=80 [float32]=120 [embedded]=60)
ENDING=12 # seconds that are left for the end of a part that is stopped, and for the summary
BEGUN=0   # whether a part has ended in this call
DEVICE=cuda PARTS=$ALL BUDGET=560 FOLDER=build/gpu-results SET=()

if [[ -z ${PYTHON:-} ]]; then
  PYTHON=python3
  [[ -n ${KIT:-} || ! -x .venv/bin/python ]] || PYTHON=.venv/bin/python
fi

# Also waits, not for ever, until all that was printed is in the log.
at_exit() {
  rm -rf "$SCRATCH"
  exec >&- 2>&-
  for _ in {1..30}; do kill -0 "${TEE:-}" || break; sleep 0.1; done
  [[ -z ${OUT:-} ]] || cp "$FOLDER"/*.* "$OUT"
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
    --out) FOLDER=$2 ;;
    --set) SET+=("--set=$2") ;;
  esac
  shift 2
done
[[ $DEVICE == cuda || $DEVICE == cpu ]] || wrong "--device: cuda or cpu, got $DEVICE"
[[ $BUDGET =~ ^[0-9]+$ ]] || wrong "--budget: expected seconds, got $BUDGET"
for part in ${PARTS//,/ }; do
  [[ -n ${LIMITS[$part]:-} ]] || wrong "--parts: no such part: $part (there are ${ALL//,/, })"
done

[[ -z ${KIT:-} || -f $KIT ]] || wrong "KIT: no such file: $KIT"
WITH="--device=$DEVICE ${SET[*]} ${KIT:+with the kit $(cksum <"$KIT")}"
mkdir -p "$FOLDER/work" && FOLDER=$(cd "$FOLDER" && pwd) || exit 2
[[ ! -f $FOLDER/options.txt || $(<"$FOLDER/options.txt") == "$WITH" ]] ||
  wrong "--out: $FOLDER has results of other options ($(<"$FOLDER/options.txt")); name another"
echo "$WITH" >"$FOLDER/options.txt"
WORK=$FOLDER/work
rm -f "$WORK/model.failed"
SCRATCH=$(mktemp -d) # a short path: sockets are in it
trap at_exit EXIT
mkdir "$SCRATCH/kept"
exec > >(tee -a "$FOLDER/log.txt") 2>&1
TEE=$!

export PYTHONUNBUFFERED=1 PYTHONPATH=$PWD:$PWD/tests:$PWD/benchmarks:${PYTHONPATH:-}
GIVEN=("--out=$FOLDER")
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
  # The next call finds it in the same place: bytecode is there, and kernels that SGLang compiled with
  # the toolkit are good for their sources' path only.
  SITE=$FOLDER/kit
  if [[ ! -d $SITE ]]; then
    rm -rf "$SITE.part" && mkdir "$SITE.part"
    tar -C "$SITE.part" -xJf "$KIT" || exit 2
    # Its sgl-kernel computes norms with flashinfer, which compiles them from sources that a kit lacks;
    # sgl-kernel's own are in the wheel.
    norms=$SITE.part/sgl_kernel/elementwise.py
    [[ ! -f $norms ]] || sed -i 's/_has_flashinfer = True/_has_flashinfer = False/' "$norms"
    PYTHONPATH=$PYTHONPATH:$SITE.part "$PYTHON" -c 'import llguidance' 2>/dev/null ||
      stand_in "$SITE.part/llguidance"
    mv "$SITE.part" "$SITE"
  fi
  # After the checkout: verl's wheel has a package `tests`, too.
  export PYTHONPATH=$PYTHONPATH:$SITE LD_LIBRARY_PATH=$SITE/_lib:${LD_LIBRARY_PATH:-}
  RUN+=(--kit)
fi
if [[ -n ${GGUF:-} ]]; then
  # shellcheck disable=SC2086  # parts are separate words
  cat ${GGUF} >"$SCRATCH/given.gguf" || exit 2
  RUN+=("--gguf=$SCRATCH/given.gguf")
fi

# An engine removes its log when it stops well; a hard link stays.
keep_logs() {
  local log name
  while sleep 0.5; do
    for log in "$TMPDIR"/*.log "$TMPDIR"/inf-engine-*/engine.log; do
      name=${log#"$TMPDIR"/}
      [[ ! -f $log ]] || ln "$log" "$SCRATCH/kept/${name//\//_}" 2>/dev/null
    done
  done
}

# Of each log the end, so that the file can be carried.
write_logs() {
  local log
  for log in "$SCRATCH"/kept/*; do
    [[ -f $log ]] || continue
    echo "=== $1: ${log##*/}"
    tail -c 500000 "$log"
    echo
    rm "$log"
  done >>"$FOLDER/engines.log"
}

run_part() {
  local part=$1 most=${LIMITS[$1]} left=$((BUDGET - ENDING - SECONDS)) begun=$SECONDS code why=""
  ! grep -qs "^{\"part\": \"$part\", \"seconds\"" "$FOLDER/results.jsonl" || return 0
  # The first part of a call is begun with less, too: the next call would have no more.
  if ((left <= 0 || (BEGUN && left < most && left < NEEDED[$part]))); then
    echo "--- $part is left to the next call ($SECONDS s of $BUDGET are used)"
    return
  fi
  ((most <= left)) || most=$left
  echo "--- $part (at most $most s; $SECONDS s of $BUDGET are used)"
  export TMPDIR=$SCRATCH/$part INF_LOG=info
  mkdir -p "$TMPDIR"
  [[ $part != throughput ]] || INF_LOG=warning # writing a log takes time
  keep_logs &
  local keeper=$!
  timeout --kill-after=5 "$most" "$PYTHON" benchmarks/gpu run "$part" "${RUN[@]}" "${GIVEN[@]}"
  code=$?
  kill "$keeper"
  wait "$keeper" 2>/dev/null
  write_logs "$part"
  TMPDIR=$SCRATCH
  case $code in
    0) ;;
    124 | 137)
      why="it was stopped at its limit of $most s"
      if ((BEGUN && most < LIMITS[$part])); then
        echo "--- $part did not end within what was left; the next call begins it anew"
        return
      fi
      ;;
    *) why="its process ended with exit code $code" ;;
  esac
  BEGUN=1
  "$PYTHON" benchmarks/gpu end "$part" "$why" "--seconds=$((SECONDS - begun))" "${GIVEN[@]}"
}

for part in ${PARTS//,/ }; do run_part "$part"; done
echo "--- $SECONDS s on $DEVICE${KIT:+, with a kit: not the pinned torch, Triton attention}"
"$PYTHON" benchmarks/gpu summary "$PARTS" "${GIVEN[@]}"
code=$?
grep -q "^not run yet" "$FOLDER/report.txt" || rm -rf "$WORK"
exit "$code"
