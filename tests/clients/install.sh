#!/usr/bin/env bash
# Makes the environments of the clients, without inf: bash tests/clients/install.sh FOLDER
# They are FOLDER/agents and FOLDER/training, because no versions of all clients go together.
# Needs Linux on x86-64, Python 3.11 or 3.12 and 2 GB of disk.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=${1:?say where: bash $0 FOLDER}
for name in agents training; do
    bash "$here/../support/environment.sh" "$here/$name.txt" "$folder/$name"
done
