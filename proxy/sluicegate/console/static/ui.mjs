/** What all pages are made of. Text of peers goes through `Peer` or `Lines`, and is never markup. */
import { Fragment, h } from "./vendor/preact.mjs";
import { useEffect, useRef, useState } from "./vendor/hooks.mjs";
import { signal } from "./vendor/signals.mjs";
import htm from "./vendor/htm.mjs";
import { confirmIdentity, stepUp, session } from "./net.mjs";
import { now, onChange, opened } from "./live.mjs";

export const html = htm.bind(h);
export { Fragment };

const HIDDEN = /[\p{C}\p{Zl}\p{Zp}\u115F\u1160\u3164\uFFA0\u034F\u17B4\u17B5\u2800\uFE00-\uFE0F\u{E0100}-\u{E01EF}]/gu;

/** The text with everything named that nobody would see. Python did so already where a person decides. */
export const visible = (/** @type {unknown} */ text) =>
  String(text ?? "").replace(HIDDEN, (char) =>
    `⟨U+${/** @type {number} */ (char.codePointAt(0)).toString(16).toUpperCase().padStart(4, "0")}⟩`);

/** One line that somebody else wrote. */
export const Peer = ({ text, class: name = "" }) => html`<bdi class=${`peer ${name}`} dir="ltr">${visible(text)}</bdi>`;

/** Many lines that somebody else wrote; `marks`: those of a comparison. */
export function Lines({ lines, marks = false, label }) {
  return html`<pre class="lines" tabindex="0" role="region" aria-label=${label} dir="ltr">${lines.map((line) => {
    const kind = !marks ? "" : line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : "";
    return html`<span class=${`line ${kind}`}>${visible(line)}${"\n"}</span>`;
  })}</pre>`;
}

/** Words for what came out, each with a shape of its own, so that colour is never alone. */
const VERDICTS = {
  good: ["✓", "approved consumed allow up accepted ready live ok closed"],
  wait: ["◔", "pending partially_approved ask starting reconnecting half-open new waiting login_needed"],
  bad: ["✕", "denied deny down error BROKEN disabled open withheld changed"],
  off: ["–", "expired cancelled superseded off unknown"],
};
const WORDS = { partially_approved: "partly approved", consumed: "approved, used", open: "circuit open", login_needed: "login needed" };

export function Verdict({ word, tone = "" }) {
  const found = tone || Object.keys(VERDICTS).find((one) => VERDICTS[one][1].split(" ").includes(word)) || "off";
  return html`<span class=${`verdict ${found}`}><span class="shape" aria-hidden="true">${VERDICTS[found][0]}</span>${
    visible(WORDS[word] ?? word)}</span>`;
}

const CLASSES = { read: "good", write: "wait", destroy: "bad" };
export const ToolClass = ({ word }) =>
  html`<span class=${`class ${CLASSES[word] ?? "off"}`} title="What the tool does, as the policy classes it">${visible(word || "unclassed")}</span>`;

export const plural = (/** @type {number} */ count, /** @type {string} */ one, many = `${one}s`) =>
  `${count.toLocaleString("en")} ${count === 1 ? one : many}`;

/** @param {number} seconds */
export function span(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 3600) return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
  return whole < 172800 ? `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min` : `${Math.floor(whole / 86400)} days`;
}
export const ago = (/** @type {string} */ stamp) => {
  const seconds = (now.value - Date.parse(stamp)) / 1000;
  return Number.isNaN(seconds) ? "" : seconds < 5 ? "now" : seconds < 60 ? `${Math.round(seconds)} s ago` : `${seconds < 3600 ? `${Math.floor(seconds / 60)} min` : span(seconds)} ago`;
};
export const clock = (/** @type {string | number} */ at) =>
  new Date(at).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
export const Time = ({ at }) => html`<time datetime=${at} title=${at}>${clock(at)}</time>`;

/** @param {number | null | undefined} bytes */
export const size = (bytes) =>
  bytes == null ? "" : bytes < 1024 ? `${bytes} B` : bytes < 1048576 ? `${(bytes / 1024).toFixed(1)} KB` : `${(bytes / 1048576).toFixed(1)} MB`;

/** How many seconds each had left when it was last looked at. @type {Map<string, number>} */
const leftOf = new Map();

/** Says once that little time is left, however many places show it, and however late. @param {string} id @param {string} label @param {number} left */
function warn(id, label, left) {
  const before = leftOf.get(id) ?? 0;
  if ([60, 10].some((mark) => before > mark && left <= mark) && left > 0) spoken.value = `${label}: ${plural(left, "second")} left`;
  if (left > 0) leftOf.set(id, left);
  else leftOf.delete(id);
}

/** How long something has to run, said aloud when no more than 60 and 10 seconds are left. @param {{id: string, until: string, label: string}} props */
export function Countdown({ id, until, label }) {
  const left = Math.round((Date.parse(until) - now.value) / 1000);
  useEffect(() => warn(id, label, left), [id, left]);
  return html`<span class=${`countdown ${left < 60 ? "soon" : ""}`}>${left > 0 ? `${span(left)} left` : "over"}</span>`;
}

const TOPICS = { approvals: ["approval"], grants: ["approval"], servers: ["server"], status: ["server", "policy"], calls: ["call"], pins: ["pin", "server"],
  tools: ["pin", "server", "policy"], prompts: ["pin", "server", "policy"], resources: ["pin", "server", "policy"] };
/** Of which topics a list is. @param {any} path */
const topicsOf = (path) => TOPICS[typeof path === "string" ? path.split(/[/?]/)[3] : ""] ?? ["approval", "server", "pin", "policy"];

