#!/bin/bash
# Stands for ssh where launchers start programs on other hosts: rsh.sh [options] <10.77.0.N or hostN> command….
while [[ "$1" == -* ]]; do [[ "$1" == -[lpioF] ]] && shift; shift; done
number=${1##*[!0-9]}; shift
exec "$(dirname "$0")/in_host.sh" "$number" "$*"
