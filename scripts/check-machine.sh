#!/bin/sh
# usage: check-machine.sh PYTHON
# Says in one line what this machine lacks to build an environment, and exits 2.

python=$1

fail() {
    echo "error: $1" >&2
    exit 2
}

command -v "$python" >/dev/null || fail "found no $python, expected Python >= 3.11 (PYTHON=... names another)"
found=$("$python" -c 'import sys; print(sys.version.split()[0])') || fail "$python does not run"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "found $python $found, expected Python >= 3.11 (PYTHON=... names another)"
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$python $found cannot make virtual environments, expected its venv and ensurepip modules (python3-venv)"
for compiler in gcc g++; do
    command -v "$compiler" >/dev/null || fail "found no $compiler"
done
