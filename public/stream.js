// One stream a browser, shared between its tabs: HTTP/1.1 allows six connections to a host, and a seventh tab would hang.
// The tab that holds the lock listens and tells the others; when it closes, the next one takes over.
const channel = new BroadcastChannel("svcforge");
const tell = (message) => dispatchEvent(new CustomEvent("svcforge", { detail: `${message.kind} ${message.what ?? ""}` }));
const all = (message) => { channel.postMessage(message); tell(message); };
const RETRY_MS = 3000;

let source;
function open(missed) {
  source = new EventSource("/api/v1/stream");
  source.onopen = () => {
    all({ kind: "open" });
    if (missed) all({ kind: "changed", what: "reset" });
    missed = false;
  };
  source.onerror = () => {
    all({ kind: "lost" });
    // The browser reconnects by itself, with Last-Event-ID; only a refused stream stays closed.
    if (source.readyState === EventSource.CLOSED) setTimeout(open, RETRY_MS, true);
  };
  source.addEventListener("changed", (e) => { const { topic, id } = JSON.parse(e.data); all({ kind: "changed", what: `${topic}:${id}` }); });
  source.addEventListener("reset", () => all({ kind: "changed", what: "reset" }));
}
function lead(first) {
  // What happened between two leaders is unknown.
  open(!first);
  return new Promise(() => {});
}

channel.onmessage = ({ data }) => {
  if (data.kind === "hello") { if (source) channel.postMessage({ kind: source.readyState === EventSource.OPEN ? "open" : "lost" }); } else tell(data);
};
channel.postMessage({ kind: "hello" });
if (navigator.locks) {
  const free = await navigator.locks.request("svcforge-stream", { ifAvailable: true }, (lock) => { if (!lock) return false; void navigator.locks.request("svcforge-stream", () => lead(true)); return true; });
  if (!free) void navigator.locks.request("svcforge-stream", () => lead(false));
} else lead(true);
