/** How the page asks Sluice: the second half of the session, errors, and what a region shows meanwhile. */
import { signal } from "./vendor/signals.mjs";

/** @typedef {{principal: string, way: "link" | "key", seconds_left: number, step_up_seconds: number}} Session */

const KEY = "sluice.page";
export const session = signal(/** @type {Session | null} */ (null));
/** Whether the page knows yet who is there. */
export const isStarted = signal(false);
/** When Sluice answered last; 0: it never did. */
export const answeredAt = signal(0);
export const isOffline = signal(false);
/** By how many milliseconds the browser's clock is behind Sluice's. A second or two is what the answers cannot tell. */
export const skew = signal(0);
const UNTOLD = 2_000, SLOW = 5_000;
/** The time as Sluice has it: what ends, ends by that. */
export const serverTime = () => Date.now() + skew.value;
/** What a failed step-up asks for: the way, and what is done once it went well. */
export const stepUp = signal(/** @type {null | {name: string, why: string, done: () => void}} */ (null));

export class Failure extends Error {
  /** @param {number} status @param {string} text @param {any} body */
  constructor(status, text, body = {}) {
    super(text);
    this.status = status;
    this.body = body;
  }
}

/**
 * @param {string} method @param {string} path
 * @param {{body?: any, background?: boolean, signal?: AbortSignal, last?: string}} [options]
 * @returns {Promise<Response>}
 */
export async function send(method, path, { body, background = false, signal: abort, last = "" } = {}) {
  const headers = /** @type {Record<string, string>} */ ({ "X-Sluice-Page": localStorage.getItem(KEY) ?? "" });
  if (last) headers["Last-Event-ID"] = last;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (background) headers["X-Sluice-Background"] = "1";
  const began = Date.now();
  let answer;
  try {
    answer = await fetch(path, {
      method, headers, body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store", credentials: "same-origin", redirect: "error", signal: abort,
    });
  } catch (problem) {
    if (abort?.aborted) throw problem;
    isOffline.value = true;
    throw new Failure(0, "Sluice does not answer.");
  }
  isOffline.value = false;
  const ahead = Date.parse(answer.headers.get("Date") ?? "") - Date.now();
  // An answer that lay there while the machine slept says nothing of now.
  if (Date.now() - began < SLOW && Math.abs(ahead - skew.value) > UNTOLD) skew.value = Math.abs(ahead) > UNTOLD ? ahead : 0;
  answeredAt.value = serverTime();
  if (answer.ok) return answer;
  const told = await answer.json().catch(() => ({}));
  if (answer.status === 401 && path !== "/console/session/step-up" && method + path !== "POST/console/session" && headers["X-Sluice-Page"] === (localStorage.getItem(KEY) ?? "")) forget(); // others came meanwhile
  throw new Failure(answer.status, told.error ?? `Sluice answered ${answer.status}.`, told);
}

/** @param {string} path @param {boolean} [background] @returns {Promise<any>} */
export const get = async (path, background = false) => (await send("GET", path, { background })).json();
/** A number that JavaScript would round stays as it is written. */
const exact = (/** @type {string} */ _, /** @type {any} */ value, /** @type {any} */ context) =>
  typeof value === "number" && !Number.isSafeInteger(value) && (Number.isInteger(value) || !Number.isFinite(value)) && context && "rawJSON" in JSON
    ? /** @type {any} */ (JSON).rawJSON(context.source) : value;
/** @param {string} path @param {boolean} [background] @returns {Promise<any>} */
export const getExactly = async (path, background = false) => JSON.parse(await (await send("GET", path, { background })).text(), /** @type {any} */ (exact));
/** @param {string} path @param {any} [body] @returns {Promise<any>} */
export const post = async (path, body = {}) => (await send("POST", path, { body })).json();

/** Nobody is logged in any more: what was shown goes. */
export function forget() {
  localStorage.removeItem(KEY);
  if (session.value === null) return;
  isStarted.value = false; // what is typed into a login of this document would be lost with it
  session.value = null;
  location.reload(); // nothing that this person saw stays in memory
}

