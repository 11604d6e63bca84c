#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Several point-servers behind twemproxy: examples/cluster/run.sh, which checks itself. Exit status 77 without nutcracker.
set -euo pipefail
exec "$(dirname "${BASH_SOURCE[0]}")/../../examples/cluster/run.sh" --keys 600
