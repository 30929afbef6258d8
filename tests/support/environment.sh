#!/usr/bin/env bash
# Makes an environment of its own for a test: bash tests/support/environment.sh REQUIREMENTS.txt FOLDER
# The variable PYTHON names another interpreter than python3. A second run takes no time. With uv, what
# install.sh has fetched is not fetched again.
set -euo pipefail

requirements=${1:?say what: bash $0 REQUIREMENTS.txt FOLDER}
folder=${2:?say where: bash $0 REQUIREMENTS.txt FOLDER}
python=${PYTHON:-python3}
stamp=$folder/.requirements # written last: without it the last run did not finish

if cmp --silent "$stamp" "$requirements"; then exit; fi
if [[ -e $folder && ! -f $folder/pyvenv.cfg ]]; then
    echo "$0: $folder exists and is no environment of Python; name another folder." >&2
    exit 1
fi
rm -rf -- "$folder"

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
uv=$(command -v uv || ls "$root/.venv/bin/uv" 2>/dev/null) || uv=
if [[ -n $uv ]]; then
    "$uv" venv --quiet --python "$python" "$folder"
    "$uv" pip install --quiet --python "$folder/bin/python" --no-deps -r "$requirements"
else
    "$python" -m venv "$folder"
    "$folder/bin/python" -m pip install --quiet --no-deps -r "$requirements"
fi
cp "$requirements" "$stamp"
