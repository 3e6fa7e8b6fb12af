#!/bin/sh
# install.sh VENV LOCK PYTHON: the environment VENV with what LOCK pins and this checkout in it.
#
# With uv, which is taken where it is or had by pip, what runs takes 5 s of CPU; pip alone, where uv cannot be had, takes
# 12, and about a minute for what tests need.
set -eu
venv=$1 lock=$2 python=$3
here=$(dirname "$0")
own=.cache/uv
# Users install by default into their own folders (`user = true` in pip.conf), or into a folder that they name.
export PIP_USER=0 PIP_TARGET= PIP_PREFIX=

say() { printf '%s\n' "$*" >&2; }

with_uv() {
    # uv does not read pip's settings, and trusts its own certificates alone; pip trusts the machine's, which count behind
    # a company's proxy.
    export UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-true}"
    if [ -n "${PIP_INDEX_URL:-}" ]; then export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$PIP_INDEX_URL}"; fi
    if [ -n "${PIP_CERT:-}" ]; then export SSL_CERT_FILE="${SSL_CERT_FILE:-$PIP_CERT}"; fi
    # After an upgrade of Python the link of the environment may lead nowhere.
    [ -x "$venv/bin/python" ] || UV_VENV_CLEAR=1 "$1" venv -q --seed --python "$python" "$venv" || return 1
    say "2 of 3: installing $(grep -c '^[a-z]' "$lock") packages into $venv"
    "$1" pip install -q --python "$venv/bin/python" --require-hashes -r "$lock" || return 1
    say '3 of 3: installing dranode itself'
    "$1" pip install -q --python "$venv/bin/python" --no-deps -e . || return 1
}

with_pip() {
    [ -x "$venv/bin/python" ] || "$python" -m venv --clear "$venv"
    say "2 of 3: installing $(grep -c '^[a-z]' "$lock") packages into $venv with pip, which takes longer than uv"
    "$venv/bin/python" -m pip install -q --disable-pip-version-check --no-compile --require-hashes -r "$lock"
    say '3 of 3: installing dranode itself'
    "$venv/bin/python" -m pip install -q --disable-pip-version-check --no-compile --no-deps -e .
}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dranode needs Python 3.11 or newer")'
say '1 of 3: looking for an installer'
uv=$(command -v uv) || uv=$own/bin/uv
if [ ! -x "$uv" ]; then
    "$python" -m pip install -q --disable-pip-version-check --no-compile --require-hashes --target "$own" \
        -r "$here/uv.lock" 2>/dev/null || uv=
fi
if [ -z "$uv" ]; then
    with_pip
elif ! with_uv "$uv"; then
    say 'uv cannot do it here, for the reason above; pip tries the same'
    with_pip
fi
# Images of Python forbid it to write bytecode, and every start would compile all modules again.
if [ -n "${PYTHONDONTWRITEBYTECODE:-}" ]; then "$venv/bin/python" "$here/bytecode.py" "$here/run.lock"; fi
