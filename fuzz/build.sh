#!/bin/bash -eu
# Called by OSS-Fuzz, in the folder of the sources: a program and a corpus for each fuzzer, in $OUT.
pip3 install --require-hashes -r requirements/run.lock
pip3 install --no-deps .
for fuzzer in fuzz/*_fuzzer.py; do
  name=$(basename -s .py "$fuzzer")
  PYTHONPATH=. compile_python_fuzzer "$fuzzer"
  (cd "fuzz/corpus/${name%_fuzzer}" && zip -q "$OUT/${name}_seed_corpus.zip" ./*)
done
