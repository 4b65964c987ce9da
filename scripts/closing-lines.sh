#!/usr/bin/env bash
# Repeats the closing lines of the test runners from the logs of `make test`, so that they end the output. Fails
# if a runner has left no such line.
set -euo pipefail
logs=$1

printf '\n== closing lines ==\n'
grep -hE '^test result: ' "$logs/cargo-test.log"
for log in pytest pytest-suite; do
  grep -hE '^=+ .*(passed|failed|error).* in [0-9.]+s' "$logs/$log.log" | tail -n 1
done
