#!/usr/bin/env bash
# Repeats, from the logs of `make test`, the lines with which the test runners closed: once more, all together, at
# the end of the output, where a person or a CI looks. Fails when a runner left no such line.
set -euo pipefail
logs=$1

printf '\n== closing lines ==\n'
grep -hE '^test result: ' "$logs/cargo-test.log"
grep -hE '^=+ .*(passed|failed|error).* in [0-9.]+s' "$logs/pytest.log" | tail -n 1
