# Sourced by the other scripts: makes .venv with what they need, unless it is there and up to date.
# Usage: . scripts/setup.sh run|dev

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
        if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "EnvHive needs Python 3.11 or newer, and found none. Set PYTHON to where it is." >&2
    return 1
}

make_venv() {
    local python
    python=$(find_python) || return 1
    if ! "$python" -m venv .venv 2>.venv-error; then
        cat .venv-error >&2
        rm -rf .venv .venv-error
        echo "Python's venv module is not complete here. On Debian: apt-get install python3-venv" >&2
        return 1
    fi
    rm -f .venv-error
}

install_packages() {
    local wanted=$1 log=.venv/install.log
    if [ "$wanted" = dev ]; then
        # uv takes half a minute where pip takes five. Where it does not reach what pip is set up to reach, pip does it.
        { .venv/bin/python -m pip install --disable-pip-version-check "$(grep '^uv==' requirements.lock)" &&
            .venv/bin/uv pip install --compile-bytecode --python .venv/bin/python -r requirements.lock; } >"$log" 2>&1 ||
            .venv/bin/python -m pip install --disable-pip-version-check -r requirements.lock >"$log" 2>&1 ||
            { cat "$log" >&2; return 1; }
    fi
    .venv/bin/python -m pip install --disable-pip-version-check -c requirements.lock -e . >"$log" 2>&1 || { cat "$log" >&2; return 1; }
}

set_up() {
    local wanted=$1 stamp
    stamp="$wanted $(cat requirements.lock pyproject.toml | sha256sum)"
    [ -x .venv/bin/python ] || make_venv || return 1
    if [ "$(cat .venv/installed 2>/dev/null)" != "$stamp" ] && [ "$(cat .venv/installed 2>/dev/null)" != "dev ${stamp#* }" ]; then
        echo "Installing into .venv (once) ..." >&2
        install_packages "$wanted" || return 1
        echo "$stamp" >.venv/installed
    fi
}

set_up "$1" || exit 1
