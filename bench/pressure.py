#!/usr/bin/env python3
"""Measures what clients that misbehave cost the daemon, and the call of another client meanwhile.

usage: bench/pressure.py DIRECTORY-OF-THE-EXECUTABLES [SCENARIO…]

Prints one line of JSON to a scenario: memory (RSS, in KiB) of the daemon before, at its peak, and after the clients have left, and how
long another client waits for `tools/list` meanwhile (milliseconds).
"""
import json, os, select, socket, subprocess, sys, tempfile, time

REQUESTS = int(os.environ.get("REQUESTS", "20000"))
SESSIONS = int(os.environ.get("SESSIONS", "3000"))
HALVES = int(os.environ.get("HALVES", "384"))


def rss(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def request(number, method, params=None):
    message = {"jsonrpc": "2.0", "id": number, "method": method}
    return json.dumps(message | ({"params": params} if params is not None else {}))


def call(number, tool, **arguments):
    return request(number, "tools/call", {"name": tool, "arguments": arguments})


def introduction(number=0):
    about = {"name": "pressure", "version": "1"}
    return request(number, "initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": about})


INITIALIZED = '{"jsonrpc":"2.0","method":"notifications/initialized"}'


class Daemon:
    def __init__(self, bin):
        self.home = tempfile.TemporaryDirectory(prefix="pressure.")
        with open(f"{self.home.name}/config.toml", "w") as config:
            config.write("rehearsal = true\n[sandbox]\npolicy = \"off\"\n")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.environment = os.environ | {"SWITCHBOARD_HOME": self.home.name}
        self.bin = bin
        self.process = subprocess.Popen(
            [f"{bin}/switchboard", "serve", "--http", f"127.0.0.1:{self.port}"],
            env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.pid = self.process.pid
        while True:
            try:
                self.socket_path = next(
                    os.path.join(at, name) for at, _, names in os.walk(self.home.name) for name in names if name.endswith(".sock"))
                socket.create_connection(("127.0.0.1", self.port)).close()
                break
            except (StopIteration, OSError):
                time.sleep(0.05)
        tokens = [os.path.join(at, name) for at, _, names in os.walk(self.home.name) for name in names if "token" in name]
        self.token = open(tokens[0]).read().strip()

    def connect(self):
        stream = socket.socket(socket.AF_UNIX)
        stream.connect(self.socket_path)
        hello = {"protocol": 2, "version": "0.1.0", "role": "mcp", "cwd": "/tmp", "pid": os.getpid(), "environment": {}}
        return Client(stream, {"switchboard": hello})

    def http(self):
        stream = socket.create_connection(("127.0.0.1", self.port))
        stream.settimeout(300)
        return stream

    def head(self, length, session=None, token=True, method="POST"):
        lines = [f"{method} /mcp HTTP/1.1", f"Host: 127.0.0.1:{self.port}", "Content-Type: application/json",
                 "Accept: application/json, text/event-stream", f"Content-Length: {length}"]
        lines += [f"Authorization: Bearer {self.token}"] if token else []
        lines += [f"Mcp-Session-Id: {session}"] if session else []
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    def post(self, stream, body, session=None):
        stream.sendall(self.head(len(body), session) + body.encode())
        return read_response(stream)

    def stop(self):
        subprocess.run([f"{self.bin}/switchboard", "stop", "--cancel"], env=self.environment, stdout=subprocess.DEVNULL)
        self.process.wait()
        self.home.cleanup()


def read_response(stream):
    """Reads a response of any kind; returns its head and its body."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = stream.recv(65536)
        if not piece:
            return data.decode(), ""
        data += piece
    head, body = data.split(b"\r\n\r\n", 1)
    head = head.decode()
    if "chunked" in head.lower():
        while not body.endswith(b"0\r\n\r\n"):
            body += stream.recv(65536)
    else:
        length = next((int(line.split(":")[1]) for line in head.lower().split("\r\n") if line.startswith("content-length")), 0)
        while len(body) < length:
            body += stream.recv(65536)
    return head, body.decode()


class Client:
    """A client of the daemon's socket, or of a bridge."""

    def __init__(self, stream, hello=None):
        self.stream, self.lines = stream, stream.makefile("r")
        if hello:
            self.say(json.dumps(hello))
            self.lines.readline()
        self.say(introduction())
        self.lines.readline()
        self.say(INITIALIZED)

    def say(self, line):
        self.stream.sendall((line + "\n").encode())

    def ask(self, line):
        self.say(line)
        return json.loads(self.lines.readline())

    def latency(self, number=1):
        start = time.monotonic()
        self.ask(request(number, "tools/list"))
        return (time.monotonic() - start) * 1000


class Watch:
    """Memory of some processes, and how long another client waits."""

    def __init__(self, daemon, pids):
        self.daemon, self.pids = daemon, pids
        self.other = daemon.connect()
        self.other.latency()
        self.before = [rss(pid) for pid in pids]
        self.peak, self.waits = list(self.before), []

    def look(self):
        self.peak = [max(peak, rss(pid)) for peak, pid in zip(self.peak, self.pids)]
        self.waits.append(self.other.latency())

    def report(self, name, **more):
        waits = sorted(self.waits)
        after = [rss(pid) if os.path.exists(f"/proc/{pid}/status") else None for pid in self.pids]
        print(json.dumps({"scenario": name, "before": self.before, "peak": self.peak, "after": after,
                          "other_median_ms": round(waits[len(waits) // 2], 1), "other_max_ms": round(waits[-1], 1)} | more), flush=True)


def flood(descriptor, lines, watch, patience=4):
    """Writes lines without reading, until all are written or none is taken for a while. Returns how many were written whole."""
    data = memoryview("".join(line + "\n" for line in lines).encode())
    os.set_blocking(descriptor, False)
    written, last = 0, time.monotonic()
    while written < len(data) and time.monotonic() - last < patience:
        watch.look()
        if select.select([], [descriptor], [], 0.2)[1]:
            try:
                written += os.write(descriptor, data[written : written + 65536])
                last = time.monotonic()
            except BlockingIOError:
                pass
    settled, peak = time.monotonic() + patience, watch.peak[0]
    while time.monotonic() < settled:
        watch.look()
        if watch.peak[0] > peak + 1024:
            settled, peak = time.monotonic() + patience, watch.peak[0]
        time.sleep(0.05)
    return bytes(data[:written]).count(b"\n")


def kinds(daemon):
    other = daemon.connect()
    placed = other.ask(call(1, "call_rehearsal", prompt="@rehearse hang", fire_and_forget=True))
    job = placed["result"]["structuredContent"]["job_id"]
    return {
        "ping": lambda number: request(number, "ping"),
        "list": lambda number: request(number, "tools/list"),
        "status": lambda number: call(number, "call_status", job_id=job),
        "wait": lambda number: call(number, "call_wait", job_ids=[job]),
        "submit": lambda number: call(number, "call_rehearsal", prompt="x", fire_and_forget=True),
    }


def unread(daemon, kind=None):
    made = kinds(daemon)
    mix = [made[kind]] if kind else [made["ping"], made["list"], made["status"], made["wait"]]
    client = daemon.connect()
    watch = Watch(daemon, [daemon.pid])
    written = flood(client.stream.fileno(), [mix[n % len(mix)](n + 1) for n in range(REQUESTS)], watch)
    client.stream.close(), client.lines.close()
    settle(watch)
    watch.report(f"unread {kind or 'mix'}", written=written)


def settle(watch):
    until = time.monotonic() + 8
    while time.monotonic() < until:
        time.sleep(0.2)


def bridge_unread(daemon):
    bridge = subprocess.Popen([f"{daemon.bin}/switchboard", "mcp"], env=daemon.environment,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    mix = [made for name, made in kinds(daemon).items() if name != "submit"]
    bridge.stdin.write((introduction() + "\n" + INITIALIZED + "\n").encode())
    bridge.stdin.flush()
    bridge.stdout.readline()
    watch = Watch(daemon, [daemon.pid, bridge.pid])
    written = flood(bridge.stdin.fileno(), [mix[n % len(mix)](n + 1) for n in range(REQUESTS)], watch)
    peak = watch.peak
    bridge.kill(), bridge.wait()
    settle(watch)
    watch.peak = peak
    watch.report("bridge unread", written=written)


def connections(daemon):
    watch = Watch(daemon, [daemon.pid])
    clients = [daemon.connect() for _ in range(200)]
    watch.look()
    watch.report("200 idle connections", each_kib=round((watch.peak[0] - watch.before[0]) / 200, 1))
    del clients


def sessions(daemon):
    watch = Watch(daemon, [daemon.pid])
    stream, made, refused = daemon.http(), [], 0
    for number in range(SESSIONS):
        head, _ = daemon.post(stream, introduction())
        session = next((line.split(": ")[1] for line in head.split("\r\n") if line.lower().startswith("mcp-session-id")), None)
        if session:
            made.append(session)
            daemon.post(stream, INITIALIZED, session)
        else:
            refused += 1
        if number % 50 == 0:
            watch.look()
    watch.look()
    first, _ = daemon.post(stream, request(5, "ping"), made[0])
    newest, _ = daemon.post(stream, request(5, "ping"), made[-1])
    settle(watch)
    watch.report("http sessions", made=len(made), refused=refused, first=first.split("\r\n")[0], newest=newest.split("\r\n")[0])


def halves(daemon, name, half):
    watch = Watch(daemon, [daemon.pid])
    streams = []
    for _ in range(HALVES):
        stream = socket.socket()
        stream.setblocking(False)
        stream.connect_ex(("127.0.0.1", daemon.port))
        streams.append(stream)
    for stream in streams:
        try:
            select.select([], [stream], [], 1)
            stream.send(half)
        except OSError:
            pass
    start = time.monotonic()
    try:
        with daemon.http() as other:
            other.settimeout(90)
            head, _ = daemon.post(other, introduction())
        answer = head.split("\r\n")[0]
    except OSError as error:
        answer = f"none: {error}"
    watch.look()
    waited = (time.monotonic() - start) * 1000
    for stream in streams:
        stream.close()
    settle(watch)
    watch.report(name, http_answer=answer, http_ms=round(waited, 1))


def http_unread(daemon):
    """Slow readers: each asks for `tools/list` many times on one connection, and reads nothing."""
    watch, streams = Watch(daemon, [daemon.pid]), []
    with daemon.http() as first:
        head, _ = daemon.post(first, introduction())
        session = next(line.split(": ")[1] for line in head.split("\r\n") if line.lower().startswith("mcp-session-id"))
        daemon.post(first, INITIALIZED, session)
    for number in range(100):
        stream = daemon.http()
        stream.setblocking(False)
        bodies = [request(number * 1000 + n, "tools/list") for n in range(200)]
        try:
            stream.send(b"".join(daemon.head(len(body), session) + body.encode() for body in bodies))
        except OSError:
            pass
        streams.append(stream)
        watch.look()
    for _ in range(50):
        watch.look()
        time.sleep(0.05)
    for stream in streams:
        stream.close()
    settle(watch)
    watch.report("http unread")


def http_abandoned(daemon, kind):
    """Requests whose connections were closed: they go on in the session."""
    watch, job = Watch(daemon, [daemon.pid]), kinds(daemon)
    with daemon.http() as first:
        head, _ = daemon.post(first, introduction())
        session = next(line.split(": ")[1] for line in head.split("\r\n") if line.lower().startswith("mcp-session-id"))
        daemon.post(first, INITIALIZED, session)
    for number in range(2000):
        with daemon.http() as stream:
            body = job[kind](number + 10)
            stream.sendall(daemon.head(len(body), session) + body.encode())
            stream.recv(1000)
        if number % 50 == 0:
            watch.look()
    watch.look()
    settle(watch)
    watch.report(f"http abandoned {kind}")


def http_busy(daemon):
    """A client that reads its answers: what is kept of those that it has."""
    watch, stream = Watch(daemon, [daemon.pid]), daemon.http()
    head, _ = daemon.post(stream, introduction())
    session = next(line.split(": ")[1] for line in head.split("\r\n") if line.lower().startswith("mcp-session-id"))
    daemon.post(stream, INITIALIZED, session)
    for number in range(REQUESTS // 10):
        daemon.post(stream, request(number, "tools/list"), session)
        if number % 100 == 0:
            watch.look()
    watch.look()
    settle(watch)
    watch.report("http busy", requests=REQUESTS // 10)


SCENARIOS = {
    "connections": connections,
    "unread": unread,
    "unread-wait": lambda daemon: unread(daemon, "wait"),
    "unread-list": lambda daemon: unread(daemon, "list"),
    "unread-ping": lambda daemon: unread(daemon, "ping"),
    "unread-submit": lambda daemon: unread(daemon, "submit"),
    "bridge": bridge_unread,
    "sessions": sessions,
    "half-head": lambda daemon: halves(daemon, "half a head", b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nAuth"),
    "half-body": lambda daemon: halves(daemon, "half a body, no token", daemon.head(1000, token=False) + b"{"),
    "half-body-token": lambda daemon: halves(daemon, "half a body, token", daemon.head(1000) + b"{"),
    "http-unread": http_unread,
    "http-abandoned-wait": lambda daemon: http_abandoned(daemon, "wait"),
    "http-abandoned-list": lambda daemon: http_abandoned(daemon, "list"),
    "http-busy": http_busy,
}

if __name__ == "__main__":
    for name in sys.argv[2:] or [name for name in SCENARIOS if name != "unread-submit"]:
        daemon = Daemon(sys.argv[1])
        try:
            SCENARIOS[name](daemon)
        finally:
            daemon.stop()
