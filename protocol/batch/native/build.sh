#!/bin/sh
# Compile walk.c for every platform, with a compiler that gives the same bytes on every machine:
#   pip install ziglang==0.17.0; protocol/batch/native/build.sh [PYTHON [DIRECTORY]]
set -eu
here=$(dirname "$0")
python=${1:-python3} into=${2:-$here}
for target in x86_64-linux aarch64-linux x86_64-darwin aarch64-darwin; do
    machine=${target%-*} system=${target#*-}
    case $system in # a library for macOS contains its own name
        linux) triple=$machine-linux-musl name= ;;
        darwin) triple=$machine-macos name=-Wl,-install_name,walk.so ;;
    esac
    "$python" -m ziglang cc -target "$triple" -std=c11 -O2 -g0 -Wall -Wextra -Werror -fPIC -shared \
        -ffreestanding -nostdlib -fno-sanitize=undefined -fno-stack-protector -Wl,-s $name \
        -o "$into/walk-$system-$machine.so" "$here/walk.c"
done
