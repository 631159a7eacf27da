/** What changes, as it happens: one stream a tab, and everything is asked again after each gap. */
import { signal } from "./vendor/signals.mjs";
import { Failure, isOffline, look, send, serverTime, session, skew } from "./net.mjs";

export const liveState = signal(/** @type {"live" | "reconnecting" | "off"} */ ("off"));
/** Sluice's time, for countdowns; ticks once a second while the page is looked at. */
export const now = signal(Date.now());
skew.subscribe(() => { now.value = serverTime(); });

const listeners = /** @type {Map<(isEvent: boolean) => void, string[]>} */ (new Map());
/** Topics that have changed and of which nobody knows yet. @type {Set<string>} */
let news = new Set();
const ANY = "any", ROUTINE = "routine"; // an unknown change; none that is known of, but it is time to ask

/** Calls `listener` with true when something of these topics changed, or any may have; with false now and then. @param {(isEvent: boolean) => void} listener @param {string[]} topics @returns {() => void} */
export function onChange(listener, topics) {
  listeners.set(listener, topics);
  return () => listeners.delete(listener);
}

/** At most four times a second, however many events come. @param {string} [topic] */
function changed(topic = ROUTINE) {
  if (news.add(topic).size > 1) return;
  setTimeout(() => {
    const told = news;
    news = new Set();
    for (const [listener, topics] of [...listeners]) {
      const isEvent = [ANY, ...topics].some((one) => told.has(one));
      if (isEvent || told.has(ROUTINE)) listener(isEvent);
    }
  }, 250);
}

let open = /** @type {AbortController | null} */ (null);
let settle = () => {};
/** Settled once the stream is open, or has failed to open: what is loaded after that misses no change. */
export const opened = new Promise((done) => { settle = () => done(undefined); });
/** Whether something was loaded that the stream, when it opens, says nothing of. */
let isGap = false;

const SILENCE = 40_000; // Sluice says something every 15 seconds, and no connection says that its other end is gone
let silence = 0;

/** Something was heard. */
function heard() {
  clearTimeout(silence);
  silence = setTimeout(() => {
    last = ""; // what was missed is not known: everything is asked for again
    open?.abort();
  }, SILENCE);
}

async function stream() {
  let wait = 500;
  setTimeout(giveUp, 1_000);
  while (session.value !== null) {
    open = new AbortController();
    heard();
    try {
      const answer = await send("GET", "/api/v1/events", { background: true, signal: open.signal, last });
      liveState.value = "live";
      wait = 500;
      if (isGap && !last) changed(ANY);
      isGap = true;
      settle();
      await read(/** @type {ReadableStream<Uint8Array>} */ (answer.body));
    } catch (problem) {
      if (problem instanceof Failure && [403, 404].includes(problem.status)) wait = 10_000; // no right to it, or no such list
    }
    clearTimeout(silence);
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

/** The id of the newest event: the next stream begins with what came after it. */
let last = "";

/**
 * Each event names a topic that has changed. After `reset` any may have; `open` is the beginning.
 * @param {ReadableStream<Uint8Array>} body
 */
async function read(body) {
  const reader = body.getReader(), decoder = new TextDecoder();
  let rest = "", name = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    heard();
    const lines = (rest + decoder.decode(part.value, { stream: true })).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) {
      if (line.startsWith("event: ")) name = line.slice(7);
      else if (line.startsWith("id: ")) last = line.slice(4);
      else if (line.startsWith("data:") && name !== "open") changed(name === "reset" ? ANY : name);
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

setInterval(() => { if (!document.hidden) now.value = serverTime(); }, 1000);
// Hidden or not: who may no longer look must not go on looking. A tab that sleeps is asked when it wakes.
setInterval(() => { if (session.value !== null) void look(); }, 4000);
// What no event tells is asked for now and then.
setInterval(() => { if (session.value !== null && !document.hidden) changed(); }, 5000);
document.addEventListener("visibilitychange", () => {
  if (document.hidden) return;
  now.value = serverTime();
  void look();
  changed();
});
let wasOffline = false;
isOffline.subscribe((off) => { if (wasOffline && !off) changed(); wasOffline = off; });
