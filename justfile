# Recipes for longer tasks; `./try` and `./test` need no `just`.

set shell := ["bash", "-euo", "pipefail", "-c"]

target := env("CARGO_TARGET_DIR", justfile_directory() / "target")
tools := env("SWITCHBOARD_TOOLS", justfile_directory() / ".tools")

_default:
    @just --list

# Place a call to the scripted agent
try *ARGS:
    ./try {{ ARGS }}

# Run all tests, or the selected ones
test *ARGS:
    ./test {{ ARGS }}

# Run all checks
ci:
    .ci/run

# Format and lint
check:
    cargo fmt --all
    cargo clippy --workspace --all-targets --locked -- -D warnings

# Measure all costs against baselines and peers, with tables and charts in bench/results/; `just bench --quick` only tries it
bench MODE="--save":
    cargo build --release --locked -p switchboard -p bench
    SWITCHBOARD_TOOLS={{ tools }} scripts/peers-install || echo "those that could not be installed are left out"
    {{ target }}/release/bench supervisor {{ MODE }}
    {{ target }}/release/bench library {{ MODE }}
    SWITCHBOARD_TOOLS={{ tools }} {{ target }}/release/bench serving --peers {{ MODE }}

# Measure the supervisor against its baselines and save the table
bench-supervisor *ARGS:
    cargo build --release --locked -p switchboard -p bench
    {{ target }}/release/bench supervisor --save {{ ARGS }}

# Measure the cost of a sandbox and save the table
bench-sandbox *ARGS:
    cargo build --release --locked -p switchboard -p bench
    {{ target }}/release/bench sandbox --save {{ ARGS }}

# Measure the snapshots of changes against `git status` and save the table
bench-changes *ARGS:
    cargo build --release --locked -p switchboard -p bench
    {{ target }}/release/bench changes --save {{ ARGS }}

# Inject faults into ours and every installable peer, and save the table of outcomes
faults *ARGS:
    cargo build --release --locked -p switchboard -p bench
    SWITCHBOARD_TOOLS={{ tools }} scripts/peers-install || echo "those that could not be installed are left out"
    SWITCHBOARD_TOOLS={{ tools }} {{ target }}/release/bench faults --save {{ ARGS }}

# Run random faults and daemon kills with four hosts; fails if an invariant is violated
soak MINUTES="3" *ARGS:
    cargo build --release --locked -p switchboard -p bench
    {{ target }}/release/bench soak --save --minutes {{ MINUTES }} {{ ARGS }}

# Count the instructions of the hot paths and compare with the baseline; `--keep` replaces it
instructions *ARGS:
    scripts/valgrind || true
    cargo build --release --locked -p switchboard -p bench
    {{ target }}/release/bench instructions {{ ARGS }}

# Simulate many daemons on one database and save tables and charts
scale *ARGS:
    cargo run --release --locked -p bench --bin bench -- scale --save {{ ARGS }}

# Repeat the supervisor's fault tests, to find races
races-supervisor ROUNDS="20":
    for round in $(seq {{ ROUNDS }}); do echo "round $round of {{ ROUNDS }}"; ./test -p supervisor; done

# Measure the file operations against cat and ripgrep and save the table
bench-file-tools *ARGS:
    cargo build --release --locked -p switchboard -p bench
    {{ target }}/release/bench file-tools --save {{ ARGS }}

# Measure a call through the MCP server against a plain spawn and other servers, and save the table
bench-serving *ARGS:
    cargo build --release --locked -p switchboard -p bench
    SWITCHBOARD_TOOLS={{ tools }} scripts/peers-install || echo "those that could not be installed are left out"
    SWITCHBOARD_TOOLS={{ tools }} {{ target }}/release/bench serving --save --peers {{ ARGS }}

# Measure the web page with 10,000 jobs against an empty page, and save the table
bench-page *ARGS:
    cargo build --release --locked -p switchboard -p bench
    {{ target }}/release/bench page --save {{ ARGS }}

# Measure `switchboard recover` with 10,000 jobs, and save the table
bench-recover *ARGS:
    cargo build --release --locked -p switchboard -p bench
    {{ target }}/release/bench recover --save {{ ARGS }}

# Swap directories for links during file operations, and try odd paths
escapes SECONDS="3" PATHS="100000":
    FILE_TOOLS_RACE_SECONDS={{ SECONDS }} cargo test --release --locked -p file-tools --test tools -- --nocapture no_swap
    FILE_TOOLS_PATHS={{ PATHS }} cargo test --release --locked -p file-tools --test tools -- --nocapture no_path_whatever

# Attack the sandbox: confined runs swap, link and rename in a shared repository while others start there and try to escape
attack MINUTES="5":
    ATTACK_SECONDS=$(( {{ MINUTES }} * 60 )) cargo test --release --locked -p supervisor --test confined -- --nocapture run_beside_swapping_runs

# Fuzz the paths of the file operations; installs a nightly compiler and cargo-fuzz if they are missing
fuzz-paths SECONDS="60" *ARGS:
    rustup toolchain list | grep -q '^nightly' || rustup toolchain install nightly --profile minimal
    [ -x {{ tools }}/bin/cargo-fuzz ] || cargo install cargo-fuzz --version 0.13.2 --locked --root {{ tools }}
    cd crates/file-tools && PATH="{{ tools }}/bin:$PATH" cargo +nightly fuzz run paths {{ ARGS }} -- -max_total_time={{ SECONDS }} -print_final_stats=1

# Record the terminal picture of the README
picture:
    cargo build --release --locked -p switchboard
    scripts/terminal-picture {{ target }}/release

# Record the transcripts of the real CLIs, or with `-- --check` report differences
record *ARGS:
    scripts/record {{ ARGS }}

# Kill a writer of the store at random moments
crashes ROUNDS="200":
    STORE_CRASH_ROUNDS={{ ROUNDS }} ./test -p store confirmed_writes_survive_sigkill

# Run the store's races on SurrealDB at full size
races:
    scripts/surreal-server
    for race in surreal::thirty_two surreal::cancel_racing; do STORE_WHOLE_RACES=1 cargo test -p store --test store -- "$race"; done

# Run the store's suite on embedded SurrealDB; the first build takes over ten minutes
embedded *ARGS:
    cargo test --locked -p store --features surreal-embedded --lib
    cargo test --locked -p store --features surreal-embedded --test store -- embedded {{ ARGS }}

# Send a thousand sequential requests through the provider library: memory and files must not grow
requests COUNT="1000":
    PROVIDER_REQUESTS={{ COUNT }} cargo test -p provider --test it -- many_requests_leak --nocapture

# Measure the store against plain rusqlite, on disk and in memory, and a SurrealDB server; save the tables
bench-store *ARGS:
    scripts/surreal-server
    cargo bench --locked -p store --bench store -- --save --work {{ target }} --work /dev/shm {{ ARGS }}

# Kills the daemon 100 times while 20 calls run, once below the job service and once below real hosts, and drains 1,000 queued jobs. Kills
# daemons and supervisors in 50 races.
kills:
    NEXTEST_PROFILE=campaign CALLS_KILLS=100 CALLS_QUEUED=1000 ./test -p calls
    NEXTEST_PROFILE=campaign CALLS_KILLS=100 ./test -p switchboard --test e2e kills
    NEXTEST_PROFILE=campaign RACE_KILLS=50 ./test -p switchboard --test e2e race_kills
