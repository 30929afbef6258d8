#!/usr/bin/env bash
# Makes an environment with TRL 1.10.0 and without inf: bash tests/trl/install.sh FOLDER
# Needs Linux on x86-64, Python 3.10 to 3.12 (the variable PYTHON names another one than python3) and
# 8 GB of disk. A second run takes no time. With uv, what install.sh has fetched is not fetched again.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=${1:?say where: bash $0 FOLDER}
python=${PYTHON:-python3}
stamp=$folder/.requirements # written last: without it the last run did not finish

if cmp --silent "$stamp" "$here/requirements.txt"; then exit; fi
if [[ -e $folder && ! -f $folder/pyvenv.cfg ]]; then
    echo "install.sh: $folder exists and is no environment of Python; name another folder." >&2
    exit 1
fi
rm -rf -- "$folder"

uv=$(command -v uv || ls "$here/../../.venv/bin/uv" 2>/dev/null) || uv=
if [[ -n $uv ]]; then
    "$uv" venv --quiet --python "$python" "$folder"
    "$uv" pip install --quiet --python "$folder/bin/python" --no-deps -r "$here/requirements.txt"
else
    "$python" -m venv "$folder"
    "$folder/bin/python" -m pip install --quiet --no-deps -r "$here/requirements.txt"
fi
cp "$here/requirements.txt" "$stamp"
