/** What changes, as it happens: one stream a tab, and everything is asked again after each gap. */
import { signal } from "./vendor/signals.mjs";
import { Failure, isOffline, look, send, session } from "./net.mjs";

export const liveState = signal(/** @type {"live" | "reconnecting" | "off"} */ ("off"));
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
let settle = () => {};
/** Settled once the stream is open, or has failed to open: what is loaded after that misses no change. */
export const opened = new Promise((done) => { settle = () => done(undefined); });
/** Whether something was loaded that the stream, when it opens, says nothing of. */
let isGap = false;

async function stream() {
  let wait = 500;
  setTimeout(giveUp, 1_000);
  while (session.value !== null) {
    open = new AbortController();
    try {
      const answer = await send("GET", "/api/v1/approvals/events", { background: true, signal: open.signal });
      liveState.value = "live";
      wait = 500;
      const isFirst = !isGap;
      isGap = true;
      settle();
      if (!isFirst) changed();
      await read(/** @type {ReadableStream<Uint8Array>} */ (answer.body), isFirst);
    } catch (problem) {
      if (problem instanceof Failure && [403, 404].includes(problem.status)) wait = 10_000; // no right to it, or no such list
    }
    giveUp();
    liveState.value = "reconnecting";
    if (session.value !== null) await new Promise((done) => setTimeout(done, wait));
    wait = Math.min(wait * 2, 4_000);
  }
  liveState.value = "off";
}

/** What is loaded from now on may miss a change before the stream opens: it is loaded again then. */
function giveUp() {
  isGap = true;
  settle();
}

/**
 * Each event is a change. Those before ": live" are what waited when the stream opened, which the first load has, too.
 * Where workers send one stream each, the second begins with ": approvals" again: from then on every event counts.
 * @param {ReadableStream<Uint8Array>} body @param {boolean} isBeginning
 */
async function read(body, isBeginning) {
  const reader = body.getReader(), decoder = new TextDecoder();
  let rest = "", begun = 0;
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    const lines = (rest + decoder.decode(part.value, { stream: true })).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) {
      if (line === ": approvals") isBeginning &&= ++begun === 1;
      else if (line === ": live") isBeginning = false;
      else if (line.startsWith("data:") && !isBeginning) changed();
    }
  }
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
let wasOffline = false;
isOffline.subscribe((off) => {
  if (wasOffline && !off) changed();
  wasOffline = off;
});
