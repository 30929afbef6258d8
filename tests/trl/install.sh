#!/usr/bin/env bash
# Makes an environment with TRL 1.10.0 and without inf: bash tests/trl/install.sh FOLDER
# Needs Linux on x86-64, Python 3.10 to 3.12 and 8 GB of disk.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=${1:?say where: bash $0 FOLDER}
exec bash "$here/../support/environment.sh" "$here/requirements.txt" "$folder"