/** @param {any} told */
function begin(told) {
  localStorage.setItem(KEY, told.page_key);
  delete told.page_key;
  session.value = told;
}

/** With the code of a link or with a key. @param {{code: string} | {key: string}} body */
export const logIn = async (body) => begin(await post("/console/session", body));
/** @param {{key: string} | {name: string}} body */
export const confirmIdentity = async (body) => begin(await post("/console/session/step-up", body));

/** Does what may need a step-up first: `name` and `why` are for that. @param {{name: string, why: string}} about @param {() => Promise<any>} run @param {(problem: string) => void} say */
export async function withStepUp(about, run, say) {
  await run().catch((failure) => {
    if (!failure.body?.step_up) throw failure;
    stepUp.value = { ...about, done: () => void run().catch((problem) => say(problem.message)) };
  });
}

/** @param {boolean} everywhere */
export async function logOut(everywhere) {
  try {
    await send("DELETE", everywhere ? "/console/sessions" : "/console/session");
  } finally {
    forget();
  }
}

/** Whether the session goes on: asked every few seconds, so that a revoked key's tab ends. @param {boolean} background */
export async function look(background = true) {
  if (localStorage.getItem(KEY) === null) return forget();
  try {
    session.value = await get("/console/session", background);
  } catch (problem) {
    if (!(problem instanceof Failure) || problem.status === 401) return;
  }
}

/** Starts: a link's code is posted, and leaves the address before anything else happens. */
export async function start() {
  const code = new URLSearchParams(location.hash.slice(1)).get("code");
  if (code !== null) {
    history.replaceState(null, "", location.pathname + location.search);
    try {
      await logIn({ code });
    } catch (problem) {
      startProblem.value = /** @type {Error} */ (problem).message;
    }
  } else {
    await look(false);
  }
  isStarted.value = true;
}
export const startProblem = signal("");

/**
 * What a region shows: its data, or why there is none. After a failure the old data stays, and is called stale.
 */
export class Resource {
  /** @param {string | ((background: boolean) => Promise<any>)} path or what asks @param {string} rows the list that comes by pages, if one does
   * @param {number[]} alsoFine statuses whose body is an answer, too
   * @param {string[] | null} topics that it is loaded again for; null: as its path says */
  constructor(path, rows = "", alsoFine = [], topics = null) {
    this.path = path;
    this.rows = rows;
    this.pages = 1;
    this.alsoFine = alsoFine;
    this.topics = topics;
    this.data = signal(/** @type {any} */ (null));
    this.failure = signal(/** @type {Failure | null} */ (null));
    this.at = signal(0);
    this.turn = 0;
    this.begun = /** @type {Promise<void> | null} */ (null);
  }

  /** Regions that show the same and ask at once ask once. */
  load(background = true) {
    if (this.begun === null) {
      this.begun = this.ask(background);
      queueMicrotask(() => { this.begun = null; });
    }
    return this.begun;
  }

  /** @param {boolean} background */
  async ask(background) {
    const turn = ++this.turn;
    try {
      const data = await (typeof this.path === "string" ? get(this.path, background) : this.path(background)).catch((problem) => {
        if (problem instanceof Failure && this.alsoFine.includes(problem.status)) return problem.body;
        throw problem;
      });
      for (let page = 1; page < this.pages && data.next; page++) {
        const older = await get(`${this.path}&before=${encodeURIComponent(data.next)}`, background);
        data[this.rows].unshift(...older[this.rows]);
        data.next = older.next;
      }
      if (turn !== this.turn) return;
      this.data.value = data;
      this.failure.value = null;
      this.at.value = serverTime();
    } catch (problem) {
      if (turn === this.turn && problem instanceof Failure) this.failure.value = problem;
      if (problem instanceof Failure && problem.status === 403) this.data.value = null;
    }
  }

  /** Older rows as well, now and whenever it is loaded. */
  async more() {
    this.pages++;
    await this.load(false);
  }
}

window.addEventListener("storage", (event) => event.key === KEY && void look());
window.addEventListener("pageshow", (event) => event.persisted && location.reload());
