#!/usr/bin/env bash
# usage: scripts/build-release.sh [--without-tests]
# Builds the wheel and the sdist of the commit that is checked out, tries them in clean environments and
# leaves them in dist/ with an SBOM, the notes of the release and digests. Publishes nothing.
#
# PYTHON=python3.12                      the interpreter that builds, tests and is listed in the SBOM
# OTHER_PYTHONS='python3.12 python3.13'  more that install the wheel and run it; of the versions that
#                                        pyproject.toml names, those not given are only resolved for
#
# PYTEST_ARGS='tests/docs tests/plan'    what of the sdist's own tests runs, instead of all of them
#
# --without-tests leaves out the sdist's own tests, which take a quarter of an hour.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
repository=$PWD
python=${PYTHON:-python3}
read -ra others <<<"${OTHER_PYTHONS:-}"
read -ra pytest_args <<<"${PYTEST_ARGS:-}"
with_tests=true
TIMEFORMAT='  %0R s (%U s of CPU, %S s in the kernel)'
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

fail() {
    echo "error: $1" >&2
    exit 2
}
step() { printf '\n== %s\n' "$1"; }

for argument; do
    case $argument in
    --without-tests) with_tests=false ;;
    *) fail "found $argument, expected --without-tests or nothing" ;;
    esac
done
[[ -z $(git status --porcelain) ]] || fail "the working tree has changes; a release is made from a commit"
scripts/check-machine.sh "$python"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
built=$work/dist
mkdir "$work/source" "$work/home" "$built"

# What a user's shell has, and no more: neither this project's environment nor its folder, and an empty home.
# How pip reaches its index may depend on variables; those pass.
clean() {
    local passed=()
    for name in PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_CERT PIP_CACHE_DIR SSL_CERT_FILE \
        http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
        [[ -z ${!name:-} ]] || passed+=("$name=${!name}")
    done
    (cd "$work/home" && env -i PATH=/usr/local/bin:/usr/bin:/bin HOME="$work/home" LANG=C.UTF-8 \
        PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 "${passed[@]}" "$@")
}

step "Tools"
tools=$repository/.venv-release
[[ -x $tools/bin/python ]] || "$python" -m venv "$tools"
"$tools/bin/python" -m pip install --quiet --quiet --constraint requirements/constraints-test.txt \
    --requirement requirements/release.txt

