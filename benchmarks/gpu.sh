#!/usr/bin/env bash
# Runs the checks and benchmarks that need a GPU: bash benchmarks/gpu.sh [STEP...]
#
# Steps, all by default, in this order; each can be run alone:
#   kernel      check the packages and run one kernel of sgl-kernel on the GPU
#   exact       compare float32 and bfloat16 with Transformers, without and with CUDA graphs
#   throughput  compare batches of 1, 32 and 256 rows with the raw engine and Transformers
#
# Environment variables, all optional:
#   OUT     folder for the results (default: gpu-results)
#   PYTHON  the interpreter (default: python3)
#   GGUF    a .gguf file, or the parts it was split into: "x.gguf.aa x.gguf.ab". It is a second
#           model for the step `exact`, and replaces the random model for `throughput`.
#   KIT     a site.tar.xz with verl, sglang and their packages (a folder for sys.path, whose
#           folder `_lib` has shared libraries), for a machine that has only its own torch. With it
#           Triton attention and PyTorch sampling are used. Say so beside every figure: the torch is
#           not the pinned one, and there is no FlashAttention 3.
#   SET     other config keys: SET="rollout.gpu_memory_utilization=0.2 ..."
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
OUT=${OUT:-gpu-results}
PYTHON=${PYTHON:-python3}
STEPS=("$@")
[ ${#STEPS[@]} -gt 0 ] || STEPS=(kernel exact throughput)
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
mkdir -p "$OUT"
exec > >(tee -a "$OUT/log.txt") 2>&1

export PYTHONUNBUFFERED=1 CUDA_HOME=${CUDA_HOME:-/usr/local/cuda}
export PYTHONPATH=$PWD:$PWD/tests:${PYTHONPATH:-}
# Two engines and Transformers share the GPU, so each KV cache gets a part of its memory.
KEYS=(device=cuda rollout.gpu_memory_utilization=0.25
  rollout.engine_kwargs.sglang.max_total_tokens=262144)
if [ -n "${KIT:-}" ]; then
  mkdir "$WORK/site"
  tar -C "$WORK/site" -xJf "$KIT"
  export PYTHONPATH=$WORK/site:$PYTHONPATH LD_LIBRARY_PATH=$WORK/site/_lib:${LD_LIBRARY_PATH:-}
  KEYS+=(rollout.engine_kwargs.sglang.attention_backend=triton
    rollout.engine_kwargs.sglang.sampling_backend=pytorch)
fi
for key in ${SET:-}; do KEYS+=("$key"); done
ARGUMENTS=(--config config.yaml)
for key in "${KEYS[@]}"; do ARGUMENTS+=(--set "$key"); done

kernel() {
  nvidia-smi -L
  "$PYTHON" - <<'PY'
import importlib.util, sys
needed = "filelock gguf omegaconf psutil pydantic regex requests rich tqdm typer yaml".split()
if missing := [name for name in needed if not importlib.util.find_spec(name)]:
    sys.exit(f"not installed: {' '.join(missing)}")
import torch, sgl_kernel
x = torch.randn(4, 576, device="cuda", dtype=torch.bfloat16)
y = sgl_kernel.rmsnorm(x, torch.ones(576, device="cuda", dtype=torch.bfloat16))
print("torch", torch.__version__, "rmsnorm", tuple(y.shape), y.isfinite().all().item())
PY
}

# A random Qwen3 that is large enough for GPU kernels, with the tests' tokenizer.
random_model() {
  "$PYTHON" - "$WORK/random" <<'PY'
import shutil, sys, torch
from tiny import tiny_model
from transformers import AutoConfig, AutoModelForCausalLM
folder, target = tiny_model(), sys.argv[1]
shutil.copytree(folder, target)
config = AutoConfig.from_pretrained(
    folder, hidden_size=512, intermediate_size=1536, num_hidden_layers=8, head_dim=64,
    num_attention_heads=8, num_key_value_heads=2, initializer_range=0.08,
    layer_types=["full_attention"] * 8, max_window_layers=8,
)
torch.manual_seed(0)
AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(target)
PY
}

# `exact NAME` and `throughput NAME` print a table and write a JSON file into OUT.
exact() {
  local eager
  for eager in true false; do
    "$PYTHON" benchmarks/exactness.py "${ARGUMENTS[@]}" --set model_path="$MODEL" \
      --set rollout.enforce_eager="$eager" --json "$OUT/exact-$1-eager-$eager.json" ||
      failed+=("exact $1 enforce_eager=$eager")
  done
}

throughput() {
  "$PYTHON" benchmarks/throughput.py "${ARGUMENTS[@]}" --set model_path="$MODEL" \
    --set rollout.dtype=bfloat16 --set rollout.enforce_eager=false --loads 1,32,256,mixed \
    --tokens 128 --json "$OUT/throughput-$1.json" || failed+=("throughput $1")
}

failed=()
random_model
models=(random)
if [ -n "${GGUF:-}" ]; then
  # shellcheck disable=SC2086  # parts are separate words
  cat ${GGUF} >"$WORK/given.gguf"
  models+=(given)
fi
for step in "${STEPS[@]}"; do
  for name in "${models[@]}"; do
    MODEL=$WORK/random
    [ "$name" = random ] || MODEL=$WORK/given.gguf
    case $step in
      kernel) [ "$name" != random ] || kernel ;;
      exact) exact "$name" ;;
      throughput) [ "$name" != "${models[-1]}" ] || throughput "$name" ;;
      *) echo "no such step: $step" >&2; exit 2 ;;
    esac
  done
done
[ ${#failed[@]} -eq 0 ] || { printf 'failed: %s\n' "${failed[@]}" >&2; exit 1; }
