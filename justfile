# Recipes for longer things; `./try` and `./test` need no `just`.

set shell := ["bash", "-euo", "pipefail", "-c"]

target := env("CARGO_TARGET_DIR", justfile_directory() / "target")
tools := env("SWITCHBOARD_TOOLS", justfile_directory() / ".tools")

_default:
    @just --list

# Place a call to the scripted agent
try *ARGS:
    ./try {{ ARGS }}

# Run all tests, or those that the arguments name
test *ARGS:
    ./test {{ ARGS }}

# Everything that has to pass
ci:
    .ci/run

# Format and lint
check:
    cargo fmt --all
    cargo clippy --workspace --all-targets --locked -- -D warnings

# Everything that is claimed about cost: floors, ours and peers, in tables and charts in bench/results/; `just bench --quick` only tries it
bench MODE="--save":
    cargo build --release --locked -p switchboard -p bench
    SWITCHBOARD_TOOLS={{ tools }} scripts/peers-install || echo "those that could not be installed are left out"
    {{ target }}/release/bench supervisor {{ MODE }}
    {{ target }}/release/bench library {{ MODE }}
    SWITCHBOARD_TOOLS={{ tools }} {{ target }}/release/bench serving --peers {{ MODE }}

# Measure the supervisor against its floors and keep the table
bench-supervisor *ARGS:
    cargo build --release --locked -p switchboard -p bench
    {{ target }}/release/bench supervisor --save {{ ARGS }}

# Measure what a sandbox adds to a run and keep the table
bench-sandbox *ARGS:
    cargo build --release --locked -p switchboard -p bench
    {{ target }}/release/bench sandbox --save {{ ARGS }}

# What becomes of a call when something goes wrong, for ours and for every peer that can be installed: one table, kept
faults *ARGS:
    cargo build --release --locked -p switchboard -p bench
    SWITCHBOARD_TOOLS={{ tools }} scripts/peers-install || echo "those that could not be installed are left out"
    SWITCHBOARD_TOOLS={{ tools }} {{ target }}/release/bench faults --save {{ ARGS }}

# Four hosts, random faults and random kills of the daemon for so many minutes; fails when something was that must not be
soak MINUTES="3" *ARGS:
    cargo build --release --locked -p switchboard -p bench
    {{ target }}/release/bench soak --save --minutes {{ MINUTES }} {{ ARGS }}

# Count the instructions of the hot paths and print what has changed; `--keep` makes them the baseline
instructions *ARGS:
    scripts/valgrind || true
    cargo build --release --locked -p switchboard -p bench
    {{ target }}/release/bench instructions {{ ARGS }}

# Simulate many daemons on one database and keep tables and charts; needs nothing but this
scale *ARGS:
    cargo run --release --locked -p bench --bin bench -- scale --save {{ ARGS }}

# The supervisor's fault tests over and over: a campaign for races
races-supervisor ROUNDS="20":
    for round in $(seq {{ ROUNDS }}); do echo "round $round of {{ ROUNDS }}"; ./test -p supervisor; done

# Measure the file verbs against cat and ripgrep and keep the table
bench-file-tools *ARGS:
    cargo build --release --locked -p switchboard -p bench
    {{ target }}/release/bench file-tools --save {{ ARGS }}

# Measure a call through the MCP server against a plain spawn, with the other servers beside it, and keep the table
bench-serving *ARGS:
    cargo build --release --locked -p switchboard -p bench
    SWITCHBOARD_TOOLS={{ tools }} scripts/peers-install || echo "those that could not be installed are left out"
    SWITCHBOARD_TOOLS={{ tools }} {{ target }}/release/bench serving --save --peers {{ ARGS }}

# Measure the web page with 10,000 jobs against a page that does nothing, and keep the table
bench-page *ARGS:
    cargo build --release --locked -p switchboard -p bench
    {{ target }}/release/bench page --save {{ ARGS }}

# Measure `switchboard recover` with 10,000 jobs, and keep the table
bench-recover *ARGS:
    cargo build --release --locked -p switchboard -p bench
    {{ target }}/release/bench recover --save {{ ARGS }}

# Swap folders for links under the file verbs for so many seconds, and try so many odd paths
escapes SECONDS="3" PATHS="100000":
    FILE_TOOLS_RACE_SECONDS={{ SECONDS }} cargo test --release --locked -p file-tools --test tools -- --nocapture no_swap
    FILE_TOOLS_PATHS={{ PATHS }} cargo test --release --locked -p file-tools --test tools -- --nocapture no_path_whatever

# Let confined runs swap, link and rename in a shared repository for so many minutes while others start there, and have each of those try to break out; as root, once more as an ordinary user
attack MINUTES="5":
    ATTACK_SECONDS=$(( {{ MINUTES }} * 60 )) cargo test --release --locked -p supervisor --test confined -- --nocapture run_beside_swapping_runs

# Fuzz the paths of the file verbs; gets what it needs (a nightly compiler, cargo-fuzz) where it is missing
fuzz-paths SECONDS="60" *ARGS:
    rustup toolchain list | grep -q '^nightly' || rustup toolchain install nightly --profile minimal
    [ -x {{ tools }}/bin/cargo-fuzz ] || cargo install cargo-fuzz --version 0.13.2 --locked --root {{ tools }}
    cd crates/file-tools && PATH="{{ tools }}/bin:$PATH" cargo +nightly fuzz run paths {{ ARGS }} -- -max_total_time={{ SECONDS }} -print_final_stats=1

# Record the terminal of the README anew
picture:
    cargo build --release --locked -p switchboard
    scripts/terminal-picture {{ target }}/release

# Record the transcripts of the real CLIs anew, or with `-- --check` tell what drifted
record *ARGS:
    scripts/record {{ ARGS }}

# Kill a writer of the store at random moments, many times over
crashes ROUNDS="200":
    STORE_CRASH_ROUNDS={{ ROUNDS }} ./test -p store confirmed_writes_survive_sigkill

# The store's races on SurrealDB at their full size
races:
    scripts/surreal-server
    for race in surreal::thirty_two surreal::cancel_racing; do STORE_WHOLE_RACES=1 cargo test -p store --test store -- "$race"; done

# The store's suite on SurrealDB within the process; the first build takes ten minutes and more
embedded *ARGS:
    cargo test --locked -p store --features surreal-embedded --lib
    cargo test --locked -p store --features surreal-embedded --test store -- embedded {{ ARGS }}

# A thousand requests through the provider library, one after another: memory and files must not grow
requests COUNT="1000":
    PROVIDER_REQUESTS={{ COUNT }} cargo test -p provider --test it -- a_long_row --nocapture

# Measure the store against plain rusqlite, on the disk and in memory, and a SurrealDB server beside it; keep the tables
bench-store *ARGS:
    scripts/surreal-server
    cargo bench --locked -p store --bench store -- --save --work {{ target }} --work /dev/shm {{ ARGS }}

# Kills the daemon 100 times while 20 calls run, once below the desk and once below real hosts, and drains 1,000 queued jobs.
kills:
    NEXTEST_PROFILE=campaign CALLS_KILLS=100 CALLS_QUEUED=1000 ./test -p calls
    NEXTEST_PROFILE=campaign CALLS_KILLS=100 ./test -p switchboard --test e2e kills
