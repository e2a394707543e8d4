#!/usr/bin/env bash
# Installs the C library into a folder, builds every program in tests/c and examples/c against it as
# a user does, through pkg-config, once with the shared and once with the static library, and runs
# those of tests/c against a daemon of their own. A program passes by ending with 0.
#
# PROFILE=debug tests what `cargo build` made. RGAPS_TEST_GPU=1 takes the system's CUDA driver in
# place of the test driver. Programs that are named as arguments are run, all others are not.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
tools/setup.sh base valgrind
export PROFILE=${PROFILE:-release}
built=$root/target/$PROFILE
out=$root/target/c-test
runtime=$(mktemp -d)
trap 'rm -rf "$runtime"' EXIT
rm -rf "$out" && mkdir -p "$out/bin"

PREFIX=$out/installed tools/install.sh
export PKG_CONFIG_PATH=$out/installed/lib/pkgconfig
# A package is built with DESTDIR, which is in no file.
DESTDIR=$out/package PREFIX=/usr tools/install.sh
cmp "$out/package/usr/lib/librgaps.a" "$out/installed/lib/librgaps.a"
DESTDIR=$out/package PREFIX=/usr tools/install.sh remove
if find "$out/package" ! -type d | grep .; then echo "make uninstall leaves the files above"; exit 1; fi
DESTDIR=$out/package PREFIX=/usr tools/install.sh
if grep -r "$out" "$out/package/usr/lib/pkgconfig"; then echo "DESTDIR is in rgaps.pc"; exit 1; fi

# What the shared library gives away: our functions and nothing else.
if nm -D --defined-only "$built/librgaps.so" | awk '{print $NF}' | grep -v '^rgaps_'; then
  echo "librgaps.so exports the names above, too"
  exit 1
fi

warnings=(-Wall -Wextra -Wpedantic -Werror -g -D_POSIX_C_SOURCE=200809L)
read -ra cflags <<<"$(pkg-config --cflags rgaps)"
read -ra shared <<<"$(pkg-config --libs rgaps)"
# The linker takes the shared library where it finds both, but for this spelling.
read -ra static <<<"$(pkg-config --static --libs rgaps | sed 's/-lrgaps/-l:librgaps.a/')"

# Compiles $1 with the compiler and standard behind it, linked both ways.
compile() {
  local source=$1 name
  name=$(basename "${source%.*}")
  shift
  "$@" "${warnings[@]}" "${cflags[@]}" "$source" -o "$out/bin/$name-shared" \
    "${shared[@]}" -Wl,-rpath,"$out/installed/lib" -lpthread -ldl
  "$@" "${warnings[@]}" "${cflags[@]}" "$source" -o "$out/bin/$name-static" "${static[@]}"
}

export RGAPS_DAEMON=$built/rgapsd RGAPS_IDLE_EXIT_MS=1000 RGAPS_POOL__HOST__CAP=64MiB
passed=0 failed=0
# Runs a program in the environment that it needs: with or without a CUDA driver.
run() {
  local label=$1 program=$2 environment=(RGAPS_SOCKET="$runtime/host.sock" RGAPS_CUDA_LIBRARY=/no/driver)
  shift 2
  case $program in
    */cuda-*)
      environment=(RGAPS_SOCKET="$runtime/cuda.sock")
      if [ -z "${RGAPS_TEST_GPU:-}" ]; then
        environment+=(RGAPS_CUDA_LIBRARY="$built/librgaps_test_driver.so" RGAPS_TEST_DRIVER_DELAY_US=2000)
      fi ;;
  esac
  if env "${environment[@]}" timeout 300 "$@" "$program"; then
    passed=$((passed + 1))
    echo "ok $label"
  else
    failed=$((failed + 1))
    echo "FAILED $label"
  fi
}

for source in examples/c/*.c; do compile "$source" cc -std=c99; done
for source in tests/c/*.c tests/c/*.cpp; do
  name=$(basename "${source%.*}")
  [ $# -eq 0 ] || [[ " $* " = *" $name "* ]] || continue
  case $source in
    *.c) compile "$source" cc -std=c99 ;;
    *.cpp) compile "$source" c++ -std=c++11 ;;
  esac
  run "$name-shared" "$out/bin/$name-shared"
  run "$name-static" "$out/bin/$name-static"
done

# Handles, samples and messages under memcheck: nothing read after it was freed, nothing lost.
if [ $# -eq 0 ]; then
  for name in samples errors; do
    run "$name under valgrind" "$out/bin/$name-shared" valgrind --quiet --error-exitcode=9 \
      --leak-check=full --errors-for-leak-kinds=definite --show-leak-kinds=definite
  done
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
