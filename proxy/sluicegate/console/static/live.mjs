/** What changes, as it happens: one stream a tab, and everything is asked again after each gap. */
import { signal } from "./vendor/signals.mjs";
import { Failure, isOffline, look, send, session } from "./net.mjs";

/** @type {{value: "live" | "reconnecting" | "off"}} */
export const liveState = signal("off");
/** Seconds, for countdowns; ticks once a second while the page is looked at. */
export const now = signal(Date.now());

/** @type {Set<() => void>} */
const listeners = new Set();
let isWaiting = false;

/** Calls `listener` when something may have changed. @param {() => void} listener @returns {() => void} */
export function onChange(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** At most four times a second, however many events come. */
function changed() {
  if (isWaiting) return;
  isWaiting = true;
  setTimeout(() => {
    isWaiting = false;
    for (const listener of [...listeners]) listener();
  }, 250);
}

/** @type {AbortController | null} */
let open = null;

async function stream() {
  let wait = 500;
  while (session.value !== null) {
    open = new AbortController();
    try {
      const answer = await send("GET", "/api/v1/approvals/events", { background: true, signal: open.signal });
      liveState.value = "live";
      wait = 500;
      changed();
      const reader = /** @type {ReadableStream<Uint8Array>} */ (answer.body).getReader();
      for (let part = await reader.read(); !part.done; part = await reader.read()) {
        if (part.value.includes(100)) changed(); // a "d": of data, not the ":" that only keeps the stream alive
      }
    } catch (problem) {
      if (problem instanceof Failure && [403, 404].includes(problem.status)) wait = 10_000; // no right to it, or no such list
    }
    liveState.value = "reconnecting";
    if (session.value !== null) await new Promise((done) => setTimeout(done, wait));
    wait = Math.min(wait * 2, 4_000);
  }
  liveState.value = "off";
}

let isStreaming = false;
session.subscribe((who) => {
  if (who !== null && !isStreaming) {
    isStreaming = true;
    void stream().finally(() => { isStreaming = false; });
  }
  if (who === null) open?.abort();
});

setInterval(() => { if (!document.hidden) now.value = Date.now(); }, 1000);
// Hidden or not: who may no longer look must not go on looking. A tab that sleeps is asked when it wakes.
setInterval(() => { if (session.value !== null) void look(); }, 4000);
// What no event tells is asked for now and then.
setInterval(() => { if (session.value !== null && !document.hidden) changed(); }, 5000);
document.addEventListener("visibilitychange", () => {
  if (document.hidden) return;
  now.value = Date.now();
  void look();
  changed();
});
isOffline.subscribe((off) => { if (!off) changed(); });