/** Loads a resource, again at each change, while its region is shown. @param {import("./net.mjs").Resource} resource */
export function useLive(resource) {
  useEffect(() => {
    let isShown = true;
    void opened.then(() => { if (isShown) void resource.load(); });
    const leave = onChange((isEvent) => { if (!isEvent || resource.failure.value?.status !== 403) void resource.load(); }, resource.topics ?? topicsOf(resource.path));
    return () => { isShown = false; leave(); };
  }, [resource]);
}

/**
 * One region: loading, failed, without the right, empty, or its content; old content stays under a failure, as stale.
 * @param {{resource: any, empty?: any, isEmpty?: (data: any) => boolean, children: (data: any) => any, title: string}} props
 */
export function Region({ resource, title, empty, isEmpty = () => false, children }) {
  const data = resource.data.value, failure = resource.failure.value;
  const [isSlow, setSlow] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setSlow(true), 300);
    return () => clearTimeout(timer);
  }, []);
  if (failure?.status === 403) return html`<${NoRight} text=${failure.message} title=${title} />`;
  if (data === null && failure !== null) return html`<${Problem} failure=${failure} title=${title} retry=${() => resource.load(false)} />`;
  if (data === null) return html`<div class="skeleton" aria-busy="true" aria-label=${`${title}: loading`}>${isSlow && html`<i /><i /><i />`}</div>`;
  const stale = failure && html`<p class="note bad" role="status">${failure.message} What you see is of ${clock(resource.at.value)}.
    ${" "}<button class="link" onClick=${() => resource.load(false)}>Try again</button></p>`;
  const notes = [...(data.notes ?? []), ...(data.incomplete ?? []).map((/** @type {string} */ why) => `Incomplete: ${why}.`)];
  return html`<${Fragment}>${stale}${notes.map((note) => html`<p class="note wait"><${Peer} text=${note} /></p>`)}${
    isEmpty(data) ? html`<div class="empty">${empty}</div>` : children(data)}<//>`;
}

export function NoRight({ text, title }) {
  const [why, row] = text.split("; a row gives it: ");
  return html`<div class="empty no-right"><h3>No right to see this</h3><p>${title}: <${Peer} text=${why} />.</p>
    ${row && html`<p>This row in the policy grants it:</p><${Lines} lines=${[row]} label="The row that grants it" />`}</div>`;
}

function Problem({ failure, title, retry }) {
  const why = failure.status === 404 ? "This Sluice does not have it." : failure.message;
  return html`<div class="empty problem" role="alert"><h3>${title} could not be loaded</h3><p><${Peer} text=${why} /></p>
    <button onClick=${retry}>Try again</button></div>`;
}

/** What a person asks Sluice for: one request at a time, how the last one failed, and whether one runs. */
export function useRequest() {
  const [failure, setFailure] = useState(/** @type {any} */ (null)), [isBusy, setBusy] = useState(false);
  const run = async (/** @type {() => Promise<any>} */ what) => {
    setBusy(true);
    setFailure(null);
    await what().catch(setFailure);
    setBusy(false);
  };
  return { run, failure, isBusy, reset: () => setFailure(null) };
}

/**
 * Asks once more before something is done; closes when it is done, says why when it was not.
 * @param {{title: any, action: string, run: () => Promise<any>, onClose: () => void, children?: any}} props
 */
export function Confirm({ title, action, run, onClose, children }) {
  const box = useRef(null), request = useRequest();
  useEffect(() => /** @type {any} */ (box.current)?.showModal(), []);
  const submit = (/** @type {any} */ event) => {
    event.preventDefault();
    void request.run(async () => { await run(); onClose(); });
  };
  return html`<dialog ref=${box} onClose=${onClose} aria-labelledby="confirm"><form onSubmit=${submit}><h2 id="confirm">${title}</h2>${children}
    ${request.failure && html`<p class="note bad" role="alert"><${Peer} text=${request.failure.message} /></p>`}
    <div class="actions"><button type="button" autofocus onClick=${onClose}>Cancel</button><button class="main" disabled=${request.isBusy}>${action}</button></div></form></dialog>`;
}

/** Asks for the key again, or for the name of what it is about. */
export function StepUp() {
  const asked = stepUp.value, box = useRef(null), { run, failure, reset } = useRequest();
  useEffect(() => {
    if (asked) /** @type {any} */ (box.current)?.showModal();
  }, [asked]);
  if (!asked) return null;
  const isKey = session.value?.way === "key";
  const close = () => { stepUp.value = null; reset(); };
  const submit = (/** @type {any} */ event) => {
    event.preventDefault();
    const value = event.target.elements.word.value.trim();
    void run(async () => {
      if (!isKey && value !== asked.name) throw new Error("That is not its name.");
      await confirmIdentity(isKey ? { key: value } : { name: value });
      close();
      asked.done();
    });
  };
  return html`<dialog ref=${box} onClose=${close} aria-labelledby="step-up"><form onSubmit=${submit}>
    <h2 id="step-up">Is it still you?</h2>
    <p>${isKey ? `Paste your key once more: ${asked.why}.` : html`Type <b><${Peer} text=${asked.name} /></b> to go on: ${asked.why}.`}</p>
    <label>${isKey ? "Client key" : "Its name"}<input name="word" type=${isKey ? "password" : "text"} autocomplete="off" required /></label>
    ${failure && html`<p class="note bad" role="alert">${failure.message}</p>`}
    <div class="actions"><button type="button" onClick=${close}>Cancel</button><button class="main">Continue</button></div></form></dialog>`;
}

/** What is said to a screen reader once. */
export const spoken = signal("");
