# Sourced by ./dev: every check, with its times; the last line counts what ran.

long=; case " $* " in *" --long "*) long=1;; esac
passed=0 failed=0 broken=
# What failed must fit into the log.
export RUST_BACKTRACE=0
work=$(mktemp -d "${TMPDIR:-/tmp}/svcforge-test.XXXXXX")
# Postgres runs as another user when we are root: it must be able to reach its data.
chmod 0711 "$work"
bed= running=

finish() {
  local code=$?
  set +e
  # By their ids, nothing else's. A suite is a process group: what its tests have started ends with it.
  [ -n "$running" ] && { kill -- "-$running" 2>/dev/null; wait "$running" 2>/dev/null; }
  [ -n "$bed" ] && { kill "$bed" 2>/dev/null; wait "$bed" 2>/dev/null; }
  rm -rf "$work"
  exit "$code"
}
trap finish EXIT
trap 'exit 130' INT TERM

# check NAME COMMAND…: a check without tests of its own.
check() {
  local name=$1; shift
  say "$name"
  if "$@" >"$work/check.log" 2>&1; then passed=$((passed + 1)); else
    failed=$((failed + 1)); broken="$broken\n  $name"; tail -60 "$work/check.log"
  fi
}
# suite NAME COMMAND…: cargo's and node's runners say how many tests ran.
suite() {
  local name=$1 log=$work/suite.log p f; shift
  say "$name"
  set -m; "$@" >"$log" 2>&1 & running=$!; set +m
  wait "$running" && local ok=1 || local ok=
  running=
  p=$(awk '/^test result:/{s+=$4} /^# pass /{s+=$3} END{print s+0}' "$log")
  f=$(awk '/^test result:/{s+=$6} /^# fail /{s+=$3} END{print s+0}' "$log")
  [ -n "$ok" ] || [ "$f" -gt 0 ] || f=1
  [ "$p" -gt 0 ] || [ "$f" -gt 0 ] || { f=1; echo "$name ran no test"; }
  [ "$f" = 0 ] || { broken="$broken\n  $name"; grep -vE '^test .* ok$|^ok ' "$log" | tail -120; }
  passed=$((passed + p)) failed=$((failed + f))
  say "$name: $p passed, $f failed"
}

queries() {
  # The macros write what they checked against a migrated database; it must be what is committed.
  mkdir -p "$work/sqlx"
  touch server/src/lib.rs
  SQLX_OFFLINE=false SQLX_OFFLINE_DIR=$work/sqlx DATABASE_URL=$SVCFORGE_TEST_PG \
    cargo clippy --quiet -p svcforge --lib -- -D warnings
  if [ -n "${SQLX_WRITE:-}" ]; then rm -rf .sqlx; mkdir .sqlx; cp "$work"/sqlx/*.json .sqlx/; fi
  diff -rq "$work/sqlx" .sqlx || { echo "run: SQLX_WRITE=1 ./dev test"; return 1; }
}
charts() {
  local chart values
  for chart in deploy/catalog/*/chart; do
    values=$chart/ci/values.yaml
    "$plane/helm" lint --quiet --strict -f "$values" "$chart" && "$plane/helm" template x -f "$values" "$chart" >/dev/null || return 1
  done
}
browser_size() {
  local bytes; bytes=$(cat "$site"/pkg/svcforge_bg.wasm "$site"/pkg/svcforge.js | node -e 'const c=[];process.stdin.on("data",d=>c.push(d)).on("end",()=>console.log(require("zlib").brotliCompressSync(Buffer.concat(c)).length))')
  echo "browser bundle: $bytes bytes brotli"
  [ "$bytes" -lt 340000 ]
}

base
need "Chromium" chromium chromium_bin
control_plane
say "building"
# The database that queries are checked against is the testbed's: offline first.
cargo build --quiet -p svcforge || die "svcforge does not build"
bundle
say "starting the testbed"
"$CARGO_TARGET_DIR/debug/svcforge" testbed --dir "$work/bed" --local-bin "$plane" >"$work/bed.log" 2>&1 &
bed=$!
for _ in $(seq 600); do [ -e "$work/bed/env" ] && break; kill -0 "$bed" 2>/dev/null || break; sleep 0.1; done
[ -e "$work/bed/env" ] || { cat "$work/bed.log"; die "the testbed did not start"; }
. "$work/bed/env"
SVCFORGE_PG_DSN=$SVCFORGE_TEST_PG "$CARGO_TARGET_DIR/debug/svcforge" migrate >/dev/null

check "format" cargo fmt --all --check
check "lints" cargo clippy --quiet --workspace --exclude svcforge-hydrate --all-targets -- -D warnings
check "queries" queries
check "catalog" "$CARGO_TARGET_DIR/debug/svcforge" catalog check deploy/catalog
check "charts" charts
check "browser bundle size" browser_size
suite "unit" cargo test --quiet --workspace --exclude svcforge-hydrate --lib --bins --no-fail-fast
# What needs no cluster waits more than it works, and runs beside each other; the others share one cluster, and race with clocks.
cluster="cluster:: controller:: faults:: killed:: telemetry:: q10_"
it() { cargo test --quiet -p svcforge --test it --no-fail-fast -- "$@"; }
suite "integration" it --test-threads=$((2 * $(nproc))) $(printf -- '--skip %s ' $cluster)
suite "integration with a cluster" it $cluster
# end2end FILE…: in a browser, against an `up` of their own.
end2end() {
  rm -rf "$work/end2end"; mkdir "$work/end2end"
  cp end2end/*.mjs "$work/end2end/"; ln -s "$npm_dir/node_modules" "$work/end2end/node_modules"
  SVCFORGE_E2E_BIN=$CARGO_TARGET_DIR/debug/svcforge SVCFORGE_E2E_PLANE=$plane SVCFORGE_E2E_SITE=$site SVCFORGE_E2E_CATALOG=$root/deploy/catalog \
    SVCFORGE_E2E_DIR=$work/up SVCFORGE_E2E_SHOTS=${SVCFORGE_SHOTS:-$work/shots} \
    node --test --test-reporter=tap --test-concurrency=1 "${@/#/$work/end2end/}"
}
suite "browser" end2end portal.test.mjs

if [ -n "$long" ]; then
  # R10 wants a clock that is wrong.
  need "faketime" faketime have faketime
  SVCFORGE_TEST_FAKETIME=$(ls /usr/lib/*/faketime/libfaketimeMT.so.1 | head -1); export SVCFORGE_TEST_FAKETIME
  # The bar's counts.
  suite "faults, the bar's counts" env SVCFORGE_LONG=1 cargo test --quiet -p svcforge --test it --no-fail-fast -- faults::outage faults::watches faults::workers faults::clocks killed:: rollouts::clock nothing_starts_while_halted
  suite "a rollout by hand" end2end rollout.long.mjs
  pgbouncer
  suite "behind PgBouncer" env SVCFORGE_TEST_PGBOUNCER="$pgbouncer" cargo test --quiet -p svcforge --test it -- pooler::
  helm3
  suite "integration with Helm 3" env SVCFORGE_TEST_HELM="$helm3" cargo test --quiet -p svcforge --test it --no-fail-fast -- cluster:: drift_cluster::
  # From three seeds.
  for seed in 1 2 3; do
    suite "a long mix, seed $seed" env SVCFORGE_MIX_SEED=$seed SVCFORGE_MIX_S="${SVCFORGE_MIX_S:-300}" cargo test --quiet -p svcforge --test it -- a_seeded_mix
  done
fi

say "done"
[ -z "$broken" ] || printf 'failed:%b\n' "$broken"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] || exit 1
exit 0
