#!/usr/bin/env bash
# Installs command line agents: bash tests/agent_programs/install.sh build/agent_programs
# Needs Node.js 20, npm, Python 3.11 and 1 GB of disk.
set -euo pipefail

folder=${1:?say where: bash $0 FOLDER}
mkdir -p "$folder"
npm install --prefix "$folder" --no-audit --no-fund @anthropic-ai/claude-code@2.1.197 @openai/codex@0.169.0
node "$folder/node_modules/@anthropic-ai/claude-code/install.cjs" # npm may not run it
python3 -m venv "$folder/python"
"$folder/python/bin/pip" install -q mini-swe-agent==2.4.6 litellm==1.110.2
