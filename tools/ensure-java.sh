#!/usr/bin/env bash
# Find Java 17 or newer, or install Debian's. Says what it does; exits 1 with the way out if it cannot.
#   (nothing)        the runtime, which Spark needs
#   --jdk            also the compiler and Maven, which tests with Kafka's Java programs need
#   --if-possible    with --jdk: if they cannot be installed it is no failure: those tests skip, and say so
set -euo pipefail

who=Spark what="Java 17 or newer" packages=openjdk-17-jre-headless brew=openjdk@17 commands=
if [ "${1:-}" = --jdk ]; then
    who="Kafka's Java programs" what="a JDK 17 or newer and Maven" packages="openjdk-17-jdk-headless maven"
    brew="openjdk@17 maven" commands="javac mvn"
fi

version() { "$1" -version 2>&1 | sed -nE '1s/.*version "([0-9]+).*/\1/p'; }

give_up() {
    echo "For $who, $1"
    [ "${2:-}" = --if-possible ] && exit 0
    exit 1
}

has_commands() {
    for name in $commands; do command -v "$name" >/dev/null 2>&1 || return 1; done
}

for java in "${JAVA_HOME:+$JAVA_HOME/bin/java}" java; do
    if [ -n "$java" ] && command -v "$java" >/dev/null 2>&1 && [ "$(version "$java")" -ge 17 ] 2>/dev/null && has_commands; then
        exit 0
    fi
done

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null && as_root=(sudo -n)
    [ ${#as_root[@]} -gt 0 ] || give_up "install $packages as root, or set JAVA_HOME." "${2:-}"
fi
if ! command -v apt-get >/dev/null 2>&1; then
    give_up "install $what with this system's package manager (macOS: brew install $brew), or set JAVA_HOME." "${2:-}"
fi
echo "installing $packages for $who ..."
"${as_root[@]}" apt-get -qq update &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $packages >/dev/null ||
    give_up "install $packages by hand: apt-get failed." "${2:-}"