step "Source"
git archive HEAD | tar -x -C "$work/source"
version=$("$tools/bin/python" -c 'from pathlib import Path; from scripts.check_dist import version_of
print(version_of(Path()))')
commit=$(git rev-parse HEAD)
tagged=$(git rev-parse --quiet --verify "refs/tags/v$version^{commit}" || true)
[[ -z $tagged || $tagged == "$commit" ]] ||
    fail "version $version is tagged on another commit, $tagged; ladder_opt/_version.py needs the next one"
echo "  version $version, commit $commit"
# Times inside the archives are the commit's, so that who builds it again gets the same bytes.
SOURCE_DATE_EPOCH=$(git show --no-patch --format=%ct HEAD)
export SOURCE_DATE_EPOCH

step "Build: the sdist of the commit, the wheel of the sdist"
"$tools/bin/python" -m build --no-isolation --outdir "$built" "$work/source" >"$work/build.log" ||
    { cat "$work/build.log" >&2; fail "the build failed"; }

step "Contents"
"$tools/bin/python" -m scripts.check_dist "$built" "$work/source"
"$tools/bin/check-wheel-contents" "$built"/*.whl
"$tools/bin/twine" check --strict "$built"/*.whl "$built"/*.tar.gz

wheel=$(echo "$built"/*.whl)
sdist=$(echo "$built"/*.tar.gz)
resolved=()
for interpreter in "$python" "${others[@]}"; do
    interpreter=$("$interpreter" -c 'import sys; print(sys.executable)')
    minor=$("$interpreter" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    resolved+=("$minor")
    step "Python $minor: the wheel alone in a clean environment"
    environment=$work/clean-$minor
    clean "$interpreter" -m venv "$environment"
    # From wheels only: no compiler is asked for.
    time clean "$environment/bin/python" -m pip install --quiet --only-binary :all: "$wheel"
    clean "$environment/bin/python" -m pip check
    [[ $(clean "$environment/bin/ladder-opt" --version) == "ladder-opt $version" ]] ||
        fail "ladder-opt --version does not say $version"
    clean "$environment/bin/python" -c 'import importlib.util as found, sys
sys.exit(bool(found.find_spec("torch") or found.find_spec("vllm")))' || fail "the core brings torch or vllm"
    clean "$environment/bin/ladder-opt" trace synth --requests 2000 --seed 1 -o trace.parquet >/dev/null
    clean "$environment/bin/ladder-opt" tune trace.parquet -o plan.json | head -1
    clean "$environment/bin/ladder-opt" check plan.json >/dev/null
    clean "$environment/bin/ladder-opt" report plan.json -o report.html 2>"$work/told" && fail "report needs no extra"
    grep -q "expected it (pip install 'ladder-opt\[report\]')" "$work/told" || fail "report does not name its extra"
    step "Python $minor: its report, with the extras"
    clean "$interpreter" -m venv "$work/extras-$minor"
    clean "$work/extras-$minor/bin/python" -m pip install --quiet --only-binary :all: "$wheel[report,frames]"
    clean "$work/extras-$minor/bin/ladder-opt" report plan.json -o report.html --frontier-time 0s
    rm "$work"/home/{trace.parquet,plan.json,report.html}
done

for minor in $(sed -n 's/.*"Programming Language :: Python :: \(3\.[0-9]*\)".*/\1/p' pyproject.toml); do
    [[ " ${resolved[*]} " != *" $minor "* ]] || continue
    step "Python $minor: wheels for all dependencies, resolved only"
    "$tools/bin/python" -m pip install --quiet --dry-run --ignore-installed --target "$work/none" \
        --python-version "$minor" --only-binary :all: "$wheel"
done

step "SBOM of the core, as installed from the wheel"
bill=$built/ladder_opt-$version.cdx.json
# The environment's own tools are no part of what is installed.
core=$work/clean-${resolved[0]}
clean "$core/bin/python" -m pip uninstall --quiet --yes pip setuptools
# It reads a version that stands there, not the one that the build looks up.
sed "s/^dynamic = \[\"version\"\]$/version = \"$version\"/" pyproject.toml >"$work/pyproject.toml"
"$tools/bin/cyclonedx-py" environment --output-reproducible --pyproject "$work/pyproject.toml" \
    --mc-type library --output-file "$bill" "$core/bin/python"
"$tools/bin/python" -m scripts.check_dist "$built" "$work/source"

if $with_tests; then
    step "The sdist's own tests (those that need neither vLLM nor torch), in a clean environment"
    mkdir "$work/unpacked"
    tar -xf "$sdist" -C "$work/unpacked" --strip-components 1
    clean "$python" -m venv "$work/tests"
    clean "$work/tests/bin/python" -m pip install --quiet \
        --constraint "$work/unpacked/requirements/constraints-test.txt" "$work/unpacked[test]"
    clean bash -c 'cd "$0" && exec "$@"' "$work/unpacked" "$work/tests/bin/python" -m pytest -q "${pytest_args[@]}"
fi

step "Notes"
notes=$built/release-notes.md
if grep -q "^## $version " CHANGELOG.md; then
    awk -v heading="## $version " 'index($0, heading) == 1 { shown = 1; print; next } /^## / { shown = 0 } shown' \
        CHANGELOG.md >"$notes"
    [[ -z $(git ls-files 'changelog.d/[0-9]*.md') ]] ||
        fail "CHANGELOG.md has version $version and changelog.d still has fragments"
else
    "$tools/bin/towncrier" build --draft --version "$version" 2>/dev/null >"$notes"
    echo "  a draft: CHANGELOG.md has no version $version yet"
fi

(cd "$built" && sha256sum -- *.whl *.tar.gz *.json *.md >SHA256SUMS)
rm -rf dist
mv "$built" dist
step "Done; nothing is published"
cat dist/SHA256SUMS
